"""The fields of an example, taken from a row's columns.

    columns = {"prompt": "Q: {question}\\nA:", "target": " {answer}", "foils": " {wrong}", "label": "topic"}

A value is the name of a column, or a text with columns in braces; for `foils` and `also` it may be a list of
those. Where a text for `foils` or `also` names a column that holds a list, it is filled once per item. None leaves a
field out.

Where neither the table nor `columns` has a prompt or a target, columns with usual names (`GUESSES`) stand for the
fields that are missing. For optional fields "Wrong answer" is the same name as "wrong_answer".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwise.errors import HeadwiseError, hint, unknown
from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind, named, text_or_number
from headwise.tasks.templates import Template

FIELDS = ("prompt", "target", "foils", "counterfactual", "label", "also", "group")
LISTS = ("foils", "also")
SPANS = "spans"
FAMILY = "family"
FACET = "family."
"""What a column's name begins with that holds the level of one facet: `family.order`."""
NEEDED = ("prompt", "target")
OPTIONAL = FIELDS[2:]
GUESSES = {
    "prompt": ("input", "question", "clean", "sentence", "context", "query", "instruction", "text"),
    "target": ("answer", "completion", "output", "response", "correct", "label"),
    "foils": (
        "foil",
        "wrong",
        "wrong_answer",
        "wrong_answers",
        "incorrect",
        "incorrect_answers",
        "distractors",
    ),
    "counterfactual": ("corrupted", "corrupt"),
    "label": ("ability", "skill"),
}
"""Usual names of columns, by the field of an example, the likeliest first."""

Columns = Mapping[str, str | Sequence[str] | None]
"""By field: a column, a text with columns in braces, several of them (foils, also), or None for no column."""


@dataclass(frozen=True)
class _Part:
    """Where one text of a field comes from: a column as it is, or a template over several."""

    column: str | None
    template: Template

    @classmethod
    def of_column(cls, name: str) -> _Part:
        return cls(name, Template(((name, True),)))


def read_fields(table: Table, columns: Columns) -> list[tuple[Row, Example]]:
    """An example per row; a row that gives none is noted in the log."""
    log, plan = table.log, _plan(table, columns, FIELDS)
    for needed in NEEDED:
        if needed not in plan:
            raise HeadwiseError(
                f"{log.source} has no column for {needed!r} among {named(column_names(table.rows))}; name one with "
                f"{hint('columns', {needed: 'NAME'})}"
            )
    used = {SPANS, FAMILY} | {
        name for parts in plan.values() for part in parts for name in part.template.names
    }
    note_unused(column_names(table.rows), used, [field for field in FIELDS if field not in plan], log)
    pairs = []
    for row in table.rows:
        with log.at(row):
            fields: dict[str, Any] = {f: _text(row, plan[f][0], f) for f in plan if f not in LISTS}
            fields |= {f: _texts(row, plan[f], f, table.from_text) for f in plan if f in LISTS}
            fields |= {SPANS: spans_of(row, fields["prompt"]), FAMILY: family_of(row)}
            pairs.append((row, Example(**with_facets(fields))))
    return pairs


def family_of(row: Row) -> dict[str, str]:
    """The column `family`: an object {facet: level}, in a CSV cell as JSON; any other text is the level of one facet
    that is called like the column."""
    value = row.get(FAMILY)
    try:
        given = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        facets = given if isinstance(given, Mapping) else {FAMILY: given}
        levels = {facet: _level(level, facet) for facet, level in facets.items() if level not in (None, "")}
        return dict(Example("", " ", family=levels).family)
    except (ValueError, HeadwiseError) as error:
        raise RowError(
            f'{FAMILY!r} is {kind(value)}, expected an object such as {{"order": "ABB"}} ({error})'
        ) from None


