"""What is run together, worked out by looking at every pair."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headwise.model.forward.schedule import alike, batch_size, batches, blocks_of_rows, queues


def draws(seed, variants=9, layers=6, heads=2):
    draw = np.random.default_rng(seed)
    gates = np.ones((variants, layers, heads))
    for v in range(variants):
        gates[v, draw.integers(layers) :] = draw.integers(0, 2, heads)
    return gates[draw.permutation(variants)], draw


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_alike_exactly_where_no_gate_so_far_differs(seed):
    gates, _ = draws(seed)
    found = alike(gates, [[i] for i in range(6)], entry=1)
    for index in range(1, 5):
        same = np.array([[(a[: index + 1] == b[: index + 1]).all() for b in gates] for a in gates])
        if same.sum() == len(gates):
            assert index not in found
            continue
        first, group = found[index]
        np.testing.assert_array_equal(np.equal.outer(group, group), same)
        assert all(group[variant] == number for number, variant in enumerate(first))
    assert 0 not in found
    assert 5 not in found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("enough", "at_once"), [(1, 4), (3, 4), (3, 100), (100, 100), (8, 7)])
def test_every_variant_waits_once_and_a_full_queue_is_left_to_those_that_enter_with_it(seed, enough, at_once):
    gates, draw = draws(seed, variants=20)
    entries = draw.integers(0, 4, 20)
    found = queues(gates, entries, enough, at_once)
    assert sorted(v for queue in found for v in queue) == list(range(20))
    flat = [entries[v] for queue in found for v in queue]
    assert flat == sorted(flat)
    for queue, after in itertools.pairwise(found):
        # No small batch is left behind, which would cost a pass of its own.
        assert max(sizes_of_batches(len(queue), at_once)) >= min(enough, at_once)
        assert entries[queue[-1]] < entries[after[0]]
    for queue in found:
        # Without its last entry's variants the batches were not full yet: nobody enters early without need.
        others = sum(entries[v] != entries[queue[-1]] for v in queue)
        assert max(sizes_of_batches(others, at_once), default=0) < min(enough, at_once)


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
        copies = 4 if len(block) > 8 else 2
        assert len(block) == 1 or len(block) * lengths[block].max() * copies <= 600


@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_every_row_once_within_the_budget(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 40, 60).tolist()
    found = list(batches(lengths, 100))
    assert sorted(itertools.chain(*found)) == list(range(60))
    assert all(len(one) * max(lengths[n] for n in one) <= 100 for one in found)
