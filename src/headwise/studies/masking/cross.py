"""The cross table: the heads of one ability are masked, and every ability is measured.

An ability's own heads should hurt it more than another ability's do; where every column falls alike, the heads
serve the writing of text rather than the ability.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.runs import Cell, CellResult, RunFolder, execute
from headwise.studies.masking.sets import scaled_gates
from headwise.studies.masking.texts import point_tables

if TYPE_CHECKING:
    from headwise.studies.masking.plan import Plan


def cross_cells(folder: RunFolder, plans: list[Plan]) -> None:
    """A cell for each ability that is measured, with all abilities' heads in one batch."""
    cells = []
    for plan in plans:
        k = _k(plan)
        heads = {label: [str(head) for head in order[:k]] for label, order in plan.orders.items()}
        for label in plan.test:
            about = plan.writing() | plan.judging(label) | {"scale": plan.settings.scale, "heads": heads}
            cells.append(Cell("masking", plan.given, label, f"cross k={k}", about, plan.prints(label)))
    show = plans[0].bench.progress
    execute(folder, cells, partial(_cross, {plan.given: plan for plan in plans}), progress=show)


def _k(plan: Plan) -> int:
    return plan.settings.cross_k or plan.middle_k


def _cross(plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan, label = plans[cell.model], cell.task
    k, test, judge = _k(plan), plan.test[label], plan.judges[label]
    masks = [scaled_gates(order[:k], plan.model.shape, plan.settings.scale) for order in plan.orders.values()]
    texts = plan.write(label, cell.part, gates=np.stack(masks))
    full = plan.full[label]
    before = judge.values(full, full, test)
    rows, written = [], []
    for owner, several in zip(plan.orders, texts, strict=True):
        about = {**plan.about(label, f"heads of {owner}", k), "heads_of": owner}
        written.append(point_tables([several], full, test, judge, about, plan.settings.seed)["texts"])
        for metric, values in judge.values(several, full, test).items():
            how: dict[str, Any] = {"groups": test.shared_groups(), "seed": plan.settings.seed}
            lo, hi = stats.bootstrap_mean(values[:, None], **how)
            less = stats.bootstrap_difference(values[:, None], before[metric][:, None], **how)
            rows.append(
                {
                    "model": plan.shown,
                    "heads_of": owner,
                    "task": label,
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
