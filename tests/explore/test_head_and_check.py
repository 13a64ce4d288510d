"""A head that is opened, the control of equal size and layers, and “is this real?”."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import headwise as hw
from explore.conftest import PROMPT, ask, quiet_job
from headwise.cards.tokens import Prompt, TokenReader
from headwise.explorer import significance
from headwise.explorer.explorer import Explorer
from headwise.explorer.live import Live
from headwise.explorer.opened_head import OpenedHeads
from headwise.explorer.requests import Card
from headwise.explorer.worker import Cancelled, Job
from headwise.heads import Head
from helpers import word_task

GATES = [[0, 1, 0], [0, 2, 0.5], [2, 3, 2]]


def array(model, gates):
    made = np.ones(model.shape)
    for layer, head, gate in gates:
        made[layer, head] = gate
    return made


def test_the_attention_of_a_head_is_that_of_the_library_under_the_gates(explorer, tiny):
    attention, *_ = ask(explorer, "head", head="L3H1", prompt=PROMPT, gates=GATES)
    with tiny.gated(array(tiny, GATES), reference_prompts=[PROMPT]):
        expected = hw.attention(tiny, PROMPT, "L3H1", maps=True)
    np.testing.assert_allclose(np.array(attention["map"], float), expected.maps[0], atol=6e-4)
    assert attention["tokens"] == expected.tokens
    assert attention["query"] == len(expected.tokens) - 1
    (row,) = ask(explorer, "head", head="L3H1", prompt=PROMPT, gates=GATES, query=2, only_row=True)
    np.testing.assert_allclose(row["row"], expected.maps[0][2], atol=6e-4)
    assert "map" not in row
    plain, *_ = ask(explorer, "head", head="L3H1", prompt=PROMPT)
    assert plain["map"] != attention["map"]


def test_the_promoted_tokens_are_those_of_the_card(explorer, tiny):
    _, promoted, _ = ask(explorer, "head", head="L3H1", prompt=PROMPT)
    table = TokenReader(tiny, [Prompt(tiny.tokens(PROMPT), 0, ())]).output_table(Head(3, 1))
    first = table[table["kind"] == "promoted"].sort_values("rank").iloc[0]
    assert promoted["promoted"][0]["text"] == first["token"]
    assert promoted["promoted"][0]["logit"] == pytest.approx(first["logit"], rel=1e-5)
    assert promoted["suppressed"][0]["logit"] < 0


def test_a_long_prompt_gives_one_row_and_no_map(explorer):
    attention, *_ = ask(explorer, "head", head="L0H0", prompt="the cat saw " * 60)
    assert attention["map"] is None
    assert len(attention["row"]) == len(attention["tokens"]) == 180
    assert sum(attention["row"]) == pytest.approx(1, abs=0.02)


def test_a_control_has_the_same_gates_on_other_heads_of_the_same_layers(explorer, tiny):
    (event,) = ask(explorer, "control", gates=GATES, seed=3)
    control = event["gates"]
    assert Counter(layer for layer, *_ in control) == Counter(layer for layer, *_ in GATES)
    assert sorted(gate for *_, gate in control) == sorted(gate for *_, gate in GATES)
    assert not {(a, b) for a, b, _ in control} & {(a, b) for a, b, _ in GATES}
    drawn = [ask(explorer, "control", gates=GATES, seed=seed)[0]["gates"] for seed in range(3, 11)]
    assert drawn[0] == control
    assert any(other != control for other in drawn)


def test_is_this_real_gives_what_measure_gives_beside_the_mean_of_its_controls(tiny, serve, monkeypatch):
    task = word_task(12)
    monkeypatch.setattr(significance, "task", lambda *_, **__: task)
    monkeypatch.setattr(Explorer, "tasks", lambda self: ["words"])
    explorer = serve(tiny)
    events = ask(explorer, "check", gates=GATES, task="words", n=12, reference="mean")
    progress = [event["done"] for event in events if event["event"] == "progress"]
    assert progress == sorted(progress)
    assert len(progress) >= 12
    (found,) = [event for event in events if event["event"] == "significance"]
    gates = array(tiny, GATES)
    mine = hw.measure(tiny, task, gates, reference="mean", progress=False).effects
    sets = np.stack([significance.control_gates(tiny, gates, f"explore/{draw}") for draw in range(5)])
    control = hw.measure(tiny, task, sets, reference="mean", progress=False).effects.mean(0)
    assert found["effect"]["mean"] == pytest.approx(mine.mean(), abs=1e-5)
    assert found["control"]["mean"] == pytest.approx(control.mean(), abs=1e-5)
    assert found["difference"]["mean"] == pytest.approx((mine - control).mean(), abs=1e-5)
    assert found["difference"]["lo"] < found["difference"]["mean"] < found["difference"]["hi"]
    assert (found["n"], found["draws"]) == (12, 5)


def test_a_check_without_gates_or_with_too_many_says_what_is_missing(explorer):
    for gates, words in (
        ([], "no head is changed"),
        ([[i, j, 0] for i in range(4) for j in range(4)], "are left"),
    ):
        events = ask(explorer, "check", gates=gates, task="ioi", n=4)
        assert events[-1]["event"] == "error"
        assert words in events[-1]["message"]


def test_held_out_examples_are_none_of_those_seen(tiny):
    seen = [example.prompt for example in hw.task("ioi", 16, model=tiny, seed=significance.HELD_OUT_SEED)]
    fresh = significance.held_out(tiny, "ioi", 8, seen)
    assert len(fresh) == 8
    assert not {example.prompt for example in fresh} & set(seen)


def test_a_card_is_the_card_of_the_library(tiny, serve, monkeypatch):
    task = word_task(8)
    monkeypatch.setattr(Explorer, "_source", lambda self, name: task)
    explorer = serve(tiny)
    events = ask(explorer, "card", head="L2H1", task="words", n=8)
    assert events[-1]["text"] == repr(hw.card(tiny, "L2H1", task, n=8, progress=False))


def test_explore_in_a_notebook_shows_the_page_and_stops(tiny):
    explorer = hw.explore(tiny)
    try:
        assert f'src="{explorer.url}"' in explorer._repr_html_()
        assert explorer.url in repr(explorer)
    finally:
        explorer.stop()
    assert "stopped" in explorer._repr_html_()


def test_a_card_whose_tab_is_closed_ends_at_its_next_step(tiny, monkeypatch):
    job = quiet_job()
    opened = OpenedHeads(Live(tiny), None)
    whole = list(opened.card(Card(tab="t", head="L1H2", task="words", n=4), word_task(4), job))
    assert whole[-1]["event"] == "card"
    events = opened.card(Card(tab="t", head="L1H2", task="words", n=4), word_task(4), job)
    next(events)
    steps = []
    monkeypatch.setattr(
        job, "check", lambda: steps.append(1) or (job.cancel() if len(steps) == 2 else Job.check(job))
    )
    with pytest.raises(Cancelled):
        next(events)
    assert len(steps) == 3  # the start, the step in which the tab was closed, and the one after it
