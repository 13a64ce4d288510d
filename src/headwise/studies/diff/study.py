"""The study `diff`: which heads changed between two models?

Both models are scored on the same examples; then each head's values are paired. Tables: `scores` and `examples` of both
models, `answers` (accuracy and metric of every example with all heads), `outcomes` (both models' means, their paired
difference and its test), `diff` (each head's paired difference, tuned − base).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.scores import difference
from headwise.scores.difference import check_pairable
from headwise.studies.base import study
from headwise.studies.diff.section import section
from headwise.studies.run import Pair, Run
from headwise.studies.score.study import ScoreSettings, score_calls
from headwise.studies.score.study import plan as plan_scores
from headwise.studies.settings import shared
from headwise.studies.steps import Cards, top_cards
from headwise.tables.frames import significant, too_few
from headwise.tasks import Task


class DiffSettings(ScoreSettings):
    """Settings of the study `diff`: those of `score`, and two models."""

    models: shared.Models = ()
    """The base model, then the tuned one: bundled aliases, hub ids, folders (also of an adapter) or GGUF files."""
    positions: shared.Positions = "all"
    """Token positions that gates act on: `all`, from the `last` prompt token on, numbers, or the names of spans."""

    def before_run(self) -> None:
        super().before_run()
        for name in self.methods:
            check_pairable(name, self.method_options)
        if len(self.models) != 2:
            given = (
                f"{len(self.models)} are given ({', '.join(self.models)})" if self.models else "none is given"
            )
            raise HeadwiseError(
                f"the study 'diff' compares two models, and {given}; name the base model, then the tuned one: "
                "headwise diff BASE TUNED TASK, or models: [BASE, TUNED] in a study file"
            )
        if self.models[0] == self.models[1]:
            raise HeadwiseError(
                f"base and tuned are both {self.models[0]!r}; diff compares two models, such as a model and its "
                "fine-tuned version"
            )


@step(cost=lambda task, **_: 2 * len(task), label="answers on {task.name} with {model.name}")
def answer(job: Job, model: Model, task: Task, metric: str | None) -> pd.DataFrame:
    """Accuracy and metric of every example with all heads."""
    return difference.answer_table(model, task, metric, advance=job.advance)


@step(label="weights of {base.name} and {tuned.name}")
def change_of_weights(job: Job, base: Model, tuned: Model) -> tuple[np.ndarray | None, str]:
    """How much the weights of each head changed; or None, and why they are not compared."""
    return difference.compare_weights(base, tuned)


def plan(run: Run, s: DiffSettings) -> Iterator[Call[Any]]:
    yield from (answer(pair.model, pair.task, s.metric) for pair in run.pairs())
    yield from plan_scores(run, s)


@study("Which heads changed between two models?", DiffSettings, section, plan)
def diff(run: Run, s: DiffSettings) -> None:
    base, tuned = (run.model(source) for source in s.models)
    difference.check_same_heads(base, tuned)
    pairs = run.pairs([(source, task) for task in s.tasks for source in s.models])
    compared = list(zip(pairs[::2], pairs[1::2], strict=True))  # base and tuned, for each task
    for before, after in compared:
        difference.check_same_tokens([base, tuned], [before.task, after.task])
    if base.fingerprint == tuned.fingerprint:
        run.say(f"{base.name} and {tuned.name} have the same weights, so every difference is 0")

    answers = run.all({pair: answer(pair.model, pair.task, s.metric) for pair in pairs}, "answers")
    scored: Mapping[tuple[Pair, str], Any] = run.all(score_calls(s, pairs), "scores of both models")
    for pair in pairs:
        run.table("answers", answers[pair].assign(**pair.columns))
        for method in s.methods:
            run.tables(scored[pair, method].tables(pair.task), **pair.columns)

    weights, problem = run.one(change_of_weights(base, tuned))
    if problem:
        run.say(problem)
    cards: list[tuple[dict[str, str], Call[Cards] | None]] = []
    for before, after in compared:
        names = {"base": before.columns["model"], "tuned": after.columns["model"]}
        outcomes = difference.outcome_table(before.task, answers[before], answers[after], s.seed)
        run.table("outcomes", outcomes.assign(**names))
        changes = []
        for method in s.methods:
            # Named as in the tables: of two scores of one name, a difference would take another option for its name.
            first, second = (
                replace(scored[pair, method].scores, model=pair.columns["model"]) for pair in (before, after)
            )
            changes.append(difference.diff_table(first, second, s.seed, weights))
            if few := too_few(changes[-1]):
                run.say(f"{method} on {before.task.name}: {few}")
        run.table("diff", *changes)
        changed = significant(pd.concat(changes)).rename(columns={"difference": "score"})
        cards += [
            (pair.columns, top_cards(pair.model, pair.task, changed, s.cards, **s.ablation))
            for pair in (before, after)
        ]
    run.add_cards(cards)
