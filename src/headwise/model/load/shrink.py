"""A model with fewer heads, which a plain configuration describes: what belongs to the removed heads is cut out.

transformers knows one number of query heads and one of key/value heads for all layers. So every layer must keep the
same numbers, and every key/value head as many query heads. Which tensors belong to heads is not listed per family: the
smaller configuration is built on the `meta` device, and tensors whose shape differs there are cut along the dimension
that differs. `export.py` then compares the logits of the written folder with the gated model's.

H heads, K key/value heads, D head size; h, k: how many are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, first_line, quoted
from headwise.heads import Head, Order
from headwise.model.load.checkpoint import plain_config
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import entry_device, input_width, is_norm, is_transposed, weight_dtype
from headwise.model.sites.sites import Site
from headwise.settings import several

Kept = tuple[list[int], list[int]]
"""The heads and the key/value heads that a layer keeps."""
_BY_WIDTH = "its code takes the head size to be width / heads, so fewer heads would be larger ones"


def counts(hooks: HeadHooks) -> tuple[int, int]:
    """(H, K): how many heads and key/value heads every layer has; raises where layers differ."""
    config = hooks.model.config.get_text_config()  # type: ignore[operator, union-attr]
    found = {(site.heads, site.head_dim) for site in hooks.sites}
    heads = getattr(config, "num_attention_heads", None)
    if len(found) > 1 or heads != hooks.sites[0].heads:
        raise _refused(hooks.model, "its layers differ in the number or the size of their heads")
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if not isinstance(kv_heads, int) or heads % kv_heads:
        raise _refused(hooks.model, f"num_key_value_heads is {kv_heads} for {heads} heads")
    return heads, kv_heads


def kept_in_layers(hooks: HeadHooks, removed: Iterable[Head]) -> dict[int, Kept]:
    """What each layer keeps; raises a `HeadwiseError` unless all layers, and all key/value groups, keep as many."""
    (heads, kv_heads), gone = counts(hooks), set(removed)
    group = heads // kv_heads
    kept: dict[int, Kept] = {}
    for site in hooks.sites:
        left = [head for head in range(heads) if Head(site.layer, head) not in gone]
        kept[site.layer] = left, sorted({head // group for head in left})
    first = hooks.sites[0].layer
    sizes = [len(left) for left in kept[first]]
    for layer, (left, groups) in kept.items():
        in_group = {sum(head // group == one for head in left) for one in groups}
        if not left or len(in_group) > 1 or [len(left), len(groups)] != sizes:
            raise HeadwiseError(
                f"layer {layer} would keep the heads {left} in {len(groups)} of {kv_heads} key/value groups of {group} "
                f"heads, and layer {first} {kept[first][0]}; a smaller checkpoint has the same number of groups in "
                "every layer, and the same number of heads in every group that is kept (at least one)"
            )
    return kept


def nearest_size(hooks: HeadHooks, share: float, components: str | Sequence[str]) -> tuple[int, int]:
    """The (h, k) with the nearest share of heads removed."""
    if not 0 < share < 1:
        raise HeadwiseError(f"the share of heads to cut out is {share}; expected a number between 0 and 1")
    total = counts(hooks)[0]
    return min(sizes(hooks, components), key=lambda size: abs(1 - size[0] / total - share))


def sizes(hooks: HeadHooks, components: str | Sequence[str]) -> list[tuple[int, int]]:
    """(h, k) of the smaller models that transformers makes, the largest first.

    components: `heads`: as many query heads of every key/value group are removed; `kv_heads`: whole groups. Where every
    head has keys and values of its own it is the same.
    """
    kinds = several(components)
    if kinds not in (["heads"], ["kv_heads"]):
        raise HeadwiseError(f"components is {quoted(components)}; what is cut out are 'heads' or 'kv_heads'")
    heads, kv_heads = counts(hooks)
    group = heads // kv_heads
    if group == 1 or kinds == ["kv_heads"]:
        found = [(group * k, k) for k in range(kv_heads - 1, 0, -1)]
    else:
        found = [(kv_heads * each, kv_heads) for each in range(group - 1, 0, -1)]
    possible = [size for size in found if _buildable(hooks, *size)]
    if not possible:
        at = found[0] if found else counts(hooks)
        _check_shapes(hooks, _smaller(hooks.model, *at, hooks.sites[0].head_dim, False))
        raise _refused(hooks.model, f"every layer has {heads} heads in {kv_heads} key/value groups")
    return possible


def last_heads(hooks: HeadHooks, order: Sequence[Head], size: tuple[int, int]) -> Order:
    """The heads that go when each layer keeps (h, k) of them: in each layer and group the last ones of the order.

    Of whole groups those go whose heads have the largest sum of places in the order.
    """
    heads, kv_heads = counts(hooks)
    place = {head: number for number, head in enumerate(order)}
    group, each = heads // kv_heads, size[0] // size[1]
    removed: Order = []
    for site in hooks.sites:
        groups = [[Head(site.layer, g * group + i) for i in range(group)] for g in range(kv_heads)]
        if missing := [head for members in groups for head in members if head not in place]:
            raise HeadwiseError(f"the order lacks {missing[0]}; expected every head, most important first")
        groups.sort(key=lambda members: sum(place[head] for head in members))
        for number, members in enumerate(groups):
            members.sort(key=lambda head: place[head])
            removed += members[each if number < size[1] else 0 :]
    return sorted(removed)


def takes_means(hooks: HeadHooks) -> bool:
    """Whether the smaller model can have a bias after the heads, which takes the mean output of removed ones."""
    try:
        small = _smaller(hooks.model, *counts(hooks), hooks.sites[0].head_dim, True)
    except HeadwiseError:
        return False
    projections = map(small.get_submodule, _projection_names(hooks))
    return all(getattr(projection, "bias", None) is not None for projection in projections)


def _buildable(hooks: HeadHooks, heads: int, kv_heads: int) -> bool:
    try:
        _check_shapes(hooks, _smaller(hooks.model, heads, kv_heads, hooks.sites[0].head_dim, False))
    except HeadwiseError:
        return False
    return True


def shrunk(hooks: HeadHooks, removed: Iterable[Head], means: Mapping[int, Tensor] | None) -> nn.Module:
    """The model without these heads, on the weights of the model where they are the same.

    means: layer -> `[H, D]`, what stands in for removed heads; it goes into the bias of the output projection.
    """
    hf, sites = hooks.model, hooks.sites
    kept, (heads, kv_heads) = kept_in_layers(hooks, removed), counts(hooks)
    h, k = (len(left) for left in kept[sites[0].layer])
    small = _smaller(hf, h, k, sites[0].head_dim, means is not None)
    _check_shapes(hooks, small)
    blocks = dict(zip(_block_names(hooks), sites, strict=True))
    state, new = hf.state_dict(), {}
    for name, wanted in small.state_dict().items():
        if name not in state:
            new[name] = torch.zeros(wanted.shape, dtype=weight_dtype(hf), device=entry_device(hf))
        elif state[name].shape == wanted.shape:
            new[name] = state[name]
        else:
            site = next(site for block, site in blocks.items() if name.startswith(block))
            of = (heads, kv_heads, site.head_dim)
            new[name] = _cut(hf, name, state[name], wanted.shape, kept[site.layer], of)
    if means is not None:
        for name, site in zip(_projection_names(hooks), sites, strict=True):
            new[f"{name}.bias"] = new[f"{name}.bias"] + _mean_output(
                site, kept[site.layer][0], means[site.layer]
            )
    small.load_state_dict(new, assign=True)
    small.tie_weights()  # type: ignore[operator]
    small.generation_config = hf.generation_config
    return small


def _smaller(hf: nn.Module, heads: int, kv_heads: int, head_dim: int, biases: bool) -> nn.Module:
    """A model without numbers (on `meta`) of a configuration with so many heads."""
    config = plain_config(hf)
    text = config.get_text_config()
    try:
        text.num_attention_heads = heads
        if getattr(text, "num_key_value_heads", kv_heads) != kv_heads:
            text.num_key_value_heads = kv_heads
        if getattr(text, "head_dim", None) is None:
            text.head_dim = head_dim
        if biases and hasattr(text, "attention_bias"):
            text.attention_bias = True
        width = getattr(text, "hidden_size", heads)
        if config.model_type == "llama" and width % heads:
            return _as_granite(config)
        with torch.device("meta"):  # from_dict: with the checks of transformers
            return type(hf)(type(config).from_dict(config.to_dict()))
    except Exception as error:
        has_head_size = "head_dim" in hf.config.get_text_config().to_dict()  # type: ignore[operator, union-attr]
        reason = (
            f"transformers makes no such model with {heads} heads: {first_line(error.__cause__ or error)}"
        )
        raise _refused(hf, reason if has_head_size else _BY_WIDTH) from error


def _as_granite(llama: Any) -> nn.Module:
    """The same model as GraniteForCausalLM. Its code is Llama's with factors, here 1, and does not ask for a width that
    is a multiple of the number of heads, as Llama's configuration does."""
    from transformers import AutoModelForCausalLM, GraniteConfig

    fields = {name: value for name, value in llama.to_dict().items() if name != "model_type"}
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(
            GraniteConfig(**{**fields, "attention_multiplier": llama.head_dim**-0.5})
        )
    return model


