"""Where the heads of a model are: found by running it once, and numbered by layer."""

from __future__ import annotations

import functools
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.sites.attention_function import PREFIX, attend, our_attention, own_attention
from headwise.model.sites.patch import attention_names, hooked
from headwise.model.sites.probe import input_width, is_projection, probe_logits


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


def called_sites(model: nn.Module) -> list[Site]:
    """Run once with our attention function in place, and note who calls it and what is projected next."""
    sites: dict[nn.Module, Site] = {}
    open_site: list[Site] = []
    names = {module: name for name, module in model.named_modules()}

    def note_call(implementation: str, module: nn.Module, *call: Any, **options: Any) -> Any:
        z, weights = own_attention(implementation, module)(module, *call, **options)
        if module in sites:
            sites[module].calls += 1
        elif z.dim() == 4 and module in names:
            sites[module] = Site(-1, -1, module, z.shape[2], z.shape[3], call[1].shape[1])  # of the keys
        if module in sites:
            open_site[:] = [sites[module]]
        return z, weights

    def note_projection(module: nn.Module, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        for site in open_site:
            if args and isinstance(args[0], Tensor) and args[0].shape[-1] == site.heads * site.head_dim:
                site.projections = (*site.projections, module)

    from transformers import AttentionInterface

    with ExitStack() as undo:
        undo.enter_context(our_attention(model))
        for name in [name for name in attention_names(model) if name.startswith(PREFIX)]:
            implementation = name.removeprefix(PREFIX)
            AttentionInterface.register(name, functools.partial(note_call, implementation))
            undo.callback(AttentionInterface.register, name, functools.partial(attend, implementation))
        undo.enter_context(hooked(filter(is_projection, model.modules()), before=note_projection))
        probe_logits(model)
    for site in sites.values():
        # An output projection usually sits inside the module that called; then gates and routers come after it.
        inside = [p for p in site.projections if names[p].startswith(names[site.module] + ".")]
        site.projections = tuple(dict.fromkeys((*inside, *site.projections)))[:4]
    return list(sites.values())


_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


def hooked_sites(model: nn.Module) -> list[Site]:
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

    def note(name: str, module: nn.Module, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        last_projection[name] = module

    with ExitStack() as undo:
        for name, attention in outermost:
            projections = filter(is_projection, attention.modules())
            undo.enter_context(hooked(projections, before=functools.partial(note, name)))
        probe_logits(model)

    config = model.config.get_text_config()  # type: ignore[operator, union-attr]
    sites = []
    for name, attention in outermost:
        projection = last_projection.get(name)
        if projection is None:
            continue
        parts = [*attention.modules(), config]
        heads = _first_number(parts, _HEAD_COUNTS, 0)
        kv_heads = _first_number(parts, _KV_COUNTS, heads)
        width = input_width(projection)
        if heads and width % heads == 0:
            sites.append(Site(-1, -1, projection, heads, width // heads, kv_heads, 1, (projection,)))
    return sites


def _first_number(parts: list[Any], names: tuple[str, ...], default: int) -> int:
    numbers = (getattr(part, name, None) for part in parts for name in names)
    return next((number for number in numbers if isinstance(number, int)), default)


def numbered(model: nn.Module, sites: list[Site]) -> tuple[list[Site], list[nn.Module]]:
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
    in_order = sorted(places[home], key=lambda place: place[1])
    one_each = len({block for _, block in in_order}) == len(in_order)
    for order, (site, block) in enumerate(in_order):
        site.block, site.layer = block, block if one_each else order
    return [site for site, _ in in_order], list(modules[home])
