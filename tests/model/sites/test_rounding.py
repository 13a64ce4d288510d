"""When two runs of a model count as the same."""

from __future__ import annotations

import pytest
import torch

from headwise.model.sites.probe import differ_by_rounding, rounding
from headwise.model.verify.tiny import tiny_model


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def runs(request):
    """A model of this dtype, and its logits of eight tokens in this dtype and in float64."""
    model = tiny_model("llama").to(request.param).eval()
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        logits = model(ids).logits.float()
        exact = model.double()(ids).logits.float()
    return model.to(request.param), logits, exact


def test_logits_that_differ_by_the_rounding_of_a_dtype_are_the_same(runs):
    model, logits, exact = runs
    assert differ_by_rounding(logits, exact, rounding(model, logits))


@pytest.mark.parametrize("largest", [0.0, 40.0])
def test_logits_of_other_positions_are_not_the_same_in_any_dtype(runs, largest):
    """Real models have a few large logits, which make the limit of half precision larger than most of the others."""
    model, logits, _ = runs
    logits[..., 0] += largest
    assert not differ_by_rounding(logits.roll(1, dims=1), logits, rounding(model, logits))


def test_logits_that_are_not_finite_are_not_the_same(runs):
    model, logits, _ = runs
    broken = logits.clone()
    broken[0, 3, 5] = torch.nan
    assert not differ_by_rounding(broken, logits, rounding(model, logits))