def _check_shapes(hooks: HeadHooks, small: nn.Module) -> None:
    """Raise unless the parts of the smaller model have fewer heads of the same size, and no norm is over all heads."""
    text = small.config.get_text_config()  # type: ignore[operator, union-attr]
    for name, site in zip(_projection_names(hooks), hooks.sites, strict=True):
        if input_width(small.get_submodule(name)) != text.num_attention_heads * site.head_dim:
            raise _refused(hooks.model, _BY_WIDTH)
    whole, blocks = hooks.model.state_dict(), tuple(_block_names(hooks))
    for name, tensor in small.state_dict().items():
        if name not in whole and name.endswith(".bias"):
            continue
        if name not in whole or (whole[name].shape != tensor.shape and not name.startswith(blocks)):
            raise _refused(hooks.model, f"{name} depends on the number of heads")
        if whole[name].shape != tensor.shape and is_norm(small.get_submodule(name.rpartition(".")[0])):
            raise _refused(hooks.model, f"{name} normalises over all heads of its layer")


def _projection_names(hooks: HeadHooks) -> list[str]:
    return _names(hooks, [site.projections[0] for site in hooks.sites])


def _block_names(hooks: HeadHooks) -> list[str]:
    return [f"{name}." for name in _names(hooks, [hooks.blocks[site.block] for site in hooks.sites])]


