"""MLPs and embeddings: where they are, whether they write what they add to the residual stream and nothing else, and
whether the size of what heads write matters. Found by running the model once, by structure and not by name. And which
query heads read which key/value head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.run import Pass, edited, read, run
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import first_of, hooked
from headwise.model.sites.probe import is_projection, probe_input, probe_logits, rounding, widened

_UNMOVED = 0.05
"""Half of all head outputs is as good as all of them if it moves the logits by less than this share of what none of
them does. In Gemma 3 the share is .013 in bfloat16, which is rounding; in SmolLM2 and Qwen2.5 it is .6 or more."""


def verified_mlps(hooks: HeadHooks) -> tuple[nn.Module, ...]:
    """The MLP of each decoder block, if a block whose heads and MLP give 0 adds only a constant to the stream.

    The constant is what biases add. A block with a further part, or whose MLP returns the stream as well (BLOOM), adds
    something that differs from token to token.
    """
    modules = mlp_modules(hooks)
    streams: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        streams.append((read(args, kwargs).double(), first_of(output).double()))

    zeros = dict.fromkeys(modules, torch.zeros_like)
    with hooked(hooks.blocks, after=note), torch.no_grad():
        run(
            hooks.model,
            Pass(ids=_two_rows(hooks), heads=lambda _, z: torch.zeros_like(z), modules=zeros),
            hooks,
        )
    for index, (before, after) in enumerate(streams):
        added = (after - before).flatten(0, -2)  # tokens, width
        if float((added - added[0]).abs().max()) > rounding(hooks.model, before):
            why = f"block {index} changes the residual stream even when its heads and its MLP give 0"
            raise _refused(hooks, why)
    return modules


def verified_embeddings(hooks: HeadHooks) -> nn.Module:
    """The embedding module, if different tokens give the same first stream when its output is 0."""
    module = embedding_module(hooks)
    seen: list[Tensor] = []
    zeros = {module: torch.zeros_like}
    with torch.no_grad():
        run(hooks.model, Pass(ids=_two_rows(hooks), modules=zeros, streams={0: seen.append}), hooks)
    if not torch.equal(seen[0][0], seen[0][1]):
        raise _refused(hooks, "tokens reach the first block by another way as well", "embeddings", "input")
    return module


def query_groups(hooks: HeadHooks) -> np.ndarray:
    """`[L, H]`: the key/value head of each query head.

    An attention function shares each one with heads that follow one another. A family that calls none may do it in
    another way, so only the one for all heads, and those of one head each, are known there.
    """
    config = hooks.model.config.get_text_config()  # type: ignore[operator, union-attr]
    why = ""
    if getattr(config, "kv_lora_rank", None):
        why = "its keys and values are made from one vector per token (latent attention)"
    groups = np.zeros(hooks.shape, dtype=np.int64)
    for site in hooks.sites:
        if 1 < site.kv_heads < site.heads and hooks.mechanism != "attention function":
            why = f"its heads are reached by a {hooks.mechanism}, where it is not seen which share keys and values"
        groups[site.layer, : site.heads] = np.arange(site.heads) // (site.heads // site.kv_heads)
    if why:
        raise HeadwiseError(
            f"{type(hooks.model).__name__} has no key/value heads to gate: {why}; leave 'kv_heads' out of components"
        )
    return groups


def norm_after_heads(hooks: HeadHooks) -> bool:
    """Whether a common factor on all head outputs changes nothing, because norms bring them back to size."""

    def logits(factor: float) -> Tensor:
        request = Pass(ids=probe_input(hooks.model), heads=lambda _, z: factor * z)
        with torch.no_grad():
            return widened(run(hooks.model, request, hooks).logits)

    full = logits(1.0)
    half, none = (float((logits(factor) - full).norm()) for factor in (0.5, 0.0))
    return half < _UNMOVED * none


def _two_rows(hooks: HeadHooks) -> Tensor:
    ids = probe_input(hooks.model)
    ids[1] = ids[1].flip(0)
    return ids


# ---- where they are --------------------------------------------------------------------------------------


def mlp_modules(hooks: HeadHooks) -> tuple[nn.Module, ...]:
    """For each decoder block, the module whose output is what the block's MLP adds to the residual stream.

    It is the one part of the block beside its attention that has weight matrices: an MLP or a mixture of experts. Where
    a block holds the matrices themselves (OPT), it is the one that runs last.
    """
    if any(site.layer != site.block for site in hooks.sites):
        raise _refused(hooks, "a decoder block has two attentions, so layers and MLPs are not numbered alike")
    attention = {site.module for site in hooks.sites}
    of_block = [
        [
            child
            for child in block.children()
            if attention.isdisjoint(child.modules()) and any(p.dim() > 1 for p in child.parameters())
        ]
        for block in hooks.blocks
    ]
    called: list[nn.Module] = []
    every = {part for parts in of_block for part in parts}
    with hooked(every, after=lambda part, *_: called.append(part)):
        probe_logits(hooks.model)
    found = []
    for index, (block, parts) in enumerate(zip(hooks.blocks, of_block, strict=True)):
        plain = len(parts) > 1 and all(map(is_projection, parts))
        candidates = sorted(set(parts) & set(called), key=called.index)[-1:] if plain else parts
        if len(candidates) != 1 or called.count(candidates[0]) != 1:
            names = [name for name, child in block.named_children() if child in parts]
            raise _refused(
                hooks,
                f"block {index} ({type(block).__name__}) does not have exactly one part with weights beside its "
                f"attention that runs once per pass (found: {', '.join(names) or 'none'})",
            )
        found.append(candidates[0])
    return tuple(found)


def embedding_module(hooks: HeadHooks) -> nn.Module:
    """The module that turns token ids into the first residual stream; positions and scales come after it."""
    try:
        embeddings = hooks.model.get_input_embeddings()  # type: ignore[operator]
    except (NotImplementedError, AttributeError):
        embeddings = None
    outputs: list[Any] = []
    if isinstance(embeddings, nn.Module):
        with edited(embeddings, outputs.append):
            probe_logits(hooks.model)
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].dim() != 3:
        why = "it has no embedding module that runs once per pass"
        raise _refused(hooks, why, "embeddings", "input")
    assert isinstance(embeddings, nn.Module)
    return embeddings


def _refused(hooks: HeadHooks, why: str, parts: str = "MLPs", kind: str = "mlps") -> HeadwiseError:
    return HeadwiseError(
        f"the {parts} of {type(hooks.model).__name__} cannot be gated: {why}; leave {kind!r} out of components"
    )
