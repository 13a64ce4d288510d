"""Where in its prompt each example has its named spans: from ranges of characters to token positions.

S rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.tokens.encode import Row
from headwise.model.tokens.spans import encoded
from headwise.model.tokens.text import Text
from headwise.several import several
from headwise.tasks.examples import Task

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
    known = span_names(task)
    if not known:
        raise HeadwiseError(
            f"the examples of {task.name!r} have no spans in common; give each example spans={{'name': (from, to)}}, "
            "ranges of characters of its prompt, or leave spans out"
        )
    if spans == "all":
        return (*known, REST)
    chosen = tuple(dict.fromkeys(several(spans)))
    for name in chosen:
        if name not in (*known, REST):
            raise HeadwiseError(
                f"{name!r} is no span of every example of {task.name!r}; they have {', '.join(known)}, and {REST!r}"
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
