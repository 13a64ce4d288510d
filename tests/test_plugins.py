"""A package of its own, installed beside headwise, adds to it without touching it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PLUGIN = """
    import random
    from headwise.tasks import Example
    from headwise.tasks.registry import register

    @register("echo", metric="logprob", about="say the word again")
    def echo(draw: random.Random) -> Example:
        word = draw.choice(("red", "blue", "green", "grey"))
        return Example(f"{word} {draw.randint(0, 9999)} {word}", f" {word}")
"""


def _installed(folder, code):
    """What pip leaves behind for a package with one entry point."""
    (folder / "echo_plugin.py").write_text(textwrap.dedent(code))
    about = folder / "echo_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[headwise.plugins]\necho = echo_plugin\n")


def _headwise(folder, *words, **variables):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **variables}
    command = [sys.executable, "-m", "headwise.cli.app", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_task_of_another_package_appears_in_the_command_line(tmp_path):
    _installed(tmp_path, PLUGIN)
    listed = _headwise(tmp_path, "list", "tasks").stdout
    assert "echo" in listed
    assert "say the word again" in listed
    assert " red" in _headwise(tmp_path, "task", "echo", "--show", "12").stdout


def test_a_broken_plug_in_is_named_in_one_sentence(tmp_path):
    _installed(tmp_path, "import nothing_of_this_name")
    done = _headwise(tmp_path, "list", "tasks")
    assert done.returncode == 2
    assert "the plug-in 'echo' (echo_plugin) cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_single_file_is_a_plug_in_if_the_environment_names_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(PLUGIN))
    assert "echo" not in _headwise(tmp_path, "list", "tasks").stdout
    shown = _headwise(tmp_path, "task", "echo", "--show", "1", HEADWISE_PLUGINS=str(file))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("echo: ")


def test_a_plug_in_file_that_is_missing_or_broken_is_one_sentence(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    for path, said in ((tmp_path / "absent.py", "is not a Python file"), (broken, "nothing_of_this_name")):
        done = _headwise(tmp_path, "list", "tasks", HEADWISE_PLUGINS=str(path))
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


STUDY = """
    from headwise.charts.chart import Bars, Chart, Panel
    from headwise.charts.section import Finding, Section
    from headwise.studies.base import study
    from headwise.studies.settings.shared import StudySettings

    section = Section(
        charts=lambda tables: [
            Chart(name="c", title="A chart", panels=[Panel(marks=[Bars(at=[0], values=[1.0])])])
        ],
        findings=lambda tables: [Finding(sentence="Layer 3 it is.")],
    )

    @study(question="Which layer?", settings=StudySettings, section=section)
    def layers(run, s):
        pass
"""


def test_the_help_of_a_plug_ins_study_lists_its_settings(tmp_path):
    file = tmp_path / "layers.py"
    settings = "class Mine(StudySettings):\n        depth: int = 7\n        'How deep.'\n\n    @study("
    file.write_text(
        textwrap.dedent(STUDY.replace("@study(", settings).replace("settings=StudySettings", "settings=Mine"))
    )
    done = _headwise(tmp_path, "run", "layers", "--help", HEADWISE_PLUGINS=str(file))
    assert "Settings of the study layers" in done.stdout, done.stderr
    assert "depth\t7\tHow deep." in done.stdout


def test_a_run_of_an_absent_plug_in_is_refused_by_name_and_its_command_names_the_plug_in(tmp_path):
    file = tmp_path / "my layers.py"
    file.write_text(textwrap.dedent(STUDY))
    run = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HEADWISE_PLUGINS": file.name}
    code = (
        "from headwise.runs import RunFolder\n"
        "from headwise.studies.run import Run\n"
        f"with RunFolder({str(run)!r}, study='layers', settings={{'models': []}}, fingerprints={{}}) as folder:\n"
        "    Run(None, None, folder).write_tables()\n"
    )
    # Named by a relative path, which the command to repeat must not have: it holds in one folder alone.
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
    for command in ("report", "verify"):
        done = _headwise(tmp_path, command, str(run))
        assert done.returncode == 2, done.stderr
        assert str(file) in done.stderr
        assert "HEADWISE_PLUGINS=" in done.stderr
        assert "Traceback" not in done.stderr
    page = tmp_path / "page.html"
    done = _headwise(tmp_path, "report", str(run), "--out", str(page), HEADWISE_PLUGINS=str(file))
    assert done.returncode == 0, done.stderr
    shown = page.read_text()
    assert "Layer 3 it is." in shown
    assert f"HEADWISE_PLUGINS=&#39;{file}&#39;" in shown
