"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

Heads are ranked on one half of the examples and swept on the other. Tables beside the contract's: `circuits` (how
many heads each curve takes, its areas and the effect it explains), `ratios` (how many times more heads one model
of a pair needs than the other), `members` (which models are shown together), `attention` (the maps of the first
heads of each order).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from headwise.charts.section import Tables, table_of
from headwise.runs import Cell
from headwise.studies.base import Study, register
from headwise.studies.circuits.cells import (
    attend,
    check_k,
    compare,
    cost,
    curve_cells,
    measure,
    order_cells,
    pair_cells,
    rank,
)
from headwise.studies.circuits.charts import section
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context

log = logging.getLogger("headwise")


def stages(context: Context[CircuitsSettings]) -> Iterator[Sequence[Cell]]:
    check_k(context)
    log.info(cost(context))
    yield list(order_cells(context))
    yield curve_cells(context)
    yield list(pair_cells(context))


def notices(context: Context[CircuitsSettings], tables: Tables) -> Iterator[str]:
    """Each curve's answer in one sentence, then each ratio's."""
    for row in tables["circuits"].to_dict("records"):
        what = f"{row['model']} on {row['task']}, order {row['series']}"
        if not row["defined"]:
            yield (
                f"{what}: the explained effect is undefined, because {row['metric']} with all heads minus with none "
                f"is {row['effect']:+.3g} [{row['effect_lo']:+.3g}, {row['effect_hi']:+.3g}] and may be 0; use more "
                "examples, or a behaviour that the heads make a difference to"
            )
            continue
        verb = "explain" if row["action"] == "keep" else "take away"
        sentence = (
            f"{what}: {row['k']:.0f} of {row['of']} heads [{row['k_lo']:.0f}, {row['k_hi']:.0f}] {verb} "
            f"{row['threshold']:.0%} of the effect, n = {row['n']}"
        )
        if row["stays"] > row["k"]:
            sentence += f"; it stays there from {row['stays']:.0f} on"
        if row["effect"] < 0:
            sentence += (
                "; with all heads the model does worse than with none, and it is this loss that is explained"
            )
        yield sentence
    for row in table_of(tables, "ratios").to_dict("records"):
        if row["compared"] == "dense/sparse" and np.isfinite(row["ratio"]):
            yield (
                f"{row['task']}, order {row['series']}: {row['model']} needs {row['ratio']:.2f}x the heads of "
                f"{row['other']} [{row['lo']:.2f}, {row['hi']:.2f}]"
            )


register(
    Study(
        name="circuits",
        question="How few heads explain the behaviour, and does sparse attention need fewer?",
        settings=CircuitsSettings,
        stages=stages,
        compute={"order": rank, "curve": measure, "attention": attend, "pair": compare},
        section=section,
        notices=notices,
    )
)
