"""Where gates act: at all tokens, from the last prompt token on, at token positions by number, or at named spans.

S rows, T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AfterValidator, BeforeValidator
from torch import Tensor

from headwise.errors import HeadwiseError, quoted, unknown
from headwise.model.tokens.encode import Row
from headwise.model.tokens.spans import encoded
from headwise.model.tokens.text import Text
from headwise.settings import Text as TextSetting
from headwise.settings import one_of, several
from headwise.tasks.examples import Task

EACH = "each"
ANSWERED = ("all", "last")
"""What generation knows too, which has no spans and goes on after the prompt."""
_NUMBERS = re.compile(r"-?\d+(\s*,\s*-?\d+)*")


Given = str | tuple[int, ...] | tuple[str, ...]
"""A name, token positions, or the names of several spans."""


def parsed(given: Any) -> Given:
    """A name, or several, or numbers: 10, [3, 10]; as text "10", "3,10" and "S2,end".

    >>> parsed("S2"), parsed(10), parsed("3, -1"), parsed("S2, end"), parsed(["S2"])
    ('S2', (10,), (3, -1), ('S2', 'end'), 'S2')
    """
    if isinstance(given, str):
        text = given.strip()
        if _NUMBERS.fullmatch(text):
            return tuple(int(part) for part in text.split(","))
        listed: list[Any] = [part.strip() for part in text.split(",")] if "," in text else [text]
    else:
        listed = list(given) if isinstance(given, Iterable) else [given]
    if listed and all(isinstance(one, str) and one for one in listed):
        names = tuple(dict.fromkeys(listed))
        return names if len(names) > 1 else names[0]
    if not listed or not all(isinstance(p, int | np.integer) and not isinstance(p, bool) for p in listed):
        raise HeadwiseError(
            f"positions is {quoted(given)}; give 'all', 'last', token positions such as [3, -1], or the names of spans"
        )
    return tuple(dict.fromkeys(int(position) for position in listed))


def _not_each(value: Given) -> Given:
    if value == EACH:
        raise HeadwiseError(
            "positions='each' gives a score for every head and position, which only hw.score and the study score "
            "compute; here give 'all', 'last', token positions such as [3, -1], or the names of spans"
        )
    return value


PositionsOrEach = Annotated[Given, BeforeValidator(parsed)]
Positions = Annotated[PositionsOrEach, AfterValidator(_not_each)]
AnswerPositions = Annotated[TextSetting, one_of("positions", lambda: ANSWERED)]


def check_positions(task: Task, positions: Given) -> None:
    """Refuse a name that is no span of every example."""
    names = [*ANSWERED, *(spans := span_names(task)), *([REST] if spans else [])]
    for name in [positions] if isinstance(positions, str) else positions:
        if isinstance(name, str) and name not in names:
            raise unknown("positions", name, names)


def acting(text: Text, task: Task, rows: Sequence[Row], length: int, positions: Given) -> Tensor:
    """`[S, T]`: True where gates act. length: T, at least the number of tokens of every row."""
    if positions == "all":
        return torch.ones(len(rows), length, dtype=torch.bool)
    if positions == "last":
        starts = torch.tensor([row.start for row in rows])
        return torch.arange(length)[None, :] >= starts[:, None] - 1
    if isinstance(positions, str):
        return position_masks(text, task, rows, length, [positions])[positions]
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    if names := [name for name in positions if isinstance(name, str)]:
        for name in names:
            mask |= acting(text, task, rows, length, name)
        return mask
    numbers = [number for number in positions if isinstance(number, int)]
    for number, row in enumerate(rows):
        mask[number, in_prompt(numbers, row.start, f"the prompt of example {row.example + 1}")] = True
    return mask


def in_prompt(positions: Iterable[int], length: int, what: str) -> list[int]:
    """Positions from 0 in a prompt of this many tokens; negative ones count from its end."""
    listed = list(positions)
    for position in listed:
        if not -length <= position < length:
            raise HeadwiseError(
                f"positions has {position}; {what} has {length} tokens, which are positions 0 to {length - 1} (or "
                f"-1 to -{length} from the end)"
            )
    return sorted({position % length for position in listed})


# ---- named spans: from ranges of characters to token positions -------------------------------------------


REST = "rest"
"""The name of all positions that belong to no span of an example."""


def span_names(task: Task) -> tuple[str, ...]:
    """The spans that all examples have, in the order of the first example."""
    first, *others = task.examples
    return tuple(name for name in first.spans if all(name in example.spans for example in others))


def chosen_spans(task: Task, spans: Sequence[str] | str | None) -> tuple[str, ...]:
    """The spans that edges are restricted to: `all` for every span of the task and the rest; empty for none."""
    if spans is None:
        return ()
    names = span_names(task)
    if not names:
        raise HeadwiseError(
            f"the examples of {task.name!r} have no spans in common; give each example spans={{'name': (from, to)}}, "
            "ranges of characters of its prompt, or leave spans out"
        )
    if spans == "all":
        return (*names, REST)
    chosen = tuple(dict.fromkeys(several(spans)))
    for name in chosen:
        if name not in (*names, REST):
            raise HeadwiseError(
                f"{name!r} is no span of every example of {task.name!r}; they have {', '.join(names)}, and {REST!r}"
            )
    return chosen


def position_masks(
    text: Text, task: Task, rows: Sequence[Row], length: int, spans: Sequence[str]
) -> dict[str, Tensor]:
    """`[S, T]` for each span: True at the tokens that hold a character of it; `rest` at those of no span.

    length: T, at least the number of tokens of every row.
    """
    masks = {name: torch.zeros(len(rows), length, dtype=torch.bool) for name in spans}
    if not spans:
        return masks
    for number, row in enumerate(rows):
        example = task.examples[row.example]
        prompt = text.trimmed([example.prompt])[0]
        whole = text.encode_whole([prompt])[0]
        ids, offsets = encoded(text.tokenizer, prompt)
        lead = len(whole) - len(ids)  # what the tokenizer puts before a text
        taken = torch.zeros(length, dtype=torch.bool)
        for name, (first, last) in example.spans.items():
            for place, (start, end) in enumerate(offsets):
                at = lead + place - row.dropped
                if start < last and end > first and lead <= at < row.start:
                    taken[at] = True
                    if name in masks:
                        masks[name][number, at] = True
        if REST in masks:
            masks[REST][number] = ~taken
    return masks
