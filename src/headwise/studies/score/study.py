"""The plain study: score every head of each model on each task by each method; then the cards of the largest."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.heads import PositionScores
from headwise.studies.base import study
from headwise.studies.run import Pair, Run
from headwise.studies.score.charts import section
from headwise.studies.score.settings import ScoreSettings
from headwise.studies.steps import input_table, make_cards, score_heads, strongest


@study(question="Which heads matter for this task?", settings=ScoreSettings, section=section)
def score(run: Run, s: ScoreSettings) -> None:
    pairs = run.pairs()
    options: dict[str, Any] = {
        "metric": s.metric,
        "reference": s.reference,
        "positions": s.positions,
        "seed": s.seed,
    }
    calls = {
        (pair, method): score_heads(pair.model, pair.task, method, **options, options=s.method_options)
        for pair in pairs
        for method in s.methods
    }
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
    cards = {pair: make_cards(pair.model, pair.task, heads[pair], **options) for pair in heads if heads[pair]}
    run.add_cards(cards)
