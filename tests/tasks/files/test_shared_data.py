"""Real copies of public data, where they lie beside the repository, against a plain reading of them."""

import json
import re
from pathlib import Path

import pytest

from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.mappings.questions import ABILITIES
from headwise.tasks.shots import few_shot

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="no folder shared/data beside the repository; the data are not part of it"
)
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/*") if path.is_file())


def plain(name):
    text = (DATA / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)


def of(folder):
    return [name for name in FILES if name.startswith(folder)]


@pytest.mark.parametrize("name", FILES)
def test_every_file_loads_and_takes_shots(name):
    task = load_task(DATA / name)
    assert task.settings["mapping"] == {"function_vectors": "words", "wikitext2": "text"}.get(
        name.split("/")[0], name.split("/")[0]
    )
    assert len(few_shot(task, 3)) >= 0.9 * len(task)


@pytest.mark.parametrize("name", of("cogqa"))
def test_cogqa_has_every_sub_question_but_the_stray_ones(name):
    steps = [step for row in plain(name) for step in row["generated"]]
    known = [step for step in steps if step["cognitive_skill"] in ABILITIES]
    task = load_task(DATA / name)
    assert [e.label for e in task] == [step["cognitive_skill"] for step in known]
    assert [e.target for e in task] == [f" {step['answer']}".rstrip() for step in known]
    assert all(
        e.prompt.endswith(f"Q: {s['subquestion'].strip()}\nA:") for e, s in zip(task, known, strict=True)
    )
    assert not any("\\n" in e.prompt for e in task)
    stray = len(steps) - len(known)
    assert stray == (6 if "train" in name else 0)
    assert any(f"left out {stray} " in notice for notice in task.settings["notices"]) == (stray > 0)


@pytest.mark.parametrize("name", of("blimp"))
def test_blimp_prompts_and_words_are_the_beginnings_of_the_sentences(name):
    rows = plain(name)
    task = load_task(DATA / name, duplicates="keep")
    for row, example in zip(rows, task, strict=True):
        assert row["sentence_good"].startswith(example.prompt + example.target)
        assert row["sentence_bad"].startswith(example.prompt + example.foils[0])
    assert (task.metric == "accuracy") == (not rows[0]["one_prefix_method"])
    once = load_task(DATA / name)
    assert once.examples == tuple(dict.fromkeys(task.examples))


@pytest.mark.parametrize("name", of("commonsense_qa"))
def test_commonsense_qa_answers_are_the_options_of_their_letters(name):
    rows = plain(name)
    texts, letters = load_task(DATA / name), load_task(DATA / name, letters=True)
    for row, text, letter in zip(rows, texts, letters, strict=True):
        lines = row["input"].split("\n")[-5:]
        assert f"{row['output']}:{text.target}" == lines["abcde".index(row["output"])].rstrip()
        assert {f.strip() for f in text.foils} | {text.target.strip()} == {line[3:].strip() for line in lines}
        assert letter.target == f" {row['output']}"
        assert letter.prompt.split("\n")[-6:-1] == [line.rstrip() for line in lines]


@pytest.mark.parametrize("name", of("gsm8k"))
def test_gsm8k_numbers_are_those_after_the_mark(name):
    rows = plain(name)
    worked, final = load_task(DATA / name), load_task(DATA / name, answers="final")
    for row, long, short in zip(rows, worked, final, strict=True):
        number = row["answer"].split("#### ")[1]
        assert short.target == " " + number.replace(",", "")
        assert long.target.endswith(f"\n#### {number}")
        assert "<<" not in long.target
        assert len(long.target) == 1 + len(row["answer"]) - sum(
            map(len, re.findall("<<[^>]*>>", row["answer"]))
        )


@pytest.mark.parametrize("name", of("math500"))
def test_math500_final_answers_stand_boxed_in_the_solutions(name):
    worked, final = load_task(DATA / name), load_task(DATA / name, answers="final")
    assert [e.target.strip() for e in final] == [row["answer"].strip() for row in plain(name)]
    assert all("\\boxed" in e.target for e in worked)
    assert all(e.label == row["subject"] for e, row in zip(worked, plain(name), strict=True))


@pytest.mark.parametrize("name", of("function_vectors"))
def test_word_tasks_map_each_input_to_its_output(name):
    rows = plain(name)
    outputs = {f" {row['output']}" for row in rows}
    task = load_task(DATA / name)
    assert [e.prompt + e.target for e in task] == [f"Q: {r['input']}\nA: {r['output']}" for r in rows]
    assert all(len(set(e.foils) - {e.target}) == 4 and set(e.foils) <= outputs for e in task)


@pytest.mark.parametrize("name", of("bigbench"))
def test_bigbench_prompts_hold_the_input_and_the_target(name):
    value = plain(name)
    task = load_task(DATA / name)
    for row, example in zip(value["examples"], task, strict=True):
        assert example.target == f" {row['target'].strip()}"
        assert example.prompt.startswith(value["task_prefix"])
        assert example.prompt.endswith(f"\nQ: {row['input'].strip()}\nA:")


@pytest.mark.parametrize("name", of("wikitext2"))
def test_wikitext_passages_are_lines_of_the_text(name):
    lines = [line.strip() for line in (DATA / name).read_text(encoding="utf-8").split("\n")]
    everything = load_task(DATA / name, least_words=0, duplicates="keep")
    assert [e.target for e in everything] == [line for line in lines if line]
    assert not any(e.target.startswith("= ") for e in load_task(DATA / name, least_words=20))
