"""The files of the continuous integration: what they call exists, and they say what the package says of itself."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from helpers import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
PYPROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def jobs(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_ends_and_may_write_only_what_it_names(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 240
        assert not any("secrets." in str(step) for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_calls_exists(path):
    commands = " ; ".join(str(step.get("run", "")) for job in jobs(path).values() for step in job["steps"])
    for target in re.findall(r"\bmake ([a-z-]+)", commands):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    for place in re.findall(r"\btests/[\w/]+", commands):
        assert (REPOSITORY / place).exists(), place


def test_the_tests_run_on_every_python_that_the_package_declares():
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    matrix = jobs(REPOSITORY / ".github/workflows/tests.yml")["tests"]["strategy"]["matrix"]
    assert matrix["python"] == declared
    assert re.search(r'requires-python = ">=(.+)"', PYPROJECT)[1] == declared[0]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_hooks_and_pins_name_what_is_there():
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for hook in (hook for repo in config["repos"] for hook in repo["hooks"]):
        for word in hook["entry"].split():
            if word.startswith("tests/"):
                assert (REPOSITORY / word).exists()
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|[\w.-]+==[\w.+]+( ; python_version >= \"3\.11\")?", pin) for pin in pins)


def test_forms_of_issues_have_what_a_form_needs():
    forms = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"]
        assert form["description"]
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids)
        assert all(
            part["type"] in ("textarea", "input") and part["attributes"]["label"] for part in form["body"]
        )


def test_actionlint_finds_nothing():
    program = shutil.which("actionlint", path=REPOSITORY / ".venv-lint" / "bin") or shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not here: `make lint-files` installs and runs it")
    subprocess.run([program, *WORKFLOWS], check=True)
