"""Writes what `ray_overhead.py`, `many_cells.py` and `sizes.py` measured into docs/machines.md, between its markers.

python benchmarks/scale_page.py
"""

from __future__ import annotations

import json
from typing import Any

from table import RESULTS, ROOT, replaced

PAGE = ROOT / "docs/machines.md"


def said(ray: dict[str, Any] | None, many: dict[str, Any] | None) -> str:
    """The measurements as a list; what has not been measured is left out."""
    lines = []
    if ray:
        paper, moved = ray["on_paper"], ray["bytes_per_cell"]
        minutes = next(iter(ray["seconds"].values())) / 60
        lines += [
            f"- A study of {minutes:.1f} minutes ({ray['machine']}): one worker takes {ray['overhead']:.0%} "
            f"longer than one process with as many threads; two workers of one core are "
            f"{ray['growth_from_1_to_2_workers']:.2f} times as fast as one; all tables "
            f"{'equal' if ray['tables_equal'] else 'NOT equal'}.",
            f"- A step sends {moved['to_worker'] / 1e3:.1f} KB to a worker and gets "
            f"{moved['from_worker'] / 1e3:.0f} KB back; the driver spends "
            f"{ray['driver']['driver_cpu_seconds_per_cell'] * 1e3:.1f} ms on it.",
            f"- Estimate, not measured, for {paper['workers']:,} workers and steps of "
            f"{paper['seconds_per_cell']:.0f} s: "
            f"{paper['cells_per_second']:.0f} steps and {paper['megabytes_per_second']:.1f} MB a second, "
            f"{paper['driver_cores_busy']:.2f} of a core; the driver could serve at least "
            f"{paper['workers_the_driver_can_feed']:,.0f} workers.",
        ]
    if many:
        lines.append(
            f"- {many['cells']:,} stub steps, each synced to disk: {many['cells_per_second']:.0f} a second; memory "
            f"grows by {max(many['memory_growth'].values()):.1%} from the first tenth of a session to its end; a "
            f"run that is half done resumes after {many['resume_seconds_half_done']:.1f} s."
        )
    return "\n".join(lines)


def by_size(found: dict[str, Any]) -> str:
    """Time and memory of each study (rows) with each model (columns)."""
    rows = {(row["study"], row["model"]): row for row in found["rows"]}
    studies, models = (list(dict.fromkeys(names)) for names in zip(*rows, strict=True))
    lines = [
        f"{found['machine']}, {found['date'][:10]}:",
        "",
        f"| study | {' | '.join(models)} |",
        "|---" * (len(models) + 1) + "|",
    ]
    for study in studies:
        cells = (_time_and_memory(rows.get((study, model))) for model in models)
        lines.append(f"| `{study}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _time_and_memory(row: dict[str, Any] | None) -> str:
    if row is None or "failed" in row:
        return "not run" if row is None else "failed"
    seconds = row["seconds"]
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return time + (f", {row['peak_gb']:.1f} GB" if row["peak_gb"] else "")


def page() -> str:
    """The page as it should be."""
    ray, many, sizes = (
        json.loads((RESULTS / name).read_text()) if (RESULTS / name).exists() else None
        for name in ("ray.json", "many-cells.json", "sizes.json")
    )
    text = replaced(PAGE.read_text(encoding="utf-8"), "scale", said(ray, many))
    return replaced(text, "sizes", by_size(sizes)) if sizes else text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
