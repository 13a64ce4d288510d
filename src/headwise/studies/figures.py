"""The figures of a run: every chart of its study that has a file name, as PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Callable

from headwise.charts.chart import Chart
from headwise.charts.section import Tables
from headwise.charts.static import figure
from headwise.charts.style import save
from headwise.runs import RunFolder
from headwise.runs.gather import RunTables


def save_figures(folder: RunFolder, charts: Callable[[Tables], list[Chart]]) -> None:
    """Draw what this session has written tables for."""
    for chart in charts(RunTables(folder.path, folder.written)):
        if chart.name:
            save(figure(chart), folder.path / "figures", chart.name)
