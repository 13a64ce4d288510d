"""Rows of data, each with its location in the file, and the log of what is wrong with them.

A row that cannot be used is never dropped: it is noted in the `Log` with its number, and the log refuses the
file at the end. Only what a ready mapping leaves out on purpose becomes a notice instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headwise.errors import HeadwiseError, quoted
from headwise.tasks.registry import ModelText


class RowError(Exception):
    """What is wrong with one row, and what was expected; caught by `Log.at`, which knows the location."""


class Log:
    """Problems with a file's rows, which refuse the file, and notices, which do not."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.notices: list[str] = []
        self.problems: list[tuple[int, str]] = []
        """(number that gives the order, location and what is wrong there)."""

    def bad(self, number: int, problem: str, location: str = "") -> None:
        """Note what is wrong at this line, or at another location in the file; the number gives the order."""
        self.problems.append((number, f"{location or f'line {number}'}: {problem}"))

    @contextmanager
    def at(self, row: Row, part: str = "") -> Iterator[None]:
        """Turn a `RowError` raised inside into a problem with this row (or this part of it)."""
        try:
            yield
        except RowError as bad:
            self.bad(row.number, str(bad), f"{row.location}, {part}" if part else row.location)

    def refuse_if_bad(self) -> None:
        """Raise the first problem in the order of the file, with the number of further ones."""
        if self.problems:
            first = min(self.problems, key=lambda problem: problem[0])[1]
            more = len(self.problems) - 1
            counted = f" (and {more} more bad {'entry' if more == 1 else 'entries'})" if more else ""
            raise HeadwiseError(f"{self.source}, {first}{counted}")


@dataclass(frozen=True)
class Row:
    """One record, and its location in the file."""

    number: int
    unit: str
    """`line`, `record` or `row`; numbers count from 1."""
    values: Mapping[str, Any]

    @property
    def location(self) -> str:
        return f"{self.unit} {self.number}"

    def get(self, key: str) -> Any:
        """The value, or None where it is missing, null or not-a-number (how tables write "nothing")."""
        value = self.values.get(key)
        return None if isinstance(value, float) and math.isnan(value) else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            state = "is null" if key in self.values else "is missing"
            raise RowError(f"the field {key!r} {state}; the fields here are {named(self.values)}")
        return value

    def text(self, key: str) -> str:
        """A field that must be text."""
        return as_text(self.need(key), key)

    def filled(self, key: str, *, or_number: bool = False) -> str:
        """A field that must be text (or a number) with something in it, without the space around it."""
        text = (text_or_number if or_number else as_text)(self.need(key), key).strip()
        if not text:
            raise RowError(f"the field {key!r} is empty, expected text")
        return text

    def answers(self, key: str) -> tuple[str, ...]:
        """A field that holds one answer or a list of them, each a text or a number; repeats are left out."""
        value = self.need(key)
        listed = value if isinstance(value, list) else [value]
        if not listed:
            raise RowError(f"{key!r} is an empty list, expected at least one answer")
        return tuple(dict.fromkeys(text_or_number(answer, key).strip() for answer in listed))


def as_text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    raise RowError(f"{what!r} is {kind(value)}, expected text")


def text_or_number(value: Any, what: str) -> str:
    """Text as it is; a number written out. For fields whose text never needs a leading space."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return as_text(value, what)


def kind(value: Any) -> str:
    """A value's type in words, with the value where it is short."""
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", bytes: "raw bytes"}
    words |= {list: "a list", tuple: "a list", dict: "an object"}
    return f"{words.get(type(value), f'a {type(value).__name__}')} ({quoted(value)})"


def named(names: Iterable[str], most: int = 12) -> str:
    """The names in quotes, or the first of them and the number of the others; "none" where there are none."""
    listed = [quoted(name) for name in names]
    others = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + others or "none"


@dataclass(frozen=True)
class Table:
    """The rows of one source."""

    rows: list[Row]
    log: Log
    about: Mapping[str, Any] = field(default_factory=dict)
    """What stands beside the list in a JSON object: a name, prefixes."""
    from_text: bool = False
    """Read from cells that hold nothing but text (CSV), where a list is written as JSON."""
    text: ModelText | None = None
    """The tokenizer of the model that the examples are for, where it is known."""
    seed: int = 0
    """Of what a mapping draws."""
