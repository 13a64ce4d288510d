"""Files that a ready mapping reads keep every field of an example that their rows have."""

from __future__ import annotations

import json

import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.mappings.registry import registered
from headwise.tasks.files.rows_to_examples import GUESSES


class WordText:
    """A tokenizer of one token per word, with a chat template."""

    has_chat, prefix = True, (0,)

    def encode(self, text):
        return [0, *range(1, 1 + len(text.split()))]

    def decode(self, ids):
        return "<s>" if list(ids) == [0] else f" {('', 'Ana', 'Bob')[ids[0]]}"

    def chat(self, messages, add_generation_prompt=True):
        turns = "".join(f"[{m['role']}] {m['content'].strip()}\n" for m in messages)
        return f"<s>{turns}" + ("[assistant]" if add_generation_prompt else "")


def chat(*contents):
    return [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]


def read(tmp_path, *rows, **options):
    (tmp_path / "file.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load_task(tmp_path / "file.jsonl", tokens=WordText(), **options)


ROWS = {
    "blimp": {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."},
    "bigbench": {"input": "Who runs home?", "target": "Ana"},
    "chat": {"messages": chat("Who runs home?", "Ana")},
    "commonsense_qa": {
        "question": "Who runs home?",
        "choices": {"label": ["A", "B"], "text": ["Ana", "Bob"]},
        "answerKey": "A",
    },
    "greater_than_csv": {"clean": "From 1741 to 17", "corrupted": "From 1701 to 17", "label": 41},
    "gender_csv": {
        "clean": "The poet ran because",
        "corrupted": "The man ran because",
        "clean_answer_idx": 673,
        "corrupted_answer_idx": 339,
    },
    "agreement_csv": {"clean": "The poets", "corrupted": "The poet", "plural": 1},
    "pairs": {"base": "The poets", "base_label": " are", "src": "The poet", "src_label": " is"},
    "gsm8k": {"question": "Who runs home?", "answer": "Ana\n#### 3"},
    "ioi_csv": {
        "clean": "Ana saw Bob saw",
        "corrupted": "Ana met Bob saw",
        "correct_idx": 1,
        "incorrect_idx": 2,
    },
    "math500": {"problem": "Who runs home?", "solution": "Ana", "answer": "Ana", "subject": "who"},
    "questions": {"question": "Who runs home?", "answer": "Ana"},
    "text": {"text": "one two three four five six seven eight nine ten"},
    "words": {"input": "hot", "output": "cold"},
}
ITS_OWN = {"greater_than_csv": ["label"], "gender_csv": ["label"], "agreement_csv": ["label", "group"]}
"""Fields that mean something else in these files: a year, a number, a construction."""
NESTED = {"subquestion": "Who runs home?", "answer": "Ana", "cognitive_skill": "Retrieval"}


@pytest.mark.parametrize("mapping", sorted(registered()))
@pytest.mark.parametrize("wrong", ["foils", "wrong"])
def test_every_mapping_keeps_the_further_fields_of_a_row(mapping, wrong, tmp_path):
    further = {wrong: ["Eve", " Tom"], "also": "Anna", "group": 7, "label": "people"}
    for field in ITS_OWN.get(mapping, ()):
        del further[field]
    if mapping == "cogqa":
        row = {"question": "A story.", "generated": [{**NESTED, **further}]}
        alone = {"question": "A story.", "generated": [NESTED]}
    else:
        row, alone = {**ROWS[mapping], **further}, ROWS[mapping]
    (example,), (plain,) = (read(tmp_path, one, mapping=mapping) for one in (row, alone))
    space = " " if plain.target.startswith(" ") else ""
    assert (example.prompt, example.target) == (plain.prompt, plain.target)
    assert example.foils == (f"{space}Eve", f"{space}Tom")
    assert example.also == (f"{space}Anna",)
    assert example.group == (str(further["group"]) if "group" in further else None)
    assert example.label == further.get("label")
    assert example.counterfactual == plain.counterfactual


@pytest.mark.parametrize("mapping", ["bigbench", "gsm8k", "math500", "questions", "commonsense_qa"])
def test_a_counterfactual_is_written_as_the_prompt_and_spans_move_with_the_text(mapping, tmp_path):
    further = {"counterfactual": "Who walks home?", "spans": {"verb": [4, 8]}}
    (example,) = read(tmp_path, {**ROWS[mapping], **further})
    assert example.counterfactual == example.prompt.replace("runs", "walks") != example.prompt
    first, last = example.spans["verb"]
    assert example.prompt[first:last] == "runs"


@pytest.mark.parametrize(
    "other",
    [
        "Who walks home?",
        chat("Hi!", "Yes?", "Who walks home?"),
        chat("Hi!", "Yes?", "Who walks home?", "Eve"),
        [
            {"from": role, "value": text}
            for role, text in (("human", "Hi!"), ("gpt", "Yes?"), ("human", "Who walks home?"))
        ],
    ],
)
def test_the_counterfactual_of_a_chat_is_a_text_or_messages(other, tmp_path):
    row = {"messages": chat("Hi!", "Yes?", " Who runs home?", "Ana"), "spans": {"verb": [5, 9]}}
    (example,) = read(tmp_path, {**row, "counterfactual": other, "foils": "Eve"})
    written = "[user] Hi!\n[assistant] Yes?\n[user] Who {} home?\n[assistant]"
    assert (example.prompt, example.target, example.foils) == (written.format("runs"), " Ana", (" Eve",))
    assert example.counterfactual == written.format("walks")
    first, last = example.spans["verb"]
    assert example.prompt[first:last] == "runs"


def test_wrong_answers_of_a_chat_change_its_task(tmp_path):
    row = ROWS["chat"]
    tasks = [read(tmp_path, {**row, **more}) for more in ({}, {"wrong": "Eve"}, {"foils": ["Eve"]})]
    assert tasks[0].fingerprint != tasks[1].fingerprint == tasks[2].fingerprint
    assert [task.metric for task in tasks] == ["logprob", "logit_diff", "logit_diff"]
    assert tasks[1].settings["notices"] == ["read 'wrong' as the foils"]


@pytest.mark.parametrize("mapping", sorted(ROWS))
def test_a_column_that_a_mapping_does_not_use_is_announced(mapping, tmp_path):
    task = read(tmp_path, {**ROWS[mapping], "origin": "a book", "foilz": "Eve"}, mapping=mapping)
    notice = next(notice for notice in task.settings["notices"] if notice.startswith("columns not used"))
    assert notice == (
        "columns not used: 'origin', 'foilz'; 'foilz' may mean 'foils': to read it, give "
        f"columns={{'foils': 'foilz'}} and mapping='{mapping}'"
    )
    (example,) = read(
        tmp_path, {**ROWS[mapping], "foilz": "Eve"}, mapping=mapping, columns={"foils": "foilz"}
    )
    assert example.foils[0].strip() == "Eve"


def test_further_fields_of_a_question_do_not_go_to_its_sub_questions(tmp_path):
    row = {"question": "A story.", "generated": [NESTED], "foils": ["Eve"], "group": "g"}
    task = read(tmp_path, row)
    assert (task.examples[0].foils, task.examples[0].group) == ((), "g")
    assert task.settings["notices"] == ["columns not used: 'foils'"]


def test_columns_of_a_mapping_may_be_several_or_none(tmp_path):
    row = {**ROWS["questions"], "a": "Eve", "b": "Tom", "label": "people"}
    chosen = {"foils": ["a", "b"], "label": None}
    (example,) = read(tmp_path, row, mapping="questions", columns=chosen)
    assert example == hw.Example("Q: Who runs home?\nA:", " Ana", (" Eve", " Tom"))


def test_lists_in_cells_of_a_csv_file_are_lists(tmp_path):
    (tmp_path / "a.csv").write_text('question,answer,wrong\nWho?,Ana,"[""Eve"", ""Tom""]"\nWhat?,Sun,\n')
    assert [e.foils for e in load_task(tmp_path / "a.csv")] == [(" Eve", " Tom"), ()]


def test_what_cannot_be_placed_in_the_prompt_is_a_bad_row(tmp_path):
    row = {"input": "A", "output": "B", "counterfactual": "C"}
    with pytest.raises(HeadwiseError, match=r"line 1: 'counterfactual' .*'A'.* exactly once in the prompt"):
        read(tmp_path, row)
    with pytest.raises(HeadwiseError, match=r"line 1: 'spans' .*inside its prompt, which has 14"):
        read(tmp_path, {**ROWS["questions"], "spans": {"end": [10, 16]}})
    with pytest.raises(HeadwiseError, match="line 1: the counterfactual has 5 tokens and the prompt 6"):
        read(tmp_path, {**ROWS["questions"], "counterfactual": "Who runs?"})


def test_every_usual_name_of_an_optional_field_is_read_beside_a_chat(tmp_path):
    for field in ("foils", "label"):
        for name in GUESSES[field]:
            (example,) = read(tmp_path, {**ROWS["chat"], name: "Eve"})
            assert getattr(example, field) in ("Eve", (" Eve",))
