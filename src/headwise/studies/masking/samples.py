"""Texts side by side, for people who want to read: prompt, gold answer, and what three models wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pandas as pd

from headwise.runs import Cell, CellResult
from headwise.studies.context import Context
from headwise.studies.masking.cells import all_places, place, places
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import shown_gold


def sample_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """The table `samples`, put together from the texts of one K and the first random draw."""
    for here in all_places(context):
        own = context.once(_texts, here.given, here.label)
        print_ = hashlib.sha256(own.to_csv(index=False).encode()).hexdigest()[:16]
        prints = {"task": here.test.fingerprint, "texts": print_}
        yield context.cell("samples", here.given, here.label, "samples", {"k": here.middle_k}, prints)


def _texts(context: Context[MaskingSettings], given: str, label: str) -> pd.DataFrame:
    """The full model's texts, and at the middle K those of the order and of the first draw."""
    texts = context.table("texts", model=given, task=label)
    chosen = texts["k"].isin((0, context.once(places, given)[label].middle_k)) & (texts["draw"] == 0)
    return texts[chosen & texts["series"].isin(("full", "top", "random"))]


def side_by_side(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    here, own = place(context, cell), context.once(_texts, cell.model, cell.task)
    by_series = own.pivot(index="example", columns="series", values="text")
    rows = [
        {
            "model": here.display_name,
            "task": cell.task,
            "example": number,
            "prompt": example.prompt,
            "gold": shown_gold(example),
            "full": by_series.loc[number, "full"],
            "top_masked": by_series.loc[number, "top"],
            "random_masked": by_series.loc[number, "random"],
            "k": here.middle_k,
        }
        for number, example in enumerate(here.test)
    ]
    return CellResult({"samples": pd.DataFrame(rows)})
