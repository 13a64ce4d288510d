"""What belongs to a task: prompts without the behaviour, and the behaviour in other words."""

from __future__ import annotations

import json

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.studies.settings.resolve import resolve
from headwise.studies.settings.shared import StudySettings
from headwise.tasks import families


def rows(path, *prompts):
    path.write_text("\n".join(json.dumps({"prompt": p, "target": " a", "foils": [" b"]}) for p in prompts))
    return str(path)


def test_built_in_tasks_know_their_own_with_the_same_options_seed_and_size():
    task = hw.task("ioi", 30, seed=3, pattern="ABB")
    negatives, transfer = task.halves()[0].negatives(), task.transfer(12)
    assert negatives.examples == hw.task("ioi_negative", 15, seed=3, pattern="ABB").examples
    assert transfer.examples == hw.task("ioi_rewrite", 12, seed=3, pattern="ABB").examples
    assert hw.task("abilities", 8).negatives() is None
    assert hw.task("math", 8).negatives() is None
    assert hw.task("math", 8).transfer().name == "math_rewrite"


def test_every_rewrite_and_negative_belongs_to_a_task_of_the_same_metric():
    found = {name: families()[name].metric for name in families() if name.endswith(("_rewrite", "_negative"))}
    assert len(found) == 18
    for name, metric in found.items():
        assert families()[name.rsplit("_", 1)[0]].metric == metric


def test_few_shot_tasks_have_few_shot_negatives():
    task = hw.task("induction", 6, shots=2)
    assert task.negatives().settings["shots"]["k"] == 2
    assert len(task.negatives()) == 6


def test_a_file_names_its_own_and_has_none_by_its_name(tmp_path):
    mine, others = rows(tmp_path / "ioi.jsonl", "x y", "y z"), rows(tmp_path / "no.jsonl", "p", "q", "r")
    task = hw.task(mine)
    assert task.name == "ioi"
    assert task.negatives() is None
    assert task.transfer() is None
    task = hw.task(mine, negatives=others, transfer="ioi_long")
    assert [e.prompt for e in task.negatives()] == ["p", "q", "r"]
    assert len(task.negatives(2)) == 2
    assert task.transfer().name == "ioi_long"
    assert len(task.transfer()) == 2
    assert task.take([1]).negatives().examples == task.negatives().examples
    assert task.fingerprint == hw.task(mine).fingerprint
    given = hw.task("ioi", 4, negatives=hw.task("recall", 3))
    assert given.negatives().name == "recall"


def test_a_name_that_is_no_task_is_refused_at_once(tmp_path):
    with pytest.raises(HeadwiseError, match="ioi_negativ"):
        hw.task("ioi", 4, negatives="ioi_negativ")


def test_a_study_file_may_bring_them(tmp_path):
    mine, others = rows(tmp_path / "mine.jsonl", "x y", "y z"), rows(tmp_path / "no.jsonl", "p")
    file = tmp_path / "study.yaml"
    file.write_text(f"tasks: [{mine}]\nnegatives: {others}\n")
    settings = resolve(kind_with_options(), file)
    assert settings.task_options == {"negatives": others}
    assert [e.prompt for e in hw.task(mine, **settings.task_options).negatives()] == ["p"]


def kind_with_options() -> type[StudySettings]:
    from headwise.studies.circuits.settings import CircuitsSettings

    return CircuitsSettings
