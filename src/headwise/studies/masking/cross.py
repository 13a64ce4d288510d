"""The cross table: the heads of one ability are masked, and every ability is measured.

An ability's own heads should hurt it more than another ability's do; where every column falls alike, the heads
serve the writing of text rather than the ability.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Order
from headwise.runs import Cell, CellResult
from headwise.studies.context import Context
from headwise.studies.masking.cells import Place, all_places, full_texts, order_of, place, places, write
from headwise.studies.masking.sets import scaled_gates
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import point_tables


def cross_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """A cell for each ability that is measured, with all abilities' heads in one batch."""
    for here in all_places(context):
        k = _k(context, here)
        heads = {
            label: [str(head) for head in order[:k]] for label, order in _orders(context, here.given).items()
        }
        about = here.writing | here.judging | {"scale": context.settings.scale, "heads": heads}
        yield context.cell("cross", here.given, here.label, f"cross k={k}", about, here.prints)


def _k(context: Context[MaskingSettings], here: Place) -> int:
    return context.settings.cross_k or here.middle_k


def _orders(context: Context[MaskingSettings], given: str) -> dict[str, Order]:
    """Of all abilities."""
    return {label: context.once(order_of, given, label) for label in context.once(places, given)}


def cross(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    s, here = context.settings, place(context, cell)
    k, own_orders = _k(context, here), _orders(context, cell.model)
    masks = [scaled_gates(order[:k], here.model.shape, s.scale) for order in own_orders.values()]
    texts = write(context, here, cell.part, gates=np.stack(masks))
    full = context.once(full_texts, cell.model, cell.task)
    before = here.judge.values(full, full, here.test)
    rows, written = [], []
    for owner, several in zip(own_orders, texts, strict=True):
        about = {**here.about(f"heads of {owner}", k), "heads_of": owner}
        written.append(point_tables([several], full, here.test, here.judge, about, s.seed)["texts"])
        for metric, values in here.judge.values(several, full, here.test).items():
            how: dict[str, Any] = {"groups": here.test.shared_groups(), "seed": s.seed}
            lo, hi = stats.bootstrap_mean(values[:, None], **how)
            less = stats.bootstrap_difference(values[:, None], before[metric][:, None], **how)
            rows.append(
                {
                    "model": here.display_name,
                    "heads_of": owner,
                    "task": here.label,
                    "k": k,
                    "metric": metric,
                    "value": values.mean(),
                    "lo": lo[0],
                    "hi": hi[0],
                    "full": before[metric].mean(),
                    "change": values.mean() - before[metric].mean(),
                    "change_lo": less[0][0],
                    "change_hi": less[1][0],
                    "n": len(values),
                }
            )
    return CellResult({"cross": pd.DataFrame(rows), "cross_texts": pd.concat(written, ignore_index=True)})
