"""What components write: whether the modules that were found write what their components add to the residual stream,
and nothing else; whether the size of what the heads write matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.blocks import read
from headwise.model.forward.run import Pass, run
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.modules import embedding_module, mlp_modules
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input, rounding, widened

_UNMOVED = 0.05
"""Half of all head outputs is as good as all of them if it moves the logits by less than this share of what none of
them does. In Gemma 3 the share is .013 in bfloat16, which is rounding; in SmolLM2 and Qwen2.5 it is .6 or more."""


def proven_mlps(hooks: HeadHooks) -> tuple[nn.Module, ...]:
    """The MLP of each decoder block, if a block whose heads and MLP give 0 adds only a constant to the stream.

    The constant is what biases add. A block with a further part, or whose MLP returns the stream as well (BLOOM), adds
    something that differs from token to token.
    """
    modules = mlp_modules(hooks)
    for index, (before, after) in enumerate(_streams(hooks, modules)):
        added = (after.double() - before.double()).flatten(0, -2)  # tokens, width
        if float((added - added[0]).abs().max()) > rounding(hooks.model, before.double()):
            raise HeadwiseError(
                f"the MLPs of {type(hooks.model).__name__} cannot be gated: block {index} changes the residual stream "
                "even when its heads and its MLP give 0; leave 'mlps' out of components"
            )
    return modules


def proven_embeddings(hooks: HeadHooks) -> nn.Module:
    """The embedding module, if different tokens give the same first stream when its output is 0."""
    module = embedding_module(hooks)
    seen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(read(args, kwargs))

    with hooked(hooks.blocks[:1], before=note), torch.no_grad():
        run(hooks.model, Pass(ids=_two_rows(hooks), modules={module: torch.zeros_like}), hooks)
    if not torch.equal(seen[0][0], seen[0][1]):
        raise HeadwiseError(
            f"the embeddings of {type(hooks.model).__name__} cannot be gated: tokens reach the first block by another "
            "way as well; leave 'input' out of components"
        )
    return module


def norm_after_heads(hooks: HeadHooks) -> bool:
    """Whether a common factor on all head outputs changes nothing, because norms bring them back to size."""

    def logits(factor: float) -> Tensor:
        asked = Pass(ids=probe_input(hooks.model), heads=lambda _, z: factor * z)
        with torch.no_grad():
            return widened(run(hooks.model, asked, hooks).logits)

    full = logits(1.0)
    half, none = (float((logits(factor) - full).norm()) for factor in (0.5, 0.0))
    return half < _UNMOVED * none


def _streams(hooks: HeadHooks, mlps: Sequence[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """What each block reads and gives out, on a probe whose heads and MLPs all give 0."""
    streams: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        after = output[0] if isinstance(output, tuple | list) else output
        streams.append((read(args, kwargs), after))

    asked = Pass(
        ids=_two_rows(hooks),
        heads=lambda _, z: torch.zeros_like(z),
        modules=dict.fromkeys(mlps, torch.zeros_like),
    )
    with hooked(hooks.blocks, after=note), torch.no_grad():
        run(hooks.model, asked, hooks)
    return streams


def _two_rows(hooks: HeadHooks) -> Tensor:
    ids = probe_input(hooks.model)
    ids[1] = ids[1].flip(0)
    return ids