def with_facets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an example, with those of columns such as `family.order` put into its family."""
    facets = {
        f.removeprefix(FACET): level
        for f, level in fields.items()
        if f.startswith(FACET) and level is not None
    }
    others = {f: value for f, value in fields.items() if not f.startswith(FACET)}
    return others | {FAMILY: {**others.get(FAMILY, {}), **facets}}


def facet_columns(columns: Any, family: Any) -> dict[str, str]:
    """The option `family` (facet -> column) as further `columns`; both are checked."""
    for option, given, example in (("columns", columns, "prompt"), ("family", family, "order")):
        if given is not None and not isinstance(given, Mapping):
            raise HeadwiseError(
                f"{option} is {kind(given)}, expected a mapping such as {hint(option, {example: 'NAME'})}"
            )
    return {f"{FACET}{facet}": column for facet, column in (family or {}).items()}


def spans_of(row: Row, text: str) -> dict[str, tuple[int, int]]:
    """The column `spans`, ranges of a text: an object {name: [from, to]}, in a CSV cell as JSON; nothing where there is
    none."""
    value = row.get(SPANS)
    if value is None or value == "":
        return {}
    try:
        given = json.loads(value) if isinstance(value, str) else value
        return dict(
            Example(text, " ", spans={name: ends for name, ends in given.items() if ends is not None}).spans
        )
    except (ValueError, AttributeError, TypeError, HeadwiseError) as error:
        raise RowError(
            f'{SPANS!r} is {kind(value)}, expected an object such as {{"S2": [41, 45]}} ({error})'
        ) from None


def rename(table: Table, columns: Columns, fields: Sequence[str]) -> Table:
    """The same table with columns under the names of a ready mapping's fields and of the optional ones."""
    plan = _plan(table, columns, list(dict.fromkeys((*fields, *OPTIONAL))))

    def value(row: Row, name: str) -> Any:
        parts = plan.get(name)
        if parts is None or ((name in OPTIONAL or name.startswith(FACET)) and _is_empty(row, parts[0])):
            return None
        return list(_texts(row, parts, name, table.from_text)) if name in LISTS else _value(row, parts[0])

    sources = {
        name
        for field in columns
        for part in plan.get(field, ())
        for name in part.template.names
        if name not in fields and not (field.startswith(FACET) and name in OPTIONAL)
    }
    rows = []
    for row in table.rows:
        with table.log.at(row):
            renamed = {name: value(row, name) for name in columns}
            others = {name: other for name, other in row.values.items() if name not in sources}
            rows.append(replace(row, values={**others, **renamed}))
    return replace(table, rows=rows)


def column_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.values))


def _plan(table: Table, columns: Columns, fields: Sequence[str]) -> dict[str, list[_Part]]:
    """The parts of every field that the table or `columns` names."""
    names = column_names(table.rows)
    fields = [*fields, *(name for name in dict.fromkeys((*names, *columns)) if str(name).startswith(FACET))]
    plan = {name: [_Part.of_column(name)] for name in fields if name in names}
    for field, source in columns.items():
        if field not in fields:
            raise unknown("field in columns", str(field), fields)
        is_list = isinstance(source, (list, tuple))
        if is_list and field not in LISTS:
            raise HeadwiseError(
                f"columns gives a list for {field!r}; only foils and also take several columns"
            )
        if source is None:
            plan.pop(field, None)
        else:
            plan[field] = [_part(each, field, names, table.log) for each in (source if is_list else [source])]
    return plan


def guessed(names: Sequence[str], missing: Sequence[str]) -> dict[str, str | None]:
    """The column that stands for each missing field, where its name is a usual one.

    >>> guessed(["clean", "corrupted", "label"], FIELDS)
    {'prompt': 'clean', 'target': 'label', 'counterfactual': 'corrupted'}
    """
    free = dict.fromkeys(names)
    chosen: dict[str, str | None] = {}
    for field, usual in GUESSES.items():
        # A prompt or a target must be named exactly, because the same names in lower case may be a ready mapping's.
        written = {name if field in NEEDED else _simplified(name): name for name in reversed(free)}
        column = next((written[name] for name in usual if name in written), None)
        if field in missing and column is not None:
            chosen[field] = column
            del free[column]
    return chosen


