"""Numbers as sentences have them."""

from __future__ import annotations

import math

import pytest

from headwise.charts.words import percent, plus


@pytest.mark.parametrize(
    ("number", "digits", "written"),
    [(-0.03, 1, "+0.0"), (-0.0, 2, "+0.00"), (-0.06, 1, "−0.1"), (0.31, 1, "+0.3"), (math.nan, 1, "+nan")],
)
def test_a_change_that_rounds_to_0_has_no_minus(number, digits, written):
    assert plus(number, digits) == written


def test_a_share_that_rounds_to_0_has_no_minus():
    assert percent(-0.004, -0.011, -0.001) == "0 % (95 % CI -1–0 %)"
