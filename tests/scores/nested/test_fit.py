"""Training of nested masks: seeds together against alone, checkpoints, budgets, and what is held back."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.heads import COMPONENTS
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.nested.fit import REFERENCE_UPDATES, NestedFit, fit_orders, order_costs
from headwise.scores.nested.nested import DENSE_GRID
from headwise.scores.nested.problem import Problem, grid_sizes, split
from headwise.tasks import Example, Task
from helpers import word_task
from planted import cats_and_dogs

SHORT = NestedFit(updates=12, examples=3, masks=2, checks=6, patience=2, grid=6)


def problem_of(model, reference="mean", task=None, share=0.25):
    engine = Engine(model, task or word_task(12), metric("logit_diff"), reference=reference)
    return Problem.of(engine, model.exists, share, 0)


def test_as_much_as_possible_has_defaults_of_its_own_and_what_is_given_counts():
    most = NestedFit(objective="most", masks=3)
    assert (most.updates, most.examples, most.masks, most.sizes) == (500, 4, 3, "uniform")
    assert (most.temperature, most.hard, most.rate) == ((0.5, 0.5), 1.0, (0.05, 0.05))
    bounded = NestedFit(objective="most", rows=400).sized
    assert bounded.updates * bounded.examples * bounded.masks <= 400 < 2 * bounded.updates * bounded.examples
    assert NestedFit(objective="track") == NestedFit().replaced(objective="track")


def test_soft_masks_are_kept_to_the_end_where_that_is_asked(tiny64):
    # Then there is one check, after the last update, and nothing but it decides.
    fits = fit_orders(problem_of(tiny64), np.zeros(16), [0], NestedFit(objective="most", rows=40, grid=4))
    assert [update for update, _ in fits[0].checks] == [10]
    assert len(fits[0].losses) == 10


def test_seeds_in_one_batch_end_where_each_ends_alone(tiny64):
    problem = problem_of(tiny64)
    together = fit_orders(problem, np.zeros(16), [0, 1, 2], SHORT)
    for seed, fit in enumerate(together):
        (alone,) = fit_orders(problem, np.zeros(16), [seed], SHORT)
        np.testing.assert_allclose(fit.strengths, alone.strengths, atol=1e-6)
        np.testing.assert_allclose(fit.losses, alone.losses, atol=1e-8)
        assert [update for update, _ in fit.checks] == [update for update, _ in alone.checks]
    assert len({tuple(np.argsort(-fit.strengths)) for fit in together}) > 1


def test_the_strengths_of_the_best_check_are_kept_and_a_seed_without_gain_stops(tiny64):
    problem = problem_of(tiny64)
    longer = SHORT.replaced(updates=40, checks=20)
    for fit in fit_orders(problem, np.zeros(16), [0, 1, 2], longer):
        costs = [cost for _, cost in fit.checks]
        assert fit.cost == min(costs)
        (again,) = order_costs(problem, fit.strengths[None], longer, longer.grid, problem.held)
        assert again == pytest.approx(fit.cost, abs=1e-9)
        best = int(np.argmin(costs))
        assert len(costs) - 1 - best <= longer.patience
        assert len(fit.losses) == fit.checks[-1][0]
        if len(fit.losses) < longer.updates:
            assert len(costs) - 1 - best == longer.patience


def test_explained_effect_of_the_first_k_is_that_of_a_sweep(chains):
    task, strengths = cats_and_dogs(24), np.random.default_rng(0).normal(size=36)
    problem = problem_of(chains, task=task)
    shares = problem.explained(strengths[None], np.array([1, 15, 31]), np.arange(24))[0]
    order = [chains.heads()[i] for i in np.argsort(-strengths)]
    curve = hw.sweep(chains, task, order, reference="mean", k=[0, 1, 15, 31, 36], controls=(), progress=False)
    np.testing.assert_allclose(shares, curve.explained()["value"].iloc[1:4], atol=1e-4)
    assert np.abs(shares).max() > 0.05


def test_the_seed_is_chosen_by_its_curve_on_all_examples(chains):
    """Each seed's order swept as a user would; below 1 counts four times."""
    task, sizes = cats_and_dogs(24), grid_sizes(DENSE_GRID, 36)
    found = hw.score(chains, task, "nested", seeds=3, rows=60, reference="mean", progress=False).details
    costs = []
    for order in found["orders"]:
        curve = hw.sweep(
            chains, task, order, reference="mean", k=[0, *sizes, 36], controls=(), progress=False
        ).explained()
        errors = curve.set_index("k")["value"].loc[sizes].to_numpy() - 1
        costs.append(np.where(errors < 0, -4 * errors, errors).mean())
    np.testing.assert_allclose(found["costs"], costs, atol=2e-4)
    assert np.ptp(costs) > 0.01
    assert found["order"] == found["orders"][int(np.argmin(costs))]
    assert found["chosen"]["seed"] == int(np.argmin(costs))


