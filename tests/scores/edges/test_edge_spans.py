"""Edges restricted to spans of positions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import headwise as hw
from helpers import word_task


def with_spans(task):
    """The second word, and the last one."""

    def spans(prompt):
        words = prompt.split()
        start = len(words[0]) + 1
        return {"second": (start, start + len(words[1])), "end": (len(prompt) - len(words[-1]), len(prompt))}

    return replace(task, examples=tuple(replace(e, spans=spans(e.prompt)) for e in task))


def test_the_gradient_of_an_edge_is_the_sum_over_its_spans_and_the_rest(tiny):
    task = with_spans(word_task(4, equal_length=False))
    chosen = {"reference": "mean", "into": "L3H1", "progress": False}
    whole = hw.edges(tiny, task, "attribution", **chosen)
    parts = hw.edges(tiny, task, "attribution", spans="all", **chosen)
    for number, edge in enumerate(whole):
        some = [
            n for n, one in enumerate(parts) if (one.sender, one.receiver) == (edge.sender, edge.receiver)
        ]
        assert len(some) == 3
        assert parts.examples[:, some].sum(axis=1) == pytest.approx(whole.examples[:, number], abs=1e-5)


def test_an_exact_edge_at_a_span_leaves_what_only_other_positions_carry(tiny):
    """A counterfactual that differs in the last word alone changes nothing before it."""
    task = with_spans(word_task(4))
    other = {"cat": "dog"}
    examples = []
    for example in task:
        words = example.prompt.split()
        words[-1] = other.get(words[-1], "cat")
        examples.append(replace(example, counterfactual=" ".join(words)))
    task = replace(task, examples=tuple(examples))
    chosen = {"reference": "patch", "into": "L2H1", "out_of": ["L0H1", "L1H3"], "progress": False}
    found = hw.edges(tiny, task, spans="all", **chosen)
    whole = hw.edges(tiny, task, **chosen)
    for number, edge in enumerate(found):
        expected = 0.0
        if edge.span == "end":
            expected = whole.examples[:, whole.edges.index(edge._replace(span=""))]
        assert found.examples[:, number] == pytest.approx(expected, abs=1e-6)
    assert np.abs(whole.examples).max() > 1e-3


def test_ioi_names_where_its_names_stand():
    for example in hw.task("ioi", 6):
        at = {name: example.prompt[a:b] for name, (a, b) in example.spans.items()}
        assert at["IO"] == example.target.strip()
        assert at["S1"] == at["S2"] == example.foils[0].strip()
        assert example.spans["S1"] != example.spans["S2"]
        assert at["end"] == example.prompt.split()[-1]


def test_spans_of_a_file_move_with_few_shot_prompts(tmp_path):
    lines = [
        {"prompt": f"the cat saw {w}", "target": " dog", "spans": {"who": [4, 7]}} for w in ("a", "b", "c")
    ]
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    for task in (hw.task(str(path)), hw.task(str(path), shots=1)):
        for example in task:
            a, b = example.spans["who"]
            assert example.prompt[a:b] == "cat"
    path.write_text(json.dumps({**lines[0], "spans": {"who": [4, 70]}}))
    with pytest.raises(hw.HeadwiseError, match=r"line 1.*inside its prompt"):
        hw.task(str(path))


def test_a_task_without_spans_is_refused_by_name(tiny):
    with pytest.raises(hw.HeadwiseError, match="'words' have no spans"):
        hw.edges(tiny, word_task(2), spans="all", progress=False)


@pytest.mark.parametrize("mlps", ["hold", "move"])
def test_an_edge_at_a_span_is_the_same_alone_and_among_the_other_spans(mlps, tiny):
    task = with_spans(word_task(3, equal_length=False))
    chosen = {"reference": "patch", "into": "L3H1.Q", "mlps": mlps, "progress": False}
    senders = ["L1H2", "MLP0", "MLP1", "input"]
    together = hw.edges(tiny, task, out_of=senders, spans="all", **chosen)
    for sender in senders:
        for span in ("second", "end", "rest"):
            (alone,) = hw.edges(tiny, task, out_of=sender, spans=span, **chosen).examples.T
            number = next(
                n for n, e in enumerate(together) if (e.sender, e.span) == (hw.Head.parse(sender), span)
            )
            assert together.examples[:, number] == pytest.approx(alone, abs=1e-5)


def test_a_span_that_is_named_twice_is_one_span(tiny):
    chosen = {"into": "L3H1.Q", "out_of": "L1H2", "progress": False}
    twice = hw.edges(tiny, with_spans(word_task(2)), spans=["end", "end"], **chosen)
    assert [edge.span for edge in twice] == ["end"]
