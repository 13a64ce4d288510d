"""References that are the same for every example: zero, and mean head outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.measure.references.registry import ReferenceSource, register
from headwise.model.tokens.encode import Row


@register("zero")
def zero(source: ReferenceSource) -> None:
    """Zero ablation."""


@register("mean")
def mean(source: ReferenceSource) -> dict[Any, Tensor]:
    """The mean over all real tokens of the reference examples."""
    return _mean(source, source.reference_rows, by_position=False)


@register("position_mean")
def position_mean(source: ReferenceSource) -> dict[Any, Tensor]:
    """The mean at each position, for reference examples of equal length."""
    rows = source.reference_rows
    lengths = {len(row.ids) for row in rows}
    if len(lengths) > 1:
        raise HeadwiseError(
            f"the reference 'position_mean' needs examples of equal length; these have {min(lengths)} to "
            f"{max(lengths)} tokens (use 'mean', or a task of equal length)"
        )
    prompts, means = ({row.start for row in some} for some in (source.rows, rows))
    if prompts != means or max(len(row.ids) for row in source.rows) > max(lengths):
        raise HeadwiseError(
            f"the reference 'position_mean' needs prompts as long as those of its reference examples: up to "
            f"{max(prompts)} and {max(means)} tokens (use 'mean', or reference examples of the same length)"
        )
    return _mean(source, rows, by_position=True)


def _mean(source: ReferenceSource, rows: list[Row], *, by_position: bool) -> dict[Any, Tensor]:
    ids = [row.ids for row in rows]
    return source.model.mean_outputs(ids, by_position, source.batch_tokens, source.components)
