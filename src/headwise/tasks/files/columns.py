"""The fields of an example, taken from a row's columns.

    columns = {"prompt": "Q: {question}\\nA:", "target": " {answer}", "foils": " {wrong}", "label": "topic"}

A value is the name of a column, or a text with columns in braces; for `foils` and `also` it may be a list of
those. Where a text for `foils` or `also` names a column that holds a list, it is filled once per item.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind, named, text_or_number
from headwise.tasks.templates import Template

FIELDS = ("prompt", "target", "foils", "counterfactual", "label", "also", "group")
LISTS = ("foils", "also")

Columns = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class _Part:
    """Where one text of a field comes from: a column as it is, or a template over several."""

    column: str | None
    template: Template


def read_fields(table: Table, columns: Columns, log: Log) -> list[tuple[Row, Example]]:
    """An example per row; a row that gives none is noted in the log."""
    plan = _plan(table, columns, FIELDS, log)
    for needed in ("prompt", "target"):
        if needed not in plan:
            raise HeadwiseError(
                f"{log.source} has no column for {needed!r} among {named(_names(table))}; name one with "
                f"columns={{{needed!r}: …}}"
            )
    used = {name for parts in plan.values() for part in parts for name in part.template.names}
    _say_unused(table, used, plan, log)
    pairs = []
    for row in table.rows:
        with log.at(row):
            pairs.append((row, _example(row, plan, table.from_text)))
    return pairs


def rename(table: Table, columns: Columns, fields: Sequence[str], log: Log) -> Table:
    """The same table with columns under the names that a ready mapping expects."""
    plan = _plan(table, columns, fields, log)
    rows = []
    for row in table.rows:
        with log.at(row):
            new = {name: _value(row, parts[0]) for name, parts in plan.items() if name in columns}
            rows.append(Row(row.number, row.unit, {**row.values, **new}))
    return Table(rows, table.about, table.from_text)


def _names(table: Table) -> list[str]:
    return list(dict.fromkeys(name for row in table.rows for name in row.values))


def _plan(table: Table, columns: Columns, fields: Sequence[str], log: Log) -> dict[str, list[_Part]]:
    if not isinstance(columns, Mapping):
        raise HeadwiseError(
            f"columns is {kind(columns)}, expected a mapping such as {{'prompt': 'question'}}"
        )
    names = _names(table)
    plan = {name: [_Part(name, Template(((name, True),)))] for name in fields if name in names}
    for name, given in columns.items():
        if name not in fields:
            raise unknown("field in columns", str(name), fields)
        several = isinstance(given, (list, tuple))
        if several and name not in LISTS:
            raise HeadwiseError(
                f"columns gives a list for {name!r}; only foils and also take several columns"
            )
        plan[name] = [_part(one, name, names, log) for one in (given if several else [given])]
    return plan


def _part(given: Any, field: str, names: list[str], log: Log) -> _Part:
    if not isinstance(given, str):
        raise HeadwiseError(
            f"columns gives {kind(given)} for {field!r}, expected a column's name or a template"
        )
    if given in names:
        return _Part(given, Template(((given, True),)))
    template = Template.parse(given)
    for name in template.names or (given,):
        if name not in names:
            raise unknown(f"column of {log.source}", name, names)
    return _Part(None, template)


def _say_unused(table: Table, used: set[str], plan: dict[str, list[_Part]], log: Log) -> None:
    # A misspelt optional field would otherwise vanish without a word.
    unused = [name for name in _names(table) if name not in used]
    if not unused:
        return
    spare = [name for name in FIELDS if name not in plan]
    close = {name: difflib.get_close_matches(name, spare, n=1, cutoff=0.75) for name in unused}
    hints = "".join(f"; {name!r} may mean {near[0]!r}" for name, near in close.items() if near)
    log.notices.append(f"columns not used: {named(unused)}{hints}")


def _example(row: Row, plan: dict[str, list[_Part]], from_text: bool) -> Example:
    return Example(
        prompt=_whole(row, plan["prompt"], "prompt"),
        target=_whole(row, plan["target"], "target"),
        foils=_several(row, plan.get("foils", []), "foils", from_text),
        counterfactual=_optional(row, plan.get("counterfactual", []), "counterfactual"),
        label=_optional(row, plan.get("label", []), "label"),
        also=_several(row, plan.get("also", []), "also", from_text),
        group=_optional(row, plan.get("group", []), "group"),
    )


def _value(row: Row, part: _Part) -> Any:
    """What the row has for a part: the column's value whatever its type, or the filled template."""
    if part.column is not None:
        return row.need(part.column)
    return part.template.fill({name: text_or_number(row.need(name), name) for name in part.template.names})


def _whole(row: Row, parts: list[_Part], field: str) -> str:
    (part,) = parts
    value = _value(row, part)
    what = part.column or field
    if field in ("label", "group"):
        return str(value) if isinstance(value, bool) else text_or_number(value, what)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise RowError(
            f"{what!r} is {kind(value)}, expected text; to write it out with the space before it, give "
            f"columns={{{field!r}: ' {{{what}}}'}}"
        )
    return as_text(value, what)


def _optional(row: Row, parts: list[_Part], field: str) -> str | None:
    """None where the column is missing, null or an empty text."""
    if not parts or (parts[0].column is not None and row.get(parts[0].column) in (None, "")):
        return None
    return _whole(row, parts, field)


def _several(row: Row, parts: list[_Part], field: str, from_text: bool) -> tuple[str, ...]:
    """The texts of all parts, in order."""
    texts: list[str] = []
    for part in parts:
        names = part.template.names
        if part.column is not None and row.get(part.column) in (None, ""):
            continue
        values = {name: _cell(row.need(name), from_text) for name in names}
        lists = [name for name in names if isinstance(values[name], list)]
        if len(set(lists)) > 1:
            raise RowError(
                f"{field} combines two lists ({', '.join(map(repr, lists))}), expected at most one"
            )
        for item in values[lists[0]] if lists else [None]:
            one = {**values, lists[0]: item} if lists else values
            if part.column is not None:
                texts.append(as_text(one[part.column], part.column))
            else:
                texts.append(part.template.fill({name: text_or_number(one[name], name) for name in names}))
    return tuple(texts)


def _cell(value: Any, from_text: bool) -> Any:
    """A CSV cell cannot hold a list, so a JSON list of texts stands for one; anything else is one text."""
    if not (from_text and isinstance(value, str) and value.startswith("[")):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, list) and all(isinstance(item, str) for item in parsed) else value
