"""The fields of an example beside prompt and target, in a file that a ready mapping reads.

A mapping makes prompt and target (and sometimes foils or a label) from its own columns. Every other column that has the
name of a field, or a usual name for it, sets this field, whatever the mapping made of it:

    foils, also      with the white space before them that the mapping puts before the target
    counterfactual   the text that stands in the prompt instead of the one that it asks (`ReadyMapping.asked`)
    spans            ranges of characters of that text
    label, group     as they are
    family           as it is, and columns such as `family.order`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headwise.errors import hint, quoted
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, ReadyMapping
from headwise.tasks.files.rows import Log, Row, RowError, Table
from headwise.tasks.files.rows_to_examples import (
    FACET,
    FAMILY,
    LISTS,
    OPTIONAL,
    SPANS,
    cell,
    column_names,
    family_of,
    guessed,
    note_unused,
    spans_of,
    text_of,
    with_facets,
)


def with_further_fields(pairs: Pairs, table: Table, mapping: ReadyMapping, log: Log) -> Pairs:
    """The examples of a mapping with the further fields of their rows; a notice says which columns are not used."""
    columns = _columns([row for row, _ in pairs], mapping, log)
    names = column_names([*table.rows, *(row for row, _ in pairs)])
    missing = [field for field in OPTIONAL if field not in (*columns, *mapping.fields)]
    note_unused(names, {*mapping.fields, *columns.values()}, missing, log, mapping.name)
    complete: Pairs = []
    for row, example in pairs:
        with log.at(row):
            given = {field: name for field, name in columns.items() if row.get(name) not in (None, "", [])}
            fields = {
                field: _field(row, example, field, name, table, mapping) for field, name in given.items()
            }
            complete.append((row, replace(example, **with_facets({FAMILY: example.family} | fields))))
    return complete


def _columns(rows: list[Row], mapping: ReadyMapping, log: Log) -> Mapping[str, str]:
    """The column of every further field that these rows have; usual names are told."""
    free = [name for name in column_names(rows) if name not in mapping.fields]
    columns = {name: name for name in free if name in (*OPTIONAL, SPANS, FAMILY) or name.startswith(FACET)}
    missing = [field for field in OPTIONAL if field not in (*columns, *mapping.fields)]
    usual = {field: name for field, name in guessed(free, missing).items() if name is not None}
    if usual:
        read = ", ".join(f"{name!r} as the {field}" for field, name in usual.items())
        log.notices.append(f"read {read}")
    return columns | usual


def _field(row: Row, example: Example, field: str, name: str, table: Table, mapping: ReadyMapping) -> Any:
    """What a column gives for a field."""
    if field in LISTS:
        listed = replace(row, values={name: cell(row.get(name), table.from_text)})
        space = example.target[: len(example.target) - len(example.target.lstrip())]
        return tuple(space + answer for answer in listed.answers(name))
    if field == SPANS:
        asked, before, _ = _place(row, example, name, mapping)
        shift = len(before) - (len(asked) - len(asked.lstrip()))
        return {span: (start + shift, end + shift) for span, (start, end) in spans_of(row, asked).items()}
    if field == FAMILY:
        return family_of(row)
    text = text_of(row, name, field)
    if field != "counterfactual" or text is None:
        return text
    _, before, after = _place(row, example, name, mapping)
    return before + text.strip() + after


def _place(row: Row, example: Example, name: str, mapping: ReadyMapping) -> tuple[str, str, str]:
    """The text that the prompt asks, and what stands before and after it."""
    asked = mapping.asked(row)
    if isinstance(asked, str) and asked.strip():
        before, found, after = example.prompt.partition(asked.strip())
        if found and found not in after:
            return asked, before, after
    raise RowError(
        f"{name!r} belongs to the text {quoted(asked)}, which does not occur exactly once in the prompt "
        f"{quoted(example.prompt)}; give {hint('columns', {'prompt': 'NAME', 'target': 'NAME'})}"
    )
