"""Every way a file can be wrong gives one sentence with the place, what is wrong and what was expected."""

import json
import os
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from headwise.errors import HeadwiseError
from headwise.tasks.files import readers
from headwise.tasks.files.load_task import load_task

GOOD = '{"prompt": "a", "target": " b"}\n'


def line(**fields):
    return json.dumps({"prompt": "p", "target": " t", **fields}) + "\n"


# what the file holds, and what the sentence must say
BAD_LINES = {
    "missing target": (
        '{"prompt": "x"}\n',
        "line 2: the field 'target' is missing; the fields here are 'prompt'",
    ),
    "null target": (line(target=None), "line 2: the field 'target' is null"),
    "number as target": (line(target=4), "line 2: 'target' is a number (4), expected text; to write it out"),
    "list as prompt": (line(prompt=["a"]), "line 2: 'prompt' is a list (['a']), expected text"),
    "true as target": (line(target=True), "line 2: 'target' is true or false (True), expected text"),
    "object as foils": (line(foils={"a": 1}), "line 2: 'foils' is an object ({'a': 1}), expected text"),
    "number among foils": (line(foils=[" a", 1]), "line 2: 'foils' is a number (1), expected text"),
    "empty target": (line(target=""), "line 2: the target is empty (''), expected the text"),
    "blank target": (line(target=" \n"), "line 2: the target is empty"),
    "empty foil": (line(foils=[" a", ""]), "line 2: a foil is empty (''), expected text"),
    "foil is the target": (
        line(foils=[" t"]),
        "line 2: the foil ' t' equals the target, expected a wrong answer",
    ),
    "foil is a further target": (line(also=[" u"], foils=[" u"]), "line 2: the foil ' u' equals the target"),
    "foil twice": (line(foils=[" a", " a"]), "line 2: the foil ' a' is listed twice"),
    "also repeats": (line(also=[" t"]), "line 2: 'also' repeats the target ' t'"),
    "same counterfactual": (line(counterfactual="p"), "line 2: the counterfactual equals the prompt"),
    "half a character": (
        '{"prompt": "\\ud800", "target": " b"}\n',
        "line 2: '\\ud800' holds half a character",
    ),
    "bad JSON": ('{"prompt": "a" "target"}\n', "line 2: not JSON (Expecting ',' delimiter at column 16)"),
    "not an object": ("[1, 2]\n", "line 2: a list ([1, 2]), expected an object"),
    "field twice": (
        '{"prompt": "a", "prompt": "b"}\n',
        "line 2: not JSON (the field 'prompt' occurs twice)",
    ),
    "too deep": ("[" * 100_000 + "\n", "line 2: not JSON (nested too deeply)"),
    "huge number": ('{"prompt": ' + "9" * 5000 + "}\n", "line 2: not JSON (Exceeds the limit"),
}


def test_bad_json_far_down_is_named_with_its_own_line(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [json.dumps({"prompt": f"{i}", "target": " b"}) for i in range(30)]
    rows[16] = rows[16][:-3]
    rows.insert(4, "")  # a blank line counts as a line and holds nothing
    path.write_text("\n".join(rows))
    with pytest.raises(HeadwiseError, match="line 18: not JSON"):
        load_task(path)


def test_of_many_bad_lines_the_first_is_reported_with_the_number_of_others(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(GOOD + '{"prompt": "x"}\n' + "{{{\n" + line(target="") + "{}\n")
    with pytest.raises(HeadwiseError) as caught:
        load_task(path)
    assert "line 2: the field 'target' is missing" in str(caught.value)
    assert str(caught.value).endswith("(and 3 more bad entries)")


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(GOOD.encode() + '{"prompt": "café", "target": " b"}\n'.encode("latin-1"))
    with pytest.raises(HeadwiseError, match="line 2: byte 0xe9 at position 16 is not UTF-8"):
        load_task(path)
    path = tmp_path / "mine.json"
    path.write_bytes(b'[\n{"prompt": "caf\xe9"}]')
    with pytest.raises(HeadwiseError, match=r"line 2: byte 0xe9 .* is not UTF-8; save the file in UTF-8"):
        load_task(path)
    path = tmp_path / "mine.csv"
    path.write_bytes("prompt,target\na, b\ncafé, x\n".encode("latin-1"))
    with pytest.raises(HeadwiseError, match="line 3: byte 0xe9 at position 4 is not UTF-8"):
        load_task(path)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "txt"])
