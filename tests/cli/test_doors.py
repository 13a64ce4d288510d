"""One way in for each question: short forms of `headwise run`, the same options everywhere, few names."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError, command_line, hint
from headwise.runs import LocalExecutor, RunFolder

COMMANDS = typer.main.get_command(app).commands
LOADS_NO_MODEL = {"compare", "list", "push", "report"}


def invoke(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu", "--json", "-q"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_there_are_at_most_29_names_and_19_commands():
    assert len(hw.__all__) <= 29
    assert len(COMMANDS) <= 19


@pytest.mark.parametrize("name", sorted({*COMMANDS} - LOADS_NO_MODEL))
def test_every_command_that_loads_a_model_has_the_same_options(name):
    options = {one.name for one in COMMANDS[name].params}
    assert {"device", "dtype", "trust_remote_code", "as_json"} <= options


@pytest.mark.parametrize("name", ["score", "diff", "edges", "interactions", "certify"])
def test_a_short_form_has_the_options_of_run(name):
    placed = {"study", "first_model", "first_tasks", "model", "task", "data", "method", "k", "components"}
    wanted = {one.name for one in COMMANDS["run"].params} - placed
    assert wanted <= {one.name for one in COMMANDS[name].params}


@pytest.mark.parametrize(
    ("short", "study", "options", "same"),
    [
        ("edges", "wiring", "--heads 3 --set cards=0", "--set heads=3 --set cards=0"),
        ("interactions", "backups", "--heads L0H0 --heads L1H1", "--set heads=[L0H0,L1H1]"),
        ("diff", "diff", "--method attribution --set cards=0", "--set methods=attribution --set cards=0"),
    ],
)
def test_a_short_form_is_the_run_of_its_study(
    short, study, options, same, folder, tmp_path, monkeypatch, undrawn
):
    """The long form finds every step that the short form has computed, in the same folder."""
    monkeypatch.chdir(tmp_path)
    models = [f"a={folder}", f"b={folder}"] if study == "diff" else [f"a={folder}"]
    first = invoke(short, *models, "induction", "-n", 8, *options.split())
    assert {"findings", "tables", "report"} <= set(first)
    monkeypatch.setattr(LocalExecutor, "run", lambda *_: pytest.fail("a step was computed again"))
    named = [word for model in models for word in ("--model", model)]
    again = invoke("run", study, *named, "--task", "induction", "-n", 8, *same.split())
    assert again["run"] == first["run"]


def test_an_error_names_the_option_of_the_place_where_the_user_is(tmp_path):
    assert (hint("dtype", "float32"), hint("columns", {"prompt": "q"})) == (
        "dtype='float32'",
        "columns={'prompt': 'q'}",
    )
    with command_line():
        assert hint("dtype", "float32") == "--dtype float32"
        assert hint("trust_remote_code", True) == "--trust-remote-code"
        assert hint("columns", {"prompt": "q"}) == "--set columns.prompt=q"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file.txt").write_text("mine")
    with pytest.raises(HeadwiseError, match="give out= a new"):
        RunFolder(tmp_path / "full")
    with command_line(), pytest.raises(HeadwiseError, match="give --out a new"):
        RunFolder(tmp_path / "full")


def test_mib_is_a_method_of_the_sweep():
    assert not hasattr(hw, "mib")
    assert "CPR and CMD" in hw.sweep.mib.__doc__
