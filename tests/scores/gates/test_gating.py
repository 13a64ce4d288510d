"""Learned gates against slow and obvious fits, finite differences, and heads whose role was planted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.gates.fit import FitSettings, fit_logits, random_logits, regulariser, sigmoid
from headwise.scores.gates.gating import (
    LABELS,
    always_and_ever,
    majority,
    most_facilitating,
    one_fit,
    role_labels,
    role_scores,
)
from headwise.scores.gates.likelihood import CALM_UPDATES, GateLikelihood
from headwise.scores.gates.row_gradients import ShapedGradients, batches, packed_pieces, padded_pieces
from helpers import HeadsByHook, word_task

# ---- roles from gates ------------------------------------------------------------------------------


def test_each_corner_of_the_two_gates_has_its_role():
    corners = {(1, 1): "facilitating", (1, 0): "irrelevant", (0, 0): "interfering", (0, 1): "anomalous"}
    for (plus, minus), label in corners.items():
        assert role_labels(np.array([float(plus)]), np.array([float(minus)])) == [label]


def test_labels_follow_the_threshold_everywhere_on_a_grid():
    steps = np.linspace(0, 1, 41)
    for plus, minus in itertools.product(steps, steps):
        facilitation, interference, irrelevance = minus, 1 - plus, plus * (1 - minus)
        if plus < 0.5 < minus:
            expected = {"anomalous"}
        else:
            reached = {"facilitating": facilitation, "interfering": interference, "irrelevant": irrelevance}
            top = max(reached.values())
            expected = (
                {name for name, score in reached.items() if score == top} if top >= 0.5 else {"undecided"}
            )
        assert role_labels(np.array(plus), np.array(minus)).item() in expected, (plus, minus)
        assert sum(float(s) for s in role_scores(np.array(plus), np.array(minus)).values()) <= 2


def test_a_head_is_called_what_most_seeds_call_it_and_a_tie_is_undecided():
    labels = np.array(
        [["irrelevant", "facilitating"], ["irrelevant", "interfering"], ["undecided", "undecided"]]
    )
    winner, share = majority(labels)
    assert winner.tolist() == ["irrelevant", "undecided"]
    np.testing.assert_allclose(share, [2 / 3, 1 / 3])


def test_always_and_ever_count_heads_over_seeds_and_skip_heads_that_do_not_exist():
    labels = np.array(
        [[["facilitating", "irrelevant", "interfering"]], [["facilitating", "facilitating", "anomalous"]]]
    )
    rows = {row["label"]: row for row in always_and_ever(labels, np.array([[True, True, False]]))}
    assert (rows["facilitating"]["always"], rows["facilitating"]["ever"], rows["facilitating"]["mean"]) == (
        1,
        2,
        1.5,
    )
    assert (rows["irrelevant"]["always"], rows["irrelevant"]["ever"]) == (0, 1)
    assert rows["interfering"]["ever"] == rows["anomalous"]["ever"] == 0
    assert list(rows) == list(LABELS)


# ---- the likelihood and its slopes -----------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 20, 10_000])
def test_slopes_equal_finite_differences_for_every_fit_in_the_batch(tiny64, tokens):
    task = word_task(5, equal_length=False)
    likelihood = GateLikelihood(tiny64, task, batch_tokens=tokens)
    gates = np.random.default_rng(0).uniform(0.1, 0.9, (2, *tiny64.shape))
    examples = np.array([[0, 3, 4], [2, 1, 1]])  # each fit its own, and one of them twice
    values, slopes = likelihood.gradients(gates, examples)
    every = likelihood.values(gates)
    np.testing.assert_allclose(values, [every[s, examples[s]].mean() for s in range(2)], atol=1e-10)
    for layer, head in [(0, 0), (1, 2), (3, 3)]:
        step = np.zeros_like(gates)
        step[:, layer, head] = 1e-5
        up, down = (likelihood.values(gates + sign * step) for sign in (1, -1))
        for s in range(2):
            slope = (up - down)[s, examples[s]].mean() / 2e-5
            assert slopes[s, layer, head] == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("reference", ["mean", "patch"])
def test_slopes_respect_the_reference(tiny64, reference):
    task = word_task(3)
    likelihood = GateLikelihood(tiny64, task, reference=reference)
    gates = np.random.default_rng(1).uniform(0.1, 0.9, (1, *tiny64.shape))
    _, slopes = likelihood.gradients(gates, np.array([[0, 1, 2]]))
    step = np.zeros_like(gates)
    step[:, 2, 1] = 1e-5
    up, down = (likelihood.values(gates + sign * step).mean() for sign in (1, -1))
    assert slopes[0, 2, 1] == pytest.approx((up - down) / 2e-5, rel=1e-5)


def test_slopes_in_fixed_shapes_equal_those_in_pieces_of_any_shape(tiny64):
    draw = np.random.default_rng(2)
    likelihood = GateLikelihood(tiny64, word_task(7, equal_length=False))
    gates = draw.uniform(0, 1, (3, *tiny64.shape))
    examples = draw.integers(0, 7, (3, 5))
    values, slopes = likelihood.gradients(gates, examples)
    longest = max(len(row.ids) for row in likelihood.engine.rows)
    for rows in (1, 4, 15, 100):
        shaped = ShapedGradients(likelihood.engine, rows * longest, record=False)
        for times in (3, 1):  # fewer fits later on, as when seeds have stopped
            ours = likelihood._shaped_gradients(shaped, gates[:times], examples[:times])
            np.testing.assert_allclose(ours[0], values[:times], rtol=1e-12)
            np.testing.assert_allclose(ours[1], slopes[:times], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_pieces_hold_every_row_once_within_the_budget_and_never_cost_more_than_plain_cuts(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 60, draw.integers(1, 80))
    budget, overhead = int(draw.integers(60, 600)), int(draw.integers(0, 100))
    found = padded_pieces(lengths, budget, overhead)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    padded = [len(piece) * lengths[piece].max() for piece in found]
    assert max(padded) <= budget
    # Cutting a sorted list wherever the budget is full is what one would do by hand.
    plain, current = 0, []
    for length in np.sort(lengths):
        if (len(current) + 1) * length > budget:
            plain += len(current) * current[-1] + overhead
            current = []
        current.append(length)
    plain += len(current) * current[-1] + overhead
    assert sum(padded) + overhead * len(found) <= plain


@pytest.mark.parametrize("seed", range(10))
def test_pieces_are_the_best_of_all_ways_to_cut(seed):
    draw = np.random.default_rng(seed)
    lengths, overhead = draw.integers(1, 30, 8), int(draw.integers(0, 20))
    found = padded_pieces(lengths, 60, overhead)
    ordered = np.sort(lengths)
    costs = []
    for cuts in itertools.product([False, True], repeat=7):
        groups = np.split(ordered, [i + 1 for i, cut in enumerate(cuts) if cut])
        if all(len(g) * g[-1] <= 60 for g in groups):
            costs.append(sum(len(g) * g[-1] + overhead for g in groups))
    assert sum(len(p) * lengths[p].max() + overhead for p in found) == min(costs)


@pytest.mark.parametrize("seed", range(20))
def test_packed_pieces_hold_every_row_once_within_the_budget_and_are_hardly_more_than_needed(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 60, draw.integers(1, 80))
    budget = int(draw.integers(60, 600))
    found = packed_pieces(lengths, budget)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    sizes = [lengths[piece].sum() for piece in found]
    assert max(sizes) <= budget
    # Rows of at most 60 tokens always fit where a piece still has so much room.
    assert len(found) <= 1 + lengths.sum() // max(1, budget - 59)
    assert max(sizes) - min(sizes) <= lengths.max()


def test_a_row_longer_than_the_budget_is_a_piece_of_its_own():
    assert [piece.tolist() for piece in packed_pieces(np.array([3, 90, 4]), 10)] == [[1], [2], [0]]


def test_every_round_shows_every_example_once_in_an_order_of_the_seed():
    one, other = (batches(10, 4, (seed, 1)) for seed in (0, 1))
    rounds = [np.concatenate([next(b) for _ in range(5)]) for b in (one, other)]
    for seen in rounds:
        assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert rounds[0].tolist() != rounds[1].tolist()
    assert next(batches(3, 64, (0, 1))).tolist() == [0, 1, 2]


# ---- the fit ---------------------------------------------------------------------------------------


def plain_fit(model, task, start, sign, settings):
    """The paper's loss in plain torch: hooks, all logits, one example at a time, autograd over everything."""
    logits = torch.tensor(start, requires_grad=True)
    first, last = settings.rate if sign else settings.first_rate
    optimiser = torch.optim.Adam([logits])
    losses = []
    for update in range(settings.updates):
        optimiser.param_groups[0]["lr"] = first + (last - first) * update / (settings.updates - 1)
        total = 0.0
        for example in task:
            prompt, whole = model.tokens(example.prompt), model.tokens(example.prompt + example.target)

            def edit(layer, z):
                return z * torch.sigmoid(logits[layer]).to(z)[:, None]

            with HeadsByHook(model, edit):
                scores = (
                    model.hf(input_ids=torch.tensor([whole], device=model.device)).logits[0].double().cpu()
                )
            at = torch.arange(len(prompt) - 1, len(whole) - 1)
            tokens = torch.tensor(whole[len(prompt) :])
            total = total + scores.log_softmax(-1)[at, tokens].mean() / len(task)
        loss = -total - sign * settings.strength * logits.clamp(-settings.bound, settings.bound).mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return logits.detach().numpy(), losses


