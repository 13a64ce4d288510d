"""Figures of a training and of its edges, from tables alone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.static import figure
from headwise.sparsify.evaluate import edge_chart, training_chart


def test_the_training_curve_shows_what_is_in_its_tables():
    steps = np.arange(1, 301)
    curve = pd.DataFrame(
        {"step": steps, "excess": 0.5 / steps, "share": 1 / np.sqrt(steps), "multiplier": 10 + steps / 10}
    )
    checks = pd.DataFrame({"step": [0, 100, 200], "excess": [0.1, 0.02, 0.01], "share": [0.6, 0.1, 0.05]})
    picture = figure(training_chart(curve, checks, bound=0.02))
    shares, losses, prices = picture.axes
    assert [axes.get_xlabel() for axes in picture.axes] == ["Update"] * 3
    assert shares.lines[1].get_ydata().tolist() == [60.0, 10.0, 5.0]
    assert losses.lines[1].get_ydata().tolist() == [0.1, 0.02, 0.01]
    assert losses.lines[2].get_ydata()[0] == 0.02  # the bound
    window = curve["multiplier"].iloc[-15:].mean()  # a moving mean over a twentieth
    assert prices.lines[0].get_ydata()[-1] == window


def test_edges_are_shown_by_head_and_by_length():
    edges = pd.DataFrame([(la, h, (la * 3 + h) / 100) for la in range(2) for h in range(3)])
    edges.columns = ["layer", "head", "open"]
    lengths = pd.DataFrame({"length": range(4), "edges": [6, 2, 1, 1], "possible": [40, 30, 20, 10]})
    picture = figure(edge_chart(edges, lengths, title="a model"))
    left, right = picture.axes[:2]
    assert np.allclose(left.images[0].get_array(), [[0, 1, 2], [3, 4, 5]])
    possible, opened = (line.get_ydata() for line in right.lines)
    assert np.allclose(opened, [0.6, 0.8, 0.9, 1.0])
    assert np.allclose(possible, [0.4, 0.7, 0.9, 1.0])
