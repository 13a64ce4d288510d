"""Heads that are known to see far are first in the exact and the learned ranking; near-sighted ones never are."""

import numpy as np
import pytest

import headwise as hw
from helpers import make_word_tokenizer
from planted import far_model, far_words

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_far_heads_are_first_in_the_exact_and_the_learned_ranking_and_near_heads_are_not(seed):
    model, far, near = far_model(make_word_tokenizer(), seed)
    task = far_words(seed=seed)
    exact = hw.score(model, task, "ablation", reference="window:8:1", progress=False)
    options = {"rows": 400, "seeds": 1, "updates": 50, "reference": "window:8:1", "progress": False}
    learned = hw.score(model, task, "nested", **options)
    assert set(exact.top(2)) == set(learned.top(2)) == far
    least = min(exact[head] for head in far)
    assert max(abs(exact[head]) for head in near) < least / 2
    # The near heads are no idle ones: without them the answer is lost as well.
    alone = hw.score(model, task, "ablation", reference="zero", heads=sorted(near), progress=False)
    assert min(alone[head] for head in near) > least / 4
    assert np.isfinite(exact.values).all()
