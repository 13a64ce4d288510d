"""What replaces an ablated head (the reference), computed once from the ungated model.

`zero`, `mean` (over all real tokens of the reference examples), `position_mean` (the same per position, for
tasks of equal length), `patch` (the same head and position in the example's counterfactual), `resample`
(in another example of equal length). The last two need a donor row per row: the donor's prompt with the
row's own continuation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, unknown
from headwise.model.forward.out_of_memory import example_too_large, in_halves
from headwise.model.forward.schedule import batches
from headwise.model.tokens.encode import Row, pad_right
from headwise.model.tokens.text import Text
from headwise.settings import Count, Seed, Settings

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Example

REFERENCES = ("zero", "mean", "position_mean", "resample", "patch")
POSITIONS = ("all", "last")


class CallSettings(Settings):
    """What every call that runs a model on examples is told and has to check."""

    seed: Seed = 0
    batch_tokens: Count | None = None


def check_reference(reference: str, positions: str) -> None:
    if reference not in REFERENCES:
        raise unknown("reference", reference, REFERENCES)
    if positions not in POSITIONS:
        raise unknown("positions", positions, POSITIONS)


def donor_prompts(reference: str, text: Text, examples: Sequence[Example], seed: int) -> list[str] | None:
    """The prompt each example's reference comes from, or None where the reference is no single example's."""
    if reference == "patch":
        missing = [i for i, e in enumerate(examples) if e.counterfactual is None]
        if missing:
            raise HeadwiseError(
                f"the reference 'patch' needs a counterfactual for every example; example {missing[0] + 1} of "
                f"{len(examples)} has none (use 'mean' or 'zero', or give counterfactuals)"
            )
        return [e.counterfactual for e in examples if e.counterfactual is not None]
    if reference != "resample":
        return None
    groups: dict[int, list[int]] = {}
    for index, ids in enumerate(text.encode_whole(text.trimmed([e.prompt for e in examples]))):
        groups.setdefault(len(ids), []).append(index)
    prompts = [""] * len(examples)
    draw = random.Random(f"resample/{seed}")
    for length, members in sorted(groups.items()):
        if len(members) < 2:
            raise HeadwiseError(
                f"the reference 'resample' needs another example of equal length; example {members[0] + 1} is the "
                f"only one with {length} tokens (use 'mean' or 'zero', or more examples)"
            )
        draw.shuffle(members)
        # Each takes from the next in a shuffled ring, so none is its own donor.
        for member, donor in zip(members, [*members[1:], members[0]], strict=True):
            prompts[member] = examples[donor].prompt
    return prompts


def donor_rows(
    text: Text, examples: Sequence[Example], rows: Sequence[Row], prompts: Sequence[str]
) -> list[list[int]]:
    """Input tokens of each row's donor: the donor's prompt, then the row's own continuation."""
    encoded = text.encode_whole(text.trimmed([prompts[row.example] for row in rows]))
    own = text.encode_whole(text.trimmed([examples[row.example].prompt for row in rows]))
    donors = []
    for row, donor, prompt in zip(rows, encoded, own, strict=True):
        if len(donor) != len(prompt):
            raise HeadwiseError(
                f"example {row.example + 1}: its prompt has {len(prompt)} tokens and the counterfactual {len(donor)}; "
                "they must be equal, so that every position has its partner"
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
    places = []
    for row, donor in zip(rows, donors, strict=True):
        pairs = zip(row.ids, donor, strict=True)
        places.append(next((i for i, (a, b) in enumerate(pairs) if a != b), length))
    return torch.arange(length)[None, :] >= torch.tensor(places)[:, None]


def mean_outputs(
    model: Model, rows: Sequence[Row], by_position: bool, batch_tokens: int
) -> dict[int, Tensor]:
    """Each layer's mean head output over the real tokens of the rows: `[H, D]`, or `[T, H, D]` by position."""
    lengths = {len(row.ids) for row in rows}
    if by_position and len(lengths) > 1:
        raise HeadwiseError(
            f"the reference 'position_mean' needs examples of equal length; these have {min(lengths)} to "
            f"{max(lengths)} tokens (use 'mean', or a task of equal length)"
        )
    sums: dict[int, Tensor] = {}

    def add(numbers: Sequence[int]) -> None:
        ids = pad_right([rows[n].ids for n in numbers])
        lengths = torch.tensor([len(rows[n].ids) for n in numbers])
        real = torch.arange(ids.shape[1])[None, :] < lengths[:, None]

        def total(z: Tensor) -> Tensor:
            kept = z.double() * real.to(z.device)[:, :, None, None]
            return kept.sum(0) if by_position else kept.sum((0, 1))

        for layer, found in model.outputs(ids, total).items():
            sums[layer] = sums[layer] + found if layer in sums else found

    for numbers in batches([len(row.ids) for row in rows], batch_tokens):
        in_halves(numbers, add, example_too_large)
    count = len(rows) if by_position else sum(len(row.ids) for row in rows)
    return {layer: (total / count).to(model.dtype) for layer, total in sums.items()}
