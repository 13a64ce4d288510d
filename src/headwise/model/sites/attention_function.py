"""Our attention function in place of a family's own, which it calls.

transformers looks attention functions up by name in a registry that is global; whom a call belongs to is found through
the module that calls.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.patch import attention_named

PREFIX = "headwise_"
ATTACHED = "_headwise_attached"
"""The attribute of an attention module that names the hooks for its calls: an `Attached`."""


@dataclass(frozen=True)
class Call:
    """One layer's call of the attention function."""

    implementation: str
    """The implementation that ran: eager, sdpa, flash_attention_2, flex_attention, …"""
    module: nn.Module
    query: Tensor  # B, H, T, D
    key: Tensor  # B, key heads, S, D
    value: Tensor  # B, key heads, S, value size
    mask: Any
    """As the implementation takes it: None, true where allowed, added to the scores, or a BlockMask."""
    options: dict[str, Any]
    """Every further argument: scaling, soft-capping, sliding window, sinks."""
    z: Tensor  # B, T, H, value size


HeadHook = Callable[[int, Tensor], Tensor | None]
"""From (layer, z `[B, T, H, D]`) to the z that the model goes on with; None leaves it."""
Slots = tuple[Tensor, Tensor, Tensor]
"""Query `[B, H, T, D]`, key `[B, key heads, S, D]` and value `[B, key heads, S, value size]` of one layer."""
SlotHook = Callable[[int, Slots], Slots | None]
"""From (layer, query, key and value) to those that the layer attends with; None leaves them."""
Watcher = Callable[[int, Call], None]
Attention = Callable[..., tuple[Tensor, Tensor | None]]
AttentionHook = Callable[[int, str, Attention], Attention]
"""From (layer, implementation, the family's own function) to the function that the layer attends with."""


@dataclass
class ActiveHooks:
    """What sees and changes the heads of one model at the moment."""

    hook: HeadHook | None = None
    watcher: Watcher | None = None
    slots: SlotHook | None = None
    attention: AttentionHook | None = None


class Attached(NamedTuple):
    """The layer of an attention module, and the hooks of its model."""

    layer: int
    active: ActiveHooks


def our_attention(model: nn.Module) -> AbstractContextManager[None]:
    """While this holds, the model's configurations name our attention function."""

    def rename(implementation: str) -> str | None:
        if implementation.startswith(PREFIX):
            return None
        _register(implementation)
        return _OurName(implementation)

    return attention_named(model, rename)


class _OurName(str):
    """Looks up our function, and still equals the name it stands for.

    Sparse-attention families apply their selection of keys only where the implementation is "eager" or "sdpa":
    under a name that is neither they would silently attend to everything.
    """

    implementation: str
    __hash__ = str.__hash__

    def __new__(cls, implementation: str) -> _OurName:
        name = super().__new__(cls, PREFIX + implementation)
        name.implementation = implementation
        return name

    def __getnewargs__(self) -> tuple[str]:
        return (self.implementation,)  # transformers copies configurations

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == self.implementation

    def __ne__(self, other: object) -> bool:
        return not self == other


def _register(implementation: str) -> None:
    # Imported here because it takes seconds, and commands that load no model should not wait for it.
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation != "eager" and implementation not in ALL_ATTENTION_FUNCTIONS:
        raise HeadwiseError(
            f"the attention implementation {implementation!r} cannot be wrapped: transformers has no function of that "
            "name; load the model with attn_implementation='sdpa' or 'eager'"
        )
    if PREFIX + implementation not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(PREFIX + implementation, functools.partial(attend, implementation))
        # Without a mask function of the same name transformers would build no mask at all.
        if implementation in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(
                PREFIX + implementation, ALL_MASK_ATTENTION_FUNCTIONS[implementation]
            )


def attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The slots' edit, the family's own attention, then the watcher's and the hook's view of it."""
    attached: Attached | None = getattr(module, ATTACHED, None)
    function = own_attention(implementation, module)
    if attached is None:
        return function(module, query, key, value, *args, **kwargs)
    layer, active = attached
    if active.slots is not None:
        query, key, value = active.slots(layer, (query, key, value)) or (query, key, value)
    if active.attention is not None:
        function = active.attention(layer, implementation, function)
    z, weights = function(module, query, key, value, *args, **kwargs)
    if active.watcher is not None:
        options = dict(kwargs)
        mask = args[0] if args else options.pop("attention_mask", None)
        active.watcher(layer, Call(implementation, module, query, key, value, mask, options, z))
    new = None if active.hook is None else active.hook(layer, z)
    return z if new is None else new, weights


def own_attention(implementation: str, module: nn.Module) -> Attention:
    """What the module would have called under this implementation: a family may have its own version."""
    for ancestor in type(module).__mro__:
        family = sys.modules.get(ancestor.__module__)
        if implementation == "eager" and hasattr(family, "eager_attention_forward"):
            return family.eager_attention_forward  # type: ignore[union-attr]
        if implementation != "eager" and hasattr(family, "ALL_ATTENTION_FUNCTIONS"):
            return family.ALL_ATTENTION_FUNCTIONS[implementation]  # type: ignore[union-attr]
    raise HeadwiseError(
        f"the {implementation!r} attention of {type(module).__name__} cannot be wrapped: its file defines no such "
        "function"
    )
