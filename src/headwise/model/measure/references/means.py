"""References that are the same for every example: zero, and mean head outputs."""

from __future__ import annotations

from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.measure.references.registry import ReferenceSource, register


@register("zero")
def zero(source: ReferenceSource) -> None:
    """Zero ablation."""


@register("mean")
def mean(source: ReferenceSource) -> dict[int, Tensor]:
    """The mean over all real tokens of the reference examples."""
    return source.model.mean_outputs([row.ids for row in source.reference_rows], False, source.batch_tokens)


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
    return source.model.mean_outputs([row.ids for row in rows], True, source.batch_tokens)
