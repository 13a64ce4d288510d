"""Datasets in the hub's form, from a local folder and, for the errors, from a stand-in package."""

import json
import sys
import types

import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.examples import Example
from headwise.tasks.files.load_task import load_task
from headwise.tasks.files.sources import parse

ROWS = [{"prompt": f"{i} plus one is", "target": f" {i + 1}", "foils": [" x"]} for i in range(4)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the hub's form, with two splits."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "sums"
    home.mkdir()
    for split, rows in (("train", ROWS[:3]), ("test", ROWS[3:])):
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def test_a_split_of_a_dataset_folder_loads_like_a_file(folder):
    pytest.importorskip("datasets", reason="the extra 'data' is not installed")
    task = load_task(f"hub:{folder}:train")
    assert task.examples == tuple(Example(r["prompt"], r["target"], tuple(r["foils"])) for r in ROWS[:3])
    assert task.name == "sums-train"
    assert load_task(f"hub:{folder}:test").examples == load_task(folder / "test.jsonl").examples
    with pytest.raises(HeadwiseError, match=r"has the splits .*; add one, as in hub:"):
        load_task(f"hub:{folder}")
    with pytest.raises(HeadwiseError, match=r"unknown split of .* 'tset'; did you mean 'test'"):
        load_task(f"hub:{folder}:tset")
    with pytest.raises(HeadwiseError, match="cannot be loaded"):
        load_task(f"hub:{folder / 'nowhere'}:test")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hub:openai/gsm8k:main:test", ("openai/gsm8k", "main", "test")),
        ("hub:owner/name:test", ("owner/name", None, "test")),
        ("hub:owner/name", ("owner/name", None, None)),
    ],
)
def test_a_dataset_is_named_by_owner_configuration_and_split(source, parts):
    assert parse(source) == parts


@pytest.mark.parametrize("source", ["hub:", "hub:a/b:", "hub:a/b:c:d:e", "hub::test"])
def test_other_forms_are_refused_with_the_right_one(source):
    with pytest.raises(HeadwiseError, match="write hub:owner/name, hub:owner/name:split or"):
        load_task(source)


def stand_in(monkeypatch, load_dataset):
    package = types.ModuleType("datasets")
    package.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_name_configuration_and_split_reach_the_package(monkeypatch):
    asked = []

    def load_dataset(name, configuration, download_config):
        asked.append((name, configuration))
        return {"train": ROWS[:1], "test": ROWS[1:]}

    stand_in(monkeypatch, load_dataset)
    task = load_task("hub:owner/sums:easy:test")
    assert asked == [("owner/sums", "easy")]
    assert [example.prompt for example in task] == [row["prompt"] for row in ROWS[1:]]
    assert task.name == "sums-easy-test"
    with pytest.raises(
        HeadwiseError, match="has the splits train, test; add one, as in hub:owner/sums:train"
    ):
        load_task("hub:owner/sums")


def test_a_bad_row_of_a_dataset_is_named_by_its_number(monkeypatch):
    stand_in(
        monkeypatch,
        lambda name, configuration, download_config: {"test": [ROWS[0], {"prompt": "a", "target": None}]},
    )
    with pytest.raises(HeadwiseError, match="hub:owner/sums, row 2: the field 'target' is null"):
        load_task("hub:owner/sums")


def test_whatever_the_package_raises_becomes_one_sentence(monkeypatch):
    def fails(name, configuration, download_config):
        raise RuntimeError("no route\nto host")

    stand_in(monkeypatch, fails)
    with pytest.raises(
        HeadwiseError, match=r"hub:a/b cannot be loaded \(RuntimeError: no route\); check the name"
    ):
        load_task("hub:a/b")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HeadwiseError, match=r"pip install 'headwise\[data\]'"):
        load_task("hub:a/b:test")
