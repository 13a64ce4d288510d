"""Exact ablation shows a first estimate of every head, and ends with the numbers that it has without one."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

import headwise as hw
from headwise import progress
from headwise.scores import ablation
from helpers import word_task

HOW = {"batch_tokens": 96}  # several batches


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(ablation, "WORTH_A_PREVIEW", 1)


def test_estimates_come_first_then_exact_values_of_the_most_promising_and_the_end_is_the_same(tiny, always):
    task = word_task(12, equal_length=False)
    without = hw.score(tiny, task, "ablation", progress=False, **HOW)
    states = []
    with progress.listening(lambda title, rows: states.append(rows)):
        shown = hw.score(tiny, task, "ablation", **HOW)
    assert np.array_equal(shown.examples, without.examples)
    assert shown.details["rows"] == without.details["rows"]
    attribution = hw.score(tiny, task, "attribution", progress=False)
    first, last = ({row["head"]: row for row in state} for state in (states[0], states[-1]))
    assert len(states) > 10
    for head in tiny.heads():
        place = head.layer, head.head
        assert first[str(head)]["exact_on"] == 0
        assert first[str(head)]["score"] == pytest.approx(attribution.values[place], abs=1e-6)
        assert last[str(head)]["exact_on"] == 12
        assert last[str(head)]["score"] == pytest.approx(without.values[place], abs=1e-12)
    # The first batch that is run has the head with the largest estimate.
    begun = {row["head"] for row in states[1] if row["exact_on"]}
    assert 0 < len(begun) < len(tiny.heads())
    assert states[0][0]["head"] in begun
    counts = [sum(row["exact_on"] for row in state) for state in states]
    assert counts == sorted(counts)
    sizes = [abs(row["score"]) for row in states[len(states) // 2]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("options", [{"metric": "accuracy"}, {"metric": "kl"}])
def test_a_metric_without_a_gradient_at_the_full_model_has_no_preview(tiny, always, options):
    states = []
    with progress.listening(lambda title, rows: states.append(rows)):
        hw.score(tiny, word_task(4), "ablation", **options)
    assert not states


def test_a_terminal_shows_the_estimates_and_then_the_exact_values(tiny, always, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "_console", lambda: Console(file=screen, force_terminal=True, width=100))
    shown = []
    real = progress._drawing

    def drawing():
        made = real()
        show = made.show

        def and_draw(title, rows):
            show(title, rows)
            made.refresh()
            shown.append(len(rows))

        made.show = and_draw
        return made

    monkeypatch.setattr(progress, "_drawing", drawing)
    hw.score(tiny, word_task(6), "ablation", **HOW)
    text = screen.getvalue()
    assert text.index("estimate (attribution)") < text.index("exact on 6 of 6 examples")
    assert shown[-1] == 0  # the table goes when the work is done
    assert progress._shared.drawing is None
    before = screen.tell()
    hw.score(tiny, word_task(6), "ablation", progress=False, **HOW)
    assert screen.tell() == before


def test_a_log_shows_no_table(tiny, always, capsys):
    hw.score(tiny, word_task(4), "ablation")
    assert "estimate" not in capsys.readouterr().err


def test_json_streams_partial_results_as_lines(capsys):
    from headwise.cli.output import _stream

    write = _stream()
    row = {"head": "L0H0", "score": 1.5, "exact_on": 0, "examples": 4}
    write("t", [row, row | {"head": "L0H1"}])
    write("t", [row | {"exact_on": 4}, row | {"head": "L0H1"}])
    write("t", [row | {"exact_on": 4}])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [[found["head"] for found in line["heads"]] for line in lines] == [["L0H0", "L0H1"], ["L0H0"]]
