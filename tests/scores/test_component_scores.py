"""Scores and sweeps over heads, MLPs and the embeddings together."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import COMPONENTS, Head, keep_gates, mask_gates, ones
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.scores.registry import check_methods
from helpers import word_task

ALL = list(COMPONENTS)


def measured(model, task, gates, reference="mean"):
    engine = Engine(model, task, metric("logit_diff"), reference=reference, components=ALL)
    return engine.measure(np.stack(gates)).values


@pytest.mark.parametrize("method", ["ablation", "keep"])
def test_exact_scores_of_components_are_differences_of_two_measurements(tiny, method):
    task = word_task(4)
    scores = hw.score(tiny, task, method, components=ALL, reference="mean")
    layout = tiny.layout(ALL)
    assert scores.shape == (4, 6)
    assert len(scores.heads()) == 16 + 4 + 1
    for name in ("input", "MLP0", "MLP3", "L2H1"):
        one = Head.parse(name)
        if method == "ablation":
            with_it, without = ones(layout), mask_gates([one], layout)
        else:
            with_it, without = keep_gates([one], layout), np.zeros(layout.shape)
        one_value, other = measured(tiny, task, [with_it, without])
        np.testing.assert_allclose(scores.examples[:, one.layer, one.head], one_value - other, atol=1e-5)


def test_integrated_scores_of_components_sum_to_all_minus_none(tiny):
    scores = hw.score(tiny, word_task(4), "integrated", components=ALL, reference="patch", steps=64)
    none, full = measured(tiny, word_task(4), [np.zeros((4, 6)), np.ones((4, 6))], "patch")
    assert np.nansum(scores.values) == pytest.approx((full - none).mean(), rel=0.02)


def test_attribution_of_heads_is_the_same_with_and_without_other_components(tiny):
    """The gradient at all gates 1 does not depend on what else has a gate."""
    wide, alone = (hw.score(tiny, word_task(4), "attribution", **more) for more in ({"components": ALL}, {}))
    np.testing.assert_allclose(wide.values[:, :4], alone.values, atol=1e-5)
    assert np.isfinite(wide.values[:, -1]).all()
    assert np.isnan(wide.values[1:, -2]).all()


def test_chosen_components_are_scored_alone(tiny):
    scores = hw.score(tiny, word_task(4), "ablation", components=ALL, heads=["MLP2", "L0H1"])
    assert scores.heads() == [(0, 1), (2, -1)]
    with pytest.raises(HeadwiseError, match="has no component MLP9"):
        hw.score(tiny, word_task(4), "ablation", components=ALL, heads=["MLP9"])
    with pytest.raises(HeadwiseError, match="MLP2"):
        hw.score(tiny, word_task(4), "ablation", heads=["MLP2"])


@pytest.mark.parametrize("method", ["gating", "probe", "pattern", "sensitivity"])
def test_methods_that_know_heads_alone_say_so(tiny, method):
    with pytest.raises(HeadwiseError, match=f"'{method}' scores heads alone"):
        hw.score(tiny, word_task(4), method, components=ALL)
    with pytest.raises(HeadwiseError, match="components is an option of ablation"):
        check_methods([method], {"components": ALL}, None)


def test_an_unknown_component_is_refused_with_the_nearest_name(tiny):
    with pytest.raises(HeadwiseError, match="did you mean 'mlps'"):
        hw.score(tiny, word_task(4), "ablation", components=["heads", "mlp"])


@pytest.mark.parametrize("action", ["keep", "mask"])
def test_a_sweep_over_components_goes_from_none_of_them_to_all(tiny, action):
    task = word_task(6)
    found = hw.score(tiny, task, "ablation", components=ALL, reference="mean")
    curve = hw.sweep(tiny, task, found, action, reference="mean", k=[0, 3, 10, 21], draws=2, control_points=4)
    assert curve.total == 21
    make = keep_gates if action == "keep" else mask_gates
    layout = tiny.layout(ALL)
    expected = measured(tiny, task, [make(found.top(k), layout) for k in (0, 3, 10, 21)])
    np.testing.assert_allclose(curve.values, expected, atol=1e-5)
    np.testing.assert_array_equal(curve.gains[[0, -1]], [np.zeros(6), curve.effects])
    controls = {head for control in curve.controls for chosen in control.sets for head in chosen}
    assert any(head.head < 0 for head in controls)


def test_a_sweep_over_a_list_of_components_names_their_kinds(tiny):
    order = [Head(0, -2), "MLP1", "L1H1"]
    curve = hw.sweep(tiny, word_task(4), order, components=ALL, reference="mean", k=[0, 3], controls=())
    assert curve.order == [(0, -2), (1, -1), (1, 1)]
    with pytest.raises(HeadwiseError, match="the order names input"):
        hw.sweep(tiny, word_task(4), order, reference="mean")
