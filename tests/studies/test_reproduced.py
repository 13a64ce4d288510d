"""The command under a chart makes the run again: also of a call from Python, with a study file, with a plug-in."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise import registry
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.model.verify.tiny import tiny_model
from headwise.runs import LocalExecutor, read_info
from helpers import forked, labelled_file, make_word_tokenizer

ANSWERS = {"animals": ("cat", "dog", "bird"), "colours": ("red", "blue", "small")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model, a task file and a study file."""
    folder, tokenizer = tmp_path_factory.mktemp("place"), make_word_tokenizer()
    hf = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    hf.generation_config.eos_token_id = None
    hf.save_pretrained(folder / "my model")
    tokenizer.save_pretrained(folder / "my model")
    labelled_file(folder / "kinds.jsonl", ANSWERS, 20, lambda i: 5, foils=[" the"])
    (folder / "study.yaml").write_text("methods: [attribution]\nn: 8\n")
    return folder


CALLS = {
    "score": {
        "methods": ["attribution", "ablation"],
        "method_options": {"components": ["heads", "mlps"]},
        "n": 4,
    },
    "masking": {"n": 4, "k": [1, 2], "draws": 2, "max_new_tokens": 3, "answer": "text", "cards": 0},
    "wiring": {"n": 8, "points": 4, "heads": 3, "cards": 0, "gradient": None},
}


@pytest.mark.parametrize("study", CALLS)
def test_the_command_of_a_call_from_python_asks_for_the_same_steps(study, place, monkeypatch, undrawn):
    monkeypatch.chdir(place)
    shared = {"models": ["Mine=my model"], "tasks": ["kinds.jsonl"], "device": "cpu", "progress": False}
    file = "study.yaml" if study == "score" else None
    folder = hw.run(study, f"runs/{study}", file, **shared, **CALLS[study])
    command = read_info(folder.path)["command"]
    assert command in (folder.path / "report.html").read_text("utf-8").replace("&#39;", "'").replace(
        "&#34;", '"'
    )
    monkeypatch.setattr(LocalExecutor, "run", lambda *_: pytest.fail("a step was computed again"))
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert "the settings differ" not in done.output
    assert read_info(folder.path)["settings"] == folder.info["settings"]


STUDY = """
    import pandas as pd
    from headwise.studies.base import study
    from headwise.studies.settings.shared import StudySettings

    class Settings(StudySettings):
        power: int = 1

    @study(question="How many heads?", settings=Settings)
    def heads_of(run, s):
        heads = len(run.model(s.models[0]).heads())
        run.table("heads", pd.DataFrame({"model": [s.models[0]], "value": [float(heads ** s.power)]}))
"""


def run_script(script, variables):
    """As `python SCRIPT` in its folder does."""
    os.environ.update(variables)
    registry._load_plugins.cache_clear()
    os.chdir(script.parent)
    sys.argv = [script.name]
    runpy.run_path(script.name, run_name="__main__")


@pytest.mark.parametrize("plugged", [True, False], ids=["a plug-in file", "a study in the script itself"])
def test_the_command_of_a_run_with_a_plug_in_runs(plugged, place, tmp_path):
    call = "import headwise as hw\nhw.run('heads_of', 'run', models=['my model'], power=2, device='cpu')\n"
    plugin, script = tmp_path / "my plug-in.py", place / f"script{plugged:d}.py"
    plugin.write_text(textwrap.dedent(STUDY))
    script.write_text(call if plugged else textwrap.dedent(STUDY) + call)
    shutil.rmtree(place / "run", ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    named = {"HEADWISE_PLUGINS": str(plugin)} if plugged else {}
    python = forked(tmp_path / "said", run_script, script, named)
    python.join()
    assert python.exitcode == 0, (tmp_path / "said").read_text()
    info = json.loads((place / "run" / "run.json").read_text())
    shutil.rmtree(place / "run")
    (tmp_path / "bin").mkdir()
    for name, words in (("headwise", "-m headwise.cli.app"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    subprocess.run(info["command"], shell=True, env=environment, cwd=place, check=True)  # noqa: S602
    assert hw.open_run(place / "run").tables["heads"]["value"].tolist() == [256.0]


def test_a_run_that_was_sent_opens_with_everything_that_it_has(place, tmp_path, monkeypatch, undrawn):
    monkeypatch.chdir(place)
    shared = {"models": ["Mine=my model"], "tasks": ["kinds.jsonl"], "device": "cpu", "progress": False}
    made = {
        name: hw.run(name, tmp_path / "here" / name, **shared, **options) for name, options in CALLS.items()
    }
    sent = {name: shutil.copytree(folder.path, tmp_path / "there" / name) for name, folder in made.items()}
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(tmp_path)  # neither the model nor the examples can be found from here
    score, masking, wiring = (hw.open_run(sent[name]) for name in ("score", "masking", "wiring"))
    assert [scores.method for scores in score.scores()] == ["attribution", "ablation"]
    assert score.settings["n"] == 4
    assert [finding.sentence for finding in score.findings] == made["score"].findings
    assert {len(one.values) for one in wiring.curves()} == {len(wiring.curves()[0].k)}
    assert len(wiring.edges("exact")[0]) == len(wiring.tables["edges"])
    texts = masking.texts(task="animals")
    assert set(texts["task"]) == {"animals"}
    assert len(texts) == (masking.tables["texts"]["task"] == "animals").sum()
    with pytest.raises(HeadwiseError, match="has no texts; masking and prompts do"):
        score.texts()
