"""The user's own data as a task: a file, a dataset on the hub, or a list or DataFrame in memory."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, hint, unknown
from headwise.tasks.examples import Example, Task
from headwise.tasks.files.checks import check_all
from headwise.tasks.files.further_fields import with_further_fields
from headwise.tasks.files.hub import PREFIX, parse, read_hub
from headwise.tasks.files.in_memory import read_items
from headwise.tasks.files.mappings import registry as mappings
from headwise.tasks.files.readers import read_table
from headwise.tasks.files.rows import Log, Row, Table, named
from headwise.tasks.files.rows_to_examples import (
    FIELDS,
    NEEDED,
    Columns,
    facet_columns,
    guessed,
    probable_field,
    read_fields,
    rename,
    with_guesses,
)
from headwise.tasks.registry import Lengths, ModelText

PLAIN = "fields"
"""The name of the mapping that takes the fields of an example as they are."""

_log = logging.getLogger(__name__)


def load_task(
    source: Any,
    *,
    columns: Columns | None = None,
    mapping: str | None = None,
    name: str | None = None,
    metric: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    tokens: Lengths | ModelText | None = None,
    **options: Any,
) -> Task:
    """The examples in a file, in a dataset named `hub:owner/name[:configuration][:split]`, or in a list or DataFrame.

    Fields of an example are `prompt`, `target`, `foils`, `counterfactual`, `label`, `also`, `group`, `spans` and
    `family`; `columns` maps other names to them. Without `columns`, a public data set is recognised by its fields, or
    named with `mapping`, and usual names of columns are recognised too; `options` are `family` (facet -> column),
    `records`, `duplicates` and those of the mapping.

        load_task("mine.jsonl")
        load_task([("The capital of France is", " Paris", " Rome"), ("The capital of Peru is", " Lima", " Quito")])
        load_task("quiz.csv", columns={"prompt": "Q: {question}\\nA:", "target": " {answer}"})
        load_task("mine.csv", family={"order": "pattern", "length": "n_words"})
        load_task("gsm8k/test.jsonl", answers="final", limit=200)

    `limit` draws that many examples with `seed`, in the order of the file. `records` names the list to read
    where a JSON object holds several. `duplicates` is `drop` (with a notice), `refuse` or `keep`. `tokens` is the
    model's tokenizer (`model.text`) or its encode function alone; with it, counterfactuals must have as many tokens
    as their prompts. Files of token ids and of chats need the tokenizer.

    A file with a bad entry is refused with the location of the first one. What a mapping leaves out on purpose
    is logged, and listed in `settings["notices"]`.
    """
    read = _read_examples(source, columns, mapping, seed, tokens, options)
    examples, notices = read.examples, read.log.notices
    _check_limit(limit)
    if limit is not None and limit > len(examples):
        notices.append(f"only {len(examples)} examples, fewer than the limit of {limit}; all are used")
    for notice in notices:
        _log.warning("%s: %s", read.log.source, notice)
    settings = read.settings | {"limit": limit, "of": len(examples), "seed": seed, "notices": list(notices)}
    if limit is not None and limit < len(examples):
        drawn = random.Random(f"limit/{seed}").sample(range(len(examples)), limit)
        examples = [examples[i] for i in sorted(drawn)]
    metric = metric or (read.ready.metric if read.ready else mappings.contrast_metric)(examples)
    return Task(name or _name(source, read.table), tuple(examples), metric, settings)


def check_file(
    source: str | Path, options: Mapping[str, Any], tokens: Lengths | ModelText | None = None
) -> list[Example] | None:
    """The examples of a file, with everything checked that needs no model; None where only its tokenizer can tell.

    options: those of `load_task`. Nothing is logged.
    """
    others = {name: value for name, value in options.items() if name not in ("name", "metric")}
    columns, mapping = others.pop("columns", None), others.pop("mapping", None)
    try:
        return _read_examples(source, columns, mapping, 0, tokens, others).examples
    except mappings.NeedsTokenizer:
        return None


@dataclass(frozen=True)
class _Read:
    """A source, read."""

    examples: list[Example]
    table: Table
    ready: mappings.ReadyMapping | None
    log: Log
    settings: dict[str, Any]
    """How it was read."""


def _read_examples(
    source: Any,
    columns: Columns | None,
    mapping: str | None,
    seed: int,
    tokens: Lengths | ModelText | None,
    options: dict[str, Any],
) -> _Read:
    """The examples of a source that pass every check."""
    options = dict(options)
    records, duplicates = options.pop("records", None), options.pop("duplicates", "drop")
    facets = facet_columns(columns, options.pop("family", None))
    if duplicates not in ("drop", "refuse", "keep"):
        raise unknown("value of duplicates", str(duplicates), ("drop", "refuse", "keep"))
    log = Log(_displayed(source))
    table = _read(source, log, records)
    if isinstance(tokens, ModelText):
        table, tokens = replace(table, text=tokens), tokens.encode
    ready = _choose(table.rows, mapping, columns, log)
    if ready is None:
        if options:
            raise HeadwiseError(
                f"{named(options)} given, but only ready mappings have options and {log.source} is read by "
                f"its fields; name a mapping with {hint('mapping', 'NAME')}, of {', '.join(mappings.registered())}"
            )
        columns = {**with_guesses(table, columns or {}, log), **facets}
        pairs = read_fields(table, columns, log)
    else:
        options = mappings.resolve(ready, options)
        if columns := {**(columns or {}), **facets}:
            table = rename(table, columns, ready.fields, log)
        pairs = ready.read(table, log, random.Random(f"{ready.name}/{seed}"), **options)
        pairs = with_further_fields(pairs, table, ready, log)
    examples = check_all(pairs, log, duplicates=duplicates, tokens=tokens)
    log.refuse_if_bad()
    if not examples:
        raise HeadwiseError(f"{log.source} gave no examples: {'; '.join(log.notices) or 'it has no rows'}")
    settings = {
        "source": log.source if isinstance(source, str | Path) else None,
        "mapping": ready.name if ready else PLAIN,
        **({"columns": dict(columns)} if columns else {}),
        **({"records": records} if records else {}),
        **options,
        "duplicates": duplicates,
    }
    return _Read(examples, table, ready, log, settings)


def _displayed(source: Any) -> str:
    """What the sentences call the source."""
    return str(source) if isinstance(source, str | Path) else f"the {type(source).__name__}"


def _check_limit(limit: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise HeadwiseError(
            f"limit={limit!r} is not a number of examples; expected 1 or more, or None for all"
        )


def _read(source: Any, log: Log, records: str | None) -> Table:
    if isinstance(source, str | Path) and not str(source).startswith(PREFIX):
        return read_table(_path(source), log, records)
    if records is not None:
        raise HeadwiseError(
            f"{hint('records', records)} names a list inside a .json object; {log.source} has none"
        )
    return read_hub(source) if isinstance(source, str) else read_items(source, log)


def _path(source: str | Path) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # "~name" where there is no such user: it may still be a file
        return Path(source)


def _choose(
    rows: Sequence[Row], mapping: str | None, columns: Columns | None, log: Log
) -> mappings.ReadyMapping | None:
    """The ready mapping to use, or None for the plain fields."""
    known = mappings.registered()
    if mapping is not None:
        if mapping != PLAIN and mapping not in known:
            raise unknown("mapping", str(mapping), (PLAIN, *known))
        return known.get(mapping)
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if columns or set(NEEDED) <= set(names):
        return None
    # Not the first row alone: it may be the one that lacks a field.
    ready = next((ready for row in rows[:20] if (ready := mappings.recognise(row))), None)
    found = guessed(names, NEEDED)
    if ready is None and not set(NEEDED) <= {*names, *found}:
        first = rows[0]
        log.refuse_if_bad()
        near = _misspelt(names, [field for field in NEEDED if field not in {*names, *found}])
        columns = {
            field: field if field in names else found.get(field) or near.get(field) or "NAME"
            for field in NEEDED
        }
        meant = "".join(f"; is {name!r} the {field}?" for field, name in near.items())
        if Path(log.source).suffix.lower() in (".csv", ".tsv"):
            meant = f" (the first line of the file names its columns){meant}"
        raise HeadwiseError(
            f"{log.source}, {first.location}: cannot tell what the fields {named(first.values)} mean{meant}; expected "
            f"{' and '.join(NEEDED)} (optional: {', '.join(FIELDS[2:])}); name your columns with "
            f"{hint('columns', columns)}, or name a mapping with {hint('mapping', 'NAME')}, of {', '.join(known)}"
        )
    return ready


def _misspelt(names: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """The column that is probably meant for a field that is missing, by their spelling."""
    near: dict[str, str] = {}
    for name in names:
        if field := probable_field(name, [field for field in fields if field not in near]):
            near[field] = name
    return near


_GENERIC = {"train", "test", "valid", "validation", "dev", "data", "examples", "task", "all"}


def _name(source: Any, table: Table) -> str:
    """A name that tells tasks apart: what the file says, or its own name, with its folder's if needed."""
    name = table.about.get("name")
    if isinstance(name, str) and name.strip():
        return " ".join(name.split())
    if not isinstance(source, str | Path):
        return "examples"
    if str(source).startswith(PREFIX):
        dataset, *rest = parse(str(source))
        return "-".join([Path(dataset).name, *(part for part in rest if part)])
    path = _path(source)
    folder = path.resolve().parent.name
    return f"{folder}-{path.stem}" if path.stem.lower() in _GENERIC and folder else path.stem
