"""The user's own data as a task: JSON lines, JSON, CSV, Parquet, plain text, or a dataset on the hub."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.examples import Task
from headwise.tasks.files.checks import check_all
from headwise.tasks.files.columns import FIELDS, Columns, read_fields, rename
from headwise.tasks.files.hub import PREFIX, parse, read_hub
from headwise.tasks.files.mappings import registry as mappings
from headwise.tasks.files.readers import read_table, reader_of
from headwise.tasks.files.rows import Log, Row, Table, kind, named
from headwise.tasks.registry import Lengths

PLAIN = "fields"
"""The name of the mapping that takes the fields of an example as they are."""

_log = logging.getLogger(__name__)


def load_task(
    source: str | Path,
    *,
    columns: Columns | None = None,
    mapping: str | None = None,
    name: str | None = None,
    metric: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    tokens: Lengths | None = None,
    **options: Any,
) -> Task:
    """The examples in a file, or in a dataset named `hub:owner/name[:configuration][:split]`.

    Fields of an example are `prompt`, `target`, `foils`, `counterfactual`, `label`, `also` and `group`; `columns`
    maps other names to them. Without `columns`, a public data set is recognised by its fields, or named with
    `mapping`; `options` are `records`, `duplicates` and those of the mapping.

        load_task("mine.jsonl")
        load_task("quiz.csv", columns={"prompt": "Q: {question}\\nA:", "target": " {answer}"})
        load_task("gsm8k/test.jsonl", answers="final", limit=200)

    `limit` draws that many examples with `seed`, in the order of the file. `records` names the list to read
    where a JSON object holds several. `duplicates` is `refuse`, `drop` or `keep`. With the tokenizer's encode
    function as `tokens`, counterfactuals must have as many tokens as their prompts.

    A file with a bad entry is refused with the location of the first one. What a mapping leaves out on purpose
    is logged, and listed in `settings["notices"]`.
    """
    records, duplicates = options.pop("records", None), options.pop("duplicates", None)
    _check_arguments(limit, duplicates)
    log = Log(str(source))
    table = _read(source, log, records)
    ready = _choose(table.rows, mapping, columns, log)
    if ready is None:
        if options:
            raise HeadwiseError(
                f"{named(options)} given, but only ready mappings have options and {log.source} is read by "
                f"its fields; name one with mapping=, of {', '.join(mappings.registered())}"
            )
        pairs = read_fields(table, columns or {}, log)
    else:
        options = mappings.resolve(ready, options)
        if columns:
            table = rename(table, columns, ready.fields, log)
        pairs = ready.read(table, log, random.Random(f"{ready.name}/{seed}"), **options)
    duplicates = duplicates or (ready.duplicates if ready else "refuse")
    examples = check_all(pairs, log, duplicates=duplicates, tokens=tokens)
    log.refuse_if_bad()
    if not examples:
        raise HeadwiseError(f"{log.source} gave no examples: {'; '.join(log.notices) or 'it has no rows'}")
    if limit is not None and limit > len(examples):
        log.notices.append(f"{limit} examples were asked for and there are {len(examples)}")
    for notice in log.notices:
        _log.warning("%s: %s", log.source, notice)

    settings = {
        "source": log.source,
        "mapping": ready.name if ready else PLAIN,
        **({"columns": dict(columns)} if columns else {}),
        **({"records": records} if records else {}),
        **options,
        "duplicates": duplicates,
        "limit": limit,
        "of": len(examples),
        "seed": seed,
        "notices": list(log.notices),
    }
    if limit is not None and limit < len(examples):
        drawn = random.Random(f"limit/{seed}").sample(range(len(examples)), limit)
        examples = [examples[i] for i in sorted(drawn)]
    metric = metric or (ready.metric if ready else mappings.contrast_metric)(examples)
    return Task(name or _name(source, table), tuple(examples), metric, settings)


def _check_arguments(limit: Any, duplicates: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise HeadwiseError(
            f"limit={limit!r} is not a number of examples; expected 1 or more, or None for all"
        )
    if duplicates not in (None, "refuse", "drop", "keep"):
        raise unknown("way with duplicates", str(duplicates), ("refuse", "drop", "keep"))


def _read(source: str | Path, log: Log, records: str | None) -> Table:
    if not isinstance(source, (str, Path)):
        raise HeadwiseError(f"the source of a task is {kind(source)}, expected a path or hub:owner/name")
    if not str(source).startswith(PREFIX):
        return read_table(_path(source), log, records)
    if records is not None:
        raise HeadwiseError(f"records={records!r} names a list inside a .json object; {source} has none")
    return read_hub(str(source))


def check_readable(source: str | Path) -> None:
    """Refuse what is no file of a known format, without reading it."""
    reader_of(_path(source), str(source))


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
    if columns or {"prompt", "target"} <= {name for row in rows for name in row.values}:
        return None
    # Not the first row alone: it may be the one that lacks a field.
    ready = next((ready for row in rows[:20] if (ready := mappings.recognise(row))), None)
    if ready is None:
        first = rows[0]
        log.refuse_if_bad()
        raise HeadwiseError(
            f"{log.source}, {first.location}: cannot tell what the fields {named(first.values)} mean; expected "
            f"{', '.join(FIELDS[:2])} (and {', '.join(FIELDS[2:])} where there are any); map yours with "
            f"columns={{'prompt': …, 'target': …}} or name a mapping, of {', '.join(known)}"
        )
    return ready


_GENERIC = {"train", "test", "valid", "validation", "dev", "data", "examples", "task", "all"}


def _name(source: str | Path, table: Table) -> str:
    """A name that tells tasks apart: what the file says, or its own name, with its folder's if needed."""
    name = table.about.get("name")
    if isinstance(name, str) and name.strip():
        return " ".join(name.split())
    if str(source).startswith(PREFIX):
        dataset, *rest = parse(str(source))
        return "-".join([Path(dataset).name, *(part for part in rest if part)])
    path = _path(source)
    folder = path.resolve().parent.name
    return f"{folder}-{path.stem}" if path.stem.lower() in _GENERIC and folder else path.stem
