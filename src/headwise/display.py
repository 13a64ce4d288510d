"""Results as a notebook shows them: small HTML tables, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;padding:2px 12px 2px 0"


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a title above it.

    >>> html_table("<b>", ["x"], [[1]])[:44]
    '<p><strong>&lt;b&gt;</strong></p><table><tr>'
    """
    head = "".join(f'<th style="{_CELL}">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(cell))}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    top = f"<tr>{head}</tr>" if columns else ""
    return f"<p><strong>{escape(title)}</strong></p><table>{top}{body}</table>"


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Names and values, a row each."""
    return html_table(title, (), facts.items())


UNFINISHED = "⋯"
"""Ends a token that has only the first bytes of its last character."""


def joined_tokens(tokens: Iterable[str]) -> str:
    """The text of tokens.

    >>> joined_tokens(["a ⋯", "你"])
    'a 你'
    """
    return "".join(str(token).removesuffix(UNFINISHED) for token in tokens)


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "head"), counted(3, "head")
    ('1 head', '3 heads')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut_in_the_middle(text: str, longest: int = 80) -> str:
    """A text cut in the middle, so that its beginning and its end can be read.

    >>> cut_in_the_middle("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
