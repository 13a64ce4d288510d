"""What the terminal says when a run of `circuits` is done: each chosen order's answer, then each ratio."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headwise.charts.section import Tables, table_of
from headwise.studies.circuits.findings import sizes
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.context import Context


def notices(context: Context[CircuitsSettings], tables: Tables) -> Iterator[str]:
    """A sentence per model, task and ablation type; then one per ratio of chosen orders."""
    yield from (finding.sentence for finding in sizes(tables))
    circuits = tables["circuits"]
    for row in circuits[circuits["chosen"]].to_dict("records"):
        what = f"{row['model']} on {row['task']}, {row['reference']}, ranked by {row['series']}"
        if not row["defined"]:
            yield (
                f"{what}: the explained effect is undefined, because {row['metric']} with all heads minus with none "
                f"is {row['effect']:+.3g} [{row['effect_lo']:+.3g}, {row['effect_hi']:+.3g}] and may be 0; use more "
                "examples, or a behaviour that depends on the heads"
            )
        elif row["effect"] < 0:
            yield f"{what}: the metric is lower with all heads than with none, so the effect is negative"
    ratios = table_of(tables, "ratios")
    for row in ratios[ratios["chosen"]].to_dict("records") if len(ratios) else ():
        if row["compared"] == "dense/sparse" and np.isfinite(row["stays_ratio"]):
            yield (
                f"{row['task']}, {row['reference']}: the circuit of {row['model']} has {row['stays_ratio']:.2f}x the "
                f"heads of {row['other']} [{row['stays_lo']:.2f}, {row['stays_hi']:.2f}]"
            )
