"""Logits from the residual stream after each block, by the end of the model itself.

The stream is given to the end of the model as if the last block had written it: the model's own final norm,
unembedding, factors and soft caps run, so that the last block gives the model's own logits.

B rows, T tokens, P positions, W width of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.blocks import read
from headwise.model.forward.run import Pass, at_positions
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import rounding

if TYPE_CHECKING:
    from headwise.model.model import Model


def stage_logits(model: Model, ids: Tensor, positions: Tensor) -> Iterator[Tensor]:
    """Logits `[B, P, vocabulary]` at `positions[B, P]` from the stream after the embeddings and after each block.

    A model whose end does more than read the stream after its last block is refused: the last logits must be the
    model's own.
    """
    blocks = model.hooks.blocks
    streams: list[Tensor] = []
    skip = model.capabilities.share_rows

    def note(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal skip
        skip &= isinstance(output, Tensor)  # a block that is skipped gives out one tensor
        wrote = output if isinstance(output, Tensor) else output[0]
        for stream in ([] if streams else [read(args, kwargs)]) + [wrote]:
            if stream.shape[:2] != ids.shape:
                raise _refusal(model, f"block {len(streams) - 1} does not write one residual stream")
            streams.append(at_positions(stream, positions))

    with hooked(blocks, after=note):
        plain = model.run_whole(Pass(ids=ids, scored=positions)).logits
    if len(streams) != len(blocks) + 1:
        raise _refusal(model, "its blocks share their weights and run several times per pass")
    for number, stream in enumerate(streams):
        index = positions.to(stream.device)[:, :, None].expand(-1, -1, stream.shape[-1])
        whole = stream.new_zeros(*ids.shape, stream.shape[-1]).scatter(1, index, stream)
        logits = model.run_whole(_ending(ids, positions, blocks, whole, skip)).logits
        if number == len(blocks) and float((logits - plain).abs().max()) > rounding(model.hf, plain):
            raise _refusal(model, "its logits are not read from what its last block writes")
        yield logits


def _ending(ids: Tensor, positions: Tensor, blocks: Any, stream: Tensor, skip: bool) -> Pass:
    """A pass whose end reads `stream[B, T, W]`; the blocks compute nothing where they can be skipped."""
    if skip:
        return Pass(ids=ids, scored=positions, known=(len(blocks) - 1, stream))
    return Pass(ids=ids, scored=positions, modules={blocks[-1]: lambda _: stream})


def _refusal(model: Model, why: str) -> HeadwiseError:
    return HeadwiseError(
        f"the logit lens is not defined for {model.name}: {why}; use hw.score with the method 'ablation'"
    )
