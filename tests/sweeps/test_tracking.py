"""Whether kept heads follow the model in each example and family, which a match of means does not say."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import headwise as hw
from headwise.heads import Head
from headwise.sweeps.curve import Sweep
from headwise.sweeps.sweep import sweep
from helpers import word_task
from planted import DENSE, keeping, planted_model

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
    masked = curve({0: FULL, 3: FULL / 2, 8: np.zeros(E)}, "mask")
    *numbers, family = masked.tracking(3)
    assert np.isnan(numbers).all()
    assert not family
    assert list(masked.explained()) == ["k", "value", "lo", "hi"]


def test_the_interval_counts_groups_once_and_covers():
    copied = np.repeat(np.arange(E // 4), 4)
    noise = RANDOM.normal(0, 1, E // 4)[copied]
    groups = [str(number) for number in copied]
    kept = FULL + noise
    alone, grouped = (curve({0: np.zeros(E), 3: kept, 8: FULL}, groups=g).tracking(3) for g in (None, groups))
    assert alone.r2 == grouped.r2
    assert grouped.r2_hi - grouped.r2_lo > 1.2 * (alone.r2_hi - alone.r2_lo)


def test_every_k_of_a_kept_curve_has_the_numbers_in_its_tables():
    points = {0: np.zeros(E), 2: FULL / 2, 5: FULL + RANDOM.normal(0, 1, E), 8: FULL}
    swept = curve(points)
    explained = swept.explained().set_index("k")
    for k, kept in points.items():
        assert explained.loc[k, "r2"] == pytest.approx(by_hand(kept))
        assert explained.loc[k, "within"] == np.mean(np.abs(kept - FULL) <= 0.2 * FULL.mean())
        ends = pytest.approx(swept.tracking(k)[2:4])  # one by one, or together
        assert tuple(explained.loc[k, ["r2_lo", "r2_hi"]]) == ends
    rows = swept.table().query("metric == 'explained_effect'").set_index("k")
    assert rows["r2"].equals(explained["r2"])
    assert explained[["agreement", "lowest_family"]].isna().all(axis=None)
    assert swept.table().query("metric == 'logit_diff'")["r2"].isna().all()


def test_the_share_of_same_answers_has_wilsons_interval():
    agrees = np.zeros((3, E))
    agrees[1, :45], agrees[2] = 1, 1
    found = replace(curve({0: np.zeros(E), 5: FULL, 8: FULL}), agrees=agrees).tracking(5)
    assert found.agreement == 0.75
    z, p = NormalDist().inv_cdf(0.975), 0.75
    middle, half = p + z**2 / (2 * E), z * np.sqrt(p * (1 - p) / E + z**2 / (4 * E**2))
    ends = [(middle + sign * half) / (1 + z**2 / E) for sign in (-1, 1)]
    assert [found.agreement_lo, found.agreement_hi] == pytest.approx(ends)


def two_families() -> Sweep:
    """Three heads explain 1.2 of the even examples, .7 of the odd ones, and nothing of a rare level."""
    even = np.arange(E) % 2 == 0
    levels = {"order": {"ABB": np.flatnonzero(even).tolist(), "BAB": np.flatnonzero(~even).tolist()}}
    levels["length"] = {"long": list(range(19)), "short": list(range(19, E))}
    levels["alone"] = {"only": list(range(E))}
    kept = FULL * np.where(even, 1.2, 0.7)
    kept[:19] *= 0.1
    return replace(curve({0: np.zeros(E), 3: kept, 8: FULL}), families=levels)


def test_the_lowest_family_is_named_with_an_interval_for_all_of_them_together():
    swept = two_families()
    found = swept.tracking(3)
    odd = np.arange(1, E, 2)
    assert found.family == "order = BAB"  # a level of 19 examples, and a facet of one level, are left out
    assert found.lowest_family == pytest.approx(swept.values[1, odd].sum() / FULL[odd].sum())
    assert found.lowest_family < swept.explained()["value"].iloc[1]
    one = replace(swept, families={"order": {"BAB": odd.tolist(), "ABB": [0]}}).tracking(
        3
    )  # one level counts
    assert one.lowest_family == found.lowest_family
    assert one.lowest_family_lo > found.lowest_family_lo
    assert found.lowest_family_hi > one.lowest_family_hi
    assert "lowest family" in repr(curve_reaching(swept))


def curve_reaching(swept: Sweep) -> Sweep:
    """With a point between at which .9 of the effect is explained."""
    values = np.stack([swept.values[0], swept.values[1], 0.95 * FULL, FULL])
    return replace(swept, k=np.array([0, 3, 6, 8]), values=values)


def test_the_repr_says_what_the_mean_leaves_out():
    swept = curve_reaching(two_families())
    kept = swept.tracking()
    assert kept.k == 6
    assert f"6 kept: R² {kept.r2:.2f}, 100% of the examples within a fifth" in repr(swept)
    assert "same answer" not in repr(swept)
    assert "same answer in 100%" in repr(replace(swept, agrees=np.ones((4, E))))


def test_a_family_without_an_effect_of_its_own_is_left_out():
    swept = two_families()
    none = swept.none.copy()
    none[1::2] = FULL[1::2] + np.tile([1.0, -1.0], E // 4)  # its own effect may be 0
    # What is left is the facet's other level; 41 short examples count too.
    found = replace(swept, none=none, families={"order": swept.families["order"]}).tracking(3)
    assert found.family == "order = ABB"


def test_curves_with_families_and_answers_are_saved(tmp_path):
    swept = replace(two_families(), agrees=np.ones((3, E)))
    swept.save(tmp_path / "curve.npz")
    assert Sweep.load(tmp_path / "curve.npz").explained().equals(swept.explained())


# ---- answers, measured in the same passes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(word_tokenizer):
    return planted_model(word_tokenizer, DENSE)


def by_hooks(model, example, kept) -> int:
    """The number of the most likely of target and foils, with all heads but these from the counterfactual."""
    last = keeping(model, example.prompt, example.counterfactual, kept)
    answers = [model.tokens(text.strip())[0] for text in (example.target, *example.foils)]
    return int(last[answers].argmax())


def test_answers_are_compared_with_those_of_the_whole_model_as_hooks_do(planted):
    task = word_task(10)
    for action in ("keep", "mask"):
        options = {"k": [0, 2, 4, 16], "reference": "patch", "controls": "random", "draws": 1}
        swept = sweep(
            planted, task, DENSE + [str(h) for h in planted.heads() if str(h) not in DENSE], action, **options
        )
        plain = [by_hooks(planted, example, planted.heads()) for example in task]
        for one in (swept, *swept.controls):
            for place, k in enumerate(one.k):
                chosen = one.sets[place] if one.sets else one.order[:k]
                kept = chosen if action == "keep" else [h for h in planted.heads() if h not in chosen]
                same = [
                    by_hooks(planted, example, kept) == told
                    for example, told in zip(task, plain, strict=True)
                ]
                assert one.agrees[place].tolist() == same
        assert 0 < swept.agrees.mean() < 1


def test_a_refined_curve_keeps_its_answers_in_order(planted):
    refined = sweep(planted, word_task(8), DENSE, controls=(), points=4, reference="patch")
    again = sweep(planted, word_task(8), DENSE, controls=(), k=refined.k.tolist(), reference="patch")
    assert (refined.agrees == again.agrees).all()


def test_answers_of_several_tokens_and_examples_without_foils_have_no_agreement(planted):
    examples = [
        replace(one, target=f"{one.target} {i % 3}", foils=(f"{one.foils[0]} tree", " a"))
        for i, one in enumerate(word_task(8))
    ]
    options = {"controls": (), "k": [0, 3, 6], "reference": "patch"}
    for foils in (lambda one: one.foils, lambda one: ()):
        task = hw.Task("answers", tuple(replace(one, foils=foils(one)) for one in examples), "logprob")
        swept = sweep(planted, task, DENSE, **options)
        assert swept.agrees is None
        assert np.isnan(swept.tracking(3).agreement)
