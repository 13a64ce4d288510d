"""How few heads explain the behaviour, and does sparse attention need fewer?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, table_of
from headwise.charts.words import joined


def findings(tables: Tables) -> list[Finding]:
    return [*_ratios(table_of(tables, "ratios")), *_sizes(tables["circuits"])]


def _ratios(ratios: pd.DataFrame) -> list[Finding]:
    if ratios.empty:
        return []
    found = []
    for (model, other, series), rows in ratios.groupby(["model", "other", "series"], sort=False):
        known = rows[rows["ratio"].notna()]
        if known.empty:
            continue
        each = joined([f"{r.task} {r.ratio:.1f}x [{r.lo:.1f}, {r.hi:.1f}]" for r in known.itertuples()])
        found.append(
            Finding(
                sentence=f"Heads that {model} needs over heads that {other} needs, by {series}, to reach "
                f"{known['threshold'].iloc[0]:.0%} of the effect: {each}; above 1, {other} needs fewer.",
                weight=0.55,
            )
        )
    return found


def _sizes(circuits: pd.DataFrame) -> list[Finding]:
    found: list[Finding] = []
    for (model, series), rows in circuits.groupby(["model", "series"], sort=False):
        own = rows[rows["k"].notna()]
        if own.empty or str(series).startswith("random"):
            continue
        kept = own["action"].iloc[0] == "keep"
        what = "Kept heads of {} that explain" if kept else "Masked heads of {} that take away"
        each = joined([f"{r.task} {r.k:.0f} [{r.k_lo:.0f}, {r.k_hi:.0f}]" for r in own.itertuples()])
        found.append(
            Finding(
                sentence=f"{what.format(model)} {own['threshold'].iloc[0]:.0%} of the effect, by {series}, of "
                f"{own['of'].iloc[0]}: {each}.",
                weight=0.5 if len(found) == 0 else 0.2,
            )
        )
    return found
