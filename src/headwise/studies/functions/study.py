"""The study `functions`: which heads serve which ability?

Each ability (a label of the examples) gets a map by each method. The probe reads all abilities at once; every
other method is run on one ability's examples. Tables beside the common ones: `elbows` (how many heads stand out,
and how stable they are), `overlap` (how far abilities share them), `agreement` (how far methods agree), `probe`
(how well the probe tells abilities apart, beside its controls).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import NonNegativeInt

from headwise import stats
from headwise.errors import hint
from headwise.heads import Head, Scores
from headwise.model.model import Model
from headwise.runs import Call
from headwise.scores.registry import method as method_named
from headwise.settings import Count, Several, Text
from headwise.stats.orders import elbow_count
from headwise.studies.abilities import abilities_of, check_labels_of, check_limit, score_labels, sources
from headwise.studies.base import study
from headwise.studies.functions.section import section
from headwise.studies.plan import some_heads
from headwise.studies.run import Run
from headwise.studies.settings import shared
from headwise.studies.steps import Scored, make_cards, score_heads, top_cards
from headwise.tables.frames import LEVEL
from headwise.tasks import Task


class FunctionsSettings(shared.AbilitySettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 12}

    abilities: Several[Text] = ()
    """Labels to include; by default all."""
    methods: shared.MethodNames = ("attribution", "probe")
    """Score methods (headwise list methods); each gives one map per ability."""
    n: Count | None = None
    """Maximum number of examples per ability; by default 40 of a built-in task, all of a file."""
    metric: shared.MetricName | None = None
    """Metric of the causal methods; by default the one of each task."""
    reference: shared.ReferenceName = "mean"
    """Ablation type of the causal methods: what replaces an ablated head (zero, mean, resample, patch, …)."""
    answer_tokens: Count | None = None
    """Number of answer tokens that the probe averages over, least probable first; by default all."""
    cards: NonNegativeInt = 2
    """Number of heads of each ability and causal method that get a card (head page) in the report: those with the
    largest scores. 0 for none."""

    def before_run(self) -> None:
        super().before_run()
        check_limit(self)


# ---- the study -----------------------------------------------------------------------------------


EVERY = "all"
"""What the task of a row is called where it is about all abilities together."""


@dataclass(frozen=True, eq=False)
class Case:
    """One model on the examples of each ability, by methods that suit them."""

    model: Model
    name: str
    """What the tables call the model."""
    abilities: dict[str, Task]
    methods: Sequence[str]


def plan(run: Run, s: FunctionsSettings) -> Iterator[Call[Any]]:
    cases = [_case(run, s, source) for source in s.models]
    yield from _calls(s, cases).values()
    for case in cases:
        signed = [name for name in case.methods if method_named(name).signed]
        for task in case.abilities.values() if signed and s.cards else ():
            yield make_cards(case.model, task, some_heads(case.model, s.cards * len(signed)), **s.ablation)


def _calls(s: FunctionsSettings, cases: Sequence[Case]) -> dict[tuple[Case, str, str], Call[Any]]:
    """The map of every case, method and ability."""
    calls: dict[tuple[Case, str, str], Call[Any]] = {}
    for case in cases:
        for method in case.methods:
            if method_named(method).per_label:  # one run over the examples of all abilities
                of_probe: dict[str, Any] = {"seed": s.seed, "options": {"answer_tokens": s.answer_tokens}}
                calls[case, method, EVERY] = score_labels(case.model, case.abilities, method, **of_probe)
                continue
            for ability, task in case.abilities.items():
                calls[case, method, ability] = score_heads(case.model, task, method, **s.ablation)
    return calls


@study("Which heads serve which ability?", FunctionsSettings, section, plan)
def functions(run: Run, s: FunctionsSettings) -> None:
    cases = [_case(run, s, source) for source in s.models]
    calls = _calls(s, cases)
    maps: dict[Case, dict[str, dict[str, Scored]]] = {case: {} for case in cases}
    for (case, method, ability), found in run.all(calls, "maps").items():
        by_ability = found if isinstance(found, dict) else {ability: found}
        maps[case].setdefault(method, {}).update(by_ability)

    cards = []
    for case in cases:
        for by_ability in maps[case].values():
            for ability, scored in by_ability.items():
                tables = scored.tables(case.abilities[ability]) | map_tables(scored, s.seed)
                run.tables(tables, model=case.name, task=ability)
            run.table("overlap", overlap_rows(by_ability).assign(model=case.name))
            if all("accuracy" in scored.scores.details for scored in by_ability.values()):
                run.table("probe", probe_rows(by_ability).assign(model=case.name))
        for ability, task in case.abilities.items():
            by_method = [by_ability[ability] for by_ability in maps[case].values()]
            if len(by_method) > 1:
                run.table("agreement", agreement_rows(by_method).assign(model=case.name))
            # Only a signed score measures an effect of the head, which is what a card explains.
            effects = [scored.table for scored in by_method if scored.scores.signed]
            columns = {"model": case.name, "task": ability}
            cards.append((columns, top_cards(case.model, task, effects, s.cards, **s.ablation)))
    run.add_cards(cards)


def _case(run: Run, s: FunctionsSettings, source: str) -> Case:
    """A model and its abilities; with one ability, only the methods that need no second one to compare with."""
    model, name = run.model(source), run.display_name(source)
    abilities = abilities_of(s, run.bench, model)
    suited = [method for method in s.methods if len(abilities) > 1 or not method_named(method).per_label]
    check_labels_of(suited or s.methods, abilities, ", ".join(sources(s)))
    if left_out := [method for method in s.methods if method not in suited]:
        run.say(
            f"left out {', '.join(left_out)} for {name}: it distinguishes abilities, and there is only one; give "
            f"{hint('columns', {'label': 'NAME'})} if a column has the ability"
        )
    return Case(model, name, abilities, suited)


# ---- from scores to tables -----------------------------------------------------------------------------


def elbow_heads(scores: Scores) -> set[Head]:
    """The heads before the elbow; largest absolute score first, ties by place."""
    return set(scores.top(elbow_count(scores.values), by="absolute"))


def significant_heads(table: pd.DataFrame) -> int | None:
    """How many heads of one map have q < .05; None for a score without a sign, which has no test."""
    return None if table["q"].isna().all() else int((table["q"] < LEVEL).sum())


def map_tables(scored: Scored, seed: int) -> dict[str, pd.DataFrame]:
    """The scores of one map with their signs, and its elbow."""
    scores, table = scored.scores, scored.table
    heads, count, signs = scores.heads(), elbow_count(scores.values), scores.details.get("signs")
    # The probe's score is a size; its sign is kept beside it.
    sign = [signs[h.layer][h.head] if signs else pd.NA for h in heads]
    stable = float("nan")
    if count:
        stable = stats.stability(scores.examples, count, groups=scores.groups, seed=seed, absolute=True)
    elbow = {"model": scores.model, "task": scores.task, "method": scores.method, "heads": count}
    elbow |= {"of": len(heads), "significant": significant_heads(table), "stability": stable, "n": scores.n}
    return {
        "scores": table.assign(sign=pd.array(sign, dtype="Int8")),
        "elbows": pd.DataFrame([elbow]).astype({"significant": "Int32"}),
    }


def probe_rows(maps: Mapping[str, Scored]) -> pd.DataFrame:
    """How well the probe tells abilities apart: over all of them, then the accuracy of each ability."""
    every = next(iter(maps.values())).scores
    floats = ("accuracy", "lo", "hi", "chance", "shuffled", "shuffled_lo", "shuffled_hi", "bag_of_words")
    counts = ("trained_on", "stopped_by", "classes", "epochs")
    rows = [{"model": every.model, "task": EVERY, **{name: every.details[name] for name in floats}}]
    rows[0] |= {"n": every.details["tested_on"], **{name: every.details[name] for name in counts}}
    for ability, scored in maps.items():
        scores = scored.scores
        accuracy = {"accuracy": scores.details["own_accuracy"], "n": scores.n}
        rows.append({"model": scores.model, "task": ability, **accuracy})
    return pd.DataFrame(rows).astype(
        dict.fromkeys(("n", *counts), "Int32") | dict.fromkeys(floats, "float64")
    )


def overlap_rows(maps: Mapping[str, Scored]) -> pd.DataFrame:
    """Of one method, a row per pair of abilities: Jaccard index of their elbow heads, beside that of chance."""
    rows = []
    sets = {ability: elbow_heads(scored.scores) for ability, scored in maps.items()}
    for a, b in product(maps, repeat=2):
        scores = maps[a].scores
        total = len(scores.heads())
        shared = len(sets[a]) * len(sets[b]) / total
        together = len(sets[a]) + len(sets[b]) - shared
        row: dict[str, Any] = {"model": scores.model, "method": scores.method, "task": a, "other": b}
        # Two abilities without an elbow have nothing to share, which is not the same as sharing it all.
        row["jaccard"] = stats.jaccard(sets[a], sets[b]) if together else np.nan
        # Of two sets of these sizes drawn at random; with itself, an ability is always the same.
        row["by_chance"] = shared / together if together and a != b else np.nan
        row |= {"heads": len(sets[a]), "other_heads": len(sets[b])}
        rows.append(row | {"significant": significant_heads(maps[a].table), "of": total})
    return pd.DataFrame(rows).astype({"significant": "Int32"})


def agreement_rows(maps: Sequence[Scored]) -> pd.DataFrame:
    """Of one ability, a row per pair of methods: rank correlation over heads, and Jaccard index of the elbow heads.

    `rank_correlation` compares sizes (absolute scores), because a probe's number has no sign that means help;
    `signed_correlation` compares the numbers as they are where both methods are signed.
    """
    rows = []
    for a, b in combinations((scored.scores for scored in maps), 2):
        x, y = (np.array([scores.values[head] for head in scores.heads()]) for scores in (a, b))
        row: dict[str, Any] = {"model": a.model, "task": a.task, "method": a.method, "other": b.method}
        row["rank_correlation"] = stats.rank_correlation(np.abs(x), np.abs(y))
        row["signed_correlation"] = stats.rank_correlation(x, y) if a.signed and b.signed else np.nan
        row["jaccard"] = stats.jaccard(elbow_heads(a), elbow_heads(b))
        rows.append(row | {"heads": len(x), "n": a.n, "other_n": b.n})
    return pd.DataFrame(rows)
