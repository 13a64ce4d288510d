"""The study `backups`: which heads stand in for one another?

Of each model and task, one half of the examples finds: the effects of single heads, the greedy primary set, the greedy
order of joint removal, the interaction matrix and its groups. The other half tests: the backups of the primary set, the
groups, the curves. The proof by freezing runs on the finding half, whose examples did not choose the backups. Tables
beside the common ones: `primary`, `backups`, `interactions`, `groups`, `freezing`, `agreement` (the first-order
estimate against the exact differences).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import Order, head_list, heads_of
from headwise.runs import Call
from headwise.scores.interactions.sets import candidates_after, redundant_groups
from headwise.studies.backups.charts import section
from headwise.studies.backups.settings import ALL, BackupsSettings
from headwise.studies.backups.steps import (
    GREEDY,
    Case,
    compare_groups,
    find_backups,
    find_order,
    find_primary,
    freeze,
    measure_matrix,
    remove_jointly,
)
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.steps import score_heads

MOST_GROUPS = 6
"""Groups that are tested, the strongest of the finding half."""


def plan(run: Run, s: BackupsSettings) -> Iterator[Call[Any]]:
    """At most: a search that ends early, or finds no backups, costs less."""
    options: dict[str, Any] = {"metric": s.metric, "reference": s.reference, "seed": s.seed}
    for pair in run.pairs():
        find, test = pair.task.halves()
        yield score_heads(pair.model, find, "ablation", **options)
        single = np.zeros((len(find), len(pair.model.heads())))
        case = Case(pair.model, find, test, single, s.metric or pair.task.metric, s.reference, s.seed)
        primary = head_list(s.primary) or some_heads(pair.model, s.primary_heads)
        named = pair.model.heads() if ALL in s.heads else head_list(s.heads)
        yield find_primary(case, head_list(s.primary), s.primary_heads)
        yield find_order(case, s.curve)
        yield find_backups(case, primary, s.candidates, s.least)
        yield measure_matrix(case, primary, s.first, named)
        yield remove_jointly(case, some_heads(pair.model, s.curve), s.draws)
        yield freeze(case, primary, primary, s.draws)
        yield compare_groups(case, [some_heads(pair.model, 3)], s.draws)


@study("Which heads stand in for one another?", BackupsSettings, section, plan)
def backups(run: Run, s: BackupsSettings) -> None:
    pairs = run.pairs([(model, task) for task in s.tasks for model in s.models])
    named = head_list(s.primary)
    matrix_heads = {
        pair: pair.model.heads() if ALL in s.heads else sorted(head_list(s.heads)) for pair in pairs
    }
    for pair in pairs:
        pair.model.check_heads([*named, *matrix_heads[pair]])
    halves = {pair: pair.task.halves() for pair in pairs}
    options: dict[str, Any] = {"metric": s.metric, "reference": s.reference, "seed": s.seed}

    cases: dict[Pair, Case] = {}
    calls: dict[Any, Call[Any]] = {
        pair: score_heads(pair.model, halves[pair][0], "ablation", **options) for pair in pairs
    }
    for pair, scored in run.all(calls, "single effects").items():
        run.tables(scored.tables(halves[pair][0]), **pair.columns)
        layers, heads = np.array(pair.model.heads()).T
        single = scored.scores.examples[:, layers, heads]
        metric = s.metric or pair.task.metric
        cases[pair] = Case(pair.model, *halves[pair], single, metric, s.reference, s.seed)

    calls = {}
    for pair, case in cases.items():
        calls[pair, "primary"] = find_primary(case, named, s.primary_heads)
        calls[pair, "order"] = find_order(case, s.curve)
    searched = run.all(calls, "primary set")
    primary: dict[Pair, Order] = {}
    for pair in pairs:
        table, order = searched[pair, "primary"], searched[pair, "order"]
        primary[pair] = heads_of(table[table["accepted"]])
        if len(table):
            run.table("primary", table.assign(**pair.columns, reference=s.reference))
        places = {"layer": [h.layer for h in order], "head": [h.head for h in order]}
        orders = pd.DataFrame({"series": GREEDY, "place": range(len(order)), **places})
        run.table("orders", orders.assign(**pair.columns))

    calls = {}
    for pair, case in cases.items():
        if primary[pair] and candidates_after(case.heads, primary[pair]):
            calls[pair, "backups"] = find_backups(case, primary[pair], s.candidates, s.least)
        calls[pair, "matrix"] = measure_matrix(case, primary[pair], s.first, matrix_heads[pair])
        calls[pair, "removal"] = remove_jointly(case, searched[pair, "order"], s.draws)
    measured = run.all(calls, "backups and pairs")
    for (pair, kind), found in measured.items():
        if kind == "matrix":
            run.table("interactions", found.table().assign(**pair.columns))
        else:
            run.table("examples", found["examples"].assign(**pair.columns))
            table = "backups" if kind == "backups" else "curves"
            run.table(table, found[table].assign(**pair.columns, reference=s.reference))
        if kind == "backups" and "agreement" in found:
            run.table("agreement", found["agreement"].assign(**pair.columns))

    calls = {}
    for pair, case in cases.items():
        if (pair, "backups") in measured:
            table = measured[pair, "backups"]["backups"]
            if reacting := heads_of(table[table["backup"]]):
                calls[pair, "freezing"] = freeze(case, primary[pair], reacting, s.draws)
        matrix, largest = measured[pair, "matrix"], float(np.abs(case.single.mean(axis=0)).max())
        if groups := redundant_groups(matrix.heads, matrix.table(), s.least * largest):
            calls[pair, "groups"] = compare_groups(case, groups[:MOST_GROUPS], s.draws)
    for (pair, table), rows in run.all(calls, "freezing and groups").items():
        run.table(table, rows.assign(**pair.columns, reference=s.reference))
