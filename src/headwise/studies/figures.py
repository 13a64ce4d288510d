"""The figures of a run: every chart of its study that has a file name, as PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterable

from headwise.charts.chart import Chart
from headwise.charts.static import figure
from headwise.charts.style import save
from headwise.runs import RunFolder


def save_figures(folder: RunFolder, charts: Iterable[Chart]) -> None:
    """Draw the charts into the run."""
    for chart in charts:
        if chart.name:
            save(figure(chart), folder.path / "figures", chart.name)
