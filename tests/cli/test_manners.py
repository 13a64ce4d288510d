"""Manners of the command line: --version, -h, --json, -q, -v, completion, groups, default folders."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

import headwise as hw
from headwise._version import __version__
from headwise.cli import root
from headwise.cli.app import main
from headwise.cli.root import PANELS
from headwise.cli.run import default_folder
from headwise.errors import HeadwiseError

pytestmark = pytest.mark.usefixtures("undrawn")

COMMANDS = "card check demo diff edges explore export interactions list report run score sparsify task verify".split()


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """The command line within this process; the standard error holds what is logged."""
    logger = logging.getLogger("headwise")
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, arguments)])
        handler = logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            logger.removeHandler(handler)
        message = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code or 0, stdout=message.out, stderr=message.err)

    return run


def test_the_version_is_one_line(here):
    for flag in ("--version", "-V"):
        done = here(flag)
        assert (done.returncode, done.stdout) == (0, f"headwise {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_short_help_and_quiet_and_verbose(command, here):
    short, long = here(command, "-h"), here(command, "--help")
    assert short.returncode == 0
    assert short.stdout == long.stdout
    for option in ("--quiet", "-q", "--verbose", "-v"):
        assert option in short.stdout


@pytest.mark.parametrize("name", ["~nouser/x", "x" * 5000])
@pytest.mark.parametrize("command", ["check {}", "score {} ioi", "explore {}", "task ioi --model {}"])
def test_a_name_that_no_file_can_have_is_refused_in_one_sentence(command, name, here):
    done = here(*command.format(name).split())
    assert done.returncode == 2
    assert re.fullmatch(r"headwise: .{,90} cannot be used as a name or path: [\w ]+\.?\n", done.stderr)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("unable to mmap 538090408 bytes from file <w>: Cannot allocate memory (12)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
    ],
)
def test_memory_that_runs_out_during_loading_is_one_sentence(error, folder, here, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    done = here("check", folder, "--device", "cpu")
    assert done.returncode == 2
    assert re.fullmatch(r"headwise: there is not enough memory to load tiny; .* \(ulimit -v\)\n", done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of this kind")
def test_a_limit_on_memory_gives_one_sentence():
    command = "ulimit -v 1600000; exec {} -m headwise check smollm2 --device cpu"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = ["bash", "-c", command.format(sys.executable)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in (1, 2)
    assert re.fullmatch(r"headwise: .*memory.*\n", done.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_line_names_arguments_in_capitals(command, here):
    (usage,) = [line for line in here(command, "-h").stdout.splitlines() if "Usage:" in line]
    arguments = re.findall(r"[{\[]([A-Za-z|]+)[}\]]", usage.replace("[OPTIONS]", ""))
    assert len(arguments) == usage.count("{") + usage.count("[") - 1
    assert all(name == name.upper() for name in arguments)


def test_a_number_of_examples_has_the_same_two_names_in_every_command(here):
    helps = {command: here(command, "-h").stdout for command in COMMANDS}
    with_n = {command for command, said in helps.items() if re.search(r"\s-n\s", said)}
    assert {"score", "interactions", "edges"} <= with_n
    assert all("--limit" in helps[command] for command in with_n)


def test_options_are_in_groups_in_one_order(here):
    for command in ("score", "run"):
        message = here(command, "-h").stdout
        positions = [
            message.index(f"─ {panel} ─") for panel in PANELS if panel != "Model" or "─ Model ─" in message
        ]
        assert positions == sorted(positions)
        data = message[message.index("─ Data ─") : message.index("─ What to compute ─")]
        assert "--limit" in data
        assert "-n" in data
        assert "--seed" in data
        assert "--device" not in data


def test_the_help_of_a_study_lists_its_settings_and_the_plain_help_does_not(here):
    from headwise.studies.masking.settings import MaskingSettings

    message = here("run", "masking", "--help").stdout
    listed = here("list", "settings", "masking")
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert {name for name, *_ in rows[1:]} == set(MaskingSettings.model_fields)
    assert listed.stdout in message
    assert "intervene_k" not in here("run", "--help").stdout
    assert "fit.updates" not in listed.stdout


def test_only_the_list_of_settings_takes_a_study(here):
    done = here("list", "tasks", "masking")
    assert done.returncode == 2
    assert "headwise list settings masking" in done.stderr
    assert "unknown study 'maskin'" in here("list", "settings", "maskin").stderr


def test_names_that_the_shell_completes_are_those_that_there_are():
    from headwise.model.load import bundled
    from headwise.model.measure.references import REFERENCES
    from headwise.scores import methods
    from headwise.studies.base import studies
    from headwise.tasks import families

    assert set(root.names("models")) == {*bundled.aliases(), *bundled._KNOWN}
    assert set(root.names("methods")) == set(methods())
    assert set(root.names("studies")) == set(studies())
    assert set(root.names("tasks")) == set(families())
    assert set(root.names("references")) == set(REFERENCES.all())


def test_the_shell_completes_studies_models_and_tasks_without_loading_torch():
    def completed(words):
        environment = os.environ | {"_HEADWISE_COMPLETE": "complete_bash", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split()) - 1)
        code = "import sys; from headwise.cli.root import app; import headwise.cli.app; app(prog_name='headwise')"
        command = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
        return done.stdout.split()

    assert completed("headwise run mas") == ["masking"]
    assert completed("headwise score smollm2 abil") == ["abilities"]
    assert completed("headwise ver") == ["verify"]


def test_json_is_all_that_is_on_the_standard_output_and_equals_the_tables(folder, tmp_path, here):
    done = here("score", folder, "induction", "-n", 4, "--device", "cpu", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    table = pd.read_parquet(tmp_path / "run/tables/scores.parquet")
    assert [row["score"] for row in result["scores"]] == table["score"].tolist()
    assert [f"L{row['layer']}H{row['head']}" for row in result["scores"][:2]] == ["L0H0", "L0H1"]
    assert result["report"] == "run/report.html"
    assert set(result["tables"]) == {path.stem for path in (tmp_path / "run/tables").iterdir()}
    mean = "heads are replaced by their mean output over 4 examples; a steady mean needs 16"
    assert result["notices"].count(mean) == 1
    dry = here("score", folder, "induction", "-n", 4, "--device", "cpu", "--dry-run", "--json")
    plan = json.loads(dry.stdout)
    assert plan["rows"] == sum(step["rows"] for step in plan["steps"]) > 4 * 16
    again = json.loads(here("verify", "run", "--steps", 1, "--json").stdout)
    assert again["same"] is True
    assert {one["kind"] for one in again["results"]} == {"table", "step"}
    table.assign(score=table["score"] + 1).to_parquet(tmp_path / "run/tables/scores.parquet")
    wrong = here("verify", "run", "--steps", 1, "--json")
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["same"] is False


def test_check_list_and_task_have_json_too(folder, here):
    checked = json.loads(here("check", folder, "--device", "cpu", "--json").stdout)
    assert (checked["layers"], checked["heads"], checked["kv_heads"]) == (4, 4, [2] * 4)
    assert checked["largest_gap"] >= 0
    listed = json.loads(here("list", "studies", "--json").stdout)
    assert {"study", "question"} == set(listed[0])
    shown = here("task", "induction", "--limit", 2, "--model", folder, "--device", "cpu", "--json")
    result = json.loads(shown.stdout)
    assert len(result["examples"]) == 2
    assert 0 <= result["right"] <= result["of"] == 50
    examples = hw.task("induction", 50, model=(model := hw.load(folder, device="cpu")))
    right = hw.measure(model, examples, metric="accuracy", progress=False).values
    wrong = [example.prompt for example, value in zip(examples, right, strict=True) if not value]
    assert [one["prompt"] for one in result["wrong"]] == wrong
    assert len(wrong) == 50 - result["right"]
    text = here("task", "induction", "--show", 2, "--model", folder, "--device", "cpu").stdout
    assert repr(result["examples"][1]["prompt"]) in text
    assert f"gets {result['right']} of 50 right" in text


def test_diff_card_and_export_have_json_too(folder, tmp_path, here):
    weak = tmp_path / "weak"
    (tmp_path / "heads.json").write_text('["L1H2"]')
    cpu = ("--device", "cpu", "--json", "-q")
    given = ("--heads", "heads.json", "--out", weak, "--gate", 0.3, "--measure", "induction", "-n", 4)
    exported = json.loads(here("export", folder, *given, *cpu).stdout)
    assert (exported["heads"], exported["gate"]) == (["L1H2"], 0.3)
    assert exported["before"]["parameters"] == exported["after"]["parameters"]
    model = hw.load(folder, device="cpu")
    others = hw.task("induction", 4, model=model, seed=1)  # `score` draws with seed 0 by default
    loss = -hw.measure(model, others, metric="mean_logprob").full.mean()
    assert exported["before"]["cross-entropy (nats per target token)"] == pytest.approx(loss)
    found = json.loads(here("diff", folder, weak, "induction", "--limit", 4, *cpu).stdout)
    table = pd.read_parquet(tmp_path / found["run"] / "tables/diff.parquet")
    assert [row["difference"] for row in found["diff"]] == table["difference"].tolist()
    assert {row["metric"] for row in found["outcomes"]} >= {"accuracy"}
    card = json.loads(here("card", folder, "induction", "L1H2", "--limit", 4, *cpu).stdout)
    assert card["head"] == "L1H2"
    assert {row["measure"] for row in card["scores"]} == {"ablation (mean)", "attribution (mean)"}


@pytest.mark.parametrize(
    "command",
    [
        ("card", "no/model", "nothere.csv", "L0H0"),
        ("interactions", "no/model", "nothere.csv"),
        ("export", "no/model", "--measure", "nothere.csv"),
    ],
)
def test_a_missing_file_is_refused_before_a_model_is_looked_for(command, here):
    more = ("--heads", "h.json", "--out", "new") if command[0] == "export" else ()
    done = here(*command, *more)
    assert done.returncode == 2
    assert "there is no file nothere.csv" in done.stderr


def test_every_command_has_json(here):
    commands = re.findall(r"^│ ([a-z]+) ", here("--help").stdout, re.MULTILINE)
    assert {"score", "run", "diff", "card", "export", "sparsify"} <= set(commands)
    without = [name for name in commands if "--json" not in here(name, "--help").stdout]
    assert not without


def test_quiet_leaves_results_alone_and_verbose_adds_tracebacks(folder, here):
    command = [
        "score",
        folder,
        "induction",
        "-n",
        16,
        "--method",
        "random",
        "--device",
        "cpu",
        "--out",
        "run",
    ]
    assert "done in" in here(*command).stderr
    quiet = here(*command, "--fresh", "--seed", 1, "-q")
    assert quiet.returncode == 0
    # Bars of transformers are switched off when the process starts, which this test does not see.
    assert not [line for line in quiet.stderr.splitlines() if line and "it/s" not in line]
    assert "random on induction" in quiet.stdout
    assert "HEADWISE_PROGRESS" not in os.environ
    assert "Traceback" in here("check", "./absent", "-v").stderr
    plain = here("check", "./absent")
    assert "Traceback" not in plain.stderr
    assert here("check", "./absent", "-q").stderr.startswith("headwise: there is no file or folder")
    assert "--quiet and --verbose" in here("list", "studies", "-q", "-v").stderr


def test_a_run_prints_its_findings_and_json_is_still_one_value(folder, here):
    command = [
        "run",
        "score",
        folder,
        "induction",
        "-n",
        4,
        "--method",
        "attribution",
        "--device",
        "cpu",
        "--out",
        "run",
    ]
    done = here(*command)
    found = json.loads(here(*command, "--json").stdout)["findings"]
    assert found
    assert [f"- {sentence}" for sentence in found[:5]] == [
        line for line in done.stdout.splitlines() if line.startswith("- ")
    ]


def test_a_list_of_all_pairs_does_not_call_them_the_ten_largest(folder, here):
    heads = [word for head in ("L0H0", "L1H1", "L2H2") for word in ("--heads", head)]
    done = here("interactions", folder, "induction", "--limit", 8, *heads, "--device", "cpu")
    assert "interactions: all 3 pairs" in done.stdout


def test_a_second_task_has_a_folder_of_its_own(folder, tmp_path, here):
    (tmp_path / "tiny").symlink_to(folder)
    for task in ("induction", "mine.jsonl"):
        words = "red green blue red green"
        (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": words, "target": " blue"}) + "\n")
        command = ["score", "tiny", task, "-n", 4, "--method", "random", "--device", "cpu"]
        done = here(*command, "--metric", "logprob")
        assert done.returncode == 0, done.stderr
    first, second = (
        pd.read_parquet(tmp_path / f"runs/score-tiny-{name}/tables/scores.parquet")
        for name in ("induction", "mine")
    )
    assert set(first["task"]) == {"induction"}
    assert set(second["task"]) == {"mine"}


def test_default_folders_are_short_plain_and_differ():
    assert default_folder("roles").as_posix() == "runs/roles"
    assert (
        default_folder("score", "org/Model-1.5B", "hub:owner/data").as_posix()
        == "runs/score-org-Model-1.5B-hub-owner-data"
    )
    assert default_folder("score", "../m", "a/test.csv") != default_folder("score", "../m", "b/test.csv")
    long = [default_folder("run", "m", "x" * 200 + end) for end in "ab"]
    assert long[0] != long[1]
    assert all(len(folder.name) <= 100 for folder in long)


def settings_of(monkeypatch, here, *arguments):
    """What a command line asks `headwise.studies.base.run` for."""
    asked = {}

    def run(study, out, file=None, **settings):
        asked.update(settings, study=study, out=str(out), file=file and str(file))
        raise HeadwiseError("enough")

    monkeypatch.setattr("headwise.studies.base.run", run)
    done = here(*arguments)
    assert done.stderr.splitlines()[-1].endswith("headwise: enough"), done.stderr
    return SimpleNamespace(**asked, stderr=done.stderr)


def test_score_and_run_take_model_and_task_in_the_same_order(monkeypatch, here):
    score = settings_of(monkeypatch, here, "score", "smollm2", "ioi", "--limit", 8, "--quick")
    run = settings_of(monkeypatch, here, "run", "score", "smollm2", "ioi", "--limit", 8, "--quick")
    for asked in (score, run):
        assert (asked.models, asked.tasks, asked.n, asked.quick) == (["smollm2"], ["ioi"], 8, True)
        assert asked.out == "runs/score-smollm2-ioi"
    flags = settings_of(monkeypatch, here, "run", "score", "--model", "smollm2", "--task", "ioi", "-n", 8)
    assert (flags.models, flags.tasks, flags.n) == (["smollm2"], ["ioi"], 8)


def test_a_study_file_is_an_option(monkeypatch, here):
    new = settings_of(monkeypatch, here, "run", "roles", "smollm2", "--config", "mine.yaml")
    assert (new.file, new.models, new.out) == ("mine.yaml", ["smollm2"], "runs/roles-mine-smollm2")
    assert "note:" not in new.stderr
    assert not hasattr(new, "seed")  # the file's own stays
    given = settings_of(monkeypatch, here, "run", "roles", "mine.yaml")
    assert (given.file, given.models) == (None, ["mine.yaml"])  # a word is a model, whatever it ends in


def test_a_method_is_given_by_one_name_in_every_study(monkeypatch, here):
    several = ["--method", "ablation", "--method", "direct"]
    assert settings_of(monkeypatch, here, "run", "functions", *several).methods == ["ablation", "direct"]
    assert settings_of(monkeypatch, here, "run", "circuits", *several).orders == ["ablation", "direct"]
    assert settings_of(monkeypatch, here, "run", "masking", "--method", "direct").method == "direct"
    assert "takes one method" in here("run", "masking", *several).stderr


# --- the demo -----------------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """The demo with studies that compute nothing; those in `broken` fail. Yields (broken, carried out, reports)."""
    broken, carried_out, reports = {}, [], []

    def run(name, out, **_):
        if name in broken:
            raise broken[name]
        carried_out.append(name)
        return SimpleNamespace(path=out, shown=None)

    def write_report(folders, page, story, drawn):
        reports.append([folder.name for folder in folders])
        return page

    monkeypatch.setattr("headwise.cli.demo.check", lambda model, **_: None)
    monkeypatch.setattr("headwise.studies.base.run", run)
    monkeypatch.setattr("headwise.report.write_report", write_report)
    monkeypatch.setattr("headwise.cli.demo._story", lambda bench, tell: None)
    monkeypatch.setattr("headwise.report.findings", lambda folders, drawn: [])
    return broken, carried_out, reports


def test_a_study_that_fails_in_the_demo_leaves_the_others_and_the_report(pretended, here):
    broken, carried_out, reports = pretended
    broken.update(roles=HeadwiseError("no room"), prompts=RuntimeError("out of luck\nat line 3"))
    done = here("demo")
    assert done.returncode == 1
    assert carried_out == ["functions", "circuits", "masking"]
    assert reports == [carried_out]
    assert "report.html: open it in a browser" in done.stdout
    assert "headwise: the study roles failed: no room" in done.stderr
    assert "headwise: the study prompts failed: out of luck\n" in done.stderr
    result = here("demo", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["failed"] == {"roles": "no room", "prompts": "out of luck"}


def test_the_demo_says_what_is_not_installed_before_anything_is_computed(pretended, here, monkeypatch):
    import importlib.util

    _, carried_out, reports = pretended
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "sacrebleu" else find_spec(name, *rest),
    )
    done = here("demo")
    assert done.returncode == 1
    message = done.stdout.splitlines()
    (line,) = [line for line in message if "is left out" in line]
    assert "masking" in line
    assert "pip install 'headwise[similarity]'" in line
    assert message.index(line) < message.index("1 of 5: functions")
    assert carried_out == ["functions", "roles", "circuits", "prompts"]
    assert reports == [carried_out]


def test_the_base_install_has_what_the_default_studies_need():
    """The packages of the metrics that studies use without being asked, by the names under which they are installed."""
    from headwise.metrics import text_metric
    from headwise.studies.masking.settings import MaskingSettings
    from headwise.studies.prompts.settings import PromptsSettings

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    installed = set(
        re.findall(r'"([\w-]+)', re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1])
    )
    used = {MaskingSettings().similarity, PromptsSettings().metric, "math", "contains"}
    needed = {package.replace("_", "-") for name in used for package in text_metric(name).packages}
    assert {"sacrebleu", "math-verify"} <= needed <= installed


def test_sparsify_without_its_extra_says_so_before_a_model_is_loaded(here, monkeypatch):
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else find_spec(name, *rest)
    )
    done = here("sparsify", "no-such-model", "--sample", 2)
    assert done.returncode == 2
    assert "pip install 'headwise[sparse]'" in done.stderr


# --- steps -------------------------------------------------------------------------------------------------


def test_a_run_names_the_step_and_is_done_only_at_the_end(folder, monkeypatch, here):
    """With a clock that runs fast every bar says how far it is."""
    from headwise import progress

    monkeypatch.setattr(progress, "_FIRST_LINE", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    options = ["--method", "ablation", "--method", "random", "--batch-tokens", 64, "--set", "cards=0"]
    done = here("run", "score", folder, "induction", "-n", 4, *options, "--device", "cpu", "--out", "run")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "it/s" not in line]  # bars of transformers
    assert any(line.startswith("ablation on induction with tiny: ") for line in lines)
    assert any(line.startswith("scores: 1/2 (50%)") for line in lines)
    ends = [line for line in lines if re.search(r"100%|\bdone\b", line)]
    assert len(ends) == 1, ends
    (end,) = ends
    assert end.startswith("score: done in ")
    assert not any("stage" in line for line in lines[lines.index(end) :])
