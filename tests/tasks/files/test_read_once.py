"""A file of the user's is read once, whoever asks for it, and again when it has changed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from functools import lru_cache
from itertools import pairwise

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.files import readers
from headwise.tasks.files.load_task import check_file, load_task
from headwise.tasks.opening import check_given
from helpers import WORDS, run_on

HOUR = 3600 * 10**9


@pytest.fixture
def reads(monkeypatch):
    """How often each file was read."""
    counts = Counter()

    def counting(reader):
        def read(path, log, **options):
            counts[path.name] += 1
            return reader(path, log, **options)

        return read

    monkeypatch.setattr(readers, "READERS", {end: counting(read) for end, read in readers.READERS.items()})
    monkeypatch.setattr(readers, "_read", lru_cache(maxsize=4)(readers._read.__wrapped__))
    return counts


def save(path, target=" b", age=HOUR):
    rows = [{"prompt": a, "target": target, "counterfactual": b} for a, b in pairwise(WORDS[:6])]
    path.write_text("\n".join(map(json.dumps, rows)))
    os.utime(path, ns=(changed := time.time_ns() - age, changed))
    return path


@pytest.mark.usefixtures("undrawn")
def test_a_study_reads_a_file_once_for_all_its_checks_and_for_the_loading(tiny, tmp_path, reads):
    path = save(tmp_path / "mine.jsonl", f" {WORDS[0]}")
    settings = {"tasks": [str(path)], "n": 4, "methods": ["attribution"], "reference": "patch", "cards": 0}
    check_given(settings)  # what the command line does first
    run_on("score", tmp_path / "run", tiny, **settings)
    assert reads == {"mine.jsonl": 1}


def test_a_changed_file_is_read_again(tmp_path, reads):
    path = save(tmp_path / "mine.jsonl", " b")
    assert load_task(path).examples[0].target == " b"
    save(path, " c", age=HOUR - 10**9)  # as long as before, in the same inode
    assert load_task(path).examples[0].target == " c"
    assert load_task(str(path)).examples[0].target == " c"
    assert reads == {"mine.jsonl": 2}


def test_a_file_that_has_just_changed_is_read_again_because_its_time_may_not_show_a_change(tmp_path, reads):
    path, changed = tmp_path / "mine.jsonl", time.time_ns() + HOUR
    for target in (" b", " c"):
        save(path, target)
        os.utime(path, ns=(changed, changed))
        assert load_task(path).examples[0].target == target
    assert reads == {"mine.jsonl": 2}


def test_what_is_wrong_with_a_file_is_said_each_time_under_the_name_that_was_given(
    tmp_path, reads, monkeypatch
):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "target": " b"}\n{"prompt"\n[]\n')
    os.utime(path, ns=(time.time_ns() - HOUR,) * 2)
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "mine.jsonl", str(path)):
        with pytest.raises(HeadwiseError) as caught:
            check_file(name, {})
        assert str(caught.value).startswith(f"{name}, line 2: not JSON")
        assert str(caught.value).endswith("(and 1 more bad entry)")
    assert reads == {"mine.jsonl": 2}  # once for each name


def test_only_the_latest_files_are_kept_and_none_that_is_too_large(tmp_path, reads, monkeypatch):
    paths = [save(tmp_path / f"{name}.jsonl") for name in "abcde"]
    for path in (*paths, *reversed(paths)):
        load_task(path)
    assert reads == {"a.jsonl": 2, "b.jsonl": 1, "c.jsonl": 1, "d.jsonl": 1, "e.jsonl": 1}
    monkeypatch.setattr(readers, "REMEMBERED", 10)
    load_task(paths[0])
    load_task(paths[0])
    assert reads["a.jsonl"] == 4
