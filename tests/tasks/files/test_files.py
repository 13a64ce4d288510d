"""Reading the user's own data: every format, columns, names, limits."""

import csv
import json
import logging
import random
import time
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example
from headwise.tasks.files.load_task import load_task

ROWS = [
    {
        "prompt": "The capital of France is",
        "target": " Paris",
        "foils": [" Rome", " Oslo"],
        "counterfactual": "The capital of Italy is",
        "label": "capitals",
        "also": [" Lutetia"],
    },
    {"prompt": 'She said "hi,\nthere" and', "target": " left", "foils": [" leave"], "label": "syntax"},
    {"prompt": "Ünïcödé → ", "target": "日本", "foils": []},
]
EXAMPLES = (
    Example(
        "The capital of France is",
        " Paris",
        (" Rome", " Oslo"),
        "The capital of Italy is",
        "capitals",
        (" Lutetia",),
    ),
    Example('She said "hi,\nthere" and', " left", (" leave",), label="syntax"),
    Example("Ünïcödé → ", "日本"),
)


def json_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def comma_separated(path, rows, delimiter=","):
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(names)
        for row in rows:
            cells = [row.get(name) for name in names]
            writer.writerow([json.dumps(c) if isinstance(c, list) else c for c in cells])
    return path


@pytest.fixture(params=["jsonl", "json", "object", "lines named json", "csv", "tsv", "parquet"])
def same_rows(request, tmp_path):
    """One file per format, all with the same rows, each written without the code under test."""
    kind = request.param
    if kind == "jsonl":
        return json_lines(tmp_path / "mine.jsonl", ROWS)
    if kind == "lines named json":
        return json_lines(tmp_path / "mine.json", ROWS)
    if kind in ("csv", "tsv"):
        return comma_separated(tmp_path / f"mine.{kind}", ROWS, "," if kind == "csv" else "\t")
    path = tmp_path / f"mine.{'parquet' if kind == 'parquet' else 'json'}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text(json.dumps(ROWS if kind == "json" else {"version": 2, "rows": ROWS}, indent=2))
    return path


def test_every_format_gives_the_same_examples(same_rows):
    task = load_task(same_rows)
    assert task.examples == EXAMPLES
    assert task.name == "mine"
    assert task.settings["mapping"] == "fields"


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path):
    for name, write in (("a.jsonl", json_lines), ("a.csv", comma_separated)):
        path = write(tmp_path / name, [{"prompt": "a b", "target": " c"}, {"prompt": "d", "target": " e"}])
        text = path.read_text(encoding="utf-8").replace("\n", "\r\n").replace("\r\r", "\r")
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert load_task(path).examples == (Example("a b", " c"), Example("d", " e"))


def test_one_foil_may_be_written_as_plain_text(tmp_path):
    rows = [{"prompt": "a", "target": " b", "foils": " c", "also": " d"}]
    for path in (
        json_lines(tmp_path / "a.jsonl", rows),
        comma_separated(tmp_path / "a.csv", rows),
    ):
        assert load_task(path).examples == (Example("a", " b", (" c",), also=(" d",)),)


def test_a_cell_is_a_list_only_if_it_is_json_of_texts(tmp_path):
    cells = {
        '["a", "b"]': ("a", "b"),
        "[1, 2]": ("[1, 2]",),
        "[a": ("[a",),
        "[]": (),
        "": (),
        '[["a"]]': ('[["a"]]',),
    }
    rows = [{"prompt": f"p{i}", "target": " t", "foils": cell} for i, cell in enumerate(cells)]
    task = load_task(comma_separated(tmp_path / "a.csv", rows))
    assert [example.foils for example in task] == list(cells.values())
    # in a format that has lists, text is text
    kept = load_task(json_lines(tmp_path / "a.jsonl", rows[:3]))
    assert [example.foils for example in kept] == [(cell,) for cell in list(cells)[:3]]


