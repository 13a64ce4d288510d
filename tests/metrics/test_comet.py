"""COMET through its own program: a stand-in everywhere, the real one where `make test-comet` has set it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.metrics import text_metric
from headwise.metrics.comet import CHECKPOINT, PROGRAM
from helpers import REPOSITORY

# Reads the files as comet-score does, and scores a text by the lengths of its three lines.
STAND_IN = """#!{python}
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
lines = {{name: open(arguments[name], encoding="utf-8").read().split("\\n")[:-1] for name in ("-s", "-t", "-r")}}
if "boom" in lines["-t"]:
    sys.exit("Traceback\\nValueError: no such text")
rows = [{{"COMET": len(s) + 100 * len(t) + 10000 * len(r)}} for s, t, r in zip(*lines.values())]
json.dump({{arguments["-t"]: rows}}, open(arguments["--to_json"], "w"))
assert arguments["--model"].endswith("model.ckpt") and arguments["--gpus"] == "0"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    program = tmp_path / "comet-score"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "tiny/checkpoints").mkdir(parents=True)
    (tmp_path / "tiny/checkpoints/model.ckpt").write_bytes(b"")
    (tmp_path / "tiny/hparams.yaml").write_text("")
    monkeypatch.setenv(PROGRAM, str(program))
    monkeypatch.setenv(CHECKPOINT, str(tmp_path / "tiny/checkpoints/model.ckpt"))
    return tmp_path


def test_gold_is_the_source_and_the_full_text_the_reference_line_by_line(stand_in):
    texts, gold, full = ["ab\ncd", "", "x"], ["1", "22", "333"], ["f", "ff\r\nf", "\u2028ffff"]
    values = text_metric("comet").values(texts, gold=gold, full=full)
    # A line end inside a text becomes one space, so that lines stay beside one another.
    expected = [1 + 100 * len("ab cd") + 10000, 2 + 0 + 10000 * len("ff f"), 3 + 100 + 10000 * 4]
    assert values.tolist() == expected


def test_the_program_is_also_found_on_the_path(stand_in, monkeypatch):
    monkeypatch.delenv(PROGRAM)
    monkeypatch.setenv("PATH", str(stand_in), prepend=os.pathsep)
    text_metric("comet").ready()


def test_what_is_missing_is_told_before_any_text_is_written(stand_in, monkeypatch, tmp_path):
    monkeypatch.setenv(CHECKPOINT, "Unbabel/no-such-model")
    with pytest.raises(HeadwiseError, match=r"neither a .ckpt file nor in the hub's cache"):
        text_metric("comet").ready()
    (tmp_path / "lone.ckpt").write_bytes(b"")
    monkeypatch.setenv(CHECKPOINT, str(tmp_path / "lone.ckpt"))
    with pytest.raises(HeadwiseError, match=r"no hparams.yaml"):
        text_metric("comet").ready()
    monkeypatch.setenv(PROGRAM, str(tmp_path / "nothing"))
    with pytest.raises(HeadwiseError, match="no program is there; install unbabel-comet"):
        text_metric("comet").ready()


def test_what_the_program_says_when_it_fails_is_passed_on(stand_in):
    with pytest.raises(HeadwiseError, match=r"status 1: .*ValueError: no such text"):
        text_metric("comet").values(["boom"], gold=["a"], full=["b"])


def test_the_real_program_scores_each_text(tmp_path, monkeypatch):
    if "HEADWISE_TEST_COMET" not in os.environ:
        pytest.skip("COMET has an environment of its own: run `make test-comet`")
    programs = Path(os.environ["HEADWISE_TEST_COMET"])
    maker = REPOSITORY / "tests/comet/make_checkpoint.py"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([programs / "python", maker, tmp_path / "tiny"], check=True, env=clean)
    monkeypatch.setenv(PROGRAM, str(programs / "comet-score"))
    monkeypatch.setenv(CHECKPOINT, str(tmp_path / "tiny/checkpoints/model.ckpt"))
    metric = text_metric("comet")
    metric.ready()
    texts, gold, full = (
        ["a cat sat", "the dog ran", ""],
        ["cat", "dog", "bird"],
        ["a cat sat", "a dog\nran", "it flew"],
    )
    values = metric.values(texts, gold=gold, full=full)
    assert np.isfinite(values).all()
    assert len(set(values.tolist())) == 3
    # The second way: COMET's own Python interface, text by text (the program computes in half precision).
    code = (
        "import sys, json; from comet import load_from_checkpoint\n"
        "model = load_from_checkpoint(sys.argv[1]).eval()\n"
        "rows = json.loads(sys.argv[2])\n"
        "print('SCORES', json.dumps([model.predict([row], gpus=0, progress_bar=False).scores[0] for row in rows]))"
    )
    rows = [
        {"src": s, "mt": t, "ref": " ".join(r.split())} for s, t, r in zip(gold, texts, full, strict=True)
    ]
    command = [programs / "python", "-c", code, tmp_path / "tiny/checkpoints/model.ckpt", json.dumps(rows)]
    message = subprocess.run(command, check=True, env=clean, capture_output=True, text=True).stdout
    singly = json.loads(next(line for line in message.splitlines() if line.startswith("SCORES"))[7:])
    np.testing.assert_allclose(values, singly, rtol=0.02, atol=0.02)