def test_a_line_of_a_hundred_megabytes_is_refused_without_being_held_in_memory(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    with path.open("wb") as file:
        file.write(b"prompt,target\n" if ending == "csv" else GOOD.encode())
        file.seek(100 * 2**20, os.SEEK_CUR)  # a hole: takes no room on the disk
        file.write(b"\n" + GOOD.encode())
    tracemalloc.start()
    try:
        with pytest.raises(
            HeadwiseError, match="line 2: the line is longer than 8 MiB, expected one example"
        ):
            load_task(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * readers.LINE_LIMIT


def test_reading_goes_on_after_a_line_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LINE_LIMIT", 100)
    path = tmp_path / "mine.jsonl"
    for length in (100, 101, 102, 250):
        path.write_text("x" * (length - 1) + "\n" + '{"prompt": "x"}\n' + GOOD)
        with pytest.raises(HeadwiseError) as caught:
            load_task(path)
        first = "line 1: not JSON" if length == 100 else "line 1: the line is longer"
        assert first in str(caught.value)
        assert str(caught.value).endswith("(and 1 more bad entry)")


def test_a_json_file_too_large_to_hold_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "mine.json"
    with path.open("wb") as file:
        file.truncate(readers.FILE_LIMIT + 1)
    with pytest.raises(HeadwiseError, match=r"larger than 512 MiB; save it as JSON lines"):
        load_task(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.txt"])
@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_an_empty_file_is_called_empty(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"" if name.endswith("parquet") else content)
    with pytest.raises(HeadwiseError, match="is empty; expected"):
        load_task(path)


def test_a_header_or_a_list_without_rows_is_empty(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,target\n")
    (tmp_path / "a.json").write_text("[]")
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.json", "a.parquet"):
        with pytest.raises(HeadwiseError, match="is empty; expected at least one example"):
            load_task(tmp_path / name)


def test_folders_missing_files_and_unknown_endings_are_named(tmp_path):
    (tmp_path / "quiz.csv").write_text("prompt,target\na, b\n")
    (tmp_path / "quiz.docx").write_text("x")
    with pytest.raises(
        HeadwiseError, match=r"is a folder, expected a file; give one of the files in it: 'quiz.csv'"
    ):
        load_task(tmp_path)
    with pytest.raises(HeadwiseError, match=r"there is no file .*quizz.csv; check the path"):
        load_task(tmp_path / "quizz.csv")
    with pytest.raises(
        HeadwiseError, match=r"ends in '.docx', which is not a known data format; expected one of .jsonl"
    ):
        load_task(tmp_path / "quiz.docx")
    with pytest.raises(HeadwiseError, match=r"there is no file ~nobody-of-this-name/a.jsonl"):
        load_task("~nobody-of-this-name/a.jsonl")
    with pytest.raises(HeadwiseError, match="cannot be read: "):
        load_task("x" * 5000 + ".jsonl")
    with pytest.raises(HeadwiseError, match="not a path"):
        load_task("a\0b.jsonl")
    with pytest.raises(
        HeadwiseError, match=r"source of a task is a number \(3\), expected a task's name, a path"
    ):
        load_task(3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(HeadwiseError, match="not a regular file"):
        load_task(tmp_path / "pipe.jsonl")


BAD_TABLES = {
    "too few cells": (
        "prompt,target\na, b\nc\n",
        "line 3: 1 cells, expected 2 as in the header ('prompt', 'target')",
    ),
    "too many cells": ("prompt,target\na, b, c\n", "line 2: 3 cells, expected 2"),
    "after a long cell": ('prompt,target\n"a\nb\nc", d\ne\n', "line 5: 1 cells, expected 2"),
    "stray quote": ('prompt,target\n"a"b, c\n', "line 2: not CSV"),
    "open quote": ('prompt,target\na, b\n"c, d\ne, f\n', "line 3: not CSV"),
    "column twice": ("prompt,prompt,target\na,b,c\n", "line 1: the column 'prompt' occurs twice"),
    "semicolons": ("prompt;target\na;b\n", "line 1: the cells seem to be separated by semicolons"),
    "empty target": ("prompt,target\na, b\nc,\n", "line 3: the target is empty"),
}
BAD_JSON = {
    "a word": ('"hello"', " holds text ('hello'), expected a list of objects"),
    "one object": (
        '{"prompt": "a", "target": "b"}',
        " holds one object with the fields 'prompt', 'target' and no list",
    ),
    "bad syntax": (
        '[\n{"prompt": "a"},\n{"prompt" "b"}\n]',
        ", line 3: not JSON (Expecting ':' delimiter at column 11)",
    ),
    "bad record": ('[{"prompt": "a", "target": " b"}, 7]', ", record 2: a number (7), expected an object"),
    "missing field": (
        '[{"prompt": "a", "target": " b"}, {"target": " c"}]',
        ", record 2: the field 'prompt' is missing",
    ),
    "cut off": ('[{"prompt": "a", "tar', ", line 1: not JSON (Unterminated string"),
    "too deep": ("[" * 100_000, ": not JSON that can be read (nested too deeply)"),
}

BAD_FILES = [("mine.jsonl", GOOD + bad, f", {said}") for bad, said in BAD_LINES.values()]
BAD_FILES += [("mine.csv", text, f", {said}") for text, said in BAD_TABLES.values()]
BAD_FILES += [("mine.json", text, said) for text, said in BAD_JSON.values()]


@pytest.mark.parametrize(("name", "text", "said"), BAD_FILES, ids=[*BAD_LINES, *BAD_TABLES, *BAD_JSON])
def test_what_is_wrong_is_named_with_its_place_and_what_was_expected(name, text, said, tmp_path):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HeadwiseError) as caught:
        load_task(path)
    assert str(caught.value).startswith(f"{path}{said}")
    assert "\n" not in str(caught.value)


def test_bad_parquet_files_and_rows_are_named(tmp_path):
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(HeadwiseError, match="is not a Parquet file that can be read"):
        load_task(path)
    parquet.write_table(pa.table({"prompt": ["a", "b"], "target": [" c", None]}), path)
    with pytest.raises(HeadwiseError, match="row 2: the field 'target' is null"):
        load_task(path)
    parquet.write_table(pa.table({"prompt": ["a", "b"], "target": [1.5, float("nan")]}), path)
    with pytest.raises(HeadwiseError, match=r"row 2: the field 'target' is null"):
        load_task(path, columns={"target": " {target}"})
    parquet.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["prompt", "prompt"]), path)
    with pytest.raises(HeadwiseError, match="the column 'prompt' occurs twice"):
        load_task(path)


def test_fields_that_mean_nothing_are_listed_with_what_was_expected(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"riddle": "a", "reply": "b"}\n')
    with pytest.raises(HeadwiseError) as caught:
        load_task(path)
    message = str(caught.value)
    assert "line 1: cannot tell what the fields 'riddle', 'reply' mean; expected prompt and target" in message
    assert "columns={'prompt': 'NAME', 'target': 'NAME'}" in message
    assert (
        "cogqa, math500, gsm8k, commonsense_qa, bigbench, words, blimp, pairs, greater_than_csv, ioi_csv"
        in message
    )


def test_the_hint_has_the_columns_that_can_be_guessed(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a", "reply": "b"}\n')
    with pytest.raises(HeadwiseError, match=r"columns=\{'prompt': 'question', 'target': 'NAME'\}"):
        load_task(path)


def test_a_misspelt_column_is_recognised_and_the_hint_reads_the_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "traget": " b"}\n')
    with pytest.raises(HeadwiseError) as caught:
        load_task(path)
    message = str(caught.value)
    assert "is 'traget' the target?" in message
    columns = {"prompt": "prompt", "target": "traget"}
    assert f"columns={columns}" in message
    assert load_task(path, columns=columns).examples[0].target == " b"


def test_a_missing_field_in_the_first_line_is_still_a_bad_line(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "x"}\n' + GOOD)
    with pytest.raises(HeadwiseError, match="line 1: the field 'target' is missing"):
        load_task(path)


def test_long_values_are_cut_in_the_sentence(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(line(prompt=["x" * 5000]))
    with pytest.raises(HeadwiseError) as caught:
        load_task(path)
    assert len(str(caught.value)) < len(str(path)) + 200


def test_wrong_arguments_are_explained(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(GOOD)
    with pytest.raises(HeadwiseError, match="unknown mapping 'gsm8'; did you mean 'gsm8k'"):
        load_task(path, mapping="gsm8")
    with pytest.raises(HeadwiseError, match="'answers' given, but only ready mappings have options"):
        load_task(path, answers="final")
    with pytest.raises(HeadwiseError, match="columns is text"):
        load_task(path, columns="prompt")
    with pytest.raises(HeadwiseError, match="columns gives a number"):
        load_task(path, columns={"prompt": 3})
    with pytest.raises(HeadwiseError, match="only foils and also take several columns"):
        load_task(path, columns={"prompt": ["prompt"]})
