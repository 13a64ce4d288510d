"""What each check makes of arrays whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from headwise.certificates import checks
from headwise.certificates.checks import Followed, Thresholds
from headwise.sweeps.explained import lowest_family

E, ASKED = 60, Thresholds()
RANDOM = np.random.default_rng(0)
FULL = RANDOM.normal(4, 1, E)


def followed(kept, families=None) -> Followed:
    return Followed(FULL, np.zeros(E), kept, None, families or {})


def test_a_head_adds_nothing_only_if_its_whole_interval_is_within_the_margin():
    noise = RANDOM.normal(0, 0.2, E) - 0.1
    noise -= noise.mean()
    shares = {"nothing": 0.02, "undecided": 0.047, "something": -0.2}
    without = np.stack([FULL - share * FULL - noise for share in shares.values()])
    found = checks.head_changes(followed(FULL), without, ASKED)
    assert found["change"].tolist() == pytest.approx(list(shares.values()))
    half = NormalDist().inv_cdf(1 - 0.05 / 2 / len(shares)) * noise.std() / math.sqrt(E) / FULL.mean()
    assert (
        0.02 + 1.3 * half < ASKED.idle < 0.047 + half / 1.3
    )  # by the delta method: what the states should be
    assert found["adds"].tolist() == list(shares)
    assert ((found["hi"] - found["lo"]) / 2).to_numpy() == pytest.approx(half, rel=0.15)
    alone = checks.head_changes(followed(FULL), without[:1], ASKED)
    assert alone["lo"][0] > found["lo"][0]  # intervals hold for all heads of a set together
    few = replace(followed(FULL[:10]), full=FULL[:10], none=np.zeros(10))
    assert set(checks.head_changes(few, FULL[None, :10], ASKED)["adds"]) == {"undecided"}


@pytest.mark.parametrize(
    ("smaller", "passengers", "unsure", "state"),
    [
        (None, [], [], "pass"),
        (FULL, ["L0H1"], ["L0H2"], "fail"),
        (0.5 * FULL, ["L0H1"], [], "pass"),
        (0.9 * FULL, ["L0H1"], [], "undecided"),
        (FULL, [], ["L0H2"], "undecided"),
        (0.5 * FULL, [], ["L0H2"], "pass"),
    ],
)
def test_a_set_is_minimal_unless_a_smaller_one_does_the_same(smaller, passengers, unsure, state):
    kept = FULL + RANDOM.normal(0, 0.2, E)
    if smaller is not None:
        smaller = followed(smaller + RANDOM.normal(0, 0.2, E))
    found = checks.minimal(followed(kept), smaller, passengers, unsure, ASKED)
    assert (found["state"], found["value"]) == (state, len(passengers))
    assert all(name in found["note"] for name in (passengers or unsure))


def test_of_an_insufficient_set_nothing_is_said():
    assert checks.minimal(followed(0.5 * FULL), None, [], [], ASKED)["state"] == "not tested"


def test_families_with_a_weak_effect_are_left_out_by_certificates_and_curves_alike():
    families = {"kind": {"strong": list(range(20)), "weak": list(range(20, 40)), "far": list(range(40, 60))}}
    families["length"] = {"rare": list(range(19)), "common": list(range(19, E))}
    scale = np.ones(E)
    scale[20:40] = 0.1
    full, far = FULL * scale, np.ones(E)
    far[40:], far[20:40] = 1.4, 0.5
    kept = full * far + RANDOM.normal(0, 0.01, E)
    table = checks.levels(Followed(full, np.zeros(E), kept, None, families), ASKED).set_index("level")
    assert table["value"].tolist() == pytest.approx(
        [kept[of].sum() / full[of].sum() for levels in families.values() for of in levels.values()]
    )
    assert "below 20%" in table.loc["weak", "note"]
    assert "fewer than 20" in table.loc["rare", "note"]
    assert table["state"].to_dict() == {
        "strong": "pass",
        "weak": "not tested",
        "far": "fail",
        "rare": "not tested",
        "common": "fail",
    }
    line = checks.in_families(table.reset_index(), ASKED)
    assert line["note"].startswith("kind = far, the farthest of 3 families; 2 left out")
    lowest = lowest_family(kept[None], full, families)
    assert lowest["family"] == ["kind = strong"]
    assert lowest["lowest_family"][0] == table.loc["strong", "value"]
    assert lowest["lowest_family_lo"][0] == table.loc["strong", "lo"]


def test_where_examples_are_alike_the_share_within_a_fifth_is_judged_in_place_of_r2():
    alike = 4 + 0.1 * (FULL - FULL.mean())  # varies by about a tenth of what counts as followed
    kept = alike + 0.2 * RANDOM.choice([-1, 1], E)
    line = checks.tracks(Followed(alike, np.zeros(E), kept, None, {}), ASKED)[0]
    assert 1 - ((kept - alike) ** 2).sum() / ((alike - alike.mean()) ** 2).sum() < 0
    assert (line["value"], line["state"], line["threshold"]) == (1, "pass", ASKED.within)
    far = np.where(np.arange(E) % 5 == 0, 2.5, 4)
    line = checks.tracks(Followed(alike, np.zeros(E), far, None, {}), ASKED)[0]
    assert (line["value"], line["state"]) == (pytest.approx(0.8), "fail")
    line = checks.tracks(followed(FULL + 0.2 * RANDOM.choice([-1, 1], E)), ASKED)[0]
    assert (line["measure"], line["state"]) == ("R² over examples", "pass")
