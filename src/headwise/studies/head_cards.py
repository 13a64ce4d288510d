"""A stage that several studies have: cards of the heads with the largest scores, for the head pages of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from headwise.cards.measured import STEPS, measure_heads
from headwise.charts.section import by_size
from headwise.display import counted
from headwise.errors import HeadwiseError
from headwise.heads import head_list, heads_of
from headwise.runs import Cell, CellResult
from headwise.studies.context import Context
from headwise.tasks import Task


def strongest(scores: pd.DataFrame, most: int) -> list[str]:
    """The heads with the largest scores, `most` of each method, each head once: a card is about an attention head.

    They need not be significant: the darkest cell of a map is the first that a reader clicks, and its page says how
    sure its number is.
    """
    heads = scores[scores["head"] >= 0]
    tops = [by_size(rows).head(most) for _, rows in heads.groupby("method", sort=False)]
    return list(dict.fromkeys(str(head) for top in tops for head in heads_of(top)))


def card_cell(
    context: Context[Any], model: str, task: str, examples: Task, heads: Sequence[str], how: Mapping[str, Any]
) -> Cell | None:
    """The cell of the cards of these heads; None without any. how: what else the cards depend on."""
    if not heads:
        return None
    about = {"seed": context.settings.seed, "metric": _metric(context) or examples.metric, **how}
    about |= {"dtype": context.dtype(model), "heads": list(heads)}
    prints = {"model": context.model(model).fingerprint, "task": examples.fingerprint}
    return context.cell("card", model, task, "cards", about, prints)


def make_cards(context: Context[Any], cell: Cell, examples: Task, **how: Any) -> CellResult:
    """The tables of the head pages. A task that does not allow them has scores all the same.

    how: reference and positions of the ablation.
    """
    s, heads = context.settings, head_list(cell.settings["heads"])
    label = f"cards of {counted(len(heads), 'head')} on {cell.task}"
    try:
        with context.progress(label, STEPS) as advance:
            model, how = context.model(cell.model), {"metric": _metric(context), "seed": s.seed, **how}
            measured = measure_heads(model, examples, heads, advance=advance, **how)
    except HeadwiseError as error:
        return CellResult(notes={"said": f"no head pages: {error}"})
    said = {"said": "; ".join(measured.notes)} if measured.notes else {}
    name = context.display_name(cell.model)
    return CellResult({key: table.assign(model=name) for key, table in measured.tables.items()}, said)


def _metric(context: Context[Any]) -> str | None:
    """The metric of the study, where it has a setting for it; None for that of the task."""
    return getattr(context.settings, "metric", None)
