"""Own data without the manual: lists, DataFrames, usual names of columns, and the usual files of the field."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError, command_line
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks.files.load_task import check_file, load_task
from headwise.tasks.files.rows_to_examples import FIELDS, GUESSES
from headwise.tasks.opening import prompts_of
from helpers import REPOSITORY

CAPITALS = [("The capital of France is", " Paris", " Rome"), ("The capital of Peru is", " Lima", " Quito")]


class FakeText:
    """A tokenizer of one token per word, as far as data files need one."""

    words = ("", "Ana", "Bob", "Cid")
    has_chat = True

    def __init__(self):
        self.prefix = [0]

    def encode(self, text):
        return [0, *range(1, 1 + len(text.split()))]

    def decode(self, ids):
        return "<s>" if ids == [0] else f" {self.words[ids[0]]}"

    def chat(self, messages, add_generation_prompt=True):
        turns = "".join(f"[{m['role']}] {m['content']}\n" for m in messages)
        return f"<s>{turns}" + ("[assistant]" if add_generation_prompt else "")


class DigitText(FakeText):
    """One token per character."""

    def encode(self, text):
        return [0, *map(ord, text)]


def save(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


# ---- values in memory ---------------------------------------------------------------------------------


def test_tuples_dicts_frames_examples_and_files_are_the_same_task(tmp_path):
    dicts = [dict(zip(("prompt", "target", "foils"), pair, strict=True)) for pair in CAPITALS]
    frame = pd.DataFrame(dicts)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    first = hw.task(CAPITALS)
    assert [e.prompt + e.target for e in first] == [
        "The capital of France is Paris",
        "The capital of Peru is Lima",
    ]
    assert first.metric == "logit_diff"
    assert [e.foils for e in first] == [(" Rome",), (" Quito",)]
    for source in (
        dicts,
        frame,
        list(first),
        first,
        tmp_path / "mine.csv",
        str(tmp_path / "mine.csv"),
        iter(dicts),
    ):
        assert hw.task(source).fingerprint == first.fingerprint
    for one in (CAPITALS[0], dicts[0], first.examples[0]):
        assert hw.task(one).examples == first.examples[:1]
    assert hw.task(CAPITALS, 1, seed=3).examples == load_task(tmp_path / "mine.csv", limit=1, seed=3).examples
    assert hw.task(first, 1, seed=3).examples == hw.task(CAPITALS, 1, seed=3).examples
    assert hw.task(CAPITALS, name="capitals").name == "capitals"
    assert hw.task([*CAPITALS, ("The capital of Mali is", " Bamako", [" Oslo", " Bonn"])]).examples[
        2
    ].foils == (
        " Oslo",
        " Bonn",
    )


def test_missing_cells_of_a_frame_are_nothing_and_numbers_of_numpy_are_numbers():
    frame = pd.DataFrame(
        {"prompt": ["a", "b"], "target": [" c", " d"], "foils": [" x", None], "label": [1, 2]}
    )
    frame["foils"] = frame["foils"].astype("string")
    assert [(e.foils, e.label) for e in hw.task(frame)] == [((" x",), "1"), ((), "2")]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (["ioi"], r"the list, item 1: text \('ioi'\), expected \(prompt, answer\)"),
        ([("a", " b"), ("a",)], r"the list, item 2: a list .*expected \(prompt, answer\)"),
        ([("2 + 2 =", 4)], r"item 1: 'target' is a number \(4\).*columns=\{'target': ' \{target\}'\}"),
        ([], "the list is empty"),
        (3, "the source of a task is a number"),
        ([{"x": "a"}], r"item 1: cannot tell what the fields 'x' mean"),
    ],
)
def test_what_is_no_example_is_named_by_its_number(source, said):
    with pytest.raises(HeadwiseError, match=said):
        hw.task(source)


def test_a_number_of_examples_that_is_none_is_refused_and_one_of_numpy_is_taken():
    for wrong in ("4", 2.5, True):
        with pytest.raises(HeadwiseError, match="expected a whole number of examples"):
            hw.task("ioi", wrong)
    assert len(hw.task("ioi", np.int64(2))) == 2


def test_prompts_are_taken_from_whatever_a_task_can_be_made_of(tmp_path):
    prompts, model = [pair[0] for pair in CAPITALS], SimpleNamespace(tokens=str.split)
    frame = pd.DataFrame({"prompt": prompts})  # without answers, which generation does not need
    for source in (prompts, tuple(prompts), CAPITALS, hw.task(CAPITALS), frame, frame.to_dict("records")):
        assert prompts_of(source, model) == prompts
    frame.assign(answer=" x").to_csv(tmp_path / "mine.csv")
    assert prompts_of(tmp_path / "mine.csv", model) == prompts
    assert prompts_of("one text", model) == ["one text"]
    chat = [{"role": "user", "content": "hi"}]
    assert prompts_of(chat, model) == [chat]
    assert prompts_of([chat, "text"], model) == [chat, "text"]
    assert prompts_of([[1, 2], [3]], model) == [[1, 2], [3]]
    assert prompts_of([], model) == []


# ---- names of columns ----------------------------------------------------------------------------------


def test_usual_names_are_read_and_said(tmp_path, caplog):
    rows = [{"clean": "a", "corrupted": "b", "completion": " c", "wrong": " d", "skill": "s"}]
    with caplog.at_level(logging.WARNING, logger="headwise"):
        (example,) = load_task(save(tmp_path / "a.jsonl", rows))
    assert example == hw.Example("a", " c", (" d",), counterfactual="b", label="s")
    assert "read 'clean' as the prompt, 'completion' as the target, 'wrong' as the foils" in caplog.text
    assert "columns={'prompt': 'NAME'}" in caplog.text


def test_a_label_is_the_target_only_where_nothing_else_is(tmp_path):
    only = load_task(save(tmp_path / "a.jsonl", [{"sentence": "It was", "label": " good"}]))
    assert only.examples == (hw.Example("It was", " good"),)
    both = load_task(save(tmp_path / "b.jsonl", [{"sentence": "It was", "answer": " good", "label": "mood"}]))
    assert both.examples == (hw.Example("It was", " good", label="mood"),)


def test_files_with_a_prompt_and_a_target_are_read_as_ever(tmp_path):
    task = load_task(save(tmp_path / "a.jsonl", [{"prompt": "a", "target": " b", "wrong": " c"}]))
    assert task.examples == (hw.Example("a", " b"),)


def test_columns_fill_what_is_missing_and_none_leaves_a_field_out(tmp_path):
    path = save(tmp_path / "a.jsonl", [{"stem": "a", "answer": " b", "label": "x"}])
    assert load_task(path, columns={"prompt": "stem"}).examples == (hw.Example("a", " b", label="x"),)
    assert load_task(path, columns={"prompt": "stem", "label": None}).examples == (hw.Example("a", " b"),)


def test_the_table_of_usual_names_in_the_docs_is_the_one_in_the_code():
    rows = [
        line.split("|")[1:-1]
        for line in (REPOSITORY / "docs/tasks.md").read_text().splitlines()
        if "|" in line
    ]
    told = {row[0].strip(" `"): row[2] for row in rows if len(row) == 3}
    for field in FIELDS:
        names = [name.strip(" `") for name in told[field].split(",")]
        assert names == list(GUESSES.get(field, ("–",)))


def test_hints_are_in_the_syntax_of_where_the_user_is(tmp_path):
    path = save(tmp_path / "a.jsonl", [{"riddle": "a", "reply": 3}])
    for options in (
        {},
        {"columns": {"prompt": "riddle"}},
        {"columns": {"prompt": "riddle", "target": "reply"}},
    ):
        with pytest.raises(HeadwiseError, match=r"columns=\{'") as in_python:
            load_task(path, **options)
        assert "--set" not in str(in_python.value)
        with pytest.raises(HeadwiseError, match=r"--set '?columns\.") as in_shell, command_line():
            load_task(path, **options)
        assert "columns={" not in str(in_shell.value)


# ---- usual files of the field --------------------------------------------------------------------------

YEARS = (
    "clean,corrupted,label\n"
    "The war lasted from the year 1741 to the year 17,The war lasted from the year 1701 to the year 17,41\n"
    "The war lasted from the year 1607 to the year 16,The war lasted from the year 1601 to the year 16,7\n"
    "The war lasted from the year 1595 to the year 15,The war lasted from the year 1501 to the year 15,95\n"
)


def test_greater_than_of_eap_ig_counts_every_later_year_as_right(tmp_path):
    (tmp_path / "years.csv").write_text(YEARS)
    task = load_task(tmp_path / "years.csv", tokens=FakeText2())
    assert (task.metric, task.settings["mapping"]) == ("prob_diff", "greater_than_csv")
    for example, start in zip(task, (41, 7, 95), strict=True):
        right, wrong = {example.target, *example.also}, set(example.foils)
        assert right == {y for y in (f"{n:02d}" for n in range(100)) if int(y) > start}
        assert len(wrong) == start + 1
        assert not right & wrong
        assert "01 to the year" in example.counterfactual


class FakeText2(FakeText):
    """Two digits after the prompt are one token."""

    def encode(self, text):
        return [0, *range(len(text) // 2)]


def test_greater_than_asks_for_the_tens_digit_where_every_digit_is_a_token(tmp_path):
    (tmp_path / "years.csv").write_text(YEARS)
    task = load_task(tmp_path / "years.csv", tokens=DigitText())
    (example,) = task
    assert (example.target, example.also, example.foils) == ("5", tuple("6789"), tuple("0123"))
    assert any("left out 2 of 3 rows" in notice for notice in task.settings["notices"])


def test_other_files_with_a_label_are_not_taken_for_years(tmp_path):
    path = save(tmp_path / "a.jsonl", [{"clean": "In 17", "corrupted": "In 18", "label": " x"}])
    assert load_task(path).settings["mapping"] == "fields"
    (tmp_path / "years.csv").write_text(YEARS + "The war lasted from the year 1333 to the year 13,x,44\n")
    with pytest.raises(
        HeadwiseError, match=r"line 5: the label is text .'44'., expected the last two digits"
    ):
        load_task(tmp_path / "years.csv")


IOI = "clean,corrupted,correct_idx,incorrect_idx\nAna met Bob and then Bob saw,Ana met Bob and then Cid saw,1,2\n"


def test_ioi_of_eap_ig_takes_the_words_of_the_models_own_tokenizer(tmp_path):
    (tmp_path / "ioi.csv").write_text(IOI)
    (example,) = load_task(tmp_path / "ioi.csv", tokens=FakeText())
    assert (example.target, example.foils) == (" Ana", (" Bob",))
    assert example.counterfactual == "Ana met Bob and then Cid saw"
    (tmp_path / "ioi.csv").write_text(IOI.replace("saw,1,2", "saw,3,2"))
    with pytest.raises(HeadwiseError) as caught:
        load_task(tmp_path / "ioi.csv", tokens=FakeText())
    assert "line 2: correct_idx 3 is the token ' Cid' of this model's tokenizer" in str(caught.value)
    assert "does not occur in the prompt" in str(caught.value)
    assert "columns 'target' and 'foils'" in str(caught.value)


def test_ids_and_chats_need_a_model_and_say_so(tmp_path):
    (tmp_path / "ioi.csv").write_text(IOI)
    with pytest.raises(HeadwiseError, match="only with the tokenizer of a model; give model=model"):
        hw.task(tmp_path / "ioi.csv")
    with pytest.raises(HeadwiseError, match="of a model; give --model NAME"), command_line():
        hw.task(tmp_path / "ioi.csv")
    assert check_file(tmp_path / "ioi.csv", {}) is None


def test_a_chat_is_the_last_answer_after_the_rest_in_the_template(tmp_path):
    turns = [
        ("system", "Be brief."),
        ("user", "Hi?"),
        ("assistant", "Hello."),
        ("user", "Who?"),
        ("assistant", "Me. "),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    shared = [{"from": names[role], "value": content} for role, content in turns]
    rendered = "[system] Be brief.\n[user] Hi?\n[assistant] Hello.\n[user] Who?\n[assistant]"
    for row in ({"messages": messages}, {"conversations": shared}):
        (example,) = load_task(save(tmp_path / "a.jsonl", [row]), tokens=FakeText())
        # No second beginning token, and the space that the template puts before the answer.
        assert (example.prompt, example.target) == (rendered, " Me.")
    with pytest.raises(HeadwiseError, match="line 1: the last message is from 'user'"):
        load_task(save(tmp_path / "a.jsonl", [{"messages": messages[:2]}]), tokens=FakeText())


def test_questions_with_answers_choices_and_wrong_answers(tmp_path):
    rows = [
        {"question": "Who?", "answer": "Ana"},
        {"question": "How many?", "answer": 3, "wrong_answers": ["4", "5"]},
        {"question": "Which?", "choices": ["red", "blue", "green"], "answer": 1},
        {"question": "Which one?", "choices": ["red", "blue"], "answer": "red"},
    ]
    task = hw.task(rows)
    assert [e.prompt for e in task][:2] == ["Q: Who?\nA:", "Q: How many?\nA:"]
    assert [e.target for e in task] == [" Ana", " 3", " blue", " red"]
    assert [e.foils for e in task] == [(), (" 4", " 5"), (" red", " green"), (" blue",)]
    with pytest.raises(
        HeadwiseError, match=r"item 1: the answer is a number \(7\), expected one of the choices"
    ):
        hw.task([{"question": "Which?", "choices": ["a", "b"], "answer": 7}])


@pytest.mark.bundled
def test_the_two_files_of_eap_ig_are_scored_by_their_path_alone(smollm2, tmp_path):
    (tmp_path / "years.csv").write_text(YEARS + YEARS.splitlines()[1].replace("war", "siege") + "\n")
    scores = hw.score(smollm2, tmp_path / "years.csv", "attribution")
    assert scores.n == 2
    assert scores.metric == "prob_diff"
    task = hw.task(tmp_path / "years.csv", model=smollm2)
    values = Engine(smollm2, task, metric("prob_diff")).full()
    for example, value in zip(task, values, strict=True):  # the same, digit by digit in plain transformers
        ids = torch.tensor([smollm2.tokens(example.prompt)], device=smollm2.device)
        p = smollm2.hf(ids).logits[0, -1].softmax(-1)
        digit = {str(d): p[smollm2.tokens(f"1{d}")[-1]].item() for d in range(10)}
        right, wrong = (sum(digit[str(d)] for d in which) for which in (range(5, 10), range(4)))
        assert value == pytest.approx(right - wrong, abs=1e-4)
    prompt = "When Mary and John went to the store, John gave a drink to"
    mary, john = (smollm2.tokens(f"I saw {name}")[-1] for name in ("Mary", "John"))
    rows = f'"{prompt}","{prompt.replace("John gave", "Tom gave")}",{mary},{john}\n'
    (tmp_path / "ioi.csv").write_text("clean,corrupted,correct_idx,incorrect_idx\n" + rows)
    (example,) = hw.task(tmp_path / "ioi.csv", model=smollm2)
    assert (example.target, example.foils) == (" Mary", (" John",))
    rows = rows.replace(f",{mary},{john}", ",5335,1757")  # GPT-2's ids; the prompts say the names themselves
    (tmp_path / "ioi.csv").write_text("clean,corrupted,correct_idx,incorrect_idx\n" + rows)
    assert hw.task(tmp_path / "ioi.csv", model=smollm2).examples == (example,)
    rows = rows.replace("Mary and John", "Mary met John")
    (tmp_path / "ioi.csv").write_text("clean,corrupted,correct_idx,incorrect_idx\n" + rows)
    with pytest.raises(HeadwiseError, match="correct_idx 5335 is the token 'CT' of this model's tokenizer"):
        hw.task(tmp_path / "ioi.csv", model=smollm2)