def test_columns_map_names_templates_lists_and_several_columns(tmp_path):
    rows = [
        {"question": "1+1?", "answer": 2, "wrong": [3, 4], "easy": "5", "topic": 7},
        {"question": "2+2?", "answer": 4, "wrong": [5], "easy": "9", "topic": 8},
    ]
    task = load_task(
        json_lines(tmp_path / "quiz.jsonl", rows),
        columns={
            "prompt": "Q: {question}\n{{sums}} A:",
            "target": " {answer}",
            "foils": [" {wrong}", " {easy}"],
            "counterfactual": "Q: not {question} A:",
            "label": "topic",
        },
    )
    assert task.examples == (
        Example("Q: 1+1?\n{sums} A:", " 2", (" 3", " 4", " 5"), "Q: not 1+1? A:", "7"),
        Example("Q: 2+2?\n{sums} A:", " 4", (" 5", " 9"), "Q: not 2+2? A:", "8"),
    )
    assert task.metric == "logit_diff"


def test_a_column_whose_name_has_braces_is_a_column(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [{"{q}": "hello", "target": " you"}])
    assert load_task(path, columns={"prompt": "{q}"}).examples == (Example("hello", " you"),)


def test_a_template_cannot_reach_into_a_value(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [{"q": "hello", "target": " you"}])
    with pytest.raises(HeadwiseError, match=r"unknown column .*'q.__class__'; Valid: q, target"):
        load_task(path, columns={"prompt": "{q.__class__}"})


def test_an_unknown_column_names_the_nearest(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [{"question": "hello", "answer": " you"}])
    with pytest.raises(HeadwiseError, match=r"unknown column .*'questoin'; did you mean 'question'"):
        load_task(path, columns={"prompt": "questoin", "target": "answer"})
    with pytest.raises(HeadwiseError, match="'answr'; did you mean 'answer'"):
        load_task(path, columns={"prompt": "question", "target": " {answr}"})
    with pytest.raises(HeadwiseError, match="unknown field in columns 'promt'; did you mean 'prompt'"):
        load_task(path, columns={"promt": "question", "target": "answer"})
    path = json_lines(tmp_path / "b.jsonl", [{"riddle": "hello", "reply": " you"}])
    with pytest.raises(
        HeadwiseError, match=r"no column for 'target' among 'riddle', 'reply'.*\{'target': 'NAME'\}"
    ):
        load_task(path, columns={"prompt": "riddle"})


def test_columns_may_rename_what_a_ready_mapping_reads(tmp_path):
    rows = [{"singular": word, "plural": f"{word}s"} for word in ("cat", "dog", "owl", "fox", "cow", "bee")]
    task = load_task(
        comma_separated(tmp_path / "plurals.csv", rows),
        mapping="words",
        columns={"input": "the {singular}", "output": "plural"},
    )
    assert task.examples[0].prompt == "Q: the cat\nA:"
    assert [example.target for example in task] == [f" {row['plural']}" for row in rows]
    with pytest.raises(HeadwiseError, match="unknown field in columns 'inputs'; did you mean 'input'"):
        load_task(tmp_path / "plurals.csv", mapping="words", columns={"inputs": "singular"})


def test_columns_that_are_not_used_are_said_and_a_near_miss_is_named(tmp_path, caplog):
    path = json_lines(tmp_path / "a.jsonl", [{"prompt": "a", "target": " b", "foil": " c", "id": 3}])
    with caplog.at_level(logging.WARNING, logger="headwise"):
        task = load_task(path)
    (notice,) = task.settings["notices"]
    assert notice == (
        "columns not used: 'foil', 'id'; 'foil' may mean 'foils': to read it, give columns={'foils': 'foil'}"
    )
    assert "'foil' may mean 'foils'" in caplog.text
    assert load_task(path, columns={"foils": "foil"}).examples[0].foils == (" c",)


