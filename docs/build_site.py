"""What `make docs` adds to mkdocs: the pages of the whole repository, a navigation, and the pages made from the code.

The pages link to one another by their places in the repository, so they are copied with these places into a folder,
which mkdocs then reads. `docs/reference.md` is made from the public names of headwise; nothing of headwise is imported.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("docs", "gallery")
MODULES = {"register"}
"""Public names that are modules."""
LEFT_OUT = shutil.ignore_patterns("*.py", "requirements.txt", "*.parquet", "*.sqlite", "*.pdf", "__pycache__")
STUDIES = "functions roles circuits certify masking prompts wiring diff backups reach sparsify".split()
GUIDE = "models tasks scores nested metrics statistics generate attention cards".split()
GUIDE += "explore mcp plugins runs machines".split()
NAVIGATION: dict[str, list[str]] = {
    "Start": ["docs/first-look.ipynb", "docs/goals/*", "docs/coming-from.md"],
    "Studies": [f"docs/{name}.md" for name in STUDIES],
    "Guide": [f"docs/{name}.md" for name in GUIDE],
    "Gallery": ["gallery/README.md", "gallery/*"],
    "Reference": [
        "docs/reference.md",
        "docs/command-line.md",
        "docs/python.md",
        "docs/one-voice.md",
        "docs/*",
    ],
    "Project": ["CONTRIBUTING.md", "docs/governance.md", "docs/architecture.md", "*"],
}
"""Tabs and their pages. A pattern stands for all pages that no other entry names."""


def on_config(config: Any) -> Any:
    """Copy the pages, make those that are made, and list all of them in the navigation."""
    place = Path(tempfile.mkdtemp(prefix="headwise-docs-"))
    config["docs_dir"] = str(place)
    for folder in COPIED:
        shutil.copytree(ROOT / folder, place / folder, ignore=LEFT_OUT)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, place / page.name)
    (place / "benchmarks" / "results").mkdir(parents=True)
    for picture in (ROOT / "benchmarks" / "results").glob("*.png"):
        shutil.copy(picture, place / "benchmarks" / "results")
    shutil.copy(ROOT / "LICENSE", place / "LICENSE")
    shutil.copytree(ROOT / "skills", place / "skills")
    # Workflows know where the repository is; Colab opens notebooks from there.
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        _link_to_colab(place / "docs" / "first-look.ipynb", repository)
    (place / "docs" / "reference.md").write_text(_reference(), encoding="utf-8")
    config["nav"] = [{"headwise": "README.md"}, *_navigation(place)]
    return config


def on_post_build(config: Any) -> None:
    """The theme fetches one script from elsewhere; the pages use the copy that is here."""
    site = Path(config["site_dir"])
    for page in site.rglob("*.html"):
        here = "../" * len(page.relative_to(site).parents[1:]) + "docs/site/iframe-worker.js"
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'https://[^" ]*/iframe-worker/shim', here, text), encoding="utf-8")
    sys.path.insert(0, str(ROOT / "docs"))
    import llms

    llms.write(site)
    shutil.rmtree(config["docs_dir"], ignore_errors=True)


def _link_to_colab(notebook: Path, repository: str) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    address = f"https://colab.research.google.com/github/{repository}/blob/main/docs/{notebook.name}"
    first = content["cells"][0]  # whose source is a text, or a list of lines
    first["source"] = "".join(first["source"]) + f"\n\n**[Open in Colab]({address})**"
    notebook.write_text(json.dumps(content), encoding="utf-8")


def _navigation(place: Path) -> list[dict[str, list[str]]]:
    pages = sorted(
        path.relative_to(place).as_posix() for path in place.rglob("*") if path.suffix in (".md", ".ipynb")
    )
    named = {name for entries in NAVIGATION.values() for name in entries} | {"README.md"}
    rest = [page for page in pages if page not in named]
    tabs = []
    for tab, entries in NAVIGATION.items():
        found: list[str] = []
        for entry in entries:
            if "*" in entry:
                taken = [page for page in rest if page.startswith(entry[:-1])]
                rest = [page for page in rest if page not in taken]
                found += taken
            else:
                found.append(entry)
        tabs.append({tab: found})
    return tabs


def _reference() -> str:
    """A page with the docstring of every public name."""
    tree = ast.parse((ROOT / "src" / "headwise" / "__init__.py").read_text(encoding="utf-8"))
    homes = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and "_HOMES" in ast.unparse(node).partition("=")[0]
    )
    return (
        "# API reference\n\nEvery public name of `import headwise as hw`, from its docstring.\n\n"
        + "".join(
            f"::: {home if name in MODULES else f'{home}.{name}'}\n"
            f"    options: {{heading: hw.{name}, toc_label: hw.{name}}}\n\n"
            for name, home in sorted(homes.items(), key=lambda x: x[0].lower())
        )
    )


class Docstrings(griffe.Extension):
    """Docstrings in Markdown: examples become code blocks (>>> would be three quotations), arguments a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        text = re.sub(r"\s*# doctest:.*", "", obj.docstring.value)
        example = re.compile(r"^>>> .*(?:\n(?!\n).+)*(?:\n\n>>> .*(?:\n(?!\n).+)*)*", re.MULTILINE)
        text = example.sub(lambda found: f"\n```python\n{found[0]}\n```\n", text)
        given = {*obj.members, *(argument.name.lstrip("*") for argument in getattr(obj, "parameters", ()))}
        text = re.sub(r"(?<=\S[.;]) (?=(\w+): )", lambda found: "\n" if found[1] in given else " ", text)
        lines: list[str] = []
        for line in text.splitlines():
            names, colon, rest = line.partition(": ")
            if colon and given.issuperset(names.split(", ")):
                line = f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {rest}"
                if lines and lines[-1] and not lines[-1].startswith((" ", "- ")):
                    lines.append("")
            lines.append(line)
        obj.docstring.value = "\n".join(lines)
