"""The command line as a user meets it: exit codes, one sentence per mistake, real processes where they matter."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.charts.static import figure
from headwise.cli.app import main
from headwise.errors import HeadwiseError
from headwise.studies.base import save_figures
from helpers import every_format, forked_command

# Figures are drawn by one test alone.
pytestmark = pytest.mark.usefixtures("undrawn")


def headwise(*arguments, cwd=None, **options):
    code = "from headwise.cli.app import main; main()"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
        **options,
    )


@pytest.fixture
def here(monkeypatch, capsys, caplog, tmp_path):
    """The same within this process, which need not load torch anew."""
    logger = logging.getLogger("headwise")
    monkeypatch.setattr(logger, "level", logger.level)
    for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said, logged = capsys.readouterr(), caplog.text
        caplog.clear()
        return SimpleNamespace(returncode=ended.value.code or 0, stdout=said.out, stderr=logged + said.err)

    return run


def test_help_answers_without_loading_torch():
    done = headwise("--help")
    assert done.returncode == 0
    for command in ("check", "list", "score", "run", "demo"):
        assert command in done.stdout
    probe = "import sys; import headwise.cli.app; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_check_prints_the_shape_and_the_proof(folder, here):
    done = here("check", folder, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "tiny: 4 layers × 4 heads, 2 key/value heads, head size 8, float32 on cpu" in done.stdout
    assert "heads accessed by   attention function" in done.stdout
    assert "(4 of 4 layers)" in done.stdout
    assert "prefix sharing      yes" in done.stdout


@pytest.mark.parametrize("what", ["models", "tasks", "metrics", "methods", "studies", "settings", "families"])
def test_lists_are_tab_separated_in_a_pipe(what, here):
    done = here("list", what)
    assert done.returncode == 0, done.stderr
    header, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows
    assert {len(row) for row in rows} == {len(header)}


def test_a_precision_says_what_was_spent_and_a_bad_one_is_one_sentence(folder, tmp_path, here):
    command = ["score", folder, "induction", "-n", 20, "--device", "cpu", "--out", tmp_path / "run"]
    done = here(*command, "--precision", 0.05, "--set", "method_options.population=true")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "forward rows" in line]
    table = pd.read_parquet(tmp_path / "run" / "tables" / "scores.parquet")
    assert (
        f"every head to ± 0.05 with 95% confidence: {table['n'].sum() + 60:,} forward rows instead of 320"
        in line
    )
    assert table[["lo", "hi", "p"]].notna().all().all()
    done = here(*command, "--fresh", "--precision", 0.05, "--top", 3)
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("headwise: precision (0.05) and top (3) cannot be combined")
    )


def test_every_position_is_a_table_a_figure_and_a_sentence_and_is_computed_once(
    folder, tmp_path, here, monkeypatch
):
    drawn = []
    monkeypatch.setattr("headwise.studies.base.save_figures", lambda _, charts: drawn.extend(charts))
    run = tmp_path / "run"
    command = ["score", folder, "induction", "-n", 6, "--device", "cpu", "--out", run, "--reference", "mean"]
    done = here(*command, "--positions", "each")
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(run / "tables/positions.parquet")
    named = "model task method layer head position token score stderr lo hi n p q metric reference".split()
    assert list(table.columns) == named
    tokens = table["position"].max() + 1
    assert len(table) == 16 * tokens
    examples = pd.read_parquet(run / "tables/position_examples.parquet")
    means = examples.groupby(["layer", "head", "position"])["value"].mean().to_numpy()
    np.testing.assert_allclose(means, table["score"], atol=1e-9)
    largest = table.loc[table["score"].abs().idxmax()]
    place = f"L{largest['layer']}H{largest['head']} at {largest['position']} {largest['token'].strip()}"
    assert place in done.stdout
    assert [chart.name for chart in drawn] == ["tiny-induction-ablation-positions"]
    assert figure(drawn[0]).axes
    report = (run / "report.html").read_text(encoding="utf-8")
    text = re.sub("<[^>]+>", "", report)  # terms carry their meaning
    assert "largest scores at one position by ablation (mean) are L" in text
    assert f"n = {largest['n']}, q = {largest['q']:.2g})" in text  # positions that few prompts have say so
    written = (run / "tables/positions.parquet").read_bytes()
    again = here(*command, "--positions", "each")
    assert again.returncode == 0, again.stderr
    assert "ablation on induction" not in again.stderr  # no progress: the cell is read
    assert (run / "tables/positions.parquet").read_bytes() == written
    at_2 = here(*command[:-4], "--out", tmp_path / "at", "--reference", "mean", "--positions", "2,3")
    assert at_2.returncode == 0, at_2.stderr
    assert json.loads((tmp_path / "at/run.json").read_text())["settings"]["positions"] == [2, 3]
    assert len(pd.read_parquet(tmp_path / "at/tables/scores.parquet")) == 16


def test_score_writes_the_contracts_files_and_a_figure(folder, tmp_path, here, monkeypatch):
    monkeypatch.setattr("headwise.studies.base.save_figures", save_figures)
    options = ("--method", "ablation", "-n", 6, "--out", tmp_path / "run", "--device", "cpu")
    with every_format():
        done = here("score", folder, "induction", *options)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "run/tables/scores.parquet")
    assert list(table.columns[:12]) == "model task method layer head score stderr lo hi n p q".split()
    assert len(table) == 16
    examples = pd.read_parquet(tmp_path / "run/tables/examples.parquet")
    assert len(examples) == 6 * 16
    means = examples.groupby(["layer", "head"])["value"].mean().to_numpy()
    np.testing.assert_allclose(means, table["score"], atol=1e-12)
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["status"] == "done"
    assert about["settings"]["n"] == 6
    for kind in ("png", "svg", "pdf"):
        assert (tmp_path / f"run/figures/{folder.name}-induction-ablation.{kind}").stat().st_size > 5_000
    assert "L" in done.stdout
    assert "[" in done.stdout


def test_score_by_nested_masks_ranks_every_component(folder, tmp_path, here):
    options = ["--set", "method_options.rows=40", "--components", "heads", "--components", "mlps"]
    # One ending and one answer for all: what the components of a random model do to one, they do to every example.
    examples = hw.task("induction", 24).examples
    answers = {"target": examples[0].target, "foils": examples[0].foils}
    ending = examples[0].prompt
    rows = [{"prompt": example.prompt.split("\n")[0] + "\n" + ending, **answers} for example in examples]
    data = tmp_path / "one_answer.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    done = here(
        *["score", folder, data, "-n", 24, "--method", "nested", "--reference", "zero"],
        *["--device", "cpu", "--out", tmp_path / "run", *options],
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "run/tables/scores.parquet")
    assert table["component"].value_counts().to_dict() == {"head": 16, "mlp": 4}
    ranks = sorted(table["score"])
    np.testing.assert_allclose(ranks, (np.arange(20) + 1) / 20)
    assert "the ten largest of 20" in done.stdout
    assert not (tmp_path / "run/partial").exists()


def test_scores_and_circuits_of_key_value_heads(folder, tmp_path, here):
    """The study `circuits` ranks and sweeps what its methods score."""
    about = ["induction", "--components", "kv_heads", "--device", "cpu", "--out"]
    done = here("score", folder, *about, tmp_path / "run", "-n", 6)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "run/tables/scores.parquet")
    assert table["head"].tolist() == [-1000, -1001] * 4
    assert "L0KV1" in done.stdout
    more = ["-n", 8, "--method", "ablation", "--set", "refits=0"]
    done = here("run", "circuits", folder, *about, tmp_path / "circuits", *more)
    assert done.returncode == 0, done.stderr
    assert pd.read_parquet(tmp_path / "circuits/tables/curves.parquet")["k"].max() == 8
    refused = here("score", folder, *about, tmp_path / "no", "--components", "heads")
    assert "ask for kv_heads alone" in refused.stderr


def test_the_chunk_size_is_stored_in_the_run(folder, tmp_path, here):
    here(
        "score",
        folder,
        "induction",
        "-n",
        4,
        "--out",
        tmp_path / "run",
        "--batch-tokens",
        333,
        "--device",
        "cpu",
        "--set",
        "cards=0",
    )
    from headwise.runs import Store

    store = Store(tmp_path / "run/cells.sqlite")
    (key,) = store.keys()
    assert store.get(key).scores.details["batch_tokens"] == 333


def test_the_same_command_again_computes_nothing_and_other_settings_are_noticed(folder, tmp_path, here):
    first = ["score", folder, "induction", "-n", 4, "--out", tmp_path / "run", "--device", "cpu"]
    assert here(*first).returncode == 0
    table = (tmp_path / "run/tables/scores.parquet").read_bytes()
    again = here(*first)
    assert again.returncode == 0
    assert "ablation on" not in again.stderr  # no cell was computed
    assert (tmp_path / "run/tables/scores.parquet").read_bytes() == table
    other = here(*first, "--seed", 1)
    assert other.returncode == 0
    assert "note: the settings differ from the run in this folder" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "./absent"], "there is no file or folder ./absent"),
        (["check", "smolm2"], "did you mean 'smollm2'"),
        (["list", "task"], "did you mean 'tasks'"),
        (["score", "MODEL", "io"], "did you mean 'ioi'"),
        (["score", "MODEL", "induction", "--method", "ablate"], "did you mean 'ablation'"),
        (["score", "MODEL", "induction", "--metric", "logit"], "did you mean 'logit_diff'"),
        (["score", "MODEL", "induction", "--reference", "zer0"], "did you mean 'zero'"),
        (["score", "MODEL", "induction", "--dtype", "float31"], "did you mean 'float32'"),
        (["score", "MODEL", "induction", "--set", "sed=1"], "did you mean 'seed'"),
        (["score", "MODEL", "induction", "--set", "n=many"], "expected a whole number"),
        (["score", "MODEL", "induction", "--out", "MODEL/config.json"], "config.json"),
        (["run", "rolls"], "unknown study 'rolls'"),
        (["sparsify", "MODEL", "--evaluate"], "give --held-out FILE"),
        (
            ["sparsify", "MODEL", "--evaluate", "--held-out", "a.txt", "--dense"],
            "a control has no edge gates",
        ),
        (["sparsify", "MODEL", "--set", "bias=big"], "bias"),
        (["run", "score", "--config", "absent.yaml"], "there is no study file absent.yaml"),
    ],
)
def test_a_mistake_is_exit_2_and_one_sentence(arguments, said, folder, tmp_path, here):
    filled = [str(a).replace("MODEL", str(folder)) for a in arguments]
    if filled[0] in ("score",) and "--out" not in filled:
        filled += ["--out", str(tmp_path / "run")]
    one_sentence(here(*filled), said)


def test_a_mistake_is_no_traceback_for_the_shell(tmp_path):
    one_sentence(headwise("list", "task", cwd=tmp_path), "did you mean 'tasks'")


def one_sentence(done, said):
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("headwise:")]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tasks: [ioi\n", "line 2 is not YAML"),
        ("", "is empty"),
        ("- ioi\n", "holds a list"),
        ("task: ioi\n", "did you mean 'tasks'"),
        ("n: true\n", "expected a whole number"),
        ("trust_remote_code: true\n", "a file may not"),
    ],
)
def test_a_bad_study_file_is_exit_2_with_the_place(text, said, tmp_path, here):
    (tmp_path / "study.yaml").write_text(text)
    done = here("run", "score", "--config", "study.yaml")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_study_file_and_flags_give_the_same_run(folder, tmp_path, here):
    (tmp_path / "study.yaml").write_text(
        f"models: {folder}\ntasks: [induction]\nmethods: [attribution, random]\nn: 4\n"
    )
    by_file = here("run", "score", "--config", "study.yaml", "--out", "a", "--device", "cpu")
    flags = ["--method", "attribution", "--method", "random", "-n", 4, "--out", "b", "--device", "cpu"]
    by_flags = here("score", folder, "induction", *flags)
    assert (by_file.returncode, by_flags.returncode) == (0, 0), by_file.stderr + by_flags.stderr
    tables = [(tmp_path / run / "tables/scores.parquet").read_bytes() for run in "ab"]
    assert tables[0] == tables[1]


@pytest.mark.parametrize(("n", "brackets"), [(1, 0), (4, 10)])
def test_scores_of_one_example_are_shown_without_an_interval(folder, here, n, brackets):
    done = here("score", folder, "induction", "--method", "attribution", "-n", n, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "nan" not in done.stdout
    assert done.stdout.count("[") == brackets


def test_certify_takes_model_task_and_ranking_from_a_run(folder, tmp_path, here):
    run = tmp_path / "run"
    options = [
        "--method",
        "attribution",
        "--reference",
        "zero",
        "-n",
        6,
        "--device",
        "cpu",
        "--set",
        "cards=0",
    ]
    assert here("score", folder, "induction", *options, "--out", run).returncode == 0
    more = ["--top", 3, "-n", 8, "--quick", "--device", "cpu", "--set", "draws=2"]
    done = here("certify", run, *more, "--out", tmp_path / "certificate", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scores = pd.read_parquet(run / "tables/scores.parquet")
    first = scores.sort_values("score", ascending=False, kind="stable").head(3)
    assert found["heads"].split() == [f"L{row.layer}H{row.head}" for row in first.itertuples()]
    assert (found["task"], found["reference"], found["k"]) == ("induction", "zero", 3)
    assert found["core"] == found["shell"] == ""
    for arguments, sentence in (
        ((folder,), "the task is missing"),
        ((run, "--heads", "L0H0"), "leave --heads out"),
        ((tmp_path / "certificate",), "a run of the study certify"),
    ):
        done = here("certify", *arguments)
        assert done.returncode == 2
        assert sentence in done.stderr


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(folder, tmp_path):
    words = f"score {folder} induction -n 2000 --batch-tokens 64 --out {tmp_path / 'run'} --device cpu"
    process = forked_command(tmp_path / "said", *words.split(), *"--method random --method ablation".split())
    from headwise.runs import Store

    while process.is_alive():  # until the first of the two cells is stored
        time.sleep(0.2)
        if (tmp_path / "run/cells.sqlite").exists():
            store = Store(tmp_path / "run/cells.sqlite")
            finished = len(store)
            store.close()
            if finished:
                break
    while process.is_alive():
        os.kill(process.pid, signal.SIGINT)
        process.join(8)  # Python drops an interrupt that arrives in a destructor; people press again
    message = (tmp_path / "said").read_text()
    assert process.exitcode == 1, message
    assert "the same command resumes" in message
    assert "Traceback" not in message
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "interrupted"


PROGRAM = f'{sys.executable} -c "from headwise.cli.app import main; main()"'


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("list tasks | head -1", 0, ""),
        ("list tasks >&-", 0, ""),
        ("list tasks >&- 2>&-", 0, ""),
        ("list tasks > /dev/full", 2, "headwise: the output cannot be written: No space left on device"),
        # Longer than the output buffer: the error comes while the command prints.
        (
            "task ioi --show 200 > /dev/full",
            2,
            "headwise: the output cannot be written: No space left on device",
        ),
        ("--help > /dev/full", 2, "headwise: the output cannot be written: No space left on device"),
    ],
)
def test_an_output_that_is_closed_or_full_is_no_traceback(arguments, code, said):
    done = subprocess.run(
        ["bash", "-c", f"{PROGRAM} {arguments}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (ValueError("first line\n\nsecond"), 1, "stopped by an unexpected error (ValueError: first line)"),
        (
            HeadwiseError("it is Invalid:\n  magic bytes\n  not found"),
            2,
            "it is Invalid: magic bytes not found",
        ),
    ],
)
def test_an_error_ends_in_one_line_of_ours(error, code, last, monkeypatch, here):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("headwise.cli.list.print_table", broken)
    done = here("list", "tasks")
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(f"headwise: {last}")
    assert code == 1 or len(done.stderr.splitlines()) == 1


def test_what_transformers_says_about_a_report_that_nobody_sees_is_not_passed_on():
    from headwise.errors import first_line

    message = first_line(
        RuntimeError("You set `x` to `False`, thus raising an error. look at the above report!")
    )
    assert message == "its tensors are not those that its config.json describes"


def test_fresh_with_a_mistake_in_the_settings_leaves_the_earlier_run_where_it_is(folder, tmp_path, here):
    first = ["score", folder, "induction", "-n", 4, "--method", "random", "--out", "run", "--device", "cpu"]
    assert here(*first).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for mistake in (["--method", "ablate"], ["--set", "method_options.top=3"], ["--metric", "logit"]):
        done = here(*first, "--fresh", *mistake)
        assert done.returncode == 2, mistake
        assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before, mistake
    assert here(*first, "--fresh").returncode == 0
    assert (tmp_path / "run/earlier/cells.sqlite").is_file()


def test_card_shows_a_head_with_the_scores_of_a_run_and_draws_it(folder, tmp_path, here):
    where = ["--device", "cpu", "-n", 6]
    assert here("score", folder, "induction", *where, "--method", "random", "--out", "run").returncode == 0
    done = here("card", folder, "induction", "L2H1", *where, "--run", "run", "--plot", "card.png")
    assert done.returncode == 0, done.stderr
    assert "L2H1 of tiny on induction (6 examples, " in done.stdout
    assert "random on induction" in done.stdout
    assert "rank" in done.stdout
    assert (tmp_path / "card.png").stat().st_size > 10_000
    done = here("card", folder, "induction", "L2H1", *where, "--plot", "card.html")
    assert done.returncode == 0, done.stderr
    assert '"name":"L2H1"' in (tmp_path / "card.html").read_text(encoding="utf-8")
    for plot, said in (
        ("card.txt", "ends in .html, .png, .svg, .pdf"),
        ("absent/card.png", "there is no folder absent"),
    ):
        one_sentence(here("card", folder, "induction", "L2H1", *where, "--plot", plot), said)
    one_sentence(here("card", folder, "induction", "L9H0", *where), "has no head L9H0")
    one_sentence(here("card", folder, "induction", "23.3", *where), "L12H3")
    one_sentence(here("card", folder, "induction", "L2H1", *where, "--run", "absent"), "absent")


def test_a_report_through_a_link_is_refused(folder, tmp_path, here):
    (tmp_path / "page").symlink_to("other.html")
    one_sentence(here("report", tmp_path, "--out", "page"), "is a link")


@pytest.mark.parametrize("found", [True, False])
def test_the_demo_leaves_out_the_sparse_companion_where_it_is_not_installed_and_says_so(
    monkeypatch, tmp_path, found
):
    from headwise.cli import demo

    asked, told = {}, []
    known = {"smollm2-sparse": None} if found else {}
    monkeypatch.setattr("headwise.model.load.bundled.companions", lambda: known)
    monkeypatch.setattr(
        "headwise.studies.base.run",
        lambda name, out, **options: (
            asked.setdefault(name, options) and SimpleNamespace(path=out, shown=None)
        ),
    )
    monkeypatch.setattr("headwise.report.write_report", lambda folders, page, story, drawn: page)
    monkeypatch.setattr("headwise.cli.demo._story", lambda bench, tell: None)
    monkeypatch.setattr("headwise.report.findings", lambda folders, drawn: [])
    demo.run_demo(tmp_path, tell=told.append)
    assert asked["circuits"]["models"] == ["smollm2", *known]
    assert all(options["models"] == ["smollm2"] for name, options in asked.items() if name != "circuits")
    assert any("without smollm2-sparse" in line for line in told) != found
