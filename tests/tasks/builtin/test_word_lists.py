"""The word lists of the built-in tasks: how their files are read, and that every file and list is used."""

from __future__ import annotations

from importlib import resources

import pytest

from headwise.tasks.builtin import word_lists as module
from headwise.tasks.builtin.word_lists import lists, questions_and_facts, words
from helpers import REPOSITORY

BUILTIN = REPOSITORY / "src/headwise/tasks/builtin"
FILES = sorted(path.name for path in (BUILTIN / "data").iterdir())


def read_as(text, monkeypatch):
    monkeypatch.setattr(module, "read", lambda file: text)
    return lists.__wrapped__("some.txt")


def test_a_file_is_lists_of_lines_with_comments_and_empty_lines_left_out(monkeypatch):
    text = "# said first\n\n[one]\nred blue\n  green  \n# between\n\n[two: sub]\nA {} is | b\n"
    assert read_as(text, monkeypatch) == {"one": ("red blue", "green"), "two: sub": ("A {} is | b",)}


def test_a_list_given_twice_is_not_silently_the_second_one(monkeypatch):
    with pytest.raises(AssertionError, match="two lists"):
        read_as("[one]\na\n[one]\nb\n", monkeypatch)


def test_words_and_questions_are_taken_from_lines():
    assert words(("red blue", "green")) == ["red", "blue", "green"]
    assert questions_and_facts(("Is {} a?", "b: c", "The {} is")) == (("Is {} a?", "The {} is"), ["b: c"])


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_shipped_named_by_a_task_and_has_no_empty_list(name):
    assert resources.files("headwise.tasks.builtin").joinpath("data", name).is_file()
    assert any(f'"{name}"' in path.read_text(encoding="utf-8") for path in BUILTIN.glob("*.py"))
    if name.endswith(".txt"):
        assert all(lists(name).values())


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".txt")])
def test_no_line_of_a_list_is_written_twice(name):
    for title, lines in lists(name).items():
        assert len(set(lines)) == len(lines), title