@pytest.mark.parametrize("sign", [0, 1, -1])
def test_a_fit_equals_the_same_loss_written_out_in_plain_torch(tiny, sign):
    task = word_task(3, equal_length=False)
    settings = FitSettings(updates=6, batch=8, stop=None)
    start = np.random.default_rng(3).normal(0, 3, (1, *tiny.shape))  # some beyond the bound
    name = {0: "free", 1: "plus", -1: "minus"}[sign]
    fit = one_fit(GateLikelihood(tiny, task, batch_tokens=12), name, [0], settings, start)
    expected, losses = plain_fit(tiny, task, start[0], sign, settings)
    np.testing.assert_allclose(fit.logits[0], expected, atol=2e-3)
    np.testing.assert_allclose(fit.objective[:, 0], losses, atol=1e-5)


def test_a_seed_ends_in_the_same_place_alone_and_in_company(tiny64):
    likelihood = GateLikelihood(tiny64, word_task(6))
    settings = FitSettings(updates=8, batch=4)
    together = one_fit(likelihood, "free", [4, 5, 6], settings)
    alone = one_fit(likelihood, "free", [5], settings)
    np.testing.assert_allclose(together.logits[1], alone.logits[0], atol=1e-9)
    assert not np.allclose(together.logits[0], together.logits[1], atol=0.1)


