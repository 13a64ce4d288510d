"""The course of a sparse-attention training, and what became of the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import grid
from headwise.charts.style import house_style


def training_curve(
    curve: pd.DataFrame, checks: pd.DataFrame, *, bound: float, title: str | None = None
) -> Any:
    """Share of open edges, excess over the dense model and multiplier against updates.

    Lines: noisy gates, a moving mean over updates. Dots: hard gates on held-back text, the model as it is used.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    with house_style():
        figure = Figure(figsize=(9.6, 3.1), layout="constrained")
        shares, losses, prices = figure.subplots(1, 3)
        smooth = curve.rolling(min(50, max(1, len(curve) // 20)), min_periods=1).mean()
        shares.plot(curve["step"], 100 * smooth["share"], color="#1f77b4", label="noisy gates")
        shares.plot(
            checks["step"], 100 * checks["share"], "o", ms=4, color="#ff7f0e", label="hard gates, held-back"
        )
        shares.set(ylabel="Open edges (%)", yscale="log")
        shares.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        shares.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else ""))
        shares.legend(frameon=False, fontsize=8)
        losses.plot(curve["step"], smooth["excess"], color="#1f77b4")
        losses.plot(checks["step"], checks["excess"], "o", ms=4, color="#ff7f0e")
        losses.axhline(bound, color="0.3", linestyle="--", linewidth=1, label=f"bound {bound:g}")
        losses.legend(frameon=False, fontsize=8, loc="lower right")
        usual = smooth["excess"][len(curve) // 10 :].quantile(0.99)
        top = np.nanmax([usual, checks["excess"][checks["step"] > 0].max(), bound])
        losses.set(
            ylabel="Nats per token above dense",
            ylim=(min(0.0, smooth["excess"].min(), checks["excess"].min()), 1.15 * top),
        )
        prices.plot(curve["step"], smooth["multiplier"], color="#1f77b4")
        prices.set(ylabel="Multiplier λ", ylim=(0, None))
        for axes in (shares, losses, prices):
            axes.set_xlabel("Update")
        if title:
            figure.suptitle(title)
    return figure


def edge_figure(edges: pd.DataFrame, lengths: pd.DataFrame, *, title: str | None = None) -> Any:
    """Left, the part of causal edges open in every head; right, how far open edges reach beside all edges."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with house_style():
        figure = Figure(figsize=(9.2, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
        shares = 100 * grid(edges, "open")
        left.set_facecolor("0.85")  # a head that does not exist
        top = float(np.nanquantile(shares, 0.98)) or 1.0
        image = left.imshow(shares, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=top)
        left.set(xlabel="Head", ylabel="Layer")
        left.spines[:].set_visible(False)
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_locator(MaxNLocator(10, integer=True))
        extend = "max" if np.nanmax(shares) > top else "neither"
        figure.colorbar(image, ax=left, label="Open edges (%)", extend=extend)
        for column, label, colour in (
            ("possible", "all causal edges", "0.6"),
            ("edges", "open edges", "#ff7f0e"),
        ):
            share = lengths[column] / max(1, lengths[column].sum())
            right.plot(lengths["length"] + 1, share.cumsum(), color=colour, label=label)
        right.set(
            xlabel="Edge length (tokens back, + 1)", ylabel="Part of edges up to this length", ylim=(0, 1.02)
        )
        right.set_xscale("log", base=2)
        right.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        right.legend(frameon=False, loc="upper left")
        if title:
            figure.suptitle(title)
    return figure
