"""Ready mappings: public data sets that load by themselves, recognised by their fields.

    @register("riddles", about="{riddle, solution}", fields=("riddle", "solution"), recognises=...)
    def riddles(table: Table, log: Log, draw: random.Random) -> list[tuple[Row, Example]]:
        ...

A mapping turns all rows of a table into examples, each with the row that has its further fields. What is wrong with a
row goes to the log through `log.at(row)`, or through `each_row` where a row gives one example at most; what a mapping
leaves out on purpose is listed in `log.notices`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwise.errors import HeadwiseError, hint, model_hint, unknown
from headwise.registry import Registry
from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, Table, kind
from headwise.tasks.templates import Template

Pairs = list[tuple[Row, Example]]


@dataclass(frozen=True)
class ReadyMapping:
    """How one data set becomes examples."""

    name: str
    about: str
    """The fields it reads and what it makes of them, in a line."""
    fields: tuple[str, ...]
    """Every column that it reads; others are kept where they are fields of an example (`further_fields.py`)."""
    recognises: Callable[[Row], bool]
    """Whether a file whose first row this is holds this data set."""
    read: Callable[..., Pairs]
    options: Mapping[str, Any]
    """Default of each option, or a tuple of its valid values, the default first."""
    metric: Callable[[Sequence[Example]], str]
    asked: Callable[[Row], Any]
    """The text of a row that the prompt asks: a counterfactual stands in its place, and spans are ranges of it."""


class NeedsTokenizer(HeadwiseError):  # noqa: N818 - named for what is wrong
    """A file whose examples depend on a model's tokenizer is read without one; its rows are otherwise right."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} can be read only with the tokenizer of a model; give {model_hint()}")


def contrast_metric(examples: Sequence[Example]) -> str:
    """`logit_diff` where every example says what the wrong answers are, else `logprob`."""
    return "logit_diff" if all(example.foils for example in examples) else "logprob"


MAPPINGS: Registry[ReadyMapping] = Registry("mapping", "headwise.tasks.files.mappings")


def register(
    name: str,
    *,
    about: str,
    fields: tuple[str, ...],
    recognises: Callable[[Row], bool],
    metric: Callable[[Sequence[Example]], str] = contrast_metric,
    asked: Callable[[Row], Any] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Pairs]], Callable[..., Pairs]]:
    """Make a mapping known under `name`. asked: by default the first of `fields`."""
    of_first = asked or (lambda row: row.get(fields[0]))

    def add(read: Callable[..., Pairs]) -> Callable[..., Pairs]:
        MAPPINGS.add(name, ReadyMapping(name, about, fields, recognises, read, options, metric, of_first))
        return read

    return add


def each_row(table: Table, log: Log, make: Callable[[Row], Example | None]) -> Pairs:
    """What `make` gives for each row, where it gives an example; a `RowError` goes to the log."""
    pairs: Pairs = []
    for row in table.rows:
        with log.at(row):
            if (example := make(row)) is not None:
                pairs.append((row, example))
    return pairs


def each_pair(table: Table, log: Log, make: Callable[[Row], Example | None]) -> Pairs:
    """`each_row` for sets of pairs, which are made for one tokenizer: examples whose counterfactual has another number
    of tokens than the prompt are left out; where none is left, all are kept without it. A notice says which."""
    found, text = each_row(table, log, make), table.text
    if text is None:
        return found
    lengths = [{len(text.encode(p)) for p in (e.prompt, e.counterfactual or e.prompt)} for _, e in found]
    equal = [pair for pair, of_pair in zip(found, lengths, strict=True) if len(of_pair) == 1]
    unequal = f"{len(found) - len(equal)} of {len(found)} pairs"
    if found and not equal:
        log.notices.append(
            f"the prompts of no pair have equally many tokens; {unequal} are kept without counterfactual"
        )
        return [(row, replace(example, counterfactual=None)) for row, example in found]
    if len(equal) < len(found):
        unequal = f"{len(found) - len(equal)} of {len(found)} pairs"
        log.notices.append(f"left out {unequal}, whose prompts have different numbers of tokens")
    return equal


def registered() -> dict[str, ReadyMapping]:
    return MAPPINGS.in_order()


def recognise(row: Row) -> ReadyMapping | None:
    """The first mapping, in the order of registration, that knows the fields of this row."""
    return next((mapping for mapping in registered().values() if mapping.recognises(row)), None)


def resolve(mapping: ReadyMapping, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the mapping with its value, checked."""
    chosen = {name: v[0] if isinstance(v, tuple) else v for name, v in mapping.options.items()}
    for name, value in options.items():
        if name not in mapping.options:
            raise unknown(f"option of mapping {mapping.name!r}", name, mapping.options)
        valid = mapping.options[name]
        if isinstance(valid, tuple):
            if not any(value is v or (isinstance(v, str) and value == v) for v in valid):
                listed = ", ".join(map(repr, valid))
                raise HeadwiseError(
                    f"{hint(name, value)} is not valid for mapping {mapping.name!r}; valid: {listed}"
                )
        elif type(value) is not type(valid):
            raise HeadwiseError(
                f"{name} of mapping {mapping.name!r} is {kind(value)}, expected {kind(valid).split(' (')[0]} "
                f"such as {valid!r}"
            )
        elif isinstance(valid, int) and value < 0:
            raise HeadwiseError(f"{name} of mapping {mapping.name!r} is {value}, expected 0 or more")
        chosen[name] = value
    if "wording" in chosen:
        wording, default = chosen["wording"], mapping.options["wording"]
        (gap,) = Template.parse(default).names
        if Template.parse(wording).names != (gap,):
            raise HeadwiseError(
                f"wording {wording!r} of mapping {mapping.name!r} must have {{{gap}}} in it once and no other "
                f"gap, as in {default!r}"
            )
    return chosen
