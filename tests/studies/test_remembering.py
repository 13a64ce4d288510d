"""What models remember while a study runs: the same numbers from fewer passes, and nothing after it."""

from __future__ import annotations

from contextlib import contextmanager

import pandas as pd
import pytest

import headwise as hw
from headwise.cards.measured import measure_heads
from headwise.heads import Head
from headwise.studies.workbench import Workbench
from helpers import word_task


@contextmanager
def remembering(model):
    bench = Workbench()
    bench.add(model)
    with bench.remembering():
        yield bench.model(model.name)


def test_a_second_card_has_the_same_numbers_from_fewer_passes(tiny):
    passes = []
    counted = tiny.hf.register_forward_hook(lambda *_: passes.append(1))

    def card():
        passes.clear()
        tables = measure_heads(tiny, word_task(4), [Head(2, 1)]).tables
        hw.score(tiny, word_task(4), "attribution", reference="mean")  # a gradient through what is kept
        return tables, len(passes)

    alone, of_alone = card()
    with remembering(tiny):
        first, of_first = card()
        second, of_second = card()
    after, of_after = card()
    counted.remove()
    # The means once instead of twice; then also without the probes of the path to the logits and the random patterns.
    assert of_after == of_alone > of_first > of_second
    for tables in (first, second, after):
        assert tables.keys() == alone.keys()
        for name, table in tables.items():
            pd.testing.assert_frame_equal(table, alone[name], check_exact=True)


def test_other_prompts_have_other_means(tiny):
    with remembering(tiny):
        scores = [hw.score(tiny, word_task(n), "ablation", reference="mean").values for n in (4, 6, 4)]
    expected = [hw.score(tiny, word_task(n), "ablation", reference="mean").values for n in (4, 6)]
    assert (scores[0] == scores[2]).all()
    assert (scores[0] == expected[0]).all()
    assert (scores[1] == expected[1]).all()


def test_an_error_is_not_remembered(tiny):
    tries = []

    def fails_once():
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return len(tries)

    with remembering(tiny):
        with pytest.raises(ValueError, match="once"):
            tiny.once("key", fails_once)
        assert tiny.once("key", fails_once) == tiny.once("key", fails_once) == 2
    assert tiny.once("key", fails_once) == 3