@pytest.mark.parametrize(
    ("column", "field"),
    [
        ("wrong", "foils"),
        ("Wrong Answer", "foils"),
        ("wrong_anwser", "foils"),
        ("corupted", "counterfactual"),
    ],
)
def test_an_unused_column_with_a_usual_name_or_nearly_one_is_pointed_out(tmp_path, column, field):
    path = json_lines(tmp_path / "a.jsonl", [{"prompt": "a", "target": " b", column: " c"}])
    (notice,) = load_task(path).settings["notices"]
    assert f"{column!r} may mean {field!r}: to read it, give columns={{{field!r}: {column!r}}}" in notice


def test_a_csv_file_without_a_header_is_told_what_its_first_line_is_for(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("The capital of France is, Paris\nThe capital of Italy is, Rome\n")
    with pytest.raises(
        HeadwiseError, match=r"mean \(the first line of the file names its columns\); expected"
    ):
        load_task(path)


@pytest.mark.parametrize("column", ["wrong_answer", "wrong answer", " Wrong answer", "Wrong-Answer"])
def test_wrong_answers_are_read_however_their_column_is_written(tmp_path, column):
    rows = [{"prompt": "The capital of France is", "answer": " Paris", column: " Rome"}]
    task = load_task(comma_separated(tmp_path / "a.csv", rows))
    assert task.examples[0].foils == (" Rome",)
    assert task.metric == "logit_diff"


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("prompt", "answr"), {"prompt": "prompt", "target": "answr"}),
        (("Prompt", "Answer"), {"prompt": "Prompt", "target": "Answer"}),
        (("prompt", " answer"), {"prompt": "prompt", "target": " answer"}),
        (("promt", "answer"), {"prompt": "promt", "target": "answer"}),
    ],
)
def test_a_misspelt_prompt_or_answer_is_named_and_the_option_that_reads_it_works(tmp_path, names, columns):
    rows = [dict(zip(names, ("The capital of France is", " Paris"), strict=True))]
    path = comma_separated(tmp_path / "a.csv", rows)
    with pytest.raises(HeadwiseError) as refused:
        load_task(path)
    assert f"columns={columns!r}" in str(refused.value)
    (example,) = load_task(path, columns=columns)
    assert (example.prompt, example.target) == ("The capital of France is", " Paris")


def test_the_metric_is_the_contrast_only_where_every_example_has_foils(tmp_path):
    some = [{"prompt": "a", "target": " b", "foils": [" c"]}, {"prompt": "d", "target": " e", "foils": None}]
    assert load_task(json_lines(tmp_path / "all.jsonl", some[:1])).metric == "logit_diff"
    assert load_task(json_lines(tmp_path / "some.jsonl", some)).metric == "logprob"
    assert load_task(tmp_path / "some.jsonl", metric="accuracy").metric == "accuracy"


def test_a_limit_draws_with_the_seed_and_keeps_the_order_of_the_file(tmp_path):
    rows = [{"prompt": f"{i}", "target": f" {i + 1}"} for i in range(50)]
    path = json_lines(tmp_path / "numbers.jsonl", rows)
    drawn = [int(example.prompt) for example in load_task(path, limit=10)]
    assert len(drawn) == 10
    assert drawn == sorted(set(drawn))
    assert drawn != list(range(10))
    assert drawn == [int(example.prompt) for example in load_task(path, limit=10)]
    assert drawn != [int(example.prompt) for example in load_task(path, limit=10, seed=1)]
    # over many seeds every row is drawn about equally often
    counts = Counter(e.prompt for seed in range(300) for e in load_task(path, limit=10, seed=seed))
    assert len(counts) == 50
    assert 30 <= min(counts.values()) <= max(counts.values()) <= 95
    settings = load_task(path, limit=10, seed=4).settings
    assert (settings["limit"], settings["of"], settings["seed"]) == (10, 50, 4)
    more = load_task(path, limit=60)
    assert len(more) == 50
    assert more.settings["notices"] == ["only 50 examples, fewer than the limit of 60; all are used"]
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(HeadwiseError, match="not a number of examples"):
            load_task(path, limit=wrong)


