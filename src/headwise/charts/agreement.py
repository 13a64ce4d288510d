"""How far scores agree: three matrices, and each score's agreement with itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style


def agreement_figure(
    signed: pd.DataFrame,
    absolute: pd.DataFrame,
    jaccard: pd.DataFrame,
    stability: pd.DataFrame,
    *,
    k: int,
    title: str | None = None,
) -> Any:
    """Rank correlation (signed, absolute), Jaccard of the top k, and stability; returns a matplotlib figure.

    Correlations share a diverging scale from −1 to 1, the overlap runs from 0 to 1; every cell carries its
    number, and a cell without one has no meaning (a signed beside an unsigned score).
    """
    from matplotlib.figure import Figure

    count = len(signed)
    side = 1.6 + 0.52 * count
    label = 0.075 * max(len(str(name)) for name in signed.index)
    with house_style():
        figure = Figure(figsize=(3 * side + 2.6 + label, side + 0.4 + label), layout="constrained")
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 0.8))
        correlation = {"cmap": "RdBu", "vmin": -1, "vmax": 1}
        overlap = {"cmap": "viridis", "vmin": 0, "vmax": 1}
        _matrix(axes[0], signed, "Rank correlation, signed", correlation, names=True)
        shown = _matrix(axes[1], absolute, "Rank correlation, absolute", correlation)
        figure.colorbar(shown, ax=axes[:2].tolist(), location="bottom", shrink=0.6, aspect=30)
        shown = _matrix(axes[2], jaccard, f"Jaccard of the top {k}", overlap)
        figure.colorbar(shown, ax=axes[2], location="bottom", shrink=0.8)
        _stability(axes[3], stability, k)
        if title:
            figure.suptitle(title)
    return figure


def _matrix(axes: Any, table: pd.DataFrame, title: str, scale: dict[str, Any], names: bool = False) -> Any:
    values = table.to_numpy(dtype=float)
    axes.set_facecolor("0.88")
    image = axes.imshow(values, **scale)
    where = np.arange(len(table))
    axes.set_xticks(where, table.columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(where, table.index if names else [])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title)
    for i in where:
        for j in where:
            if np.isfinite(values[i, j]):
                red, green, blue, _ = image.cmap(image.norm(values[i, j]))
                dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                axes.text(
                    j,
                    i,
                    f"{values[i, j]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
    return image


def _stability(axes: Any, table: pd.DataFrame, k: int) -> None:
    where = np.arange(len(table))
    axes.plot(table["resamples"], where, "o", color="#35608d", label="other examples")
    if table["seeds"].notna().any():
        axes.plot(table["seeds"], where, "D", color="#d95f02", markerfacecolor="none", label="other seeds")
    axes.set(
        xlim=(0, 1.03),
        ylim=(len(table) - 0.5, -0.5),
        xlabel="mean Jaccard",
        title=f"Stability of the top {k}",
    )
    axes.set_yticks(where, [])
    axes.tick_params(axis="y", length=0)
    axes.set_box_aspect(1 / 0.8)  # as tall as the matrices, so that its rows are theirs
    axes.grid(axis="y", color="0.9")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8)
