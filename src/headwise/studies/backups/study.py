"""The study `backups`: which heads stand in for one another?

Of each model and task, one half of the examples finds: the effects of single heads, the greedy primary set, the greedy
order of joint removal, the interaction matrix and its groups. The other half tests: the backups of the primary set, the
groups, the curves. The proof by freezing runs on the finding half, whose examples did not choose the backups. Tables
beside the common ones: `primary`, `backups`, `interactions`, `groups`, `freezing`, `agreement` (the first-order
estimate against the exact differences).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import Order, head_list, heads_of
from headwise.heads.head import head_columns
from headwise.runs import Call
from headwise.scores.interactions.sets import candidates_after, redundant_groups
from headwise.settings import Count, Several, Share, Text, passes
from headwise.studies.backups.section import section
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
from headwise.studies.settings import shared
from headwise.studies.steps import score_heads

ALL = "all"


def _check_head(name: str) -> None:
    if name != ALL:
        head_list([name])


class BackupsSettings(shared.TaskSettings):
    # Counted in forward rows per example of a half: single effects 270 (quick: the same), greedy steps 24 each, backups
    # 2 per candidate, pairs of `first` heads, groups and freezing about `draws` each.
    QUICK: ClassVar[dict[str, Any]] = {
        "n": 24,
        "first": 12,
        "curve": 3,
        "candidates": 24,
        "draws": 5,
        "primary_heads": 2,
    }

    n: Annotated[int, Field(ge=8)] = 64
    """Examples per task: the primary set, orders and groups are found on one half and tested on the other."""
    reference: shared.ReferenceName = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window)."""
    primary: Several[Annotated[Text, passes(head_list)]] = ()
    """Heads of the primary set, such as [L23H3]; found by the study if none is given."""
    primary_heads: Count = 4
    """Maximum size of the primary set."""
    candidates: Count | None = None
    """Number of heads tested as backups, chosen on the finding half by the first-order estimate; all by default."""
    least: Share = 0.02
    """Minimum effect size of a backup: its difference as a share of the effect of removing the primary set."""
    first: Annotated[int, Field(ge=3)] = 40
    """Number of heads in the interaction matrix, where `heads` names none."""
    heads: Several[Annotated[Text, passes(_check_head)]] = ()
    """Heads of the interaction matrix, such as [L23H3, L20H0], or [all]; by default the study chooses `first`."""
    curve: Count = 12
    """Largest number of heads removed in the curve of joint removal."""
    draws: Count = 20
    """Random draws: sets of heads of the same layers, and random orders."""

    @model_validator(mode="after")
    def _primary_set(self) -> Self:
        if ALL in self.heads and len(self.heads) > 1:
            raise HeadwiseError(f"heads is {list(self.heads)}; give {ALL} alone, or name the heads")
        for setting, names in (("primary", self.primary), ("heads", self.heads)):
            if twice := [name for index, name in enumerate(names) if name in names[:index]]:
                raise HeadwiseError(f"{setting} names {twice[0]} twice; give every head once")
        if len(self.heads) == 1 and ALL not in self.heads:
            raise HeadwiseError(f"heads names only {self.heads[0]}; an interaction needs two")
        return self


MOST_GROUPS = 6
"""Groups that are tested, the strongest of the finding half."""


def plan(run: Run, s: BackupsSettings) -> Iterator[Call[Any]]:
    """At most: a search that ends early, or finds no backups, costs less."""
    for pair in run.pairs():
        find, test = pair.task.halves()
        yield score_heads(pair.model, find, "ablation", **s.ablation)
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

    cases: dict[Pair, Case] = {}
    calls: dict[Any, Call[Any]] = {
        pair: score_heads(pair.model, halves[pair][0], "ablation", **s.ablation) for pair in pairs
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
        orders = pd.DataFrame({"series": GREEDY, "place": range(len(order)), **head_columns(order)})
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
