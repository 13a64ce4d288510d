"""The plain study: score every head of each model on each task by each method; then the cards of the largest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pandas as pd
from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.heads import PositionScores
from headwise.model.measure.positions import EACH
from headwise.runs import Call
from headwise.scores.registry import check_method_positions, check_methods, own_options
from headwise.scores.registry import method as method_named
from headwise.settings import Count
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.score.section import section
from headwise.studies.settings import shared
from headwise.studies.steps import input_table, make_cards, score_heads, top_cards


class ScoreSettings(shared.TaskSettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 16}

    methods: shared.MethodNames = ("ablation",)
    """Score methods (headwise list methods)."""
    n: Count = 64
    """Examples per task."""
    reference: shared.ReferenceName = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window)."""
    positions: shared.PositionsOrEach = "all"
    """Token positions that gates act on: `all`, from the `last` prompt token on, numbers (3, or [3, -1]: negative ones
    count from the end), the name of a span (S2), or `each` for a score of every head at every position."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the method."""
    cards: NonNegativeInt = 6
    """Number of heads of each model, task and method that get a card (head page) in the report: those with the
    largest scores. 0 for none; with positions `each` there are none."""

    @model_validator(mode="after")
    def _methods_fit(self) -> Self:
        check_methods(self.methods, self.method_options, self.metric)
        for name in self.methods:
            check_method_positions(method_named(name), self.positions, own_options(name, self.method_options))
        return self


def score_calls(s: ScoreSettings, pairs: list[Pair]) -> dict[tuple[Pair, str], Call[Any]]:
    return {
        (pair, method): score_heads(
            pair.model, pair.task, method, **s.ablation, options=own_options(method, s.method_options)
        )
        for pair in pairs
        for method in s.methods
    }


def plan(run: Run, s: ScoreSettings) -> Iterator[Call[Any]]:
    pairs = run.pairs()
    yield from score_calls(s, pairs).values()
    for pair in pairs if s.cards and s.positions != EACH else ():
        yield make_cards(
            pair.model, pair.task, some_heads(pair.model, s.cards * len(s.methods)), **s.ablation
        )


@study("Which heads matter for this task?", ScoreSettings, section, plan)
def score(run: Run, s: ScoreSettings) -> None:
    pairs = run.pairs()
    calls = score_calls(s, pairs)
    tables: dict[Pair, list[pd.DataFrame]] = {pair: [] for pair in pairs}
    for (pair, method), scored in run.all(calls, "scores").items():
        if isinstance(scored, PositionScores):
            named = {"method": scored.method, "metric": scored.metric}
            run.table("positions", scored.table().assign(**pair.columns))
            run.table("position_examples", scored.example_table().assign(**pair.columns, **named))
            run.table("inputs", input_table(pair.task, "positions").assign(**pair.columns))
        else:
            run.tables(scored.tables(pair.task), **pair.columns)
            tables[pair].append(scored.table)
            if note := scored.scores.details.get("said"):
                run.say(f"{calls[pair, method].label}: {note}")
    run.add_cards(
        (pair.columns, top_cards(pair.model, pair.task, scores, s.cards, **s.ablation))
        for pair, scores in tables.items()
    )
