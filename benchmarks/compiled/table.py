"""The part of docs/scores.md about compiled programs, from results/compiled.json: `python -m compiled.table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "scores.md"
RESULTS = ROOT / "benchmarks" / "results" / "compiled.json"
BEGIN, END = "<!-- compiled: begin -->", "<!-- compiled: end -->"


def interval(values: list[float]) -> str:
    """The mean over programs with its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
    lo, hi = np.quantile(drawn, [0.025, 0.975])
    return f"{np.mean(values):.2f} ({lo:.2f} to {hi:.2f})"


def table(result: dict[str, Any]) -> str:
    programs = result["programs"]
    several = {one["name"] for one in programs if one["layers_used"] > 1}
    cells: dict[tuple[str, str], list[tuple[str, dict[str, float]]]] = {}
    for one in programs:
        for row in one["scores"]:
            cells.setdefault((row["method"], row["reference"]), []).append((one["name"], row))
    lines = [
        f"{len(programs)} programs, {sum(one['heads'] for one in programs)} heads, of which "
        f"{sum(len(one['used']) for one in programs)} are used; {len(several)} programs use heads in several layers. "
        f"With the unused heads the models answer {min(one['accuracy'] for one in programs):.1%} (worst program) to "
        f"{max(one['accuracy'] for one in programs):.1%} of fresh inputs correctly. Removing an unused head moves the "
        f"logit difference by {np.median([one['moved_median'] for one in programs]):.2f} (median over programs of the "
        f"median head; the least of all: {min(one['moved_least'] for one in programs):.3f}), where the whole "
        "difference is about 1. Intervals: 95 %, bootstrap over programs.",
        "",
        "| method | reference | AUROC | average precision | AUROC, one layer | AUROC, several layers |",
        "|---|---|---|---|---|---|",
    ]
    for (method, reference), rows in cells.items():
        by = [[row["auroc"] for name, row in rows if (name in several) == deep] for deep in (False, True)]
        both, precision = ([row[key] for _, row in rows] for key in ("auroc", "ap"))
        shown = " | ".join(interval(values) for values in (both, precision, *by))
        lines.append(f"| {method} | `{reference}` | {shown} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table written anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    return f"{before}{BEGIN}\n{table(result)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
