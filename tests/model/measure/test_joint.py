"""Pairs that enter the model midway, against the same gates from the first block on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headwise.heads import Head, mask_gates
from headwise.metrics import metric
from headwise.model.measure import joint
from headwise.model.measure.engine import Engine
from headwise.model.measure.joint import measure_joint
from helpers import word_task

UNITS = [
    [Head(0, 1)],
    [Head(3, 0)],
    [Head(1, 0), Head(3, 2)],
    [Head(2, 2)],
    [Head(1, 3)],
]
PAIRS = np.array([[0, 1], [1, 0], [2, 3], [3, 2], [1, 2], [3, 4], [0, 4]])


def directly(engine, units=UNITS):
    """Plain, without each unit, without each pair, by one call of the engine."""
    shape = engine.model.shape
    sets = [[], *units, *([*units[a], *units[b]] for a, b in PAIRS)]
    return engine.measure(np.stack([mask_gates(heads, shape) for heads in sets])).values


def jointly(engine, units=UNITS, **options):
    found = measure_joint(
        engine, np.stack([mask_gates(heads, engine.model.shape) for heads in units]), PAIRS, **options
    )
    return np.concatenate([found.plain[None], found.single, found.pairs])


@pytest.mark.parametrize("reference", ["zero", "mean", "resample"])
@pytest.mark.parametrize("name", ["logit_diff", "kl", "accuracy"])
@pytest.mark.parametrize("batch_tokens", [None, 40])
def test_pairs_that_enter_midway_have_the_values_of_a_whole_run(tiny, reference, name, batch_tokens):
    options = {"reference": reference, "batch_tokens": batch_tokens}
    engine = Engine(tiny, word_task(7), metric(name), **options)
    np.testing.assert_allclose(jointly(engine), directly(engine), atol=1e-4)


def test_a_model_whose_blocks_exchange_more_than_the_stream_runs_every_block(tiny, monkeypatch):
    engine = Engine(tiny, word_task(5), metric("logit_diff"))
    expected = jointly(engine)
    monkeypatch.setattr(tiny, "capabilities", replace(tiny.capabilities, share_rows=False))
    monkeypatch.setattr(joint._Block, "_resume_from", known := _Known(joint._Block._resume_from))
    np.testing.assert_allclose(jointly(engine), expected, atol=1e-5)
    assert set(known.entries) == {0}


class _Known:
    """Notes the block at which every pass enters."""

    def __init__(self, plain):
        self.plain, self.entries = plain, []

    def __get__(self, block, _):
        def noted(entry, kept):
            self.entries.append(entry)
            return self.plain(block, entry, kept)

        return noted


def test_a_pass_enters_at_the_first_block_of_the_later_unit(tiny, monkeypatch):
    monkeypatch.setattr(joint._Block, "_resume_from", known := _Known(joint._Block._resume_from))
    engine = Engine(tiny, word_task(4), metric("logit_diff"), batch_tokens=1)
    jointly(engine)
    of_one_row = known.entries[: len(UNITS) + len(PAIRS)]
    # Units by block 0 1 1 2 3, pairs by the later of their two blocks.
    assert of_one_row == [0, 1, 1, 2, 3, 1, 2, 2, 2, 3, 3, 3]


def test_streams_beyond_the_budget_are_computed_in_groups_with_the_same_values(tiny, monkeypatch):
    engine = Engine(tiny, word_task(5), metric("logit_diff"))
    expected = jointly(engine)
    spent = engine.rows_spent
    monkeypatch.setattr(joint, "STREAM_BUDGET", 1)
    np.testing.assert_allclose(jointly(engine), expected, atol=1e-5)
    assert engine.rows_spent - spent > spent  # every unit is a group of its own, so passes are less full


def test_some_examples_are_the_same_columns_of_all(tiny):
    engine = Engine(tiny, word_task(6), metric("logit_diff"))
    np.testing.assert_allclose(
        jointly(engine, examples=np.array([4, 1])), jointly(engine)[:, [4, 1]], atol=1e-5
    )


def test_memory_that_runs_out_halves_the_rows(tiny, monkeypatch):
    engine = Engine(tiny, word_task(6), metric("logit_diff"))
    expected, run, failed = jointly(engine), joint._Block._run, []

    def full_once(self, gates, known, streams=None):
        if known is not None and not failed:
            failed.append(self.block.size)
            raise RuntimeError("can't allocate memory")
        return run(self, gates, known, streams)

    monkeypatch.setattr(joint._Block, "_run", full_once)
    np.testing.assert_allclose(jointly(engine), expected, atol=1e-5)
    assert failed == [6]
