"""The notebook runs from top to bottom, and what its cells end with can be shown."""

from __future__ import annotations

import ast
import json

import pytest

from helpers import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "first-look.ipynb"


@pytest.mark.bundled
def test_every_cell_of_the_notebook_runs_and_its_result_shows_itself(loaded_once):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    scope: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"]))
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, NOTEBOOK.name, "exec"), scope)  # noqa: S102
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), scope))  # noqa: S307
    pictures = [value._repr_png_() for value in shown if hasattr(value, "_repr_png_")]
    assert len(pictures) >= 2
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    with_heads, without = shown[-1]
    assert with_heads[0].strip().startswith("Mary")
    assert with_heads != without