def valley(best):
    """Likelihood −Σ(gate − best)², per seed."""

    def slopes(gates, places):
        return -((gates - best) ** 2).sum((1, 2)), -2 * (gates - best)

    return slopes


def test_a_fit_stops_once_the_objective_is_flat_and_ends_where_the_full_one_ends():
    best = np.array([[0.9, 0.2, 0.5]])
    exists = np.ones((1, 3), dtype=bool)
    start = random_logits((1, 3), [0, 1], 4.0)
    full, early = (
        fit_logits(valley(best), start, exists, FitSettings(stop=stop), sign=1)
        for stop in (None, FitSettings().stop)
    )
    assert (full.updates == 500).all()
    assert (early.updates < 400).all()
    np.testing.assert_allclose(early.gates, full.gates, atol=0.02)
    ends = [early.rates[count - 1, seed] for seed, count in enumerate(early.updates)]
    np.testing.assert_allclose(ends, FitSettings().rate[1])  # cooled down to where the schedule ends
    assert np.isnan(early.objective[early.updates.max() :]).all()
    assert np.array_equal(early.kept[int(early.updates.max())], early.logits)


def test_a_rest_shorter_than_the_rule_asks_for_does_not_stop_a_fit():
    """Three calm windows, one that moves, and calm again: the count begins anew."""
    values = np.concatenate([np.linspace(10, 0, 50), np.zeros(75), np.full(25, -5.0), np.full(350, -5.0)])
    taken = iter(values)

    def slopes(gates, places):
        return -np.full(len(gates), next(taken)), np.zeros(gates.shape)

    quiet = FitSettings(strength=1e-9, rate=(1e-9, 1e-9))
    fit = fit_logits(slopes, np.full((1, 1, 3), 2.0), np.ones((1, 3), dtype=bool), quiet, sign=1)
    # The window that moved ends at 150, so its own mean is first calm at 175; four calm windows and the cooling.
    assert fit.updates[0] == 150 + 4 * 25 + 25


