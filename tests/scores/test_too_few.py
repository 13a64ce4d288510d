"""What n can show is said before anything is computed, and beside every q; lopsided heads are marked."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise import stats
from headwise.charts.heatmap import score_chart
from headwise.errors import warn_once
from headwise.heads import Scores
from headwise.model.forward import run as forward_run
from headwise.studies.score.section import findings
from headwise.tables.frames import too_few
from helpers import word_task


def scores_of(examples: np.ndarray, groups=None) -> Scores:
    """Scores of one layer from values `[E, heads]`."""
    about = {"model": "m", "task": "t", "method": "ablation", "metric": "logit_diff"}
    return Scores.from_examples(examples[:, None, :], **about, groups=groups)


@pytest.mark.parametrize(("n", "heads"), [(6, 270), (8, 40), (10, 270), (13, 270)])
def test_the_sentence_is_what_the_tests_then_give(n, heads):
    """So many heads of one sign in every example reach q < .05 together, and one fewer does not."""
    message = stats.too_few(n, heads)
    together, lone = int(message.split("only if ")[1].split()[0]), int(message.split("needs ")[1].split()[0])
    for number, reached in ((together, True), (together - 1, False)):
        values = np.random.default_rng(0).normal(size=(n, heads)) * np.tile([[1], [-1]], (n, 1))[:n]
        values[:, :number] = 1 + np.abs(values[:, :number])
        values[:, number:] = np.tile([1.0, -1.0], n)[:n, None]  # p is 1, or near it
        q = stats.benjamini_hochberg(stats.sign_flip(values))
        assert bool((q[:number] < 0.05).all()) is reached
    for examples, reached in ((lone, True), (lone - 1, False)):
        values = np.tile([1.0, -1.0], (examples, heads))[:examples, :heads]
        values[::2, 1:] *= -1
        values[:, 0] = 1
        q = stats.benjamini_hochberg(stats.sign_flip(values))
        assert bool(q[0] < 0.05) is reached
    assert stats.too_few(lone, heads) == ""


def test_with_very_few_examples_no_head_reaches_it():
    assert stats.too_few(3, 12).startswith("with 3 examples no head reaches q < .05 however large its effect")
    assert stats.too_few(64, 270) == ""


def test_a_lone_pair_among_tens_of_thousands_can_be_significant():
    values = np.random.default_rng(1).normal(size=(40, 30_000))
    values[:, 7] += 3
    q = stats.benjamini_hochberg(stats.sign_flip_staged(values))
    assert q[7] < 0.05
    assert (q < 0.05).sum() <= 3


@pytest.mark.parametrize("call", ["score", "edges", "interactions"])
def test_python_says_it_before_anything_is_computed(tiny, call, caplog, monkeypatch):
    warn_once.cache_clear()
    said_first: list[bool] = []
    plain = forward_run.run

    def run(*args, **options):
        said_first.append(any("a lone" in record.message for record in caplog.records))
        return plain(*args, **options)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("headwise.") and getattr(module, "run", None) is plain:
            monkeypatch.setattr(module, "run", run)
    with caplog.at_level(logging.WARNING):
        task = word_task(4)
        if call == "score":
            hw.score(tiny, task, progress=False)
        elif call == "edges":
            hw.edges(tiny, task, into="logits", progress=False)
        else:
            hw.interactions(tiny, task, ["L0H0", "L0H1", "L1H0"], progress=False)
    what = {"score": "head", "edges": "edge", "interactions": "pair"}[call]
    assert any(f"a lone {what} needs" in record.message for record in caplog.records)
    # Two find out how the blocks are built; one takes the mean that replaces the heads.
    passes = said_first[{"score": 0, "edges": 2, "interactions": 1}[call] :]
    assert passes
    assert all(passes)


def test_terminal_finding_and_figure_say_it_beside_q():
    table = scores_of(np.random.default_rng(0).normal(2, 0.1, size=(6, 270)) * np.eye(1, 270, 4)).table()
    sentence = stats.too_few(6, 270)
    assert too_few(table) == sentence
    (found,) = findings({"scores": table})
    assert sentence in found.sentence
    assert sentence[5:] in score_chart(table).caption
    enough = scores_of(np.random.default_rng(0).normal(size=(20, 270))).table()
    assert too_few(enough) == ""
    assert score_chart(enough).caption == ""


def test_groups_are_what_is_counted():
    values = np.random.default_rng(0).normal(1, 0.1, size=(24, 30))
    grouped = scores_of(values, groups=[f"g{i // 4}" for i in range(24)]).table()
    assert set(grouped["units"]) == {6}
    assert too_few(grouped) == stats.too_few(6, 30) or grouped["p"].min() > stats.smallest_p(6)
    assert too_few(scores_of(values).table()) == ""


def test_a_lopsided_head_is_marked_and_a_symmetric_one_is_not():
    random = np.random.default_rng(2)
    values = random.normal(1.0, 0.3, size=(60, 4))
    values[:, 1] = random.exponential(1.0, 60) ** 3
    table = scores_of(values).table()
    theirs = pd.DataFrame(values).skew().to_numpy() * (58 / np.sqrt(60 * 59))
    np.testing.assert_allclose(table["skewness"], theirs)
    assert abs(table["skewness"].iloc[1]) > 2 > table["skewness"].abs().drop(index=1).max()
    marks = [
        mark.text for panel in score_chart(table).panels for mark in panel.marks if hasattr(mark, "text")
    ]
    assert sorted(marks) == ["*", "*", "*", "*†"]
    (found,) = findings({"scores": table})
    assert "1 of them with a skewness above 2" in found.sentence
