"""One head's attention map, with the tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.figures.style import house_style

_MOST_LABELS = 48


def attention_map(weights: np.ndarray, tokens: Sequence[str], *, title: str = "") -> Any:
    """A map `[queries, keys]` as a heatmap: each row shows where one token looks. Returns a matplotlib figure.

    The first token takes most of the attention of most heads; the scale is set by all other keys, and saturates.
    """
    from matplotlib.figure import Figure

    length = len(tokens)
    later = np.triu(np.ones((length, length), dtype=bool), 1)
    shown = np.ma.masked_array(weights, later)  # what no token can reach stays white
    top = float(weights[1:, 1:].max()) if length > 1 else 1.0
    beyond = bool(weights.max() > top)
    with house_style():
        side = float(np.clip(2.2 + 0.17 * length, 3.6, 9.5))
        figure = Figure(figsize=(side + 0.8, side), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shown, cmap="viridis", vmin=0, vmax=top or 1.0, interpolation="nearest")
        every = -(-length // _MOST_LABELS)
        places = list(range(0, length, every))
        names = [_label(tokens[place], place if every > 1 else None) for place in places]
        size = 7 if length > 24 else 8
        axes.set_xticks(places, names, rotation=90, fontsize=size)
        axes.set_yticks(places, names, fontsize=size)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="Key (attended to)", ylabel="Query (attending)", title=title)
        bar = figure.colorbar(
            image, ax=axes, label="Attention", shrink=0.8, extend="max" if beyond else "neither"
        )
        if beyond:
            bar.ax.set_title("first key\nbeyond", fontsize=7)
    return figure


def _label(token: str, place: int | None) -> str:
    """A token as one short line; a dollar sign would begin a formula."""
    line = token.strip(" ").replace("\n", "↵").replace("\t", "→").replace("$", r"\$") or "␣"
    short = line if len(line) <= 14 else line[:13] + "…"
    return short if place is None else f"{place} {short}"
