"""Take a decoder block's own computation out of the backward pass, and leave its residual path.

A block adds something to the stream it reads. While it is bypassed the forward pass is unchanged to the bit,
but gradients pass the block along the stream only. That is meaningful where a block really returns its input
plus something; a block that normalises the sum (the original transformer, OpenAI-GPT) has no such path, and
`check_residual` refuses it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.model.forward.blocks import read
from headwise.model.forward.run import Pass
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input

if TYPE_CHECKING:
    from headwise.model.model import Model

_LARGER = 2.0**20
_LARGEST_HALF = 2.0**14


def bypassed(block: nn.Module) -> AbstractContextManager[None]:
    """While this holds, gradients go around what `block` computes."""

    def around(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        stream = read(args, kwargs)
        # Adding the difference of a tensor and itself adds exactly 0 forwards and is the identity backwards.
        bypass = _first(output).detach() + (stream - stream.detach())
        return (bypass, *output[1:]) if isinstance(output, tuple | list) else bypass

    return hooked([block], after=around)


def check_residual(model: Model, method: str) -> None:
    """Refuse a model whose blocks do not return what they read plus something of their own.

    What a block adds is computed from a normalised copy of its input, or normalised itself, so it stays as large
    as it was when the input is made a million times larger: the output must then grow by what the input grew.
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
            if args:
                larger = block.forward(times * stream, *args[1:], **kwargs)
            else:
                larger = block.forward(**{**kwargs, "hidden_states": times * stream})
            x, before, after = (_first(o).double() for o in (stream, output, larger))
            shares[block] = float(((after - before) * x).sum() / ((times - 1) * (x * x).sum()))
        except (TypeError, RuntimeError, AttributeError, KeyError, IndexError):
            return  # it exchanges more than the stream: not measured, and so refused

    with hooked(blocks, after=measure), torch.no_grad():
        model.run_whole(Pass(ids=probe_input(model.hf)))
    for index, block in enumerate(blocks):
        if not abs(shares.get(block, 0.0) - 1) < 0.05:
            raise HeadwiseError(
                f"{method} cannot be computed for {model.name}: block {index} ({type(block).__name__}) does not "
                "return what it reads plus something of its own, so there is no residual path around it"
            )


def _first(output: Any) -> Any:
    """What a block writes into the stream: its output, or the first of several."""
    return output[0] if isinstance(output, tuple | list) else output
