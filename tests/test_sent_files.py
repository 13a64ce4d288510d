"""Files that somebody sent, beside run folders: each is read within bounds, or refused in a sentence at once."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.heads.heads_file import load_order
from headwise.model.load.gguf import read_header
from headwise.model.tokens.text import check_growth
from headwise.stats import smallest_p, too_few
from helpers import saved_word_model, word_task

ESCAPE = "\x1b]0;owned\x07"


def test_a_parquet_file_of_few_kilobytes_that_holds_gigabytes_is_refused(tmp_path):
    rows = 8_000
    once = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["A" * 1_000_000]))
    pq.write_table(pa.table({"prompt": once, "target": [" b"] * rows}), tmp_path / "bomb.parquet")
    with pytest.raises(HeadwiseError, match="more than the 2 GiB that are read"):
        hw.task(tmp_path / "bomb.parquet")


def test_a_parquet_file_with_lists_and_repeated_texts_is_read(tmp_path):
    table = {
        "prompt": ["the cat", "the dog"] * 3,
        "target": [" a", " b"] * 3,
        "foils": [[" c"], [" d", " e"]] * 3,
    }
    table["prompt"] = [f"{text} {number}" for number, text in enumerate(table["prompt"])]
    pq.write_table(pa.table(table), tmp_path / "words.parquet")
    assert [e.foils for e in hw.task(tmp_path / "words.parquet")][:2] == [(" c",), (" d", " e")]


def test_a_sparse_file_of_40_gigabytes_is_refused_at_once(tmp_path):
    path = tmp_path / "sparse.jsonl"
    with path.open("wb") as file:
        file.truncate(40 * 2**30)
    with pytest.raises(HeadwiseError, match="40"):
        hw.task(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_heads_and_scores_are_read_from_regular_files_alone(kind, tmp_path):
    path = tmp_path / "sent"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for read in (load_order, hw.Scores.load):
        with pytest.raises(HeadwiseError, match="regular file"):
            read(path)


def test_scores_that_unpack_to_gigabytes_are_refused(tiny, tmp_path, monkeypatch):
    hw.score(tiny, word_task(3), "attribution", progress=False).save(tmp_path / "scores.npz")
    assert hw.Scores.load(tmp_path / "scores.npz").n == 3
    monkeypatch.setenv("HEADWISE_MAX_GB", "0.0000001")
    with pytest.raises(HeadwiseError):
        hw.Scores.load(tmp_path / "scores.npz")


def test_groups_of_a_scores_file_are_names(tiny, tmp_path):
    path = tmp_path / "scores.npz"
    hw.score(tiny, word_task(3), "attribution", progress=False).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    about["value"]["fields"]["groups"] = [[1], [2], [3]]
    np.savez(path, about=np.array(json.dumps(about)), **arrays)
    with pytest.raises(HeadwiseError, match="groups"):
        hw.Scores.load(path)


def test_a_folder_with_a_link_for_an_adapter_is_refused(tmp_path):
    saved_word_model(tmp_path, "llama")
    (tmp_path / "adapter_config.json").symlink_to("/dev/zero")
    with pytest.raises(HeadwiseError, match="adapter"):
        hw.load(tmp_path, device="cpu")


def test_an_alignment_that_is_no_number_is_named(tmp_path):
    def text(name: bytes) -> bytes:
        return struct.pack("<Q", len(name)) + name

    entry = text(b"general.alignment") + struct.pack("<If", 6, float("inf"))
    tensor = text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + entry + tensor + b"\0" * 64)
    with pytest.raises(ValueError, match="alignment"):
        read_header(path)


def test_a_tokenizer_that_makes_letters_into_gigabytes_is_refused(word_tokenizer):
    from tokenizers import normalizers

    check_growth(word_tokenizer, "mine")
    bomb = [normalizers.Replace("a", "a" * 100)] * 4
    word_tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(bomb)
    try:
        with pytest.raises(HeadwiseError, match="times longer"):
            check_growth(word_tokenizer, "mine")
    finally:
        word_tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([])


def test_a_huge_n_in_a_table_takes_no_time():
    assert smallest_p(2**60, 270) == pytest.approx(1 / 10_001)
    assert too_few(2**60, 270) == ""


def test_names_of_a_file_reach_the_terminal_without_control_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "the cat", "target": " dog", "foils": [" bird"], "label": ESCAPE, "group": ESCAPE}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    done = CliRunner().invoke(app, ["task", "a.jsonl"])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\\x1b" in done.output
