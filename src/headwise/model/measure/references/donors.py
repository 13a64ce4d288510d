"""References that come from another prompt, the donor: the head's output there at the same position.

Each row needs a donor row: the donor's prompt with the row's own continuation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.measure.references.registry import ReferenceSource, register
from headwise.model.tokens.encode import Row


@register("patch")
def patch(source: ReferenceSource) -> list[str]:
    """Activation patching: the example's counterfactual prompt."""
    prompts = [example.counterfactual for example in source.task.examples]
    if None in prompts:
        raise HeadwiseError(
            f"the reference 'patch' needs a counterfactual for every example; example {prompts.index(None) + 1} of "
            f"{len(prompts)} has none (use 'mean' or 'zero', or give counterfactuals)"
        )
    return [prompt for prompt in prompts if prompt is not None]


@register("resample")
def resample(source: ReferenceSource) -> list[str]:
    """Resample ablation: the prompt of another example of equal length."""
    text, prompts = source.model.text, [example.prompt for example in source.task.examples]
    groups: dict[int, list[int]] = {}
    for index, ids in enumerate(text.encode_whole(text.trimmed(prompts))):
        groups.setdefault(len(ids), []).append(index)
    donors = list(prompts)
    draw = random.Random(f"resample/{source.seed}")
    for length, members in sorted(groups.items()):
        if len(members) < 2:
            raise HeadwiseError(
                f"the reference 'resample' needs another example of equal length; example {members[0] + 1} is the "
                f"only one with {length} tokens (use 'mean' or 'zero', or more examples)"
            )
        draw.shuffle(members)
        # Each takes from the next in a shuffled ring, so none is its own donor.
        for member, donor in zip(members, [*members[1:], members[0]], strict=True):
            donors[member] = prompts[donor]
    return donors


def donor_rows(source: ReferenceSource, prompts: Sequence[str]) -> list[list[int]]:
    """Input tokens of each row's donor: the donor's prompt, then the row's own continuation."""
    text, examples = source.model.text, source.task.examples
    encoded = text.encode_whole(text.trimmed([prompts[row.example] for row in source.rows]))
    originals = text.encode_whole(text.trimmed([examples[row.example].prompt for row in source.rows]))
    donors = []
    for row, donor, prompt in zip(source.rows, encoded, originals, strict=True):
        if len(donor) != len(prompt):
            raise HeadwiseError(
                f"example {row.example + 1}: its prompt has {len(prompt)} tokens and the counterfactual {len(donor)}; "
                "patch replaces position by position, so the two must have the same length"
            )
        donor = text.without(donor, row.dropped)
        # An empty prompt begins with a start token that the tokenizer itself does not add.
        head = row.ids[: row.start - len(donor)] if row.start > len(donor) else []
        donors.append([*head, *donor][: row.start] + row.ids[row.start :])
    return donors


def first_differences(rows: Sequence[Row], donors: Sequence[Sequence[int]], length: int) -> Tensor:
    """`[rows, length]`: True from the first token in which a row and its donor differ.

    Before that the two runs are the same by causality, so replacing one by the other is no change at all;
    acting only from there on makes a patch with an identical prompt exactly nothing.
    """
    first = []
    for row, donor in zip(rows, donors, strict=True):
        pairs = zip(row.ids, donor, strict=True)
        first.append(next((i for i, (a, b) in enumerate(pairs) if a != b), length))
    return torch.arange(length)[None, :] >= torch.tensor(first)[:, None]