def test_a_task_takes_its_name_from_the_file_and_from_its_folder_where_the_file_says_nothing(tmp_path):
    folder = tmp_path / "quiz"
    folder.mkdir()
    rows = [{"prompt": "a", "target": " b"}]
    assert load_task(json_lines(folder / "capitals.jsonl", rows)).name == "capitals"
    assert load_task(json_lines(folder / "test.jsonl", rows)).name == "quiz-test"
    assert load_task(folder / "test.jsonl", name="mine").name == "mine"


def test_a_cell_longer_than_the_usual_limit_of_csv_is_read_and_the_limit_is_put_back(tmp_path):
    usual = csv.field_size_limit()
    rows = [{"prompt": "word " * 100_000, "target": " b"}]
    assert load_task(comma_separated(tmp_path / "long.csv", rows)).examples[0].prompt == rows[0]["prompt"]
    assert csv.field_size_limit() == usual


def test_the_list_in_an_object_is_found_or_named(tmp_path):
    path = tmp_path / "both.json"
    lists = {"train": [{"prompt": "a", "target": " b"}], "dev": [{"prompt": "c", "target": " d"}], "n": [1]}
    path.write_text(json.dumps(lists))
    assert load_task(path, records="dev").examples == (Example("c", " d"),)
    with pytest.raises(HeadwiseError, match=r"several lists .*'train', 'dev'.*records='train'"):
        load_task(path)
    with pytest.raises(HeadwiseError, match=r"unknown list of records .* 'trian'; did you mean 'train'"):
        load_task(path, records="trian")
    with pytest.raises(HeadwiseError, match=r"names a list inside a .json object"):
        load_task(json_lines(tmp_path / "a.jsonl", lists["dev"]), records="dev")


def test_repeats_are_dropped_refused_or_kept(tmp_path):
    rows = [{"prompt": "a", "target": " b"}, {"prompt": "c", "target": " d"}, {"prompt": "a", "target": " b"}]
    path = json_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(HeadwiseError, match="line 3: the same example as in line 1"):
        load_task(path, duplicates="refuse")
    dropped = load_task(path)
    assert [example.prompt for example in dropped] == ["a", "c"]
    assert dropped.settings["notices"] == ["left out 1 of 3 examples that repeat an earlier one exactly"]
    assert len(load_task(path, duplicates="keep")) == 3
    with pytest.raises(HeadwiseError, match="unknown value of duplicates 'dorp'; did you mean 'drop'"):
        load_task(path, duplicates="dorp")


def test_with_a_tokenizer_counterfactuals_must_be_as_long_as_their_prompts(tmp_path):
    rows = [{"prompt": "a b c", "target": " d", "counterfactual": "a b x"}]
    rows.append({"prompt": "a b c d", "target": " e", "counterfactual": "a b"})
    path = json_lines(tmp_path / "a.jsonl", rows)
    assert len(load_task(path)) == 2

    def words(text):
        return [len(word) for word in text.split()]

    with pytest.raises(HeadwiseError, match="line 2: the counterfactual has 2 tokens and the prompt 4"):
        load_task(path, tokens=words)


def test_settings_can_be_written_as_json_and_name_what_was_done(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", [{"q": "a", "target": " b"}])
    settings = load_task(path, columns={"prompt": "{q}"}).settings
    assert json.loads(json.dumps(settings)) == settings
    assert settings["columns"] == {"prompt": "{q}"}
    assert settings["source"] == str(path)


def test_ten_thousand_examples_load_in_well_under_ten_seconds(tmp_path):
    draw = random.Random(0)
    rows = [
        {"prompt": " ".join(str(draw.random()) for _ in range(40)), "target": f" {i}", "foils": [" x", " y"]}
        for i in range(10_000)
    ]
    for path in (
        json_lines(tmp_path / "a.jsonl", rows),
        comma_separated(tmp_path / "a.csv", rows),
    ):
        start = time.process_time()
        assert len(load_task(path)) == 10_000
        assert time.process_time() - start < 5
