"""Cells: what makes two pieces of work the same."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import Cell


def cell(**changed: Any) -> Cell:
    given = {
        "study": "roles",
        "model": "m",
        "task": "ioi",
        "part": "ablation",
        "settings": {"n": 64, "seed": 0},
    }
    return Cell(**{**given, "fingerprints": {"weights": "abc"}, **changed})


def test_the_key_is_the_hash_of_everything_as_canonical_json() -> None:
    text = (
        '{"fingerprints":{"weights":"abc"},"model":"m","part":"ablation","settings":{"n":64,"seed":0},'
        '"study":"roles","task":"ioi"}'
    )
    assert cell().key == hashlib.sha256(text.encode()).hexdigest()


def test_the_order_of_settings_and_the_kind_of_sequence_do_not_matter() -> None:
    assert cell(settings={"seed": 0, "n": 64}) == cell()
    assert cell(settings={"heads": (1, 2)}) == cell(settings={"heads": [1, 2]})
    assert cell(settings={"n": np.int64(64), "seed": np.int32(0)}) == cell()
    assert cell(settings={"rate": np.float64(0.1)}).key == cell(settings={"rate": 0.1}).key
    assert len({cell(), cell()}) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"study": "masking"},
        {"model": "n"},
        {"task": "docstring"},
        {"part": "keep"},
        {"settings": {"n": 64, "seed": 1}},
        {"settings": {"n": 64, "seed": False}},
        {"settings": {"n": "64", "seed": 0}},
        {"fingerprints": {"weights": "abd"}},
    ],
)
def test_anything_that_differs_makes_another_cell(changed: dict[str, Any]) -> None:
    assert cell(**changed).key != cell().key
    assert cell(**changed) != cell()


def test_a_cell_does_not_follow_later_changes_of_the_callers_settings() -> None:
    settings = {"heads": [1, 2]}
    made = cell(settings=settings)
    settings["heads"].append(3)
    assert made.key == cell(settings={"heads": [1, 2]}).key


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rate": math.nan}, "settings.rate is nan"),
        ({"a": {"b": [1, math.inf]}}, r"settings.a.b\[1\] is inf"),
        ({1: "x"}, "the key 1"),
        ({"path": Path("x")}, "settings.path is a"),
        ({"array": np.zeros(3)}, "settings.array is a ndarray"),
    ],
)
def test_settings_that_json_would_bend_are_refused_by_name(settings: dict[Any, Any], says: str) -> None:
    with pytest.raises(HeadwiseError, match=says):
        cell(settings=settings)


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(HeadwiseError, match="model must be text"):
        cell(model=Path("m"))


def test_the_kind_says_who_computes_a_cell_and_is_no_part_of_its_key() -> None:
    """Runs of before cells had a kind hold no kind in their keys."""
    ranking = cell(kind="order")
    assert ranking.kind == "order"
    assert (ranking.text, ranking.key) == (cell().text, cell().key)
    assert ranking == cell(kind="curve")
    assert Cell.from_text(ranking.text, "order").kind == "order"
    with pytest.raises(HeadwiseError, match="kind must be text"):
        cell(kind=3)


def test_a_cell_comes_back_from_its_text() -> None:
    assert Cell.from_text(cell().text) == cell()
    assert json.loads(cell().text)["task"] == "ioi"


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'rich', 'filelock', 'torch'}"
    program = f"import sys, headwise.runs; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"
    )
