"""A card as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import pandas as pd

from headwise.charts.card import PATTERNS, answer_row, number, sentences
from headwise.display import joined_tokens
from headwise.tables.frames import Tables, groups, table_of

_WIDTH = 14
_ATTENDED = 5
"""Tokens listed as attended to most."""


def as_text(title: str, tables: Tables, notes: Sequence[str]) -> str:
    """The card in about thirty lines; the tables are those of `Card.tables`."""
    lines = [title]
    lines += _block("scores", [_score(row) for row in table_of(tables, "scores").to_dict("records")])
    lines += _block("in words", sentences(table_of(tables, "tokens"), table_of(tables, "patterns")))
    lines += _block("patterns", [_pattern(row) for row in table_of(tables, "patterns").to_dict("records")])
    for example, attention in groups(table_of(tables, "attention"), "example"):
        tokens = table_of(tables, "tokens")
        listed = tokens[tokens["example"] == example] if len(tokens) else tokens
        inside = [f"{joined_tokens(answer_row(attention)['token'])!r}", f"attends to  {_attended(attention)}"]
        inside += [f"{words}  {_tokens(rows)}" for words, rows in _lists(listed)]
        lines += _block(f"example {example + 1}", inside)
    for source, rows in _by_source(table_of(tables, "tokens")):
        inside = [f"{words}  {_tokens(part)}" for words, part in _lists(rows)]
        lines += _block("OV weights", [f"attending to {source!r}", *inside])
    for kind, rows in groups(table_of(tables, "examples"), "kind"):
        lines += _block(f"{kind} most", [_example(row) for row in rows.to_dict("records")])
    return "\n".join([*lines, *_block("note", list(notes))])


def as_html(title: str, tables: Tables, notes: Sequence[str]) -> str:
    """The card for a notebook: every text is escaped."""
    parts = [f"<h4>{escape(title)}</h4>"]
    shown_sentences = sentences(table_of(tables, "tokens"), table_of(tables, "patterns")) + list(notes)
    parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in shown_sentences) + "</ul>")
    parts.append(_html_table("Scores", table_of(tables, "scores")))
    shown = ["prompts", "pattern", "attention", "rank", "heads", "n"]
    parts.append(_html_table("Attention patterns", table_of(tables, "patterns").reindex(columns=shown)))
    for example, attention in groups(table_of(tables, "attention"), "example"):
        tokens = table_of(tables, "tokens")
        listed = tokens[tokens["example"] == example] if len(tokens) else tokens
        parts.append(
            f"<h5>Example {example + 1}: attention of the answer's position</h5>{_shaded(attention)}"
        )
        parts += [f"<p>{words}: {escape(_tokens(rows))}</p>" for words, rows in _lists(listed)]
    for source, rows in _by_source(table_of(tables, "tokens")):
        parts += [
            f"<p>OV weights, {escape(repr(source))} {words}: {escape(_tokens(part))}</p>"
            for words, part in _lists(rows)
        ]
    shown = ["kind", "value", "prompt", "target", "foils"]
    parts.append(_html_table("Examples", table_of(tables, "examples").reindex(columns=shown)))
    return "".join(parts)


def _block(name: str, lines: list[str]) -> list[str]:
    """Lines with the name of the block before the first."""
    return [f"  {'' if place else name:<{_WIDTH}}{line}" for place, line in enumerate(lines)]


def _score(row: dict[Any, Any]) -> str:
    rank = f", rank {row['rank']:.0f} of {row['heads']:.0f}" if row["rank"] == row["rank"] else ""
    q = f", q = {row['q']:.2g}" if row["q"] == row["q"] else ""
    interval = f" [{number(row['lo'])}, {number(row['hi'])}]" if row["lo"] == row["lo"] else ""
    return f"{row['measure']} on {row['task']} {number(row['score'])}{interval}{q}{rank}"


def _pattern(row: dict[Any, Any]) -> str:
    name = f"{PATTERNS.get(row['pattern'], row['pattern'])}, {row['prompts']}"
    return f"{name:<42}{row['attention']:.3f}  rank {row['rank']} of {row['heads']}"


def _attended(attention: pd.DataFrame) -> str:
    most = answer_row(attention).nlargest(_ATTENDED, "attention")
    tokens = ", ".join(f"{row['token']!r} {row['attention']:.2f}" for row in most.to_dict("records"))
    return f"{tokens} (from the position that predicts the answer)"


def _tokens(rows: pd.DataFrame) -> str:
    return ", ".join(f"{row['token']!r} {number(row['logit'])}" for row in rows.to_dict("records"))


def _lists(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The promoted and the suppressed tokens, the strongest first."""
    for kind, words in (("promoted", "promotes  "), ("suppressed", "suppresses")) if len(rows) else ():
        part = rows[rows["kind"] == kind]
        if len(part):
            yield words, part.sort_values("rank", ascending=kind == "promoted")


def _by_source(tokens: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Token lists of the OV weights, by the token that is attended to."""
    if not len(tokens):
        return []
    rows = tokens[(tokens["path"] == "weights") & (tokens["kind"] != "own")]
    return groups(rows, "source")


def _example(row: dict[Any, Any]) -> str:
    foils = f", not {row['foils']}" if row["foils"] else ""
    return f"{number(row['value'])}  {row['prompt']!r} → {row['target']}{foils}"


def _shaded(attention: pd.DataFrame) -> str:
    """The prompt, each token shaded by the attention that it gets."""
    tokens = [
        f'<span style="background:rgba(31,95,168,{min(1.0, row["attention"]):.2f})" '
        f'title="{row["attention"]:.3f}">{escape(row["token"])}</span>'
        for row in answer_row(attention).to_dict("records")
    ]
    return f'<p style="white-space:pre-wrap">{"".join(tokens)}</p>'


def _html_table(title: str, table: pd.DataFrame) -> str:
    if not len(table):
        return ""
    return f"<h5>{title}</h5>" + table.to_html(
        index=False, float_format="{:.3g}".format, na_rep="–", border=0
    )
