"""Ready mappings: public data sets that load by themselves, recognised by their fields.

    @register("riddles", about="{riddle, solution}", fields=("riddle", "solution"), recognises=...)
    @each_row
    def riddles(row: Row, wording: Annotated[str, one_gap("riddle")] = "Riddle: {riddle}\\n") -> Example:
        ...

A mapping turns all rows of a table into examples, each with the row that has its further fields; its further parameters
are options. What is wrong with a row goes to the log through `log.at(row)`, or through `each_row` where a row gives one
example at most; what a mapping leaves out on purpose is listed in `log.notices`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from headwise.errors import HeadwiseError, hint, model_hint, quoted, unknown
from headwise.registry import Registry
from headwise.settings import Settings, passes, settings_of
from headwise.tasks.examples import Example
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
from headwise.tasks.templates import Template

Pairs = list[tuple[Row, Example]]


def contrast_metric(examples: Sequence[Example]) -> str:
    """`logit_diff` where every example says what the wrong answers are, else `logprob`."""
    return "logit_diff" if all(example.foils for example in examples) else "logprob"


@dataclass(frozen=True, kw_only=True)
class ReadyMapping:
    """How one data set becomes examples."""

    name: str
    about: str
    """The fields it reads and what it makes of them, in a line."""
    fields: tuple[str, ...]
    """Every column that it reads; others are kept where they are fields of an example (`with_further_fields`)."""
    recognises: Callable[[Row], bool]
    """Whether a file whose first row this is holds this data set."""
    read: Callable[..., Pairs]
    settings: type[Settings]
    """Its options."""
    metric: Callable[[Sequence[Example]], str] = contrast_metric
    question: Callable[[Row], Any] | None = None
    """The text of a row that the prompt asks (by default the first of `fields`): a counterfactual stands in its place,
    and spans are ranges of it."""

    def resolve(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Every option with its value, checked."""
        for name in options:
            if name not in self.settings.model_fields:
                raise unknown(f"option of mapping {self.name!r}", name, self.settings.model_fields)
        try:
            return dict(self.settings(**options))
        except HeadwiseError as error:
            raise HeadwiseError(f"mapping {self.name!r}: {error}") from None


class NeedsTokenizer(HeadwiseError):  # noqa: N818 - named for what is wrong
    """A file whose examples depend on a model's tokenizer is read without one; its rows are otherwise right."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} can be read only with the tokenizer of a model; give {model_hint()}")


MAPPINGS: Registry[ReadyMapping] = Registry("mapping", "headwise.tasks.files.mappings")
registered = MAPPINGS.in_order


def register(name: str, **about: Any) -> Callable[[Callable[..., Pairs]], Callable[..., Pairs]]:
    """Make a mapping known under `name`; the other arguments are the fields of `ReadyMapping`."""
    return MAPPINGS.decorator(
        name, lambda read: ReadyMapping(name=name, read=read, settings=settings_of(name, read), **about)
    )


def one_gap(gap: str) -> Any:
    """The option of a wording: a template with this gap once and no other."""

    def check(wording: str) -> None:
        if Template.parse(wording).names != (gap,):
            raise HeadwiseError(f"wording {wording!r} must have {{{gap}}} in it once and no other gap")

    return passes(check)


def examples_of(table: Table, make: Callable[[Row], Example | None]) -> Pairs:
    """What `make` gives for each row, where it gives an example; a `RowError` goes to the log."""
    pairs: Pairs = []
    for row in table.rows:
        with table.log.at(row):
            if (example := make(row)) is not None:
                pairs.append((row, example))
    return pairs


def each_row(make: Callable[..., Example]) -> Callable[..., Pairs]:
    """A mapping of a function that makes the example of one row."""

    @wraps(make)
    def read(table: Table, **options: Any) -> Pairs:
        return examples_of(table, lambda row: make(row, **options))

    return read


def each_pair(make: Callable[..., Example]) -> Callable[..., Pairs]:
    """`each_row` for sets of minimal pairs."""

    @wraps(make)
    def read(table: Table, **options: Any) -> Pairs:
        return equally_long(table, examples_of(table, lambda row: make(row, **options)))

    return read


def equally_long(table: Table, found: Pairs) -> Pairs:
    """Sets of pairs are made for one tokenizer: examples whose counterfactual has another number of tokens than the
    prompt are left out; where none is left, all are kept without it. A notice says which."""
    if (text := table.text) is None:
        return found
    lengths = [{len(text.encode(p)) for p in (e.prompt, e.counterfactual or e.prompt)} for _, e in found]
    equal = [pair for pair, of_pair in zip(found, lengths, strict=True) if len(of_pair) == 1]
    unequal = f"{len(found) - len(equal)} of {len(found)} pairs"
    if found and not equal:
        table.log.notices.append(
            f"the prompts of no pair have equally many tokens; {unequal} are kept without counterfactual"
        )
        return [(row, replace(example, counterfactual=None)) for row, example in found]
    if len(equal) < len(found):
        table.log.notices.append(f"left out {unequal}, whose prompts have different numbers of tokens")
    return equal


# ---- the fields of an example beside prompt and target ------------------------------------------------
# A mapping makes prompt and target (and sometimes foils or a label) from its own columns. Every other column that has
# the name of a field, or a usual name for it, sets this field, whatever the mapping made of it:
#
#     foils, also      with the white space before them that the mapping puts before the target
#     counterfactual   the text that stands in the prompt instead of the one that it asks (`ReadyMapping.question`)
#     spans            ranges of characters of that text
#     label, group     as they are
#     family           as it is, and columns such as `family.order`


def with_further_fields(pairs: Pairs, table: Table, mapping: ReadyMapping) -> Pairs:
    """The examples of a mapping with the further fields of their rows; a notice says which columns are not used."""
    log = table.log
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
        question, before, _ = _place(row, example, name, mapping)
        shift = len(before) - (len(question) - len(question.lstrip()))
        return {span: (start + shift, end + shift) for span, (start, end) in spans_of(row, question).items()}
    if field == FAMILY:
        return family_of(row)
    text = text_of(row, name, field)
    if field != "counterfactual" or text is None:
        return text
    _, before, after = _place(row, example, name, mapping)
    return before + text.strip() + after


def _place(row: Row, example: Example, name: str, mapping: ReadyMapping) -> tuple[str, str, str]:
    """The text that the prompt asks, and what stands before and after it."""
    question = mapping.question(row) if mapping.question else row.get(mapping.fields[0])
    if isinstance(question, str) and question.strip():
        before, found, after = example.prompt.partition(question.strip())
        if found and found not in after:
            return question, before, after
    raise RowError(
        f"{name!r} belongs to the text {quoted(question)}, which does not occur exactly once in the prompt "
        f"{quoted(example.prompt)}; give {hint('columns', {'prompt': 'NAME', 'target': 'NAME'})}"
    )
