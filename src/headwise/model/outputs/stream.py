"""Along the residual stream: logits after each block, gradients around a block, what a head copies from an embedding.

B rows, T tokens, P positions, W width of the stream, N tokens of a vocabulary, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.edges.parts import take_apart
from headwise.model.forward.run import Pass, at_positions, read, with_stream
from headwise.model.sites.patch import first_of, hooked
from headwise.model.sites.probe import probe_input, rounding

if TYPE_CHECKING:
    from headwise.model.model import Model

# ---- logits from the stream after each block, by the end of the model itself -----------------------------
# The stream is given to the end of the model as if the last block had written it: the model's own final norm,
# unembedding, factors and soft caps run, so that the last block gives the model's own logits.


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
        wrote = first_of(output)
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
        # Where the blocks can be skipped, they compute nothing.
        ending: dict[str, Any] = {"modules": {blocks[-1]: lambda _, whole=whole: whole}}
        if skip:
            ending = {"resume_from": (len(blocks) - 1, whole)}
        logits = model.run_whole(Pass(ids=ids, scored=positions, **ending)).logits
        if number == len(blocks) and float((logits - plain).abs().max()) > rounding(model.hf, plain):
            raise _refusal(model, "its logits are not read from what its last block writes")
        yield logits


def _refusal(model: Model, why: str) -> HeadwiseError:
    return HeadwiseError(
        f"the logit lens is not defined for {model.name}: {why}; use hw.score with the method 'ablation'"
    )


# ---- a block's own computation taken out of the backward pass, its residual path left --------------------
# A block adds something to the stream it reads. While it is bypassed the forward pass is unchanged to the bit, but
# gradients pass the block along the stream only. That is meaningful where a block really returns its input plus
# something; a block that normalises the sum (the original transformer, OpenAI-GPT) has no such path, and
# `check_residual` refuses it.


_LARGER = 2.0**20
_LARGEST_HALF = 2.0**14


def bypassed(block: nn.Module) -> AbstractContextManager[None]:
    """While this holds, gradients go around what `block` computes."""

    def around(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        stream = read(args, kwargs)
        # Adding the difference of a tensor and itself adds exactly 0 forwards and is the identity backwards.
        bypass = first_of(output).detach() + (stream - stream.detach())
        return (bypass, *output[1:]) if isinstance(output, tuple | list) else bypass

    return hooked([block], after=around)


def check_residual(model: Model, method: str) -> None:
    """Refuse a model whose blocks do not return what they read plus something of their own.

    What a block adds is computed from a normalised copy of its input, or normalised itself, so it stays as large
    as it was when the input is made a million times larger: the output must then grow by what the input grew. In a
    model without norms it grows as well; there the blocks must come apart into stream, heads and MLP, as for edges.
    """
    blocks = model.hooks.blocks
    if any(site.calls > 1 for site in model.hooks.sites):
        raise HeadwiseError(
            f"{method} cannot be computed for {model.name}: some of its layers share their weights and run "
            "several times per pass, so a single one of them cannot be left out"
        )
    shares: dict[nn.Module, float] = {}

    def measure(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        try:
            stream = read(args, kwargs)
            times = _LARGER
            if stream.dtype == torch.float16:
                times = min(times, _LARGEST_HALF / float(stream.abs().max()))
            args, kwargs = with_stream(args, kwargs, times * stream)
            larger = block.forward(*args, **kwargs)
            x, before, after = (first_of(o).double() for o in (stream, output, larger))
            shares[block] = float(((after - before) * x).sum() / ((times - 1) * (x * x).sum()))
        except (TypeError, RuntimeError, AttributeError, KeyError, IndexError):
            return  # it exchanges more than the stream: not measured, and so refused

    with hooked(blocks, after=measure), torch.no_grad():
        model.run_whole(Pass(ids=probe_input(model.hf)))
    for index, block in enumerate(blocks):
        if not abs(shares.get(block, 0.0) - 1) < 0.05:
            try:
                take_apart(model)
            except HeadwiseError:
                raise HeadwiseError(
                    f"{method} cannot be computed for {model.name}: block {index} ({type(block).__name__}) does not "
                    "return what it reads plus something of its own, so there is no residual path around it"
                ) from None
            return


# ---- the OV circuit: what a head copies from a token of which only the embedding is known ----------------
# A prompt of one token attends only to itself, so a head's output there is its value vector. With the token's
# embedding in place of the residual stream before the head's block, this is norm, value projection and head split of
# the family itself; grouped keys and values, biases and fused projections need no code of their own (Elhage et al.
# 2021, "A Mathematical Framework for Transformer Circuits").


def value_outputs(model: Model, layer: int, tokens: Sequence[int]) -> Tensor:
    """The output `[N, H, D]` of a layer's heads that attend to each token alone, read from its embedding.

    With learned positions the embedding includes that of the first position.
    """
    block = next(site.block for site in model.hooks.sites if site.layer == layer)
    embeddings: list[Tensor] = []
    first: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def swap(stream: Tensor) -> Tensor:
        return embeddings[0].to(stream.device)

    ids = torch.tensor(tokens, device=model.device)[:, None]
    with torch.no_grad():
        model.run_whole(Pass(ids=ids, streams={0: embeddings.append}, record_streams=first, last=0))
        # Where blocks can be skipped, those before this one are: their output is replaced anyway.
        skip = block > 0 and model.capabilities.share_rows and 0 in first
        more: Any = {"resume_from": (block - 1, embeddings[0]) if skip else None, "last": block}
        model.run_whole(Pass(ids=ids, heads=outputs.__setitem__, streams={block: swap}, **more))
    return outputs[layer][:, 0]
