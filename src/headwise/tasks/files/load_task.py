"""The user's own data as a task: a file, a dataset on the hub, or a list or DataFrame in memory."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, hint, quoted, unknown
from headwise.tasks.examples import Example, Task
from headwise.tasks.files.mappings import registry as mappings
from headwise.tasks.files.readers import no_lists, read_table
from headwise.tasks.files.rows import Log, Row, RowError, Table, named
from headwise.tasks.files.rows_to_examples import (
    FIELDS,
    NEEDED,
    Columns,
    column_names,
    facet_columns,
    guessed,
    probable_field,
    read_fields,
    rename,
    with_guesses,
)
from headwise.tasks.files.sources import PREFIX, parse, read_hub, read_items
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
    if limit is not None and (type(limit) is not int or limit < 1):
        raise HeadwiseError(
            f"limit={limit!r} is not a number of examples; expected 1 or more, or None for all"
        )
    examples, table, ready, settings = _read_examples(source, columns, mapping, seed, tokens, options)
    notices = table.log.notices
    if limit is not None and limit > len(examples):
        notices.append(f"only {len(examples)} examples, fewer than the limit of {limit}; all are used")
    for notice in notices:
        _log.warning("%s: %s", table.log.source, notice)
    settings |= {"limit": limit, "of": len(examples), "seed": seed, "notices": list(notices)}
    if limit is not None and limit < len(examples):
        drawn = random.Random(f"limit/{seed}").sample(range(len(examples)), limit)
        examples = [examples[i] for i in sorted(drawn)]
    metric = metric or (ready.metric if ready else mappings.contrast_metric)(examples)
    return Task(name or _name(source, table), tuple(examples), metric, settings)


def check_file(
    source: str | Path, options: Mapping[str, Any], tokens: Lengths | ModelText | None = None
) -> list[Example] | None:
    """The examples of a file, with everything checked that needs no model; None where only its tokenizer can tell.

    options: those of `load_task`. Nothing is logged.
    """
    others = {name: value for name, value in options.items() if name not in ("name", "metric")}
    columns, mapping = others.pop("columns", None), others.pop("mapping", None)
    try:
        return _read_examples(source, columns, mapping, 0, tokens, others)[0]
    except mappings.NeedsTokenizer:
        return None


def _read_examples(
    source: Any,
    columns: Columns | None,
    mapping: str | None,
    seed: int,
    tokens: Lengths | ModelText | None,
    options: dict[str, Any],
) -> tuple[list[Example], Table, mappings.ReadyMapping | None, dict[str, Any]]:
    """The examples of a source that pass every check, with the table, the mapping and the settings they are from."""
    options = dict(options)
    records, duplicates = options.pop("records", None), options.pop("duplicates", "drop")
    facets = facet_columns(columns, options.pop("family", None))
    if duplicates not in ("drop", "refuse", "keep"):
        raise unknown("value of duplicates", str(duplicates), ("drop", "refuse", "keep"))
    path = source if isinstance(source, str | Path) else None
    log = Log(f"the {type(source).__name__}" if path is None else str(path))
    table = replace(_read(source, log, records), seed=seed)
    if isinstance(tokens, ModelText):
        table, tokens = replace(table, text=tokens), tokens.encode
    ready = _choose(table, mapping, columns)
    if ready is None:
        if options:
            raise HeadwiseError(
                f"{named(options)} given, but only ready mappings have options and {log.source} is read by "
                f"its fields; name a mapping with {hint('mapping', 'NAME')}, of {', '.join(mappings.registered())}"
            )
        columns = {**with_guesses(table, columns or {}), **facets}
        pairs = read_fields(table, columns)
    else:
        options = ready.resolve(options)
        if columns := {**(columns or {}), **facets}:
            table = rename(table, columns, ready.fields)
        pairs = mappings.with_further_fields(ready.read(table, **options), table, ready)
    examples = _checked(pairs, log, duplicates, tokens)
    log.refuse_if_bad()
    if not examples:
        raise HeadwiseError(f"{log.source} gave no examples: {'; '.join(log.notices) or 'it has no rows'}")
    settings = {
        "source": None if path is None else log.source,
        "mapping": ready.name if ready else PLAIN,
        **({"columns": dict(columns)} if columns else {}),
        **({"records": records} if records else {}),
        **options,
        "duplicates": duplicates,
    }
    return examples, table, ready, settings


def _read(source: Any, log: Log, records: str | None) -> Table:
    if isinstance(source, str | Path) and not str(source).startswith(PREFIX):
        return read_table(_path(source), log, records)
    if records is not None:
        raise no_lists(log, records)
    return read_hub(source, log) if isinstance(source, str) else read_items(source, log)


def _path(source: str | Path) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError:  # "~name" where there is no such user: it may still be a file
        return Path(source)


def _choose(table: Table, mapping: str | None, columns: Columns | None) -> mappings.ReadyMapping | None:
    """The ready mapping to use, or None for the plain fields."""
    registered, rows, log = mappings.registered(), table.rows, table.log
    if mapping is not None:
        if mapping != PLAIN and mapping not in registered:
            raise unknown("mapping", str(mapping), (PLAIN, *registered))
        return registered.get(mapping)
    names = column_names(rows)
    if columns or set(NEEDED) <= set(names):
        return None
    # Not the first row alone: it may be the one that lacks a field.
    ready = next((ready for row in rows[:20] for ready in registered.values() if ready.recognises(row)), None)
    found = guessed(names, NEEDED)
    if ready is None and not set(NEEDED) <= {*names, *found}:
        first = rows[0]
        log.refuse_if_bad()
        near: dict[str, str] = {}  # the column that is probably meant for a field, by their spelling
        for name in names:
            missing = [field for field in NEEDED if field not in {*names, *found, *near}]
            if field := probable_field(name, missing):
                near[field] = name
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
            f"{hint('columns', columns)}, or name a mapping with {hint('mapping', 'NAME')}, of {', '.join(registered)}"
        )
    return ready


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


# ---- what makes an example unusable, whatever file or mapping it came from ---------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")


def _checked(
    pairs: Sequence[tuple[Row, Example]], log: Log, duplicates: str, tokens: Lengths | None
) -> list[Example]:
    """The examples that pass. `duplicates`: `drop` exact repeats with a notice, `refuse` or `keep` them."""
    seen: dict[Example, Row] = {}
    passed = []
    dropped = 0
    for row, example in pairs:
        with log.at(row):
            _check(example, tokens)
            repeats = example in seen
            first = seen.setdefault(example, row)
            if not repeats or duplicates == "keep":
                passed.append(example)
            elif duplicates == "drop":
                dropped += 1
            else:
                raise RowError(
                    f"the same example as in {first.location}, expected each once; {hint('duplicates', 'drop')} "
                    "leaves repeats out"
                )
    if dropped:
        log.notices.append(f"left out {dropped} of {len(pairs)} examples that repeat an earlier one exactly")
    return passed


def _check(example: Example, tokens: Lengths | None = None) -> None:
    """Raises `RowError` for an example that no metric can score as it is meant."""
    prompt, target, other = example.prompt, example.target, example.counterfactual
    for text in (prompt, target, other or "", *example.foils, *example.also):
        if half := _SURROGATE.search(text):
            raise RowError(
                f"{quoted(text)} holds half a character ({half[0]!r}), which no tokenizer can read"
            )
    if not target.strip():
        raise RowError(f"the target is empty ({target!r}), expected the text that should follow the prompt")
    for name, texts in (("foil", example.foils), ("further target", example.also)):
        for i, text in enumerate(texts):
            if not text.strip():
                raise RowError(
                    f"a {name} is empty ({text!r}), expected text; leave it out where there is none"
                )
            if text in texts[:i]:
                raise RowError(f"the {name} {quoted(text)} is listed twice, expected each once")
    if target in example.also:
        raise RowError(f"'also' repeats the target {quoted(target)}, expected further right answers only")
    for foil in example.foils:
        if foil in (target, *example.also):
            raise RowError(f"the foil {quoted(foil)} equals the target, expected a wrong answer")
    if other == prompt:
        raise RowError("the counterfactual equals the prompt, expected a prompt that should give a foil")
    if tokens is not None and other is not None:
        length, other_length = len(tokens(prompt)), len(tokens(other))
        if length != other_length:
            raise RowError(
                f"the counterfactual has {other_length} tokens and the prompt {length}, expected as many"
            )