def test_a_fit_does_not_stop_while_heads_still_change_sides():
    """The objective is flat from the start, and one head after the other is drifting across."""

    def slopes(gates, places):
        return np.zeros(len(gates)), np.full(gates.shape, 1e-6)

    start = np.linspace(-30, -0.1, 100).reshape(1, 1, 100)
    fit = fit_logits(slopes, start, np.ones((1, 100), dtype=bool), FitSettings(updates=200), sign=1)
    assert fit.updates[0] == 200


def test_the_pull_ends_at_the_bound_on_both_sides_or_only_on_its_own():
    logits = np.array([[[-6.0, -1.0, 6.0]]])
    exists = np.ones((1, 3), dtype=bool)
    for clip, sign, pulled in [
        ("two_sided", 1, [0, 1, 0]),
        ("two_sided", -1, [0, 1, 0]),
        ("one_sided", 1, [1, 1, 0]),
        ("one_sided", -1, [0, 1, 1]),
    ]:
        mean, slopes = regulariser(logits, exists, sign, FitSettings(clip=clip))
        np.testing.assert_allclose(slopes[0, 0], np.array(pulled) / 3)
        step = 1e-6
        moved, _ = regulariser(logits + step, exists, sign, FitSettings(clip=clip))
        assert (moved - mean)[0] / step == pytest.approx(slopes.sum(), abs=1e-6)


def test_no_gate_begins_where_nothing_could_pull_it():
    start = random_logits((30, 9), range(20), 4.0)
    assert np.abs(start).max() <= 4
    gates = sigmoid(start).ravel()
    assert abs(gates.mean() - 0.5) < 0.02
    assert abs((gates < 0.25).mean() - 0.25) < 0.03


def test_wrong_settings_are_explained():
    for wrong, said in [
        ({"clip": "both"}, "clip"),
        ({"updates": 0}, "updates"),
        ({"rate": (0.5, 0.0)}, "rate"),
        ({"strength": -0.1}, "strength"),
    ]:
        with pytest.raises(HeadwiseError, match=said):
            FitSettings(**wrong)


def test_the_method_reports_roles_labels_and_where_each_fit_ended(tiny):
    scores = hw.score(tiny, word_task(4), "gating", seeds=2, updates=5, batch=2)
    assert scores.examples.shape == (2, *tiny.shape)
    assert not scores.signed
    roles = {name: np.array(values) for name, values in scores.details["roles"].items()}
    np.testing.assert_allclose(roles["facilitation"].mean(0), scores.values)
    np.testing.assert_allclose(
        roles["irrelevance"], (1 - roles["interference"]) * (1 - roles["facilitation"])
    )
    assert {len(ends) for ends in scores.details["objective"].values()} == {2}
    assert set(itertools.chain(*scores.details["labels"])) <= set(LABELS)
    with pytest.raises(HeadwiseError, match="option"):
        hw.score(tiny, word_task(4), "gating", update=5)


# ---- planted roles ---------------------------------------------------------------------------------


def planted(model, silent, noisy, strength, seed=0):
    """A copy whose `silent` heads write nothing, and whose `noisy` ones write noise into the stream."""
    import copy

    hf = copy.deepcopy(model.hf)
    size = hf.config.hidden_size // model.shape[1]
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer, head in [*silent, *noisy]:
            weight = hf.model.layers[layer].self_attn.o_proj.weight
            columns = slice(head * size, (head + 1) * size)
            noise = torch.randn(weight[:, columns].shape, generator=draw).to(weight)
            weight[:, columns] = noise * weight.std() * strength if (layer, head) in noisy else 0
    return hw.load(hf, tokenizer=model.text.tokenizer, name="planted")