def _simplified(name: str) -> str:
    """A column's name without the differences that people do not see: case, outer spaces, space or underscore."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def probable_field(column: str, fields: Sequence[str]) -> str | None:
    """The field that a column is probably meant for, by the spelling of its own or its usual names.

    >>> probable_field("Wrong anwser", ["foils", "label"]), probable_field("id", FIELDS)
    ('foils', None)
    """
    field_of = {name: field for field in reversed(fields) for name in (*GUESSES.get(field, ()), field)}
    near = difflib.get_close_matches(_simplified(column), field_of, n=1, cutoff=0.75)
    return field_of[near[0]] if near else None


def with_guesses(table: Table, columns: Columns) -> Columns:
    """The columns, with usual names for missing fields where a prompt or a target is missing, and a notice."""
    names = column_names(table.rows)
    if all(needed in (*names, *columns) for needed in NEEDED):
        return columns
    free = [name for name in names if name not in (*FIELDS, *columns.values()) or name == "label"]
    chosen = guessed(free, [field for field in FIELDS if field not in (*names, *columns)])
    if chosen:
        read = ", ".join(f"{column!r} as the {field}" for field, column in chosen.items())
        table.log.notices.append(
            f"read {read}; to change it, give {hint('columns', {next(iter(chosen)): 'NAME'})}"
        )
    if chosen.get("target") == "label":
        chosen["label"] = None  # it is no ability then
    return {**chosen, **columns}


def _part(source: Any, field: str, names: list[str], log: Log) -> _Part:
    if not isinstance(source, str):
        raise HeadwiseError(
            f"columns gives {kind(source)} for {field!r}, expected a column's name or a template"
        )
    if source in names:
        return _Part.of_column(source)
    template = Template.parse(source)
    for name in template.names or (source,):
        if name not in names:
            raise unknown(f"column of {log.source}", name, names)
    return _Part(None, template)


def note_unused(
    names: Sequence[str], used: set[str], missing: Sequence[str], log: Log, mapping: str = ""
) -> None:
    """A notice of the columns that no field uses: a misspelt optional field would otherwise go unnoticed."""
    unused = [name for name in names if name not in used]
    also = f" and {hint('mapping', mapping)}" if mapping else ""
    probable = {
        name: field for name in unused if (field := probable_field(name, missing)) not in (None, name)
    }
    hints = "".join(
        f"; {name!r} may mean {field!r}: to read it, give {hint('columns', {field: name})}{also}"
        for name, field in probable.items()
    )
    if unused:
        log.notices.append(f"columns not used: {named(unused)}{hints}")


def _value(row: Row, part: _Part) -> Any:
    """What the row has for a part: the column's value whatever its type, or the filled template."""
    if part.column is not None:
        return row.need(part.column)
    return part.template.fill({name: text_or_number(row.need(name), name) for name in part.template.names})


def _is_empty(row: Row, part: _Part) -> bool:
    """Whether the column is missing, null or an empty text."""
    return part.column is not None and row.get(part.column) in (None, "")


def text_of(row: Row, column: str, field: str) -> str | None:
    """The text of a field that is one column; None where an optional one is empty."""
    return _text(row, _Part.of_column(column), field)


def _text(row: Row, part: _Part, field: str) -> str | None:
    """The text of a field; None where an optional one is empty."""
    if field not in NEEDED and _is_empty(row, part):
        return None
    value, name = _value(row, part), part.column or field
    if field in ("label", "group") or field.startswith(FACET):
        return _level(value, name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise RowError(
            f"{name!r} is {kind(value)}, expected text; to write it out with the space before it, give "
            f"{hint('columns', {field: f' {{{name}}}'})}"
        )
    return as_text(value, name)


def _level(value: Any, name: str) -> str:
    return str(value) if isinstance(value, bool) else text_or_number(value, name)


def _texts(row: Row, parts: list[_Part], field: str, from_text: bool) -> tuple[str, ...]:
    """The texts of all parts, in order; a part whose column holds a list is filled once per item."""
    texts: list[str] = []
    for part in parts:
        if _is_empty(row, part):
            continue
        values = {name: cell(row.need(name), from_text) for name in part.template.names}
        lists = [name for name, value in values.items() if isinstance(value, list)]
        if len(lists) > 1:
            raise RowError(
                f"{field} combines two lists ({', '.join(map(repr, lists))}), expected at most one"
            )
        written = as_text if part.column is not None else text_or_number
        for item in values[lists[0]] if lists else [None]:
            chosen = values | dict.fromkeys(lists, item)
            texts.append(part.template.fill({name: written(value, name) for name, value in chosen.items()}))
    return tuple(texts)


def cell(value: Any, from_text: bool) -> Any:
    """A CSV cell cannot hold a list, so a JSON list of texts stands for one; anything else is one text."""
    if not (from_text and isinstance(value, str) and value.startswith("[")):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, list) and all(isinstance(item, str) for item in parsed) else value
