"""What contrastive gates do on held-out pairs: kept and lost, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import shortened

_COLOURS = {"keep": "#2a9d4e", "lose": "#d1352b"}


def contrast_bars(table: pd.DataFrame) -> Any:
    """Log probability per target token and accuracy of each held-out pair, ungated (light) and gated (dark).

    `table` holds the rows of `contrast` of one model; seed −1 is the ungated model. A dot is a seed. Returns a
    matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    pairs = list(dict.fromkeys(table["pair"]))
    with house_style():
        figure = Figure(figsize=(2.6 + 1.9 * len(pairs), 4.6), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for panel, measured in zip(panels, ("mean_logprob", "accuracy"), strict=True):
            for place, pair in enumerate(pairs):
                for number, side in enumerate(("keep", "lose")):
                    own = table[(table["pair"] == pair) & (table["side"] == side)]
                    before = own.loc[own["seed"] < 0, measured].mean()
                    after = own.loc[own["seed"] >= 0, measured].to_numpy(dtype=float)
                    x = place + 0.42 * number - 0.31
                    panel.bar(x, before, 0.18, color=_COLOURS[side], alpha=0.35)
                    panel.bar(x + 0.2, after.mean(), 0.18, color=_COLOURS[side])
                    # A seed at 0 or 1 lies on the panel's edge, and is drawn whole.
                    panel.plot(np.full(len(after), x + 0.2), after, ".", color="black", ms=4, clip_on=False)
            panel.axhline(0, color="0.4", lw=0.6)
            panel.tick_params(axis="x", length=0)
        panels[0].set_ylabel("Log Probability\nper Target Token (nats)")
        panels[1].set(ylabel="Accuracy", ylim=(0, 1.02))
        panels[1].set_xticks(range(len(pairs)), [shortened(pair, 22) for pair in pairs])
        shown: list[Any] = [
            Patch(color=colour, alpha=alpha, lw=0, label=f"{name}, {state}")
            for name, colour in (("kept", _COLOURS["keep"]), ("lost", _COLOURS["lose"]))
            for state, alpha in (("all heads", 0.35), ("gated", 1.0))
        ]
        shown.append(Line2D([], [], ls="", marker=".", ms=4, color="black", label="one seed"))
        figure.legend(handles=shown, loc="outside right center", frameon=False)
        figure.suptitle(
            f"Kept and lost on held-out pairs: {shortened(str(table['model'].iloc[0]), 22)}", fontsize=10
        )
    return figure
