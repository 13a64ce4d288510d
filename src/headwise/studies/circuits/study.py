"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

Heads are ranked on one half of the examples and swept on the other. Tables beside the contract's: `circuits` (how
many heads each curve takes, its areas and the effect it explains), `ratios` (how many times more heads one model
of a pair needs than the other), `members` (which models are shown together), `attention` (the maps of the first
heads of each order).
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np

from headwise.runs import RunFolder, execute, read_table
from headwise.studies.base import register
from headwise.studies.circuits.cells import Work
from headwise.studies.circuits.charts import charts
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.figures import save_figures
from headwise.studies.workbench import Workbench
from headwise.sweeps.sweep import DRAWS

log = logging.getLogger("headwise")

# Counted in forward rows per example of a half: ranking about 22 (5 slopes, each with its reference), a curve
# points + 8, controls 7 per draw (4 with `quick`). Two models on the four tasks (116 tokens over one example of each)
# are then about 560,000 tokens, and 85,000 with `quick`; two cores do some 500 a second.
QUICK = {"n": 12, "points": 11, "draws": DRAWS}
"""The most of each with `quick`, which also leaves out the layer-matched control."""


@register(
    "circuits",
    question="How few heads explain the behaviour, and does sparse attention need fewer?",
    settings=CircuitsSettings,
)
def carry_out(settings: CircuitsSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = settings.at_most(**QUICK).replaced(controls=settings.controls[:1])
    work = Work(settings, bench)
    log.info(work.cost())
    execute(folder, work.order_cells(), work.rank, progress=bench.progress)
    scores = read_table(folder, "scores")
    execute(folder, work.curve_cells(scores), partial(work.measure, scores), progress=bench.progress)
    examples, summary = read_table(folder, "examples"), read_table(folder, "circuits")
    compare = partial(work.compare, examples, summary)
    execute(folder, work.pair_cells(examples, summary), compare, progress=False)
    save_figures(folder, charts)
    _tell(folder)


# ---- what the user sees --------------------------------------------------------------------------------


def _tell(folder: RunFolder) -> None:
    """Each curve's answer in one sentence, then each ratio's."""
    for row in read_table(folder, "circuits").to_dict("records"):
        what = f"{row['model']} on {row['task']}, order {row['series']}"
        if not row["defined"]:
            folder.notice(
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
        folder.notice(sentence)
    if "ratios" not in folder.written:
        return
    for row in read_table(folder, "ratios").to_dict("records"):
        if row["compared"] == "dense/sparse" and np.isfinite(row["ratio"]):
            folder.notice(
                f"{row['task']}, order {row['series']}: {row['model']} needs {row['ratio']:.2f}x the heads of "
                f"{row['other']} [{row['lo']:.2f}, {row['hi']:.2f}]"
            )
