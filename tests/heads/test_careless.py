"""Heads that scores do not have, files that cannot be written, examples that are taken twice: a sentence each."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from helpers import word_task


@pytest.mark.parametrize("head", ["L9H0", "L0H9", "MLP9", hw.Head(-1, 0)])
def test_a_head_that_scores_do_not_have_is_refused(tiny, head):
    scores = hw.score(
        tiny, word_task(3), "attribution", components=["heads", "mlps", "input"], progress=False
    )
    with pytest.raises(HeadwiseError, match="these scores have no"):
        scores[head]


@pytest.mark.parametrize("path", ["missing/folder/scores.npz", ".", None, 3])
def test_a_place_where_no_file_can_be_written_is_one_sentence(tiny, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadwiseError):
        hw.score(tiny, word_task(3), "attribution", progress=False).save(path)


@pytest.mark.parametrize("indices", [[0, 1] * 3, [99], [-1]])
def test_examples_are_taken_once_and_by_numbers_that_exist(indices):
    with pytest.raises(HeadwiseError, match="each at most once"):
        word_task(4).take(indices)


def test_the_interval_of_a_head_does_not_depend_on_which_other_heads_are_scored(tiny):
    """Also where a head changes no answer: another set of examples might."""
    task = word_task(12)
    every = hw.score(tiny, task, metric="accuracy", progress=False).table().set_index(["layer", "head"])
    for head in tiny.heads():
        alone = hw.score(tiny, task, metric="accuracy", heads=[head], progress=False).table().iloc[0]
        assert tuple(alone[["score", "lo", "hi"]]) == pytest.approx(
            tuple(every.loc[tuple(head), ["score", "lo", "hi"]])
        )
        assert alone["hi"] > alone["lo"]


@pytest.mark.parametrize("given", [[]])
def test_empty_reference_prompts_are_refused(tiny, given):
    with pytest.raises(HeadwiseError):
        hw.generate(
            tiny, ["the dog"], ablate="L0H0", reference="mean", reference_prompts=given, max_new_tokens=1
        )
    with (
        pytest.raises(HeadwiseError),
        tiny.gated(np.zeros(tiny.shape), reference="mean", reference_prompts=given),
    ):
        pass


def test_the_explorer_checks_its_arguments_at_every_call(tiny):
    for _ in range(2):
        with pytest.raises(HeadwiseError):
            hw.explore(tiny, port=70_000)
        with pytest.raises(HeadwiseError):
            hw.explore(3)
