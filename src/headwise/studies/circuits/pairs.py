"""The last stage of `circuits`: which models are shown together, and how many times more heads one needs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pandas as pd

from headwise.runs import Cell, CellResult
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.circuits.tables import curve_fingerprint
from headwise.studies.context import Context
from headwise.studies.halves import halves
from headwise.sweeps.ratio import ratio_row

IN_ORDER = ("dense", "control", "sparse")
"""Every two of these roles are read "the first over the second"."""


def _circuits(context: Context[CircuitsSettings], task: str) -> pd.DataFrame:
    return context.table("circuits", kind="curve", task=task)


def _curve_rows(
    context: Context[CircuitsSettings], model: str, task: str, reference: str, series: str
) -> pd.DataFrame:
    """The values behind one curve."""
    part = f"curve {series}, {reference}"
    examples = context.table("examples", kind="curve", model=model, task=task, part=part)
    return examples[examples["series"] == series]


def pair_cells(context: Context[CircuitsSettings]) -> Iterator[Cell]:
    s = context.settings
    for number, pair, task in s.panels():
        about = {"pair": number, "members": pair.members, "threshold": s.threshold, "seed": s.seed}
        circuits, prints = context.once(_circuits, task), {}
        for role, name in pair.members.items():
            own = circuits[circuits["model"] == context.display_name(name)]
            for row in own.to_dict("records"):
                reference, series = str(row["reference"]), str(row["series"])
                curve = context.once(_curve_rows, name, task, reference, series)
                prints[f"{role}/{reference}/{series}"] = curve_fingerprint(curve)
                if row["chosen"]:
                    prints[f"{role}/{reference}"] = series
        yield context.cell("pair", pair.dense, task, f"pair {number}", about, prints)


def compare(context: Context[CircuitsSettings], cell: Cell) -> CellResult:
    """The members of a pair on one task, and the ratios of their circuit sizes."""
    models = cell.settings["members"]
    pair = {"pair": cell.settings["pair"], "task": cell.task}
    members = [{**pair, "role": role, "model": context.display_name(name)} for role, name in models.items()]
    tables = {"members": pd.DataFrame(members)}
    in_order = [role for role in IN_ORDER if role in models]
    ratios = [
        {**pair, "compared": f"{role}/{other}", **row}
        for role, other in combinations(in_order, 2)
        for row in _ratios(context, cell.task, models[role], models[other])
    ]
    if ratios:
        tables["ratios"] = pd.DataFrame(ratios).assign(threshold=context.settings.threshold)
    return CellResult(tables)


def _ratios(
    context: Context[CircuitsSettings], task: str, model: str, other: str
) -> Iterator[dict[str, Any]]:
    """The ratio of two models by each order and ablation type, and with the order that was chosen for each."""
    s, circuits = context.settings, context.once(_circuits, task)
    names = [context.display_name(name) for name in (model, other)]
    groups = [context.once(halves, name, task).test.shared_groups() for name in (model, other)]
    for reference, rows in circuits.groupby("reference", sort=False):
        first, second = (rows[rows["model"] == name].set_index("series") for name in names)
        same = [(series, series, False) for series in first.index if series in second.index]
        best = [tuple(part.index[part["chosen"]]) for part in (first, second)]
        for series, other_series, chosen in [*same, *((a, b, True) for a in best[0] for b in best[1])]:
            one, two = first.loc[series], second.loc[other_series]
            ratio = ratio_row(
                context.once(_curve_rows, model, task, str(reference), series),
                context.once(_curve_rows, other, task, str(reference), other_series),
                threshold=s.threshold,
                defined=bool(one["defined"] and two["defined"]),
                paired=one["examples"] == two["examples"],
                groups=groups[0],
                other_groups=groups[1],
                seed=s.seed,
            )
            about = {"reference": reference, "series": series, "other_series": other_series, "chosen": chosen}
            yield {**about, "by": one["by"], "model": names[0], "other": names[1], **ratio}
