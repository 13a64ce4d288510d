"""The heads behind an overshoot, on numbers that can be worked out by hand."""

from __future__ import annotations

import numpy as np

from headwise.heads import Head
from headwise.sweeps.curve import Sweep
from headwise.sweeps.readings import overshoot_rows, overshoots, rise_points

HEADS = [Head(0, head) for head in range(8)]


def curve(shares: dict[int, float]) -> Sweep:
    """A curve with these explained effects; four examples, of which two have twice the effect."""
    k = np.array(sorted(shares))
    effect = np.array([1.0, 2.0, 1.0, 2.0])
    values = np.array([shares[number] for number in k])[:, None] * effect
    names = {"model": "model", "task": "task", "series": "order", "metric": "logit_diff", "reference": "mean"}
    ends = {"none": np.zeros(4), "full": effect}
    return Sweep(k=k, values=values, **ends, order=HEADS, action="keep", total=8, **names)


def test_a_rise_begins_where_the_curve_was_last_below_one():
    swept = curve({0: 0, 1: 1.1, 2: 0.8, 5: 1.4, 6: 1.3, 8: 1})
    shares = swept.explained()["value"].to_numpy()
    assert rise_points(swept.k, shares) == [2, 3, 4, 5]
    assert rise_points(swept.k, shares, most=1) == [2, 3, 5]


def test_the_heads_behind_an_overshoot_are_those_whose_addition_raises_it():
    swept = curve({0: 0, 2: 0.8, 3: 1.3, 4: 1.25, 5: 1.45, 8: 1})
    assert overshoots(swept)
    rows = overshoot_rows(swept)
    assert rows["heads"].tolist() == ["L0H2", "L0H4"]  # the third head, then the fifth; the fourth lowers it
    np.testing.assert_allclose(rows["rise"], [0.5, 0.2])
    assert set(rows["peak_k"]) == {5}
    np.testing.assert_allclose(rows["peak"], 1.45)


def test_a_step_of_several_heads_names_them_all():
    rows = overshoot_rows(curve({0: 0, 2: 0.9, 5: 1.5, 8: 1}))
    assert rows["heads"].tolist() == ["L0H2 L0H3 L0H4"]


def test_a_curve_that_stays_near_one_is_no_overshoot():
    assert not overshoots(curve({0: 0, 2: 0.9, 5: 1.19, 8: 1}))
