"""One picture of the comparison: the time of each tool relative to headwise for each job, and the floor.

python benchmarks/figure.py        results/peers-DEVICE.json -> results/peers-DEVICE.png and .svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwise.charts.style import house_style
from table import RESULTS, SHORT, load

COLOURS = {
    "hook loop": "#7f7f7f",
    "TransformerLens": "#1f77b4",
    "nnsight": "#2ca02c",
    "pyvene": "#d6609b",
}


def draw(results: dict[str, Any], path: Path) -> None:
    """Bars on a common scale of ratios; a light bar has all logits, a full one the last token's alone."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    letters = [letter for letter in SHORT if results["jobs"].get(letter, {}).get("ways")]
    if not letters:
        return
    heights = [len(results["jobs"][letter]["ways"]) + 1 for letter in letters]
    with house_style():
        figure, axes = plt.subplots(
            len(letters),
            1,
            figsize=(7.2, 0.22 * sum(heights) + 0.45 * len(letters)),
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
            sharex=True,
        )
        for (panel,), letter in zip(axes, letters, strict=True):
            _panel(panel, letter, results["jobs"][letter])
        last = axes[-1][0]
        last.set_xscale("log")
        floors = [
            results["jobs"][letter]["floor_s"] / results["jobs"][letter]["ways"]["headwise"]["seconds"]
            for letter in letters
        ]
        last.set_xlim(left=min(floors) / 2)
        last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        last.set_xlabel("Time relative to headwise")
        figure.suptitle(f"{results['machine']}, {results['date'][:10]}", fontsize=9)
        for kind in ("png", "svg"):
            figure.savefig(path.with_suffix(f".{kind}"), dpi=110)
        plt.close(figure)


def _panel(panel: Any, letter: str, job: dict[str, Any]) -> None:
    ours = job["ways"]["headwise"]["seconds"]
    names = list(job["ways"])
    for place, name in enumerate(names):
        times = job["ways"][name]["times_headwise"]
        colour = next((c for peer, c in COLOURS.items() if name.startswith(peer)), "#ff7f0e")
        panel.barh(place, times, color=colour, alpha=0.45 if name.endswith("all logits") else 1)
        label = f" {times:.1f}×" if name != "headwise" else f" {ours:.1f} s"
        panel.annotate(label, (times, place), va="center", fontsize=7)
    panel.axvline(1, color="#ff7f0e", linewidth=0.8)
    if "floor_s" in job:
        panel.axvline(job["floor_s"] / ours, color="black", linestyle=":", linewidth=1)
        panel.annotate(
            "floor ",
            (job["floor_s"] / ours, -0.75),
            fontsize=7,
            ha="right",
            va="center",
            annotation_clip=False,
        )
    panel.set_yticks(range(len(names)), names, fontsize=7.5)
    panel.set_ylim(len(names) - 0.4, -1.1)
    panel.set_title(f"({letter}) {job['work']}", fontsize=8, loc="left")


def main() -> None:
    for device in ("cpu", "cuda"):
        results = load(device)
        if results:
            draw(results, RESULTS / f"peers-{device}")


if __name__ == "__main__":
    main()
