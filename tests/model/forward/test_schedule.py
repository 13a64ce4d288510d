"""What is run together, worked out by looking at every pair."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headwise.model.forward.schedule import batch_size, batches, blocks_of_rows, equal_prefixes


def draws(seed, variants=9, layers=6, heads=2):
    draw = np.random.default_rng(seed)
    gates = np.ones((variants, layers, heads))
    for v in range(variants):
        gates[v, draw.integers(layers) :] = draw.integers(0, 2, heads)
    return gates[draw.permutation(variants)]


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_alike_exactly_where_no_gate_so_far_differs(seed):
    gates = draws(seed)
    found = equal_prefixes(gates, [[i] for i in range(6)])
    for index in range(6):
        same = np.array([[(a[: index + 1] == b[: index + 1]).all() for b in gates] for a in gates])
        if same.sum() == len(gates):
            assert index not in found
            continue
        first, group = found[index]
        np.testing.assert_array_equal(np.equal.outer(group, group), same)
        assert all(group[variant] == number for number, variant in enumerate(first))


def sizes_of_batches(waiting, at_once):
    sizes = []
    while waiting > sum(sizes):
        sizes.append(batch_size(waiting - sum(sizes), at_once))
    return sizes


@pytest.mark.parametrize("at_once", [1, 2, 7, 31, 63, 200])
def test_batches_are_as_few_as_may_be_and_about_equal(at_once):
    for waiting in range(1, 500):
        sizes = sizes_of_batches(waiting, at_once)
        assert sum(sizes) == waiting
        assert max(sizes) - min(sizes) <= 1
        assert 16 * max(sizes) <= 17 * at_once
        assert len(sizes) == 1 or waiting > (len(sizes) - 1) * (at_once + at_once // 16)


@pytest.mark.parametrize("seed", range(10))
def test_blocks_hold_every_row_once_within_the_budget(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(3, 40, 50)
    rows = draw.permutation(50)[:30].tolist()
    found = list(blocks_of_rows(lengths, rows, variants=4, budget=600))
    assert sorted(n for block in found for n in block) == sorted(rows)
    for block in found:
        assert len(block) == 1 or len(block) * lengths[block].max() * 4 <= 600


@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_every_row_once_within_the_budget(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 40, 60).tolist()
    found = list(batches(lengths, 100))
    assert sorted(itertools.chain(*found)) == list(range(60))
    assert all(len(one) * max(lengths[n] for n in one) <= 100 for one in found)
