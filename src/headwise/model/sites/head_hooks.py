"""The one place where every head of a model is seen and changed.

z is a layer's attention output before the output projection, split by head: `[B, T, H, D]` (rows of the
batch, tokens, heads, head size). A *hook* gets (layer, z) for each layer as the model runs and returns
the z that the model continues with. A *watcher* gets (layer, call), where the call holds everything the attention
function was given, and its z before any hook; it changes nothing. A *slot hook* gets (layer, query, key and value)
before attention and returns those that the layer attends with.

Two ways lead there. Modern families call an attention function that transformers looks up by name; ours
calls the family's own and hands the result to the hook. Older families have no such call; there a hook
on the output projection sees the same tensor. The registry of attention functions is global, so a hook
is found through the module that calls: two models never disturb one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from headwise.errors import HeadwiseError, quoted
from headwise.model.sites.attention_function import (
    ATTACHED,
    ActiveHooks,
    Attached,
    AttentionHook,
    HeadHook,
    SlotHook,
    Watcher,
    our_attention,
)
from headwise.model.sites.patch import attribute, hooked, without_cudnn_sdpa
from headwise.model.sites.sites import Site, called_sites, hooked_sites, numbered


def _new_z(hook: HeadHook, layer: int, z: Tensor) -> Tensor | None:
    """What a hook makes of z, if it has z's shape."""
    new = hook(layer, z)
    if new is not None and (not isinstance(new, Tensor) or new.shape != z.shape):
        given = f"shape {list(new.shape)}" if isinstance(new, Tensor) else quoted(new)
        raise HeadwiseError(
            f"the hook returned {given} for layer {layer}; expected z of shape {list(z.shape)} (rows, tokens, heads, "
            "head size), or None to leave it"
        )
    return new


class HeadHooks:
    """Every head of one transformers model, found by one probing forward pass."""

    def __init__(
        self, model: nn.Module, mechanism: str | None = None, sites: list[Site] | None = None
    ) -> None:
        """`mechanism`: "attention function" or "projection hook"; by default the first that finds heads.

        sites: where they were found for this mechanism before, which saves the pass.
        """
        self.model = model
        self.active = ActiveHooks()
        self._in_place = False
        names = ["attention function", "projection hook"] if mechanism is None else [mechanism]
        for self.mechanism in names:
            find = called_sites if self.mechanism == "attention function" else hooked_sites
            found = find(model) if sites is None else sites
            if found:
                break
        else:
            raise HeadwiseError(
                f"{type(model).__name__} has no attention heads that can be accessed: no layer called transformers' "
                "attention function, and no attention module with an output projection was found"
            )
        self.sites, self.blocks = numbered(model, found)
        layers = len(self.blocks) if self.sites[-1].layer < len(self.blocks) else len(self.sites)
        self.shape = (layers, max(site.heads for site in self.sites))
        self.exists = np.zeros(self.shape, dtype=bool)
        for site in self.sites:
            self.exists[site.layer, : site.heads] = True

    def hook(self, hook: HeadHook) -> AbstractContextManager[None]:
        """While this holds, `hook(layer, z)` returns the new z of each layer in every forward pass; None leaves it."""
        return self.attached(partial(_new_z, hook))

    def watching(self, watcher: Watcher) -> AbstractContextManager[None]:
        """While this holds, `watcher` sees every call of the attention function; gates may act beside it."""
        return self.attached(watcher=watcher)

    @contextmanager
    def attached(
        self,
        hook: HeadHook | None = None,
        watcher: Watcher | None = None,
        slots: SlotHook | None = None,
        attention: AttentionHook | None = None,
    ) -> Iterator[None]:
        """While this holds, the given ones see every forward pass; one of each kind at a time.

        hook: edits the heads' outputs. watcher: sees each call of the attention function. slots: edits queries,
        keys and values before attention. attention: computes attention in place of the family's own function.
        """
        if (watcher is not None or slots is not None) and self.mechanism != "attention function":
            raise HeadwiseError(
                f"{type(self.model).__name__} is accessed by a {self.mechanism}: it calls no attention function whose "
                "queries and keys could be read or edited"
            )
        given = {"hook": hook, "watcher": watcher, "slots": slots, "attention": attention}
        given = {kind: one for kind, one in given.items() if one is not None}
        for kind in given:
            if getattr(self.active, kind) is not None:
                raise HeadwiseError(
                    f"this model already has a {kind}, and only one can be active; leave the outer `with` block "
                    "(model.gated, model.hook) first, or do both edits in one hook"
                )
        with ExitStack() as undo:
            if given and not self._in_place:
                self._put_in_place(undo)
            for kind, one in given.items():
                undo.enter_context(attribute(self.active, kind, one))
            yield

    def without_hooks(self) -> AbstractContextManager[None]:
        """While this holds, the hook is off: for passes of our own."""
        return attribute(self.active, "hook", None)

    def _put_in_place(self, undo: ExitStack) -> None:
        """Our function or hooks stand in the model until `undo` is closed; those attached inside find them there."""
        undo.enter_context(attribute(self, "_in_place", True))
        undo.enter_context(without_cudnn_sdpa())
        if self.mechanism == "attention function":
            undo.enter_context(our_attention(self.model))
            for site in self.sites:
                undo.enter_context(attribute(site.module, ATTACHED, Attached(site.layer, self.active)))
        else:
            for site in self.sites:
                undo.enter_context(hooked([site.module], before=_projection_input(site, self.active)))


def _projection_input(site: Site, active: ActiveHooks) -> Callable[..., Any]:
    """A hook on the output projection that calls the head hook with its input, split by head."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if active.hook is None:
            return None
        new = active.hook(site.layer, args[0].unflatten(-1, (site.heads, site.head_dim)))  # B, T, H, D
        return None if new is None else ((new.flatten(-2), *args[1:]), kwargs)

    return before
