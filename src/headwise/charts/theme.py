"""The colours of the pages: one list of CSS variables, light and dark, for the report and the live explorer."""

from __future__ import annotations

from headwise.charts.chart import DARK_PALETTES, PALETTES

LIGHT = {
    "paper": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#1b1f24",
    "soft": "#545c66",
    "line": "#dfe3e8",
    "accent": "#1f5fa8",
    "mark": "#c2410c",
    "mark-paper": "#ffe8d9",
    "warn": "#8a4b00",
    "warn-paper": "#fff4e0",
    "bad": "#a11212",
    "bad-paper": "#ffeceb",
    "off": "#1b1f24",
    "cell": "#e4e8ed",
}
DARK = {
    "paper": "#14171b",
    "raised": "#1d2127",
    "ink": "#e8eaed",
    "soft": "#a9b1bb",
    "line": "#333a43",
    "accent": "#7db4f0",
    "mark": "#ffa366",
    "mark-paper": "#4a2a12",
    "warn": "#ffcf8a",
    "warn-paper": "#33270f",
    "bad": "#ffb4ad",
    "bad-paper": "#3d1512",
    "off": "#f2f4f6",
    "cell": "#2b313a",
}


def css_variables() -> str:
    """The start of a style sheet: `--paper`, …, and each palette of the charts, `--RdBu`, as colours with spaces."""
    dark = "".join(f"--{name}: {value}; " for name, value in (DARK | DARK_PALETTES).items())
    light = "".join(f"--{name}: {value}; " for name, value in (LIGHT | PALETTES).items())
    return (
        f':root {{ color-scheme: light; {light}}}\n:root[data-theme="dark"] {{ color-scheme: dark; {dark}}}\n'
    )