def test_the_gradient_by_a_mask_is_that_of_the_explained_effect(tiny64):
    problem = problem_of(tiny64, "patch")
    masks, numbers = np.random.default_rng(1).uniform(size=(2, 16)), np.array([[0, 3], [5, 2]])
    errors, slopes = problem.gradients(masks, numbers)
    for component in (0, 7, 15):
        nudge = np.zeros(16)
        nudge[component] = 1e-4
        above, below = (problem.gradients(masks + sign * nudge, numbers)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, :, component], (above - below) / 2e-4, rtol=1e-5, atol=1e-7)
    full = problem.gradients(np.ones((1, 16)), numbers[:1])[0]
    np.testing.assert_allclose(full, 0, atol=1e-9)
    assert np.abs(errors).max() > 0.01


@pytest.mark.parametrize("rows", [300, 600, 3000, 10_000])
def test_a_budget_of_rows_is_kept_and_used(rows):
    chosen = NestedFit(rows=rows).sized
    spent = chosen.updates * chosen.examples * chosen.masks
    assert 0.8 * rows <= spent <= rows
    assert chosen.rate[0] == pytest.approx(0.1 * min(4, (400 / chosen.updates) ** 0.5))
    assert NestedFit().sized == NestedFit()


def test_examples_are_held_back_by_group_and_few_are_not_divided():
    examples = tuple(Example(f"the {i}", " a", group=f"g{i // 4}") for i in range(40))
    train, held = split(Task("grouped", examples, "logprob"), 0.25, 3)
    assert sorted([*train, *held]) == list(range(40))
    assert len(held) == 12  # whole groups of four, until a quarter is reached
    assert not {i // 4 for i in train} & {i // 4 for i in held}
    few = split(word_task(6), 0.25, 0)
    assert all(part.tolist() == list(range(6)) for part in few)


@pytest.mark.parametrize("reference", ["zero", "mean", "position_mean", "resample", "patch"])
def test_every_reference_trains_and_gives_each_component_a_rank(chains, reference):
    options = {"rows": 100, "seeds": 2, "progress": False, "components": list(COMPONENTS)}
    # A resampled example has the answer of the other class only half of the time, so its effect needs more examples.
    task = cats_and_dogs(96 if reference == "resample" else 24)
    scores = hw.score(chains, task, "nested", reference=reference, **options)
    assert scores.details["circuit"]
    assert sorted(scores.values[scores.exists]) == pytest.approx((np.arange(43) + 1) / 43)
    assert scores.metric == "rank"
    assert not scores.signed
    assert len(scores.details["order"]) == 43
    assert {"input", "MLP0"} <= set(scores.details["order"])
    assert [str(head) for head in scores.order()] == scores.details["order"]


def test_progress_counts_updates_and_never_passes_its_total(chains):
    steps: list[int] = []
    hw.score(chains, cats_and_dogs(12), "nested", updates=5, seeds=2, progress=steps.append)
    assert sum(steps) == REFERENCE_UPDATES


def test_a_fit_says_once_and_before_its_first_update_what_it_will_do(chains, caplog):
    lines_at_update = []

    def count_lines(steps):
        lines_at_update.append(len(caplog.messages))

    options = {"seeds": 2, "updates": 12, "examples": 3, "masks": 2, "progress": count_lines}
    with caplog.at_level("INFO", logger="headwise"):
        hw.score(chains, cats_and_dogs(24), "nested", reference="mean", **options)
    said = [line for line in caplog.messages if line.startswith("nested")]
    expected = "nested on cats and dogs with chains: 2 seeds, each at most 12 updates of 6 rows; 36 heads"
    assert said == [expected]
    assert min(lines_at_update) >= 1
