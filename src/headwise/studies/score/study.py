"""The plain study: score every head of each model on each task by each method; then the cards of the largest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from headwise.heads import PositionScores
from headwise.model.measure.positions import EACH
from headwise.runs import Call
from headwise.scores.registry import own_options
from headwise.studies.base import study
from headwise.studies.plan import some_heads
from headwise.studies.run import Pair, Run
from headwise.studies.score.charts import section
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.steps import input_table, make_cards, score_heads, strongest


def _calls(s: ScoreSettings, pairs: list[Pair]) -> dict[tuple[Pair, str], Call[Any]]:
    return {
        (pair, method): score_heads(
            pair.model, pair.task, method, **s.ablation, options=own_options(method, s.method_options)
        )
        for pair in pairs
        for method in s.methods
    }


def plan(run: Run, s: ScoreSettings) -> Iterator[Call[Any]]:
    pairs = run.pairs()
    yield from _calls(s, pairs).values()
    for pair in pairs if s.cards and s.positions != EACH else ():
        yield make_cards(
            pair.model, pair.task, some_heads(pair.model, s.cards * len(s.methods)), **s.ablation
        )


@study("Which heads matter for this task?", ScoreSettings, section, plan)
def score(run: Run, s: ScoreSettings) -> None:
    pairs = run.pairs()
    calls = _calls(s, pairs)
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
    if not s.cards:
        return
    heads = {pair: strongest(scores, s.cards) for pair, scores in tables.items() if scores}
    cards = {
        pair: make_cards(pair.model, pair.task, heads[pair], **s.ablation) for pair in heads if heads[pair]
    }
    run.add_cards(cards)
