"""Every Python block of the README and the docs is run, and says what the block after it claims."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest
import typer

from headwise.charts.section import SECTIONS
from headwise.cli.app import app
from headwise.metrics.logits import METRICS
from headwise.model.measure.references import REFERENCES
from headwise.scores.edges.score import EDGE_METHODS
from headwise.scores.registry import METHODS
from headwise.studies.base import STUDIES
from headwise.tasks.registry import FAMILIES
from helpers import REPOSITORY

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Ray workers that load the bundled model: tests/studies/test_ray_studies.py compares the bytes with tiny ones.
SLOW = {"machines.md": pytest.mark.slow}
PAGES_WITH_CODE = [
    pytest.param(page, id=page.name, marks=SLOW.get(page.name, ()))
    for page in PAGES
    if any(language == "python" for language, _ in BLOCK.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.bundled
@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_code_on_the_page_runs_and_prints_what_it_claims(page, tmp_path, monkeypatch, loaded_once):
    if 'engine="ray"' in page.read_text(encoding="utf-8"):
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")
    monkeypatch.chdir(tmp_path)
    # What a page registers must not be there for other tests.
    registries = (FAMILIES, METRICS, METHODS, EDGE_METHODS, REFERENCES, STUDIES, SECTIONS)
    with contextlib.ExitStack() as restored:
        for registry in registries:
            restored.enter_context(registry.restored())
        _run_blocks(page)


def _run_blocks(page):
    scope: dict[str, object] = {}
    printed = ""
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page.name, "exec", dont_inherit=True), scope)  # noqa: S102
            printed = out.getvalue()
        elif language == "output":
            assert printed.strip() == text.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


COMMAND = re.compile(r"(?:^|`)(headwise [a-z]+[^`\n]*)", re.MULTILINE)
GOALS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "goals").glob("*.md"))]


@pytest.mark.parametrize("page", GOALS, ids=lambda page: page.name)
def test_commands_on_the_page_have_options_that_exist(page):
    """Words after two spaces explain a command; what is in capitals is the reader's own."""
    commands = typer.main.get_command(app).commands
    lines = [line.split("  ")[0] for line in COMMAND.findall(page.read_text(encoding="utf-8"))]
    assert lines or page.name == "build.md"  # which is about Python
    for line in lines:
        _, name, *rest = shlex.split(line, comments=True)
        command = commands[name]
        command.make_parser(command.context_class(command)).parse_args(list(rest))


def test_the_readme_is_short_and_begins_with_the_two_commands_that_need_nothing():
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    text = "\n".join(lines)
    assert text.index("make demo") < text.index("make test") < text.index("## ")
    for page in GOALS[1:]:
        assert f"](docs/goals/{page.name})" in text
