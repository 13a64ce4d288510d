"""The notebook runs from top to bottom, its stored outputs are complete, and it shows what its text says."""

from __future__ import annotations

import ast
import json
import re

import pytest

from helpers import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "first-look.ipynb"


def code_cells():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_every_cell_has_a_stored_output_without_errors_or_paths():
    kinds = set()
    for number, cell in enumerate(code_cells(), start=1):
        assert cell["execution_count"] == number
        assert cell["outputs"], "".join(cell["source"])
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            kinds |= set(output.get("data", {}))
    assert {"image/png", "text/html"} <= kinds
    assert str(REPOSITORY) not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.bundled
def test_the_notebook_finds_significant_heads_a_small_circuit_and_changes_the_answer(loaded_once):
    scope: dict[str, object] = {}
    displayed = []
    for cell in code_cells():
        body = ast.parse("".join(cell["source"]))
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, NOTEBOOK.name, "exec"), scope)  # noqa: S102
        if last is not None:
            displayed.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), scope))  # noqa: S307
    pictures = [value._repr_png_() for value in displayed if hasattr(value, "_repr_png_")]
    assert len(pictures) >= 2
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert scope["scores"].n >= 32
    top = scope["table"].nlargest(5, "score")
    assert (top["q"] < 0.01).all()
    assert (top["lo"] > 0).all()
    assert scope["needed"].k <= 10
    # Counted once more, from the texts themselves.
    targets = [example.target.strip() for example in scope["test"]]
    foils = [example.foils[0].strip() for example in scope["test"]]
    for reference, texts in scope["texts"].items():
        names = [[re.match(r"\W*([A-Za-z]*)", text).group(1) for text in row] for row in texts]
        correct = [sum(map(str.__eq__, row, targets)) for row in names]
        assert list(scope["counts"].loc[reference, "correct name"]) == correct
        everything, without_circuit, same_layers, _ = correct
        assert everything >= 0.7 * len(targets)
        assert without_circuit <= 0.1 * len(targets)
        assert same_layers >= 0.7 * everything
        assert sum(map(str.__eq__, names[1], foils)) > len(targets) / 4
    # The text says that the size of the circuit depends on ranking and ablation type.
    at_8 = {name: values[8] for name, values in scope["explained"].items()}
    assert at_8["integrated, patch"] > 0.9 > max(at_8["attribution, patch"], at_8["integrated, mean"])
