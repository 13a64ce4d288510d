"""Two runs beside each other: what differs in their settings comes first, then every number; against pandas."""

from __future__ import annotations

import json
import re
import shlex

import pandas as pd
import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.report import write_report
from headwise.runs import read_table
from helpers import REPOSITORY, run_on, word_model, word_task
from planted import written

KEYS = ["task", "method", "layer", "head"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that differ from the first in nothing, in the seed, in the ablation type, in the model, in the study."""
    place = tmp_path_factory.mktemp("runs")
    models = [word_model("llama", name=name, seed=seed) for seed, name in enumerate(("base", "other"))]
    file = written(word_task(12), place / "words.jsonl")
    options = {"tasks": [file], "n": 8, "methods": ["attribution"], "cards": 0, "progress": False}
    given = {"base": {}, "same": {}, "seed": {"seed": 1}, "reference": {"reference": "zero"}, "n": {"n": 4}}
    for name, settings in given.items():
        run_on("score", place / name, models[0], **options | settings)
    run_on("score", place / "model", models[1], **options)
    run_on("score", place / "wider", models[0], **options | {"methods": ["attribution", "direct"]})
    run_on("diff", place / "diff", *models, **options)
    return place


@pytest.mark.parametrize(
    ("other", "named"),
    [("seed", ["seed"]), ("reference", ["reference"]), ("model", ["models"]), ("n", ["n"])],
)
def test_what_differs_comes_first_then_the_numbers(runs, other, named):
    found = hw.compare([runs / "base", hw.open_run(runs / other)])
    own = [name for name in found.settings["setting"] if not name.startswith("fingerprint")]
    assert own == named
    lines = str(found).splitlines()
    assert re.match(rf"  {named[0]}: .+ \| .+", lines[1])
    assert lines.index(next(line for line in lines if line.startswith("scores"))) > 1
    one, two = (read_table(runs / name, "scores").set_index(KEYS)["score"] for name in ("base", other))
    expected = (two - one).dropna()
    rows = found.rows[found.rows["table"] == "scores"].set_index(KEYS)["difference"]
    pd.testing.assert_series_equal(
        rows.sort_index(), expected.sort_index(), check_names=False, check_index_type=False
    )
    assert found.largest >= expected.abs().max() > 0
    assert re.search(r"^  scores .*\bL\d+ H\d+: \S+ → \S+ \([+-]", str(found), re.MULTILINE)
    assert not re.search(r"\d\.\d{6}", str(found))  # no raw digits
    (summary,) = found.summary[found.summary["table"] == "scores"].to_dict("records")
    assert summary["rank_correlation"] == pytest.approx(one.corr(two, method="spearman"))
    assert found.plot().axes


def test_the_same_run_twice_differs_in_nothing_and_a_missing_row_exceeds_every_tolerance(runs):
    same = hw.compare([runs / "base", runs / "same"])
    assert same.settings.empty
    assert same.largest == 0
    assert same.within(0)
    assert "the same settings" in str(same)
    wider = hw.compare([runs / "base", runs / "wider"])
    assert wider.missing["scores"] == len(read_table(runs / "base", "scores"))
    assert not wider.within(1e9)


def test_scores_are_compared_as_ever_also_from_files_and_a_mixture_is_refused(runs, tmp_path):
    (one,), (two,) = (hw.open_run(runs / name).scores("attribution") for name in ("base", "seed"))
    one.save(tmp_path / "one.npz")
    assert hw.compare([tmp_path / "one.npz", two]).k == hw.compare([one, two]).k
    with pytest.raises(HeadwiseError, match="expected two runs, or only scores"):
        hw.compare([one, runs / "base"])
    with pytest.raises(HeadwiseError, match="two runs of one study"):
        hw.compare([runs / "base", runs / "diff"])


def invoke(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--json", "-q"])
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else done.output


def test_the_command_exits_with_1_only_where_a_given_tolerance_is_exceeded(runs, tmp_path):
    largest = hw.compare([runs / "base", runs / "seed"]).largest
    code, answer = invoke("compare", runs / "base", runs / "seed", "--plot", tmp_path / "both.png")
    assert (code, answer["settings"][0]["setting"]) == (0, "seed")
    assert (tmp_path / "both.png").stat().st_size > 3000
    assert invoke("compare", runs / "base", runs / "seed", "--tolerance", largest * 1.01)[0] == 0
    assert invoke("compare", runs / "base", runs / "seed", "--tolerance", largest * 0.99)[0] == 1
    assert invoke("compare", runs / "base", runs / "same", "--tolerance", 0)[0] == 0


def test_a_report_of_several_runs_names_each_and_what_it_differs_in(runs, tmp_path):
    page = write_report([runs / "base", runs / "seed", runs / "diff"], tmp_path / "page.html").read_text(
        "utf-8"
    )
    headings = re.findall(r'<h2 id="study-\d-title"><span class="kind">(.*?)</span>', page)
    assert headings == ["score: base (seed 0)", "score: seed (seed 1)", "diff"]
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )
    assert data["heads"]["study"]["words"] == headings
    alone = write_report([runs / "base"], tmp_path / "alone.html").read_text("utf-8")
    assert '<span class="kind">score</span>' in alone


@pytest.mark.bundled
def test_the_example_for_ci_in_the_docs_runs_and_fails_where_a_number_moves(
    tmp_path, monkeypatch, undrawn, loaded_once
):
    page = (REPOSITORY / "docs" / "runs.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n([^`]*headwise compare.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, [*commands[1], "--seed", "1", "--fresh"]).exit_code == 0
    changed = CliRunner().invoke(app, commands[2])
    assert changed.exit_code == 1
    assert "seed: 0 | 1" in changed.output
