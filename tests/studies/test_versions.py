"""What a cell's key knows beside settings and inputs: the version of the method, and how groups are counted."""

from __future__ import annotations

import dataclasses
import json

from headwise.runs import Store, read_info
from headwise.scores.registry import METHODS, method
from headwise.studies.base import run
from headwise.studies.workbench import Workbench
from helpers import word_task


def scored(tiny, out, source):
    bench = Workbench(progress=False)
    bench.add(tiny)
    return run(
        "score",
        out,
        workbench=bench,
        models=["tiny"],
        tasks=[str(source)],
        methods=["random"],
        n=3,
        progress=False,
    )


def keys(out):
    with Store(out / "cells.sqlite") as store:
        return store.keys()


def test_a_new_version_of_a_method_is_computed_again_and_an_old_one_is_kept(tiny, tmp_path, undrawn):
    source = tmp_path / "mine.jsonl"
    rows = [{"prompt": e.prompt, "target": e.target, "foils": list(e.foils)} for e in word_task(3)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "run"
    scored(tiny, out, source)
    first = keys(out)
    scored(tiny, out, source)
    assert keys(out) == first
    with METHODS.restored():
        METHODS.add("random", dataclasses.replace(method("random"), version=2))
        scored(tiny, out, source)
    assert len(keys(out) - first) == 1
    assert first < keys(out)


def test_a_notice_that_comes_after_the_end_is_in_run_json(tiny, tmp_path, undrawn):
    source = tmp_path / "mine.jsonl"
    rows = [{"prompt": e.prompt, "target": e.target} for e in word_task(3)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = scored(tiny, tmp_path / "run", source)
    folder.notice("no report was written: for this test")
    info = read_info(folder.path)
    assert "no report was written: for this test" in info["notices"]
    assert info["status"] == "done"
