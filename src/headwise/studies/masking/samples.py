"""Texts side by side, for people who want to read: prompt, gold answer, and what three models wrote."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from headwise.runs import Cell, CellResult, RunFolder, execute, read_table
from headwise.studies.masking.texts import shown_gold

if TYPE_CHECKING:
    from headwise.studies.masking.plan import Plan


def sample_cells(folder: RunFolder, plans: list[Plan]) -> None:
    """The table `samples`, put together from the texts of one K and the first random draw."""
    texts = read_table(folder, "texts")
    cells = []
    for plan in plans:
        for label, test in plan.test.items():
            own = _own(texts, plan, label)
            print_ = hashlib.sha256(own.to_csv(index=False).encode()).hexdigest()[:16]
            prints = {"task": test.fingerprint, "texts": print_}
            cells.append(Cell("masking", plan.given, label, "samples", {"k": plan.middle_k}, prints))
    compute = partial(_samples, texts, {plan.given: plan for plan in plans})
    execute(folder, cells, compute, progress=False)


def _own(texts: pd.DataFrame, plan: Plan, label: str) -> pd.DataFrame:
    """Of one ability: the full model's texts, and at the middle K those of the order and of the first draw."""
    own = texts[(texts["model"] == plan.shown) & (texts["task"] == label) & (texts["draw"] == 0)]
    return own[own["k"].isin((0, plan.middle_k)) & own["series"].isin(("full", "top", "random"))]


def _samples(texts: pd.DataFrame, plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan = plans[cell.model]
    by_series = _own(texts, plan, cell.task).pivot(index="example", columns="series", values="text")
    rows = [
        {
            "model": plan.shown,
            "task": cell.task,
            "example": number,
            "prompt": example.prompt,
            "gold": shown_gold(example),
            "full": by_series.loc[number, "full"],
            "top_masked": by_series.loc[number, "top"],
            "random_masked": by_series.loc[number, "random"],
            "k": plan.middle_k,
        }
        for number, example in enumerate(plan.test[cell.task])
    ]
    return CellResult({"samples": pd.DataFrame(rows)})