def _names(hooks: HeadHooks, modules: Iterable[nn.Module]) -> list[str]:
    names = {module: name for name, module in hooks.model.named_modules()}
    return [names[module] for module in modules]


def _cut(
    hf: nn.Module, name: str, tensor: Tensor, wanted: torch.Size, kept: Kept, of: tuple[int, int, int]
) -> Tensor:
    """The part of a tensor that belongs to the kept heads, along each dimension that is to be shorter."""
    for dim, (old, new) in enumerate(zip(tensor.shape, wanted, strict=tensor.dim() == len(wanted))):
        if old != new:
            fused = {*"qkv"} <= {*name.split(".")[-2].lower()}  # qkv_proj, query_key_value
            rows = _rows(old, new, kept, of, fused)
            if rows is None:
                raise _refused(
                    hf, f"{name} would have {new} rows instead of {old}, which are not those of heads"
                )
            tensor = tensor.index_select(dim, torch.from_numpy(rows).to(tensor.device))
    return tensor


def _rows(old: int, new: int, kept: Kept, of: tuple[int, int, int], fused: bool) -> np.ndarray | None:
    """Which of `old` rows belong to kept heads. fused: queries, keys and values one below the other."""
    (left, groups), (heads, kv_heads, size) = kept, of

    def parts(chosen: list[int], unit: int, start: int = 0) -> np.ndarray:
        rows: np.ndarray = start + (np.array(chosen)[:, None] * unit + np.arange(unit)).ravel()
        return rows

    if fused and old == (heads + 2 * kv_heads) * size:
        keys = heads * size
        values = keys + kv_heads * size
        return np.concatenate([parts(left, size), parts(groups, size, keys), parts(groups, size, values)])
    for count, chosen in ((heads, left), (kv_heads, groups)):
        if old % count == 0 and new * count == old * len(chosen):
            return parts(chosen, old // count)
    return None


def _mean_output(site: Site, left: list[int], mean: Tensor) -> Tensor:
    """What the removed heads add to the residual stream on average."""
    projection = site.projections[0]
    weight = projection.weight
    assert isinstance(weight, Tensor)
    by_input = weight if is_transposed(projection) else weight.T
    outputs = mean.to(weight.device).double()
    outputs[left] = 0
    return (outputs.flatten() @ by_input.double()).to(weight.dtype)


def _refused(hf: nn.Module, reason: str) -> HeadwiseError:
    return HeadwiseError(f"{type(hf).__name__} cannot be exported with fewer heads: {reason}")
