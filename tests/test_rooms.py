"""The rooms of the package: imports go one way, nothing goes round in a circle, nothing outgrows one glance.

What breaks a rule today is listed in rooms_violations.txt. The list only gets shorter: what is not in it fails, and so
does an entry that is no longer true.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import rooms

LISTED = Path(__file__).parent / "rooms_violations.txt"


@pytest.fixture(scope="module")
def now():
    return rooms.violations()


@pytest.fixture(scope="module")
def listed():
    return rooms.read_violations(LISTED.read_text(encoding="utf-8"))


def test_nothing_breaks_a_rule_that_is_not_listed(now, listed):
    more = [what for what in now if what not in listed]
    assert not more, "\n".join(["these break the rules of the rooms (tests/rooms.py):", *more])


def test_nothing_that_is_listed_has_grown(now, listed):
    grown = [
        f"{what}: {now[what]}, listed with {size}" for what, size in listed.items() if now.get(what, 0) > size
    ]
    assert not grown, "\n".join(grown)


def test_what_no_longer_breaks_a_rule_is_off_the_list(now, listed):
    gone = [what for what in listed if what not in now]
    assert not gone, "\n".join(["take these off tests/rooms_violations.txt, they are repaired:", *gone])


def test_the_arrows_between_rooms_allow_no_circle():
    assert rooms.cycles({name: set(may) - {name} for name, may in _above_the_ground().items()}) == []


def _above_the_ground():
    """What rooms may import, without the first group, whose members may use one another as long as none is a circle,
    and without the command line and the public names, which nobody else may import."""
    ground = rooms.MAY_IMPORT["charts"]
    top = {"cli", "public"}
    for name, may in rooms.MAY_IMPORT.items():
        assert name in top or not may & top, f"{name} may import the command line"
    return {name: may - ground for name, may in rooms.MAY_IMPORT.items() if name not in ground | top}


def test_every_file_stands_in_a_room_that_has_arrows():
    assert {rooms.room(path) for path in rooms.trees(rooms.SOURCE)} <= set(rooms.MAY_IMPORT)


def test_the_longest_path_decides_the_room():
    assert rooms.room("studies/masking/study.py") == "studies"
    assert rooms.room("studies/masking/section.py") == "study pages"
    assert rooms.room("errors.py") == "errors"
    with pytest.raises(KeyError, match="stands in no room"):
        rooms.room("attic/box.py")


@pytest.fixture
def planted(tmp_path):
    """A package with one fault of each kind."""
    files = {
        "errors.py": "",
        "stats/__init__.py": "def mean():\n    from headwise.model import engine\n",
        "model/__init__.py": "",
        "model/engine.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..scores.keep import keep\n",
        "scores/__init__.py": "",
        "scores/keep.py": "import headwise.model.engine\n" + "x = 1\n" * 401,
        "sweeps/long.py": "def long():\n    '''Two\n    lines.'''\n" + "    x = 1\n" * 60,
        "sweeps/wide.py": "class A:\n    def wide(self, a, b, c, d, e, f, g, h, *, i): ...\n",
        "charts/static.py": "",
        "sweeps/curve.py": "class A:\n    def plot(self):\n        from headwise.charts.static import figure\n",
        "sweeps/sweep.py": "def sweep():\n    from headwise.charts.static import figure\n",
        "tables/frames.py": "def plot():\n    from headwise.charts.static import figure\n",
        "cli/long.py": "def long():\n" + "    x = 1\n" * 80,
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_imports_in_functions_and_for_types_and_circles_and_sizes_are_found(planted):
    assert rooms.violations(planted) == {
        "import model/engine.py -> scores/keep.py": 0,
        "import stats/__init__.py -> model/engine.py": 0,
        "import sweeps/sweep.py -> charts/static.py": 0,
        "import tables/frames.py -> charts/static.py": 0,
        "cycle of rooms: model, scores": 0,
        "cycle of files: model/engine.py, scores/keep.py": 0,
        "file scores/keep.py": 402,
        "function sweeps/long.py:long": 61,
        "parameters sweeps/wide.py:A.wide": 9,
    }


def test_a_folder_of_sixteen_modules_is_too_many(tmp_path):
    (tmp_path / "heads").mkdir()
    for number in range(15):
        (tmp_path / "heads" / f"m{number}.py").touch()
    (tmp_path / "heads" / "__init__.py").touch()
    assert rooms.violations(tmp_path) == {}
    (tmp_path / "heads" / "m15.py").touch()
    rooms.trees.cache_clear()
    assert rooms.violations(tmp_path) == {"folder heads": 16}


def test_the_examples_in_the_helper_are_true():
    found = doctest.testmod(rooms)
    assert (found.failed, found.attempted) == (0, 3)


def test_only_one_file_changes_the_modules_of_a_loaded_model():
    """Hooks, replaced forward methods and the name of the attention: all in model/sites/patch.py."""
    touches = re.compile(
        r"register_forward|\.forward\s*=[^=]|_attn_implementation_internal|register_full_backward"
    )
    found = {
        str(path.relative_to(rooms.SOURCE))
        for path in rooms.SOURCE.rglob("*.py")
        if touches.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"model/sites/patch.py"}
