"""The card of one head, and `card`, which makes it without a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.cards.display import as_html, as_text
from headwise.cards.measured import STEPS, TABLES, Measured, measure_heads
from headwise.cards.scores import quick_scores, run_scores
from headwise.display import counted
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Head, head_list
from headwise.model.model import Model
from headwise.names import ablation_name
from headwise.progress import Progress, reporting
from headwise.tasks import Task
from headwise.tasks import task as task_of

_PARTS = ("scores", *(name.removeprefix("card_") for name in TABLES))


@dataclass(frozen=True, repr=False)
class Card:
    """What is known of one head: it displays itself in a terminal and in a notebook; `plot` draws it.

    Logits are what the head itself adds, relative to the mean over the vocabulary, without anything that later layers
    make of its output.
    """

    model: str
    task: str
    head: Head
    n: int
    """Number of examples."""
    metric: str
    reference: str
    """The ablation type of the ablation score and of the examples."""
    tables: Mapping[str, pd.DataFrame]
    """`scores`, `examples`, `attention`, `tokens` and `patterns`; a part that the model does not allow is missing."""
    notes: tuple[str, ...] = ()
    """Why a part is missing."""

    def table(self, part: str = "scores") -> pd.DataFrame:
        """One of the card's tables: `scores`, `examples`, `attention`, `tokens` or `patterns`."""
        if part not in _PARTS:
            raise unknown("table of a card", part, _PARTS)
        return self.tables.get(part, pd.DataFrame())

    def plot(self) -> Any:
        """Draw attention and tokens of the strongest example, and the attention patterns; the matplotlib figure."""
        from headwise.charts.card import card_chart
        from headwise.charts.static import figure

        return figure(
            card_chart(
                f"{self.title} (effects: {ablation_name(self.reference)})",
                *(self.table(name) for name in ("attention", "tokens", "patterns")),
            )
        )

    @property
    def title(self) -> str:
        """Head, model and task."""
        return f"{self.head} of {self.model} on {self.task}"

    @property
    def lead(self) -> str:
        """How it was measured: examples, metric and reference."""
        return f"{counted(self.n, 'example')}, {self.metric}, {ablation_name(self.reference)}"

    @property
    def _heading(self) -> str:
        return f"{self.title} ({self.lead})"

    def __repr__(self) -> str:
        return as_text(self._heading, self.tables, self.notes)

    def _repr_html_(self) -> str:
        """In a notebook, the card with coloured prompts and tables."""
        return as_html(self._heading, self.tables, self.notes)


def card(
    model: Model,
    head: Head | str,
    task: Task | Any = None,
    *,
    n: int = 32,
    run: str | Path | None = None,
    examples: int = 3,
    progress: Progress = True,
    **options: Any,
) -> Card:
    """What one head does on a task: attention, tokens that it promotes and suppresses, patterns, scores, examples.

    head: "L23H3". task: a `Task`, or what `hw.task` takes (`n` examples of it). run: a run folder; the card then has
    the head's scores in that run. Without one, its ablation score and its attribution score on the task are computed.
    examples: how many examples are shown in each list. options: metric, reference, positions, seed, batch_tokens of the
    ablation, as in `hw.score`.

    >>> hw.card(model, "L23H3", task="ioi")     # doctest: +SKIP
    """
    if task is None:
        raise HeadwiseError(
            "a card needs a task to run the head on, such as hw.card(model, 'L23H3', task='ioi')"
        )
    (chosen,) = _one(head)
    model.check_heads([chosen])
    chosen_task = (
        task if isinstance(task, Task) else task_of(task, n, model=model, seed=options.get("seed", 0))
    )
    # A run that does not have this head is refused before anything is computed.
    scores = None if run is None else run_scores(run, model.name, chosen)
    steps = STEPS + (scores is None)
    with reporting(f"Card of {chosen}", steps, progress) as advance:
        measured = measure_heads(model, chosen_task, [chosen], examples=examples, advance=advance, **options)
        if scores is None:
            scores = quick_scores(model, chosen_task, chosen, measured, options)
            advance(1)
    return _card(model, chosen_task, chosen, measured, scores)


def _one(head: Head | str) -> list[Head]:
    heads = head_list(head)
    if len(heads) != 1:
        raise HeadwiseError(
            f"a card is of one head, such as 'L23H3', not of {len(heads)}; make one card for each"
        )
    return heads


def _card(model: Model, task: Task, head: Head, measured: Measured, scores: pd.DataFrame) -> Card:
    tables = {name.removeprefix("card_"): table for name, table in measured.tables.items()}
    shown = {"scores": scores, **tables}
    names = (measured.metric, measured.reference)
    return Card(model.name, task.name, head, len(task), *names, shown, tuple(measured.notes))
