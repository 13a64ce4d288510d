"""The one place where every head of a model is seen and changed.

z is a layer's attention output before the output projection, split by head: `[B, T, H, D]` (rows of the
batch, tokens, heads, head size). A *visitor* gets (layer, z) for each layer as the model runs and returns
what the model should go on with. A *watcher* gets (layer, call), where the call holds everything the attention
function was given, and its z before any visitor; it changes nothing.

Two ways lead there. Modern families call an attention function that transformers looks up by name; ours
calls the family's own and hands the result to the visitor. Older families have no such call; there a hook
on the output projection sees the same tensor. The registry of attention functions is global, so a visitor
is found through the module that calls: two models never disturb one another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.attention_function import SITE, Call, our_attention
from headwise.model.sites.devices import steady_attention
from headwise.model.sites.sites import Site, called_sites, hooked_sites, numbered

Visitor = Callable[[int, Tensor], Tensor]
Watcher = Callable[[int, Call], None]
Attention = Callable[[Tensor, Tensor, Tensor, Any, dict[str, Any]], Tensor | None]
"""From query, key, value, mask and further arguments to z; None where it leaves the call to the family."""


class Reach:
    """Every head of one transformers model, found by one probing forward pass."""

    def __init__(self, model: nn.Module, mechanism: str | None = None) -> None:
        """`mechanism`: "attention function" or "projection hook"; by default the first that finds heads."""
        self.model = model
        self._visitor: Visitor | None = None
        self._watcher: Watcher | None = None
        self._attention: Attention | None = None
        self._in_place = 0
        names = ["attention function", "projection hook"] if mechanism is None else [mechanism]
        for self.mechanism in names:
            find = called_sites if self.mechanism == "attention function" else hooked_sites
            found = find(model)
            if found:
                break
        else:
            raise HeadwiseError(
                f"{type(model).__name__} has no attention heads within reach: no layer called transformers' "
                "attention function, and no attention module with an output projection was found"
            )
        self.sites, self.blocks = numbered(model, found)
        for site in self.sites:
            site.reach = self
        layers = len(self.blocks) if self.sites[-1].layer < len(self.blocks) else len(self.sites)
        self.shape = (layers, max(site.heads for site in self.sites))
        self.exists = np.zeros(self.shape, dtype=bool)
        for site in self.sites:
            self.exists[site.layer, : site.heads] = True

    @contextmanager
    def visiting(self, visitor: Visitor) -> Iterator[None]:
        """While this holds, every forward pass of the model shows its heads to `visitor`."""
        if self._visitor is not None:
            raise RuntimeError("this model is being visited already; one visitor at a time")
        with self._ours_in_place():
            self._visitor = visitor
            try:
                yield
            finally:
                self._visitor = None

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        """While this holds, `watcher` sees every call of the attention function; gates may act beside it."""
        if self.mechanism != "attention function":
            raise HeadwiseError(
                f"{type(self.model).__name__} is reached by a {self.mechanism}: it calls no attention function whose "
                "queries and keys could be watched"
            )
        if self._watcher is not None:
            raise RuntimeError("this model is being watched already; one watcher at a time")
        with self._ours_in_place():
            self._watcher = watcher
            try:
                yield
            finally:
                self._watcher = None

    @contextmanager
    def attending(self, attention: Attention) -> Iterator[None]:
        """While this holds and the model is visited, `attention` is asked before transformers' own "sdpa" function."""
        self._attention = attention
        try:
            yield
        finally:
            self._attention = None

    @contextmanager
    def _ours_in_place(self) -> Iterator[None]:
        """Our function or hooks stand in the model; a context inside another finds them there."""
        with ExitStack() as undo:
            self._in_place += 1
            undo.callback(self._leave)
            if self._in_place == 1:
                self._put_in_place(undo)
            yield

    def _leave(self) -> None:
        self._in_place -= 1

    def _put_in_place(self, undo: ExitStack) -> None:
        undo.enter_context(steady_attention())
        if self.mechanism == "attention function":
            undo.enter_context(our_attention(self.model))
            for site in self.sites:
                setattr(site.module, SITE, site)
                undo.callback(delattr, site.module, SITE)
        else:
            for site in self.sites:
                hook = functools.partial(_visit_projection_input, site)
                handle = site.module.register_forward_pre_hook(hook)
                undo.callback(handle.remove)


def _visit_projection_input(site: Site, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if site.reach is None or site.reach._visitor is None:
        return None
    flat = args[0]
    z = flat.unflatten(-1, (site.heads, site.head_dim))  # B, T, H, D
    return (site.reach._visitor(site.layer, z).flatten(-2), *args[1:])
