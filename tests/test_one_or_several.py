"""Where several texts may be given, one text is one of them, and not its letters."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import head_list, keep_gates, load_order, mask_gates, save_order, single_gates
from headwise.metrics import text_metric
from headwise.model.load.export import export
from headwise.model.outputs.answers import directions
from headwise.settings import build
from headwise.studies.base import studies
from headwise.studies.masking.texts import intervene
from headwise.tasks.conditions import conditions
from helpers import word_task


@pytest.mark.parametrize("field", ["foils", "also"])
def test_one_foil_or_further_answer_is_one(field):
    one, listed = (hw.Example("the dog", " met", **{field: given}) for given in (" cat", [" cat"]))
    assert getattr(one, field) == (" cat",)
    assert one == listed == hw.Example("the dog", " met", **{field: (" cat",)})
    assert hash(listed) == hash(one)
    with pytest.raises(HeadwiseError, match=f"{field} of an example holds 3; expected texts"):
        hw.Example("the dog", " met", **{field: [3]})


def test_a_score_with_one_foil_as_text_is_that_of_a_list(tiny):
    listed = word_task(4)
    assert all(len(example.foils) == 1 for example in listed)
    plain = hw.Task(
        "t",
        tuple(hw.Example(e.prompt, e.target, e.foils[0], e.counterfactual) for e in listed),
        listed.metric,
    )
    scores = [hw.score(tiny, task, "attribution").values for task in (plain, listed)]
    np.testing.assert_array_equal(*scores)


def test_data_are_taken_wherever_a_task_or_prompts_are(tiny, tmp_path):
    rows = [("the dog met", " cat", " bird"), ("a big cat", " ran", " sat")]
    task, prompts = hw.task(rows), [row[0] for row in rows]
    path = tmp_path / "mine.csv"
    path.write_text("stem,answer,wrong\n" + "\n".join(",".join(row) for row in rows))
    names = {"columns": {"prompt": "stem"}}
    for source, options in ((rows, {}), (str(path), names), (path, names)):
        scores = hw.score(tiny, source, "attribution", **options)
        np.testing.assert_array_equal(scores.values, hw.score(tiny, task, "attribution").values)
    swept = [hw.sweep(tiny, given, ["L1H2"], k=[0, 1], controls=()).values for given in (rows, task)]
    np.testing.assert_array_equal(*swept)
    listed = hw.generate(tiny, prompts, max_new_tokens=3)
    assert hw.generate(tiny, rows, max_new_tokens=3).texts == listed.texts
    assert hw.generate(tiny, prompts[0], max_new_tokens=3).texts == [listed.texts[0][:1]]
    one, first = hw.attention(tiny, prompts[0], "L1H2"), hw.attention(tiny, task, "L1H2")[0]
    np.testing.assert_allclose(one.rows, first.rows, atol=1e-6)
    with pytest.raises(HeadwiseError, match="unknown option of method 'attribution' 'colums'"):
        hw.score(tiny, rows, "attribution", colums={})


def test_one_head_needs_no_list(tiny, tmp_path):
    head = hw.Head(1, 2)
    for given in ("L1H2", head, ["L1H2"], [head], [(1, 2)]):
        assert head_list(given) == [head]
        for make in (mask_gates, keep_gates, single_gates):
            np.testing.assert_array_equal(make(given, (4, 4)), make([head], (4, 4)))
        save_order(given, tmp_path / "heads.json")
        assert load_order(tmp_path / "heads.json") == [head]
    one, listed = (hw.attention(tiny, "the dog met", given) for given in ("L1H2", ["L1H2"]))
    np.testing.assert_array_equal(one.rows, listed.rows)
    one, listed = (hw.sweep(tiny, word_task(4), given, controls=()) for given in ("L1H2", ["L1H2"]))
    np.testing.assert_array_equal(one.values, listed.values)
    rows = [
        intervene(tiny, word_task(4), given, strengths=[1.5], max_new_tokens=1)
        for given in ("L1H2", ["L1H2"])
    ]
    assert rows[0].equals(rows[1])
    folders = [
        export(tiny, given, tmp_path / name) for given, name in (("L1H2", "one"), (["L1H2"], "listed"))
    ]
    records = [(folder / "headwise.json").read_text() for folder in folders]
    assert records[0] == records[1]


def test_one_control_needs_no_list(tiny):
    swept = hw.sweep(tiny, word_task(4), tiny.heads(), k=[0, 3], controls="random", draws=1)
    assert [one.series for one in swept.controls] == ["random"]


def test_one_text_for_generation_is_one(tiny):
    prompts = ["the dog met", "two cats"]
    whole = hw.generate(tiny, prompts, max_new_tokens=6).texts[0]
    word = next(part for part in whole[0].split() if part)
    one, listed = (hw.generate(tiny, prompts, max_new_tokens=6, stop=stop).texts for stop in (word, [word]))
    assert one == listed
    gates = mask_gates(["L0H0"], tiny.shape)
    one, listed = (
        hw.generate(tiny, prompts, gates, max_new_tokens=4, reference="mean", reference_prompts=given).texts
        for given in ("he liked the", ["he liked the"])
    )
    assert one == listed
    assert hw.generate(tiny, prompts[0], max_new_tokens=6).texts == [whole[:1]]
    found = [directions(tiny, *given).unit for given in (("a dog", "two"), (["a dog"], ["two"]))]
    np.testing.assert_array_equal(*found)


def test_one_text_to_be_judged_is_one():
    contains = text_metric("contains")
    assert contains.values("a dog", gold="dog").tolist() == [1.0]
    assert contains.values(["a dog"], gold=["dog"]).tolist() == [1.0]
    assert [one.name for one in conditions("meaningless")] == ["meaningless"]


@pytest.mark.parametrize(
    ("study", "field", "text"),
    [
        ("score", "models", "smollm2"), ("score", "tasks", "ioi"), ("score", "methods", "ablation"),
        ("functions", "tasks", "abilities"), ("functions", "abilities", "Retrieval"), ("functions", "methods", "probe"),
        ("roles", "tasks", "syntax"), ("circuits", "models", "smollm2"), ("circuits", "tasks", "ioi"),
        ("circuits", "orders", "ablation"), ("circuits", "by", "absolute"), ("circuits", "controls", "random"),
        ("masking", "tasks", "abilities"), ("masking", "abilities", "Retrieval"), ("masking", "intervene", "shift"),
        ("prompts", "tasks", "word_problems"), ("prompts", "conditions", "none"), ("prompts", "stop", "END"),
        ("prompts", "heads", "L1H2"), ("contrast", "held_out", "pair"),
    ],
)  # fmt: skip
def test_one_text_in_a_setting_is_one(study, field, text):
    kind = studies()[study].settings
    assert getattr(build(kind, {field: text}), field) == (text,)
    assert build(kind, {field: text}) == build(kind, {field: [text]})
