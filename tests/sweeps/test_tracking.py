"""Whether kept heads follow the model from example to example, which a match of means does not say."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.heads import Head
from headwise.sweeps.curve import Sweep

RANDOM = np.random.default_rng(3)
E = 60
FULL = RANDOM.normal(4, 1, E)
HEADS = [Head(0, head) for head in range(8)]


def curve(points: dict[int, np.ndarray], action: str = "keep", groups=None) -> Sweep:
    k = np.array(sorted(points))
    values = np.stack([points[number] for number in k])
    names = {"model": "model", "task": "task", "series": "order", "metric": "logit_diff", "reference": "mean"}
    ends = {"none": np.zeros(E), "full": FULL}
    return Sweep(k=k, values=values, **ends, order=HEADS, action=action, total=8, groups=groups, **names)


def by_hand(kept: np.ndarray) -> float:
    return 1 - ((kept - FULL) ** 2).sum() / ((FULL - FULL.mean()) ** 2).sum()


def test_a_circuit_can_match_the_mean_and_follow_nothing():
    shuffled = RANDOM.permutation(FULL)
    swept = curve({0: np.zeros(E), 3: shuffled, 8: FULL})
    assert swept.k_at(0.9).stays <= 3
    found = swept.tracking(3)
    assert found.k == 3
    assert found.r2 == pytest.approx(by_hand(shuffled))
    assert found.r2_hi < 0  # a constant does better
    close = np.abs(shuffled - FULL) <= 0.2 * FULL.mean()
    assert found.within == pytest.approx(close.mean())
    assert found.within_lo < found.within < found.within_hi


@pytest.mark.parametrize(
    ("kept", "r2"), [(FULL, 1.0), (np.full(E, FULL.mean()), 0.0), (FULL + FULL.std() / 2, 0.75)]
)
def test_the_model_itself_has_one_and_its_mean_has_zero(kept, r2):
    found = curve({0: np.zeros(E), 5: kept, 8: FULL}).tracking(5)
    assert found.r2 == pytest.approx(r2)
    assert found.r2_lo <= found.r2 + 1e-9
    assert found.r2 <= found.r2_hi + 1e-3


def test_the_measured_point_at_or_above_k_is_taken_and_the_summary_has_it():
    half = FULL + RANDOM.normal(0, 0.5, E)
    swept = curve({0: np.zeros(E), 2: FULL / 2, 6: half, 8: FULL})
    assert swept.tracking(4).k == 6
    assert swept.tracking(4).r2 == pytest.approx(by_hand(half))
    row = swept.summary(0.9)
    assert row["kept"] == 6
    assert row["r2"] == pytest.approx(by_hand(half))
    assert row["stays"] <= 6


def test_masked_heads_have_no_tracking():
    assert np.isnan(curve({0: FULL, 3: FULL / 2, 8: np.zeros(E)}, "mask").tracking(3)).all()


def test_the_interval_counts_groups_once_and_covers():
    copied = np.repeat(np.arange(E // 4), 4)
    noise = RANDOM.normal(0, 1, E // 4)[copied]
    groups = [str(number) for number in copied]
    kept = FULL + noise
    alone, grouped = (curve({0: np.zeros(E), 3: kept, 8: FULL}, groups=g).tracking(3) for g in (None, groups))
    assert alone.r2 == grouped.r2
    assert grouped.r2_hi - grouped.r2_lo > 1.2 * (alone.r2_hi - alone.r2_lo)
