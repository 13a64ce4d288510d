"""How conditions are called and coloured in every figure of the study `prompts`."""

from __future__ import annotations

from collections.abc import Sequence

SHORT = {"none": "None", "meaningless": "Mless", "meaningful": "Mful", "arm": "ARM"}
BARS = {"none": "#7b5ea7", "meaningless": "#3a9e9b", "meaningful": "#9fd0ee", "arm": "#e3a857"}
LINES = {"none": "#1f77b4", "meaningless": "#e8502f", "meaningful": "#2e9e4f", "arm": "#b8860b"}
FULL = {"meaningless": "#1f77b4", "meaningful": "#e8502f"}
_OTHERS = ("#c26da5", "#8c6d46", "#6f7f8f", "#a3b549", "#5a4fcf", "#d1495b", "#2f6f73", "#c9a0dc")


def short(condition: str) -> str:
    """`meaningless:20` as `Mless ×20`."""
    kind, colon, copies = condition.partition(":")
    return SHORT.get(kind, kind) + (f" ×{copies}" if colon else "")


def bar_label(condition: str) -> str:
    """As in the legend of the bars: `w/o`, `w/ Mless`."""
    return "w/o" if condition == "none" else f"w/ {short(condition)}"


def colours(conditions: Sequence[str], known: dict[str, str]) -> dict[str, str]:
    """A colour for each condition: the usual one where there is one, else the next that is free."""
    free = iter(_OTHERS * (1 + len(conditions) // len(_OTHERS)))
    return {name: known[name] if name in known else next(free) for name in conditions}
