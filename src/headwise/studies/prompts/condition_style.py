"""How conditions are called and coloured in every figure of the study `prompts`."""

from __future__ import annotations

from collections.abc import Iterable

SHORT = {"none": "None", "meaningless": "Mless", "meaningful": "Mful", "arm": "ARM"}
_MEANING = {
    "none": "None, w/o: nothing is inserted",
    "meaningless": "Mless: a meaningless filler is inserted (copies of “/”)",
    "meaningful": "Mful: a meaningful filler is inserted (copies of “he”)",
    "arm": "ARM: nothing is inserted, small activations of the first MLP are redistributed",
}
_COLOURS = {"none": "#1f77b4", "meaningless": "#e8502f", "meaningful": "#2e9e4f", "arm": "#b8860b"}
_OTHERS = ("#c26da5", "#8c6d46", "#6f7f8f", "#a3b549", "#7a70e0", "#d1495b", "#3f8f94", "#c9a0dc")


def short(condition: str) -> str:
    """`meaningless:20` as `Mless ×20`."""
    kind, colon, copies = condition.partition(":")
    return SHORT.get(kind, kind) + (f" ×{copies}" if colon else "")


def bar_label(condition: str) -> str:
    """As in the legend of the bars: `w/o`, `w/ Mless`."""
    return "w/o" if condition == "none" else f"w/ {short(condition)}"


def explained(conditions: Iterable[str]) -> str:
    """What the short names of these conditions mean, as a sentence.

    >>> explained(["meaningless:20", "meaningless:40", "dots"])
    'Mless: a meaningless filler is inserted (copies of “/”).'
    """
    kinds = dict.fromkeys(condition.partition(":")[0] for condition in conditions)
    meanings = [_MEANING[kind] for kind in kinds if kind in _MEANING]
    return f"{'; '.join(meanings)}." if meanings else ""


def colours(conditions: Iterable[str]) -> dict[str, str]:
    """A colour for each condition: the usual one where there is one, else the next that is free.

    Every chart of a task is given the colours of all its conditions, so that a condition has one colour in all.
    """
    names = list(dict.fromkeys([*conditions, *_COLOURS]))
    others = [name for name in names if name not in _COLOURS]
    free = dict(zip(others, _OTHERS * (1 + len(others) // len(_OTHERS)), strict=False))
    return {name: _COLOURS.get(name) or free[name] for name in names}
