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
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headwise.errors import HeadwiseError
from headwise.model.devices import entry_device, steady_attention

Visitor = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Call:
    """One layer's call of the attention function."""

    own: str
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


Watcher = Callable[[int, Call], None]
Attention = Callable[[Tensor, Tensor, Tensor, Any, dict[str, Any]], Tensor | None]
"""From query, key, value, mask and further arguments to z; None where it leaves the call to the family."""

_PREFIX = "headwise_"
_SITE = "_headwise_site"


@dataclass
class Site:
    """Where the heads of one layer are reached."""

    layer: int
    """Row of the gates."""
    block: int
    """Index of the decoder block that holds it."""
    module: nn.Module
    """The attention module that calls the attention function, or the projection that is hooked."""
    heads: int
    head_dim: int
    kv_heads: int
    calls: int = 1
    """How often it runs in one forward pass; above 1 where layers share their weights."""
    projections: tuple[nn.Module, ...] = ()
    """Candidates for the output projection, the likeliest first."""
    reach: Reach | None = None


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
            find = _called_sites if self.mechanism == "attention function" else _hooked_sites
            found = find(model)
            if found:
                break
        else:
            raise HeadwiseError(
                f"{type(model).__name__} has no attention heads within reach: no layer called transformers' "
                "attention function, and no attention module with an output projection was found"
            )
        self.sites, self.blocks = _number(model, found)
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
            undo.enter_context(_our_attention(self.model))
            for site in self.sites:
                setattr(site.module, _SITE, site)
                undo.callback(delattr, site.module, _SITE)
        else:
            for site in self.sites:
                hook = functools.partial(_visit_projection_input, site)
                handle = site.module.register_forward_pre_hook(hook)
                undo.callback(handle.remove)


# ---- the attention function -------------------------------------------------------------------------------


@contextmanager
def _our_attention(model: nn.Module) -> Iterator[None]:
    """The model's configurations name our attention function; afterwards what they named before."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    with ExitStack() as undo:
        for config in configs.values():
            own = getattr(config, "_attn_implementation_internal", None)
            if own is None or own.startswith(_PREFIX):
                continue
            _register(own)
            # The internal field: the public setter would also overwrite sub-configurations.
            config._attn_implementation_internal = _OurName(own)  # type: ignore[union-attr]
            undo.callback(setattr, config, "_attn_implementation_internal", own)
        yield


class _OurName(str):
    """Looks up our function, and still equals the name it stands for.

    Sparse-attention families apply their selection of keys only where the implementation is "eager" or "sdpa":
    under a name that is neither they would silently attend to everything.
    """

    own: str
    __hash__ = str.__hash__

    def __new__(cls, own: str) -> _OurName:
        name = super().__new__(cls, _PREFIX + own)
        name.own = own
        return name

    def __getnewargs__(self) -> tuple[str]:
        return (self.own,)  # transformers copies configurations

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == self.own

    def __ne__(self, other: object) -> bool:
        return not self == other


def _register(own: str) -> None:
    if own != "eager" and own not in ALL_ATTENTION_FUNCTIONS:
        raise HeadwiseError(
            f"the attention implementation {own!r} cannot be wrapped: transformers has no function of that "
            "name; load the model with attn_implementation='sdpa' or 'eager'"
        )
    if _PREFIX + own not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(_PREFIX + own, functools.partial(_attend, own))
        # Without a mask function of the same name transformers would build no mask at all.
        if own in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(_PREFIX + own, ALL_MASK_ATTENTION_FUNCTIONS[own])


def _attend(
    own: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The family's own attention, then the watcher's and the visitor's view of it."""
    site: Site | None = getattr(module, _SITE, None)
    reach = site.reach if site is not None else None
    function = own_attention(own, module)
    z = weights = None
    if (
        reach is not None
        and reach._attention is not None
        and function is sdpa_attention_forward
        and len(args) == 1
    ):
        z = reach._attention(query, key, value, args[0], kwargs)
    if z is None:
        z, weights = function(module, query, key, value, *args, **kwargs)
    if site is None or reach is None:
        return z, weights
    if reach._watcher is not None:
        options = dict(kwargs)
        mask = args[0] if args else options.pop("attention_mask", None)
        reach._watcher(site.layer, Call(own, module, query, key, value, mask, options, z))
    if reach._visitor is not None:
        z = reach._visitor(site.layer, z)
    return z, weights


