"""The package as people get it: a wheel that installs, names that exist, prose that is true."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import zipfile

import pytest

import headwise as hw
from helpers import REPOSITORY


def test_the_public_names_are_no_more_than_31_and_all_there():
    assert len(hw.__all__) <= 31
    assert set(hw._HOMES) <= set(hw.__all__)
    for name in hw.__all__:
        assert getattr(hw, name) is not None
    with pytest.raises(AttributeError, match="it has"):
        _ = hw.nothing


def test_no_class_variable_is_without_a_type_which_pydantic_cannot_read_on_python_3_10():
    for path in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign):
                assert ast.unparse(node.annotation) != "ClassVar", f"{path}:{node.lineno}"


def package_data():
    """Every file of the package that is not Python, as the wheel names it."""
    source = REPOSITORY / "src"
    files = (path for path in (source / "headwise").rglob("*.*") if path.suffix not in (".py", ".pyc"))
    return {path.relative_to(source).as_posix() for path in files if path.is_file()}


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of headwise and of its companions."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY, REPOSITORY / "companions"], check=True
    )
    (companions,) = folder.glob("headwise_companions-*.whl")
    (headwise,) = set(folder.glob("headwise-*.whl"))
    return headwise, companions


def install(wheel, into):
    subprocess.run([*PIP, "install", "--no-deps", "--target", into, wheel], check=True)


def from_installed(folder, code):
    """What a program prints that finds headwise in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_wheel_is_built_and_runs_from_where_it_is_installed(wheels, tmp_path):
    names = zipfile.ZipFile(wheels[0]).namelist()
    assert "headwise/model/verify/families.json" in names
    assert "headwise/py.typed" in names
    assert "headwise/tasks/builtin/data/ioi.txt" in package_data() <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "companions"))]
    assert not [name for name in names if name.endswith((".safetensors", ".gguf"))]
    assert wheels[0].stat().st_size < 2_000_000
    install(wheels[0], tmp_path)
    code = "import headwise; print(headwise.__file__); from headwise.cli.list import list_; list_('families')"
    message = from_installed(tmp_path, code)
    assert message.startswith(str(tmp_path))
    assert "llama\treached" in message


def test_the_companions_are_found_from_their_own_wheel_and_missed_in_one_sentence_without_it(
    wheels, tmp_path
):
    code = """
from headwise.errors import HeadwiseError
from headwise.model.load.bundled import companion_folder, companions
from headwise.model.sparse.adapter import read_gates
try:
    for alias in ("smollm2-sparse", "smollm2-control"):
        gates = read_gates(companion_folder(alias))
        print(alias, companion_folder(alias), gates.base, gates.bias is None, alias in companions())
except HeadwiseError as error:
    print(error, companions())
"""
    zipfile.ZipFile(wheels[0]).extractall(tmp_path)  # as pip does it
    message = from_installed(tmp_path, code)
    assert "smollm2-sparse is in a package of its own, headwise-companions, which is not installed" in message
    assert message.endswith("{}\n")
    install(wheels[1], tmp_path)
    place = tmp_path / "headwise_companions"
    assert from_installed(tmp_path, code).splitlines() == [
        f"smollm2-sparse {place / 'smollm2-sparse'} smollm2 False True",
        f"smollm2-control {place / 'smollm2-control'} smollm2 True True",
    ]


def modules():
    return sorted(m.name for m in pkgutil.walk_packages(hw.__path__, "headwise."))


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_citation_and_changelog_name_the_version():
    version = hw.__version__
    assert f"version: {version}" in (REPOSITORY / "CITATION.cff").read_text()
    assert f"## {version}" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_no_machine_of_ours_is_named():
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    for name in tracked.stdout.split():
        if name.endswith((".py", ".md", ".toml", ".txt", ".cff", ".yaml", "Makefile")):
            text = (REPOSITORY / name).read_text(encoding="utf-8")
            assert "/wor" + "k/" not in text, name


def test_without_torch_python_and_the_command_line_say_what_to_install():
    calls = ("import headwise as hw; hw.load('smollm2')", "from headwise.cli.app import main; main()")
    for call in calls:
        code = f"import sys; sys.modules['torch'] = None; sys.argv = ['headwise', 'check', 'smollm2']; {call}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "headwise needs the package torch" in done.stderr
        assert "-m pip install torch" in done.stderr.strip().splitlines()[-1]
        assert done.returncode == (1 if call is calls[0] else 2)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_type_checker_knows_the_public_names(tmp_path):
    """mypy on a script of a user, with the settings of mypy alone."""
    script = tmp_path / "script.py"
    script.write_text(
        "import headwise as hw\n"
        "found = hw.sweep.mib(hw.load('smollm2'), 'ioi', hw.Scores.load('scores'))\n"
        "hw.sweep(hw.load('smollm2'), 'ioi', no_such_option=1)\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert 'script.py:3: error: Unexpected keyword argument "no_such_option"' in errors[0]
