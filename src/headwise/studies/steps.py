"""Steps that several studies take: scores of all heads, and the cards of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from headwise.cards.measured import STEPS, measure_heads
from headwise.errors import HeadwiseError
from headwise.heads import HEADS, Order, PositionScores, Scores, heads_of
from headwise.model.model import Model
from headwise.progress import scaled_progress
from headwise.runs import Call, Job, step
from headwise.scores import score
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options
from headwise.tables.codec import stored
from headwise.tables.frames import by_size
from headwise.tasks import Task


@stored
@dataclass(frozen=True)
class Scored:
    """Scores of all heads, and their table: its intervals and tests take a while, so workers share them."""

    scores: Scores
    table: pd.DataFrame

    def tables(self, task: Task) -> dict[str, pd.DataFrame]:
        """Rows for the tables `scores`, `examples` and `inputs`."""
        tables = {"scores": self.table, "examples": self.scores.example_table()}
        if self.scores.details.get("replicates") != "seeds":  # values per seed belong to no example
            tables["inputs"] = input_table(task, "scores")
        return tables


@step(
    version=lambda method, **_: method_named(method).version,
    cost=lambda model, task, method, reference, options, **_: method_named(method).cost(
        model, task, reference, options or {}
    ),
    label="{method} on {task.name} with {model.name}",
)
def score_heads(
    job: Job,
    model: Model,
    task: Task,
    method: str,
    *,
    metric: str | None = None,
    reference: str = "mean",
    positions: Any = "all",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Scored | PositionScores:
    """Every head's score by one method. options: of all methods; the method takes its own.

    A study's `reference: mean` is for methods that ablate: `direct` then has its own default, as in `hw.score`.
    """
    settings: dict[str, Any] = {"metric": metric, "reference": None if reference == "mean" else reference}
    settings |= {"positions": positions, "seed": seed, **own_options(method, options or {})}
    chosen = method_named(method)
    steps = chosen.steps(model, task, settings.get("components", HEADS))
    rows_per_step = chosen.cost(model, task, reference, options or {}) / max(1, steps)
    scaled: Any = scaled_progress(job.advance, rows_per_step)
    job = replace(job, advance=scaled)
    scores = score(model, task, method, **settings, progress=job)
    return scores if isinstance(scores, PositionScores) else Scored(scores, scores.table(seed))


@stored
@dataclass(frozen=True)
class Cards:
    """What the head pages of the report show."""

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Why a part is missing, where one is."""


def _card_rows(model: Model, task: Task, heads: Order, **_: Any) -> int:
    """Every head ablated on every example; about four more passes over the examples for attention and tokens."""
    return (len(heads) + 4) * len(task)


@step(cost=_card_rows, label="cards of {task.name} with {model.name}")
def make_cards(
    job: Job,
    model: Model,
    task: Task,
    heads: Order,
    *,
    metric: str | None = None,
    reference: str = "mean",
    positions: Any = "all",
    seed: int = 0,
) -> Cards:
    """The cards of these heads. A task that does not allow them has scores all the same."""
    settings: dict[str, Any] = {
        "metric": metric,
        "reference": reference,
        "positions": positions,
        "seed": seed,
    }
    try:
        advance: Any = scaled_progress(job.advance, _card_rows(model, task, heads) / STEPS)
        measured = measure_heads(model, task, heads, **settings, advance=advance)
    except HeadwiseError as error:
        return Cards(notes=[f"no head pages: {error}"])
    return Cards(measured.tables, measured.notes)


def top_cards(
    model: Model, task: Task, scores: pd.DataFrame | Sequence[pd.DataFrame], most: int, **options: Any
) -> Call[Cards] | None:
    """The cards of the heads with the largest scores; None where there are none. options: of `make_cards`."""
    heads = strongest(scores, most)
    return make_cards(model, task, heads, **options) if heads else None


def strongest(scores: pd.DataFrame | Sequence[pd.DataFrame], most: int) -> Order:
    """The heads with the largest scores, `most` of each method, each head once: a card is about an attention head.

    They need not be significant: the darkest cell of a map is the first that a reader clicks, and its page says how
    sure its number is.
    """
    if not most or not len(scores):
        return []
    table = scores if isinstance(scores, pd.DataFrame) else pd.concat(scores, ignore_index=True)
    heads = table[table["head"] >= 0]
    tops = [by_size(rows).head(most) for _, rows in heads.groupby("method", sort=False)]
    return list(dict.fromkeys(head for top in tops for head in heads_of(top)))


def input_table(task: Task, part: str) -> pd.DataFrame:
    """The table `inputs`: prompt, target and foils of each example, so that the report can show them.

    part: `scores` or `curves`, the per-example values that the numbers belong to; a study may measure both on
    different examples.
    """
    texts = {
        "prompt": [example.prompt for example in task],
        "target": [example.target for example in task],
        "foils": [" / ".join(foil.strip() for foil in example.foils) for example in task],
    }
    numbers = pd.Series(task.numbers, dtype="int32")
    return pd.DataFrame({"model": "", "task": task.name, "part": part, "example": numbers, **texts})
