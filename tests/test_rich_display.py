"""What results show of themselves: one short line, and a small table in a notebook with all text escaped."""

from __future__ import annotations

import numpy as np

import headwise as hw
from headwise.model.generation.generate import Generated
from helpers import word_task

HOSTILE = "<script>alert(1)</script>"


def hostile_task(n=10):
    examples = tuple(hw.Example(f"{HOSTILE} number {i}", " yes", (" no",)) for i in range(n))
    return hw.Task("t", examples)


def test_a_task_shows_its_first_examples():
    task = hostile_task()
    assert repr(task).startswith("Task('t', 10 examples, metric logprob; first: ")
    assert "→ ' yes', not ' no'" in repr(task)
    assert len(repr(word_task(64))) < 200
    page = task._repr_html_()
    assert "the first 8 of 10 examples" in page
    assert HOSTILE not in page
    assert "number 7" in page
    assert "number 8" not in page


def test_attention_shows_where_each_head_looks(tiny):
    seen = hw.attention(tiny, "the dog met a bird", ["L0H1", "L2H0"], maps=True)
    assert repr(seen).startswith("Attention(tiny: 2 heads (L0H1, L2H0) on 5 tokens ")
    page = seen._repr_html_()
    most = int(np.argmax(seen.rows[0, 0]))
    assert f"({most}) {seen.rows[0, 0, most]:.2f}" in page
    assert "L2H0" in page


def test_generated_texts_stand_beside_their_prompts(tiny):
    written = hw.generate(tiny, ["the dog met", "he saw"], np.ones((2, *tiny.shape)), max_new_tokens=3)
    assert repr(written).startswith("Generated(2 variants × 2 prompts, ")
    page = written._repr_html_()
    assert "the dog met" in page
    assert "variant 1" in page
    assert written.texts[0][1].strip() in page


def test_generated_texts_are_escaped_and_cut_ones_marked():
    written = Generated([[HOSTILE]], [[[1]]], np.array([[False]]), [[1]], [1], [HOSTILE])
    assert HOSTILE not in written._repr_html_()
    assert "&lt;/script&gt;…</td>" in written._repr_html_()
    assert "1 cut off" in repr(written)
