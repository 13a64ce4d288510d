"""`hw.measure` against plain hooks, and what it shows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.stats import mean_interval
from helpers import HeadsByHook, plain_difference, plain_logits, replacing, word_task

ABLATED = ["L1H2", "L3H0"]


def by_hooks(model, task, ablated):
    """logit(target) − logit(foil) of every example with these heads' means over all tokens put in by hooks."""
    seen = []  # of every example and layer: T, H, D
    with HeadsByHook(model, lambda layer, z: seen.append(z[0]) or z):
        for example in task:
            plain_logits(model, model.tokens(example.prompt))
    layers = model.shape[0]
    means = [torch.cat(seen[layer::layers]).mean(0) for layer in range(layers)]  # H, D

    heads = [hw.Head.parse(name) for name in ablated]
    with HeadsByHook(model, replacing(heads, lambda layer, _: means[layer])):
        return np.array([plain_difference(model, example) for example in task])


def test_ablated_heads_give_what_plain_hooks_give(tiny):
    task = word_task(5)
    measured = hw.measure(tiny, task, ablate=ABLATED)
    np.testing.assert_allclose(measured.values, by_hooks(tiny, task, ABLATED), atol=1e-5)
    np.testing.assert_allclose(measured.full, by_hooks(tiny, task, []), atol=1e-5)
    np.testing.assert_array_equal(measured.effects, measured.full - measured.values)
    assert measured.mean == pytest.approx(measured.values.mean())


def test_kept_heads_gates_and_ablated_heads_are_the_same_question(tiny):
    task = word_task(4)
    others = [head for head in tiny.heads() if str(head) not in ABLATED]
    gates = np.ones(tiny.shape)
    gates[1, 2] = gates[3, 0] = 0
    ways = [{"ablate": ABLATED}, {"keep": others}, {"gates": gates}]
    first, *rest = (hw.measure(tiny, task, **way).values for way in ways)
    for values in rest:
        np.testing.assert_array_equal(values, first)


def test_several_gates_give_a_row_each(tiny):
    task = word_task(4)
    gates = np.stack([tiny.gates(ablate=ABLATED), tiny.gates(), tiny.gates(keep=[])])
    measured = hw.measure(tiny, task, gates, reference="mean")
    assert measured.values.shape == (3, 4)
    np.testing.assert_allclose(
        measured.values[0], hw.measure(tiny, task, ablate=ABLATED, reference="mean").values, atol=1e-5
    )
    np.testing.assert_array_equal(measured.effects[1], 0)
    assert list(measured.table()["variant"]) == [0, 1, 2]


def test_the_display_has_the_interval_of_the_examples(tiny):
    task = word_task(6)
    measured = hw.measure(tiny, task, ablate=ABLATED, reference="patch", positions="last")
    lo, hi = mean_interval(measured.values[:, None])
    row = measured.table().iloc[0]
    assert (row["lo"], row["hi"]) == (pytest.approx(lo[0]), pytest.approx(hi[0]))
    assert f"{measured.mean:.4g} [{lo[0]:.4g}, {hi[0]:.4g}]" in repr(measured)
    assert "counterfactual patching, n = 6" in repr(measured)
    assert f"[{lo[0]:.4g}, {hi[0]:.4g}]" in measured._repr_html_()
    assert np.asarray(measured).shape == (6,)


def test_a_path_is_a_task(tiny, tmp_path):
    task, file = word_task(3, metric="logprob"), tmp_path / "words.jsonl"
    rows = [{"prompt": e.prompt, "target": e.target} for e in task]
    file.write_text("\n".join(map(json.dumps, rows)))
    measured = hw.measure(tiny, file, ablate=ABLATED, metric="logprob")
    np.testing.assert_allclose(measured.values, hw.measure(tiny, task, ablate=ABLATED).values, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gates": ["L1H2"]}, "To remove heads, give ablate="),
        ({"ablate": "L1H2", "keep": "L1H2"}, "ablate and keep are given together"),
        ({"ablate": "L9H0"}, "has no head L9H0"),
        ({"gates": np.ones((3, 3))}, r"expected \[4, 4\] or \[variants, 4, 4\]"),
        ({"referense": "mean"}, "did you mean 'reference'"),
        ({"reference": "means"}, "did you mean 'mean'"),
        ({"metric": "logit_dif"}, "did you mean 'logit_diff'"),
    ],
)
def test_mistakes_are_named(tiny, given, message):
    with pytest.raises(HeadwiseError, match=message):
        hw.measure(tiny, word_task(3), **given)


@pytest.mark.parametrize("metric", ["logit_diff", "accuracy"])
def test_progress_counts_examples_however_many_rows_one_has(tiny, metric):
    told = []
    hw.measure(tiny, word_task(5), ablate=ABLATED, metric=metric, progress=told.append)
    assert sum(told) == 5