@pytest.mark.slow
@pytest.mark.bundled
def test_planted_heads_of_the_bundled_model_are_told_apart(smollm2):
    """Zeroed output projections go wherever they are pulled; noise that does harm is shut although it is pulled open.

    The whole of it, full fits of ten heads of each kind over five seeds, is in `benchmarks/gating.py`.
    """
    silent, noisy, seeds = [(3, 2), (12, 7), (25, 0)], [(8, 3), (15, 6)], [0, 1]
    model = planted(smollm2, silent, noisy, strength=15.0)
    task = hw.task("syntax", 8, model=model)
    effects = Engine(model, task, metric("mean_logprob")).measure(single_gates(noisy, model.shape)).effects
    assert (effects.mean(axis=1) < -2).all()  # nats that each costs: noise need not do harm, this does
    settings = FitSettings(
        updates=20, first_updates=15, batch=8, first_rate=(1.0, 0.2), rate=(1.0, 0.2), stop=None
    )
    likelihood = GateLikelihood(model, task, batch_tokens=192)
    free = one_fit(likelihood, "free", seeds, settings)
    plus, minus = (one_fit(likelihood, way, seeds, settings, free.logits).gates for way in ("plus", "minus"))
    labels = role_labels(plus, minus)
    for layer, head in silent:
        assert (minus[:, layer, head] < 0.05).all(), (layer, head)
        assert (1 - plus[:, layer, head] < 0.05).all(), (layer, head)
        assert (labels[:, layer, head] == "irrelevant").all(), (layer, head)
    found = np.concatenate([labels[:, layer, head] for layer, head in noisy])
    # So short a fit misses one label in six, and which one hangs on rounding; chance would give far less.
    assert (found == "interfering").mean() >= 0.75, found


def test_gates_beyond_the_bound_are_equal_and_come_by_their_slope():
    heads = [Head(0, h) for h in range(4)]
    minus = np.array(
        [[[0.999999, 0.99, 0.97, 0.999]], [[0.999999, 0.99, 0.99, 0.999]]]
    )  # the bound of 4 is .982
    slopes = np.array([[[0.1, 0.3, 9.0, 0.0]], [[0.1, 0.3, 9.0, 0.4]]])
    found = most_facilitating(heads, minus, slopes, bound=4.0)
    assert found == [Head(0, 1), Head(0, 3), Head(0, 0), Head(0, 2)]
    assert most_facilitating(heads, minus, slopes, bound=20.0)[0] == Head(0, 0)  # where nothing is beyond it


def test_memory_that_runs_out_makes_pieces_as_small_as_it_must_and_later_larger_again(tiny, monkeypatch):
    """The device has room for 20 tokens during the first updates, as if another program used it, then for all."""
    task = word_task(8)
    gates, examples = np.full((1, *tiny.shape), 0.5), np.arange(8)[None]
    expected = GateLikelihood(tiny, task, batch_tokens=1000).gradients(gates, examples)
    likelihood = GateLikelihood(tiny, task, batch_tokens=1000)
    likelihood.packed = False
    differentiable, room, sizes = likelihood.engine.differentiable, [20], []

    def limited(block, per_row):
        if block.size * block.length > room[0]:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(block.size)
        return differentiable(block, per_row)

    monkeypatch.setattr(likelihood.engine, "differentiable", limited)
    for _ in range(2):
        for part, plain in zip(likelihood.gradients(gates, examples), expected, strict=True):
            np.testing.assert_allclose(part, plain, atol=1e-5)
    assert set(sizes) == {2}  # of rows of six to eight tokens: a quarter of the eight, and no fewer
    room[0] = 1000
    for _ in range(4 * (CALM_UPDATES + 1)):
        sizes.clear()
        likelihood.gradients(gates, examples)
    assert sizes == [8]