def own_attention(own: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """What the module would have called under the implementation `own`: a family may have its own version."""
    for ancestor in type(module).__mro__:
        family = sys.modules.get(ancestor.__module__)
        if own == "eager" and hasattr(family, "eager_attention_forward"):
            return family.eager_attention_forward  # type: ignore[union-attr]
        if own != "eager" and hasattr(family, "ALL_ATTENTION_FUNCTIONS"):
            return family.ALL_ATTENTION_FUNCTIONS[own]  # type: ignore[union-attr]
    raise HeadwiseError(
        f"the {own!r} attention of {type(module).__name__} cannot be wrapped: its file defines no such function"
    )


# ---- the hook on the output projection --------------------------------------------------------------------


def _visit_projection_input(site: Site, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if site.reach is None or site.reach._visitor is None:
        return None
    flat = args[0]
    z = flat.unflatten(-1, (site.heads, site.head_dim))  # B, T, H, D
    return (site.reach._visitor(site.layer, z).flatten(-2), *args[1:])


# ---- finding the sites ------------------------------------------------------------------------------------


def probe_input(model: nn.Module) -> Tensor:
    """A few tokens that any vocabulary has: enough to make every layer run."""
    device = entry_device(model)
    return torch.arange(3, 9, device=device).repeat(2, 1)


def _run_probe(model: nn.Module) -> None:
    with torch.no_grad():
        model(input_ids=probe_input(model), use_cache=False)


def is_projection(module: nn.Module) -> bool:
    """Linear maps of every kind: plain, transposed (GPT-2's Conv1D), quantised. Not norms, not embeddings."""
    if isinstance(module, nn.Embedding | nn.LayerNorm) or "norm" in type(module).__name__.lower():
        return False
    weight = getattr(module, "weight", getattr(module, "qweight", None))
    return hasattr(module, "in_features") or (isinstance(weight, Tensor) and weight.dim() == 2)


def _called_sites(model: nn.Module) -> list[Site]:
    """Run once with our attention function in place, and note who calls it and what is projected next."""
    sites: dict[nn.Module, Site] = {}
    open_site: list[Site] = []
    names = {module: name for name, module in model.named_modules()}

    def note_call(
        own: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kw: Any
    ) -> Any:
        z, weights = own_attention(own, module)(module, query, key, value, *args, **kw)
        if module in sites:
            sites[module].calls += 1
        elif z.dim() == 4 and module in names:
            sites[module] = Site(-1, -1, module, z.shape[2], z.shape[3], key.shape[1])
        if module in sites:
            open_site[:] = [sites[module]]
        return z, weights

    def note_projection(module: nn.Module, args: tuple[Any, ...]) -> None:
        for site in open_site:
            if args and isinstance(args[0], Tensor) and args[0].shape[-1] == site.heads * site.head_dim:
                site.projections = (*site.projections, module)

    with ExitStack() as undo:
        undo.enter_context(_our_attention(model))
        probes = {
            getattr(m.config, "_attn_implementation_internal", None)
            for m in model.modules()
            if hasattr(m, "config")
        }
        for name in [p for p in probes if p and p.startswith(_PREFIX)]:
            own = name.removeprefix(_PREFIX)
            AttentionInterface.register(name, functools.partial(note_call, own))
            undo.callback(AttentionInterface.register, name, functools.partial(_attend, own))
        for module in model.modules():
            if is_projection(module):
                undo.callback(module.register_forward_pre_hook(note_projection).remove)
        _run_probe(model)
    for site in sites.values():
        # An output projection usually sits inside the module that called; then gates and routers come after it.
        inside = [p for p in site.projections if names[p].startswith(names[site.module] + ".")]
        site.projections = tuple(dict.fromkeys((*inside, *site.projections)))[:4]
    return list(sites.values())


_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def _hooked_sites(model: nn.Module) -> list[Site]:
    """Run once, and take the last linear map that each attention module applies as its output projection."""
    attentions = [
        (name, module)
        for name, module in model.named_modules()
        if re.search(r"attention|attn", type(module).__name__, re.IGNORECASE)
        and not isinstance(module, nn.ModuleList)
    ]
    outermost = [
        (name, module)
        for name, module in attentions
        if not any(name.startswith(other + ".") for other, _ in attentions)
    ]
    last_projection: dict[str, nn.Module] = {}

    def note(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        last_projection[name] = module

    with ExitStack() as undo:
        for name, attention in outermost:
            for module in attention.modules():
                if is_projection(module):
                    hook = functools.partial(note, name)
                    undo.callback(module.register_forward_pre_hook(hook).remove)
        _run_probe(model)

    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    sites = []
    for name, attention in outermost:
        projection = last_projection.get(name)
        if projection is None:
            continue
        parts = [*attention.modules(), config]
        heads = next(
            (n for part in parts for key in _HEAD_COUNTS if isinstance(n := getattr(part, key, None), int)), 0
        )
        kv_heads = next(
            (n for part in parts for key in _KV_COUNTS if isinstance(n := getattr(part, key, None), int)),
            heads,
        )
        width = input_width(projection)
        if heads and width % heads == 0:
            sites.append(Site(-1, -1, projection, heads, width // heads, kv_heads, 1, (projection,)))
    return sites


def input_width(projection: nn.Module) -> int:
    """How many columns a linear map reads."""
    if hasattr(projection, "in_features"):
        return int(projection.in_features)  # type: ignore[arg-type]
    weight = projection.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0 if is_transposed(projection) else 1])


def is_transposed(projection: nn.Module) -> bool:
    """GPT-2's Conv1D stores its weight as `[in, out]`."""
    return type(projection).__name__ == "Conv1D"


def _number(model: nn.Module, sites: list[Site]) -> tuple[list[Site], list[nn.Module]]:
    """Give each site its layer number, and return the decoder's blocks.

    The layer is the index of the decoder block, so that "L12" means what everyone means by it, and a hybrid's
    blocks without attention keep their number. Where a block holds two attentions they count one by one.
    """
    names = {module: name for name, module in model.named_modules()}
    modules = dict(model.named_modules())
    places: dict[str, list[tuple[Site, int]]] = {}
    for site in sites:
        parts = names[site.module].split(".")
        for depth, part in enumerate(parts):
            parent = ".".join(parts[:depth])
            if part.isdigit() and isinstance(modules[parent], nn.ModuleList):
                places.setdefault(parent, []).append((site, int(part)))
    if not places:
        raise HeadwiseError(f"{type(model).__name__} keeps its attention outside any list of layers")
    home = min(places, key=lambda parent: (-len(places[parent]), len(parent)))
    outside = [names[site.module] for site in sites if site not in [s for s, _ in places[home]]]
    if outside:
        raise HeadwiseError(
            f"{type(model).__name__} has attention outside its decoder layers ({home}): {outside[0]}; "
            "such a model's heads cannot be numbered by layer"
        )
    numbered = sorted(places[home], key=lambda place: place[1])
    one_each = len({block for _, block in numbered}) == len(numbered)
    for order, (site, block) in enumerate(numbered):
        site.block, site.layer = block, block if one_each else order
    return [site for site, _ in numbered], list(modules[home])
