"""Where the MLPs and the embeddings of a model are: found by running it once, by structure and not by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.kinds import is_projection
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_logits


def mlp_modules(hooks: HeadHooks) -> tuple[nn.Module, ...]:
    """For each decoder block, the module whose output is what the block's MLP adds to the residual stream.

    It is the one part of the block beside its attention that has weight matrices: an MLP or a mixture of experts. Where
    a block holds the matrices themselves (OPT), it is the one that runs last.
    """
    if any(site.layer != site.block for site in hooks.sites):
        raise _refused(hooks, "a decoder block has two attentions, so layers and MLPs are not numbered alike")
    attention = {site.module for site in hooks.sites}
    of_block = [
        [child for child in block.children() if _has_matrix(child) and not _holds(child, attention)]
        for block in hooks.blocks
    ]
    called: list[nn.Module] = []

    def note(part: nn.Module, *_: Any) -> None:
        called.append(part)

    with hooked({part for parts in of_block for part in parts}, after=note):
        probe_logits(hooks.model)
    found = []
    for index, (block, parts) in enumerate(zip(hooks.blocks, of_block, strict=True)):
        plain = len(parts) > 1 and all(map(is_projection, parts))
        candidates = sorted(parts, key=_first_place(called))[-1:] if plain else parts
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

    def note(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
        outputs.append(output)

    if isinstance(embeddings, nn.Module):
        with hooked([embeddings], after=note):
            probe_logits(hooks.model)
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].dim() != 3:
        raise HeadwiseError(
            f"the embeddings of {type(hooks.model).__name__} cannot be gated: it has no embedding module that runs "
            "once per pass; leave 'input' out of components"
        )
    assert isinstance(embeddings, nn.Module)
    return embeddings


def _has_matrix(part: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in part.parameters())


def _holds(part: nn.Module, attention: set[nn.Module]) -> bool:
    return any(module in attention for module in part.modules())


def _first_place(called: list[nn.Module]) -> Any:
    return lambda part: called.index(part) if part in called else -1


def _refused(hooks: HeadHooks, why: str) -> HeadwiseError:
    return HeadwiseError(
        f"the MLPs of {type(hooks.model).__name__} cannot be gated: {why}; leave 'mlps' out of components"
    )
