"""References that are the same for every example: zero, and mean head outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.forward.out_of_memory import example_too_large, in_halves
from headwise.model.forward.schedule import batches
from headwise.model.measure.references.registry import ReferenceSource, register
from headwise.model.tokens.encode import Row, pad_right

if TYPE_CHECKING:
    from headwise.model.model import Model


@register("zero")
def zero(source: ReferenceSource) -> None:
    """Zero ablation."""


@register("mean")
def mean(source: ReferenceSource) -> dict[int, Tensor]:
    """The mean over all real tokens of the reference examples."""
    return mean_outputs(source.model, source.reference_rows, False, source.batch_tokens)


@register("position_mean")
def position_mean(source: ReferenceSource) -> dict[int, Tensor]:
    """The mean at each position, for reference examples of equal length."""
    rows = source.reference_rows
    lengths = {len(row.ids) for row in rows}
    if len(lengths) > 1:
        raise HeadwiseError(
            f"the reference 'position_mean' needs examples of equal length; these have {min(lengths)} to "
            f"{max(lengths)} tokens (use 'mean', or a task of equal length)"
        )
    return mean_outputs(source.model, rows, True, source.batch_tokens)


def mean_outputs(
    model: Model, rows: Sequence[Row], by_position: bool, batch_tokens: int
) -> dict[int, Tensor]:
    """Each layer's mean head output over the real tokens of the rows: `[H, D]`, or `[T, H, D]` by position."""
    lengths = torch.tensor([len(row.ids) for row in rows])
    sums: dict[int, Tensor] = {}

    def add(numbers: Sequence[int]) -> None:
        ids = pad_right([rows[n].ids for n in numbers])
        real = torch.arange(ids.shape[1])[None, :] < lengths[list(numbers), None]

        def total(z: Tensor) -> Tensor:
            kept = z.double() * real.to(z.device)[:, :, None, None]
            return kept.sum(0) if by_position else kept.sum((0, 1))

        for layer, outputs in model.outputs(ids, total).items():
            sums[layer] = sums[layer] + outputs if layer in sums else outputs

    for numbers in batches(lengths.tolist(), batch_tokens):
        in_halves(numbers, add, example_too_large)
    count = len(rows) if by_position else int(lengths.sum())
    return {layer: (total / count).to(model.dtype) for layer, total in sums.items()}
