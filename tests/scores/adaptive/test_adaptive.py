"""Adaptive exact scores: the statistics on tables whose truth is known, then on a tiny model."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy.stats import binom

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Scores, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.adaptive import adaptive
from headwise.scores.adaptive.sample import (
    Sample,
    coefficients_of,
    grouped_stretches,
    left_out_variance,
    moderated,
    shared_coefficient,
)
from helpers import word_task


def made_up_table(seed, N=256, K=60):
    """Exact effects and attributions `[N, K]`: most heads quiet, few loud and badly explained, tails heavy."""
    rng = np.random.default_rng(seed)
    size = np.minimum(0.1 * np.exp(1.1 * rng.standard_normal(K)), 1.5)
    explained = np.clip(0.92 - 0.3 * np.log(np.maximum(size, 0.2) / 0.2), 0.4, 0.92)

    def noise():
        return rng.standard_t(6, (N, K)) * 0.6 + np.exp(0.5 * rng.standard_normal((N, K))) - 1.13

    attribution = noise() * size * np.sqrt(explained)
    exact = attribution + noise() * size * np.sqrt(1 - explained) + size * rng.standard_normal(K)
    return exact, attribution / rng.uniform(0.6, 1.4, K)


class Replay:
    """Answers from a table, and notes what was asked."""

    def __init__(self, exact):
        self.exact, self.asked, self.calls = exact, np.zeros(exact.shape, int), 0

    def __call__(self, heads, examples):
        self.asked[np.ix_(examples, heads)] += 1
        self.calls += 1
        return self.exact[np.ix_(examples, heads)]


def to_precision(exact, attribution, shape, precision, *, confidence=0.95, **how):
    return adaptive.to_precision(Sample(exact, attribution, shape, **how), precision, confidence)


def top_k(exact, attribution, shape, k, *, confidence=0.95, order="signed", **how):
    return adaptive.top_k(Sample(exact, attribution, shape, **how), k, confidence, order)


# ---- to a precision ----------------------------------------------------------------------------------------


def test_auto_measures_every_head_to_five_percent_of_the_largest_score_and_its_intervals_hold():
    inside, top_found, spent = [], [], []
    for seed in range(60):
        exact, attribution = made_up_table(seed, N=64)
        sample = Sample(Replay(exact), attribution, exact.shape, seed=seed)
        found, truth = adaptive.to_precision(sample, 0.05, of_largest=True), exact.mean(axis=0)
        assert ((found.hi - found.lo) / 2 <= 0.05 * np.abs(found.values).max() + 1e-12).all()
        sampled = found.n < 64
        assert found.values[~sampled] == pytest.approx(truth[~sampled], abs=1e-12)
        inside += ((found.lo <= truth) & (truth <= found.hi))[sampled].tolist()
        # A head that is in only one of the two first tens lies within its interval of the tenth.
        tenth = np.sort(np.abs(truth))[-10]
        ours, right = (set(np.argsort(-np.abs(v))[:10]) for v in (found.values, truth))
        half = (found.hi - found.lo) / 2
        top_found += [abs(abs(truth[k]) - tenth) <= 2 * half.max() for k in ours ^ right]
        spent.append(found.pairs / exact.size)
    assert np.mean(inside) > 0.93
    assert all(top_found)
    assert 0.1 < np.mean(spent) < 0.9


def test_auto_is_a_word_of_ablation_and_no_other_is(tiny):
    task = word_task(24, equal_length=False)
    found = hw.score(tiny, task, "ablation", precision="auto", progress=False)
    assert "± 5% of the largest score" in found.details["rule"]
    exact = hw.score(tiny, task, "ablation", progress=False)
    half = (found.own["hi"] - found.own["lo"]) / 2
    assert half.max() <= 0.05 * np.abs(found.values).max()
    assert np.abs(found.values - exact.values).max() <= 0.1 * np.abs(exact.values).max()
    with pytest.raises(HeadwiseError, match="'precision' is 'fine'; expected a number"):
        hw.score(tiny, task, "ablation", precision="fine")


def test_the_estimate_has_no_bias_even_where_values_are_skewed():
    rng = np.random.default_rng(0)
    attribution = rng.exponential(size=(40, 5))
    exact = attribution + rng.exponential(size=(40, 5)) ** 2 * np.array([0.1, 0.3, 1, 2, 3])
    found = [to_precision(Replay(exact), attribution, (40, 5), 0.3, seed=s) for s in range(1500)]
    values = np.stack([f.values for f in found])
    assert 0.2 < np.mean([f.pairs for f in found]) / exact.size < 0.9  # it does stop, at differing numbers
    assert len({int(f.n[2]) for f in found}) > 5
    off = (values.mean(axis=0) - exact.mean(axis=0)) / (values.std(axis=0) / np.sqrt(len(values)))
    assert np.abs(off).max() < 4


def test_ninety_five_percent_intervals_cover_at_the_stopped_estimate():
    covered = []
    for seed in range(60):
        exact, attribution = made_up_table(seed)
        found = to_precision(Replay(exact), attribution, exact.shape, 0.1, seed=seed)
        truth = exact.mean(axis=0)
        covered.append((found.lo <= truth) & (truth <= found.hi))
    share, n = np.mean(covered), np.size(covered)
    lowest, highest = binom.ppf(0.001, n, 0.93) / n, binom.ppf(0.999, n, 0.97) / n
    assert lowest <= share <= highest


def test_intervals_without_a_control_variate_cover_too_and_cost_more():
    covered, rows = [], np.zeros(2)
    for seed in range(40):
        exact, attribution = made_up_table(seed)
        plain = to_precision(Replay(exact), None, exact.shape, 0.1, seed=seed)
        truth = exact.mean(axis=0)
        covered.append((plain.lo <= truth) & (truth <= plain.hi))
        rows += plain.pairs, to_precision(Replay(exact), attribution, exact.shape, 0.1, seed=seed).pairs
    n = np.size(covered)
    assert binom.ppf(0.001, n, 0.93) / n <= np.mean(covered) <= binom.ppf(0.999, n, 0.97) / n
    assert rows[0] > 1.3 * rows[1]


def test_population_intervals_cover_the_mean_of_new_examples():
    covered = []
    for seed in range(60):
        exact, attribution = made_up_table(seed, N=4096, K=40)
        mine = np.random.default_rng(seed).choice(4096, 128, replace=False)
        found = to_precision(
            Replay(exact[mine]), attribution[mine], (128, 40), 0.1, population=True, seed=seed
        )
        truth = exact.mean(axis=0)
        covered.append((found.lo <= truth) & (truth <= found.hi))
    # A head's own 128 examples shift all its draws together, so one interval per table counts as independent.
    share = np.mean(covered)
    assert 0.92 < share < 0.985


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_no_interval_is_wider_than_asked(confidence):
    exact, attribution = made_up_table(3)
    found = to_precision(Replay(exact), attribution, exact.shape, 0.1, confidence=confidence)
    from scipy.stats import t

    half = t.ppf((1 + confidence) / 2, 7) * found.stderr
    assert half.max() <= 0.1 + 1e-9
    assert half.max() > 0.09  # and no narrower than it must be
    assert found.pairs < exact.size / 3


def test_a_precision_of_zero_runs_everything_and_is_the_plain_mean():
    exact, attribution = made_up_table(4, N=30, K=12)
    found = to_precision(Replay(exact), attribution, exact.shape, 0.0)
    assert np.array_equal(found.examples, exact)
    np.testing.assert_allclose(found.values, exact.mean(axis=0), rtol=1e-12)
    assert not found.stderr.any()
    everyone = to_precision(Replay(exact), attribution, exact.shape, 0.0, population=True)
    np.testing.assert_allclose(everyone.stderr, exact.std(axis=0, ddof=1) / np.sqrt(30), rtol=1e-12)


def test_no_pair_is_run_twice_and_pairs_come_in_rectangles():
    exact, attribution = made_up_table(5, K=270)
    replay = Replay(exact)
    found = to_precision(replay, attribution, exact.shape, 0.1)
    assert replay.asked.max() == 1
    assert np.array_equal(replay.asked.sum(axis=0), found.n)
    assert np.array_equal(np.isnan(found.examples), replay.asked == 0)
    assert replay.calls < 50  # of thousands of pairs


@pytest.mark.parametrize("N", [1, 2, 3, 8, 9, 11])
@pytest.mark.parametrize("with_attribution", [True, False])
def test_few_examples_are_simply_all_run(N, with_attribution):
    exact, attribution = made_up_table(6, N=N, K=5)
    found = to_precision(Replay(exact), attribution if with_attribution else None, (N, 5), 1e-9)
    np.testing.assert_allclose(found.values, exact.mean(axis=0), rtol=1e-12)
    assert np.isfinite(found.stderr).all()
    assert (found.n == N).all()


def test_a_head_that_does_nothing_scores_exactly_zero_and_stops_at_once():
    exact, attribution = made_up_table(7)
    exact[:, 3] = attribution[:, 3] = 0
    found = to_precision(Replay(exact), attribution, exact.shape, 0.01)
    assert found.values[3] == found.stderr[3] == 0
    assert (found.n[3], found.p[3]) == (9, 1)


def test_a_head_silent_on_the_pilot_alone_is_not_taken_for_dead():
    exact, attribution = made_up_table(8, K=4)
    pilot = np.random.default_rng(0).permutation(len(exact))[:8]
    exact[pilot, 0] = attribution[pilot, 0] = 0
    found = to_precision(Replay(exact), attribution, exact.shape, 0.001, seed=0)
    assert found.n[0] > 100


# ---- the first k -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["signed", "absolute", "hinders"])
def test_the_top_k_are_right_as_often_as_promised(order):
    key = {"signed": lambda v: v, "absolute": np.abs, "hinders": lambda v: -v}[order]
    wrong, pairs, covered = 0, 0, []
    for seed in range(60):
        exact, attribution = made_up_table(100 + seed)
        found = top_k(Replay(exact), attribution, exact.shape, 10, order=order, confidence=0.9, seed=seed)
        truth = exact.mean(axis=0)
        wrong += set(found.top) != set(np.argsort(-key(truth))[:10])
        pairs += found.pairs
        covered.append((found.lo - 1e-12 <= truth) & (truth <= found.hi + 1e-12))
    assert wrong <= binom.ppf(0.999, 60, 0.1)
    assert pairs < 0.5 * 60 * 256 * 60
    assert np.mean(covered) > 0.93


def test_a_clear_top_k_needs_few_examples_and_a_close_one_more():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((256, 40)) * 0.1
    far, near = noise + np.where(np.arange(40) < 5, 3.0, 0), noise + np.where(np.arange(40) < 5, 0.02, 0)
    clear = top_k(Replay(far), None, far.shape, 5)
    close = top_k(Replay(near), None, near.shape, 5)
    assert clear.top.tolist() == sorted(range(5), key=lambda h: -clear.values[h])
    assert clear.pairs < 0.1 * far.size < 0.5 * far.size < close.pairs


def test_equal_heads_at_the_boundary_are_parted_by_their_order_without_running_everything():
    exact = np.zeros((256, 30))
    exact[:, 4] = 2 + np.random.default_rng(0).standard_normal(256) * 0.01
    found = top_k(Replay(exact), None, exact.shape, 3)
    assert found.top.tolist() == [4, 0, 1]
    assert found.pairs < 0.1 * exact.size


# ---- the control variate -----------------------------------------------------------------------------------


def test_the_left_out_variance_is_that_of_predictions_made_without_the_example():
    exact, cheap = made_up_table(9, N=7, K=4)
    spread = cheap.var(axis=0)
    shared = shared_coefficient(exact, cheap)
    by_hand = np.zeros((7, 4))
    for left in range(7):
        e, c = np.delete(exact, left, 0), np.delete(cheap, left, 0)
        for h in range(4):
            variance, covariance = np.cov(c[:, h], e[:, h], bias=True)[0]
            slope = (6 * covariance + 2 * spread[h] * shared) / (6 * variance + 2 * spread[h])
            by_hand[left, h] = exact[left, h] - e[:, h].mean() - slope * (cheap[left, h] - c[:, h].mean())
    np.testing.assert_allclose(left_out_variance(exact, cheap, spread), (by_hand**2).mean(axis=0))
    alone = [np.mean([(x[i] - np.delete(x, i).mean()) ** 2 for i in range(7)]) for x in exact.T]
    np.testing.assert_allclose(left_out_variance(exact), alone)


def test_coefficients_are_fitted_where_there_are_many_examples_and_shared_where_there_are_few():
    rng = np.random.default_rng(0)
    cheap = rng.standard_normal((3000, 30))
    true = rng.uniform(0.5, 1.5, 30)
    exact = true * cheap + 0.5 * rng.standard_normal(cheap.shape)
    np.testing.assert_allclose(coefficients_of(exact, cheap, cheap.var(axis=0)), true, atol=0.05)
    few = coefficients_of(exact[:3], cheap[:3], cheap.var(axis=0))
    alone = coefficients_of(exact[:3], cheap[:3], np.zeros(30))
    assert np.mean((few - true) ** 2) < np.mean((alone - true) ** 2)


def test_moderated_variances_are_nearer_the_truth_than_those_of_small_samples():
    rng = np.random.default_rng(1)
    predictor = np.exp(rng.standard_normal(270))
    true = predictor**1.3 * np.exp(0.5 * rng.standard_normal(270))
    raw = true * rng.chisquare(7, 270) / 7
    drawn = moderated(raw, 7, predictor)
    assert np.mean(np.log(drawn / true) ** 2) < 0.7 * np.mean(np.log(raw / true) ** 2)
    assert np.array_equal(moderated(raw[:5], 7, predictor[:5]), raw[:5])


# ---- on a model --------------------------------------------------------------------------------------------


def test_some_examples_measured_are_those_columns_of_all(tiny):
    for name in ("logit_diff", "accuracy"):
        task = word_task(9, equal_length=False)
        gates = single_gates(tiny.heads(), tiny.shape)
        engine = Engine(tiny, task, metric(name))
        whole, part = engine.measure(gates), engine.measure(gates[[2, 11]], examples=[7, 0, 4])
        np.testing.assert_allclose(part.values, whole.values[np.ix_([2, 11], [7, 0, 4])], atol=1e-5)
        np.testing.assert_allclose(part.full, whole.full[np.ix_([2, 11], [7, 0, 4])], atol=1e-5)
    with pytest.raises(HeadwiseError, match=r"examples \[9\] are not in task 'words'.*0 to 8"):
        engine.measure(gates, examples=[1, 9])


def test_adaptive_scores_touch_fewer_rows_and_agree_with_the_exact_ones(tiny):
    task = word_task(60)
    exact = hw.score(tiny, task, "ablation")
    precision = 0.5 * float(np.median(exact.examples.std(axis=0)))
    scores = hw.score(tiny, task, "ablation", precision=precision)
    details = scores.details
    assert details["rows"] == (~np.isnan(scores.examples)).sum() + 3 * 60
    assert (details["rows_exhaustive"], details["ratio"]) == (16 * 60, 16 * 60 / details["rows"])
    assert details["rows_run"] < exact.details["rows"]
    run = ~np.isnan(scores.examples)
    np.testing.assert_allclose(scores.examples[run], exact.examples[run], atol=1e-5)
    table = scores.table()
    assert not table.isna().any().any()
    assert np.array_equal(table["n"], run.sum(axis=0).ravel())
    inside = (table["lo"] <= exact.values.ravel()) & (exact.values.ravel() <= table["hi"])
    assert inside.sum() >= binom.ppf(0.001, 16, 0.95)
    assert (table["hi"] - table["lo"]).max() <= 2 * precision + 1e-9


def test_asking_for_everything_equals_plain_ablation(tiny):
    task = word_task(12, equal_length=False)
    exact = hw.score(tiny, task, "ablation", reference="patch")
    scores = hw.score(tiny, task, "ablation", reference="patch", precision=0, population=True)
    np.testing.assert_allclose(scores.examples, exact.examples, atol=1e-5)
    np.testing.assert_allclose(scores.values, exact.values, atol=1e-5)
    np.testing.assert_allclose(scores.stderr, exact.stderr, atol=1e-5)


def test_the_top_heads_are_named_and_are_those_of_the_exact_scores(tiny):
    task = word_task(40)
    scores = hw.score(tiny, task, "ablation", top=3, order="absolute")
    expected = hw.score(tiny, task, "ablation").top(3, "absolute")
    assert scores.details["top_heads"] == [str(h) for h in expected]


def test_a_metric_without_slope_at_full_gates_is_scored_without_control_variate(tiny):
    scores = hw.score(tiny, word_task(30), "ablation", metric="kl", precision=1.0)
    assert scores.details["rows"] == (~np.isnan(scores.examples)).sum() < 30 * 16
    assert set(scores.details["slopes"].values()) == {0.0}


def test_adaptive_scores_are_written_read_and_drawn_alike(tiny, tmp_path):
    scores = hw.score(tiny, word_task(30), "ablation", precision=0.05)
    scores.save(tmp_path / "scores.npz")
    back = Scores.load(tmp_path / "scores.npz")
    assert back.table().equals(scores.table())
    json.dumps(dict(scores.details))
    assert "n = " in scores.plot()._suptitle.get_text()


def test_the_study_says_what_was_spent_and_keeps_only_examples_that_were_run(tiny, tmp_path, undrawn):
    from headwise.runs import read_table
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    bench.add(tiny)
    bench.task = lambda *_: word_task(30)
    folder = hw.run(
        "score",
        tmp_path / "run",
        workbench=bench,
        models=["tiny"],
        tasks=["ioi"],
        methods=["ablation", "attribution"],
        n=30,
        method_options={"precision": 0.05},
    )
    (said,) = folder.notices
    scores, examples = read_table(folder, "scores"), read_table(folder, "examples")
    ablation = scores[scores["method"] == "ablation"]
    assert f"{ablation['n'].sum() + 90:,} forward rows instead of 480" in said
    assert (examples["method"] == "ablation").sum() == ablation["n"].sum() < 480
    assert (examples["method"] == "attribution").sum() == 480


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": 0.1, "top": 3}, "cannot be combined"),
        ({"precision": -1}, "precision is -1; expected at least 0"),
        ({"precision": 0.1, "confidence": 1.5}, "confidence is 1.5; expected above 0 and below 1"),
        ({"top": 0}, "top is 0; expected at least 1"),
        ({"top": 16}, "k from 1 to 15, not 16"),
        ({"top": 3, "order": "size"}, "unknown order 'size'; did you mean 'signed'"),
        ({"precision": 0.1, "metric": "accuracy"}, "'accuracy' takes few values"),
        ({"confidence": 0.9}, "give precision or top as well"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_sentence(tiny, options, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.score(tiny, word_task(), "ablation", **options)


@pytest.mark.parametrize("call_cost", [0.0, 3.0, 40.0, 1e9])
def test_what_a_call_costs_changes_how_often_is_called_and_no_number(call_cost):
    draw = np.random.default_rng(11)
    cheap = draw.normal(size=(90, 12))
    exact = cheap + draw.normal(size=(90, 12)) * draw.uniform(0.02, 1.5, 12)
    calls = []

    def run(heads, examples):
        calls.append(len(heads) * len(examples))
        return exact[np.ix_(examples, heads)]

    plain = to_precision(Replay(exact), cheap, exact.shape, 0.12, seed=3)
    ours = to_precision(run, cheap, exact.shape, 0.12, seed=3, call_cost=call_cost)
    for name in ("values", "stderr", "lo", "hi", "n", "examples"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(plain, name))
    if call_cost == 1e9:
        assert len(calls) == 2  # the pilot, and everything else
    assert sum(calls) >= ours.pairs
    assert (sum(calls) == ours.pairs) or call_cost > 0


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_joined_in_the_cheapest_of_all_ways(seed):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 7))
    needed, lengths = draw.random((count, 4)) < 0.5, draw.integers(1, 9, count)
    price = float(draw.uniform(0, 20))

    def cost(groups):
        heads = [needed[a:b].any(axis=0).sum() for a, b in groups]
        return sum(h * lengths[a:b].sum() + price * (h > 0) for h, (a, b) in zip(heads, groups, strict=True))

    ways = []
    for cuts in itertools.product([False, True], repeat=count - 1):
        edges = [0, *[i + 1 for i, cut in enumerate(cuts) if cut], count]
        ways.append(list(itertools.pairwise(edges)))
    groups = grouped_stretches(needed, lengths, price)
    assert [a for a, _ in groups[1:]] == [b for _, b in groups[:-1]]
    assert cost(groups) == pytest.approx(min(map(cost, ways)))
