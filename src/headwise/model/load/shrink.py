"""A model with fewer heads, which a plain configuration describes: what belongs to the removed heads is cut out.

transformers knows one number of query heads and one of key/value heads for all layers. So every layer must keep the
same numbers, and every key/value head as many query heads. Which tensors belong to heads is not listed per family: the
smaller configuration is built on the `meta` device, and tensors whose shape differs there are cut along the dimension
that differs. `export.py` then compares the logits of the written folder with the gated model's.

H heads, K key/value heads, D head size; h, k: how many are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, first_line
from headwise.heads import Head
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.probe import entry_device, input_width, is_norm, is_transposed, weight_dtype
from headwise.model.sites.sites import Site

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


def takes_means(hooks: HeadHooks) -> bool:
    """Whether the smaller model can have a bias after the heads, which takes the mean output of removed ones."""
    try:
        return _has_biases(hooks, _smaller(hooks.model, *counts(hooks), hooks.sites[0].head_dim, True))
    except HeadwiseError:
        return False


def buildable(hooks: HeadHooks, heads: int, kv_heads: int) -> bool:
    """Whether transformers makes a model of this family with so many heads in every layer."""
    try:
        _check_projections(hooks, _smaller(hooks.model, heads, kv_heads, hooks.sites[0].head_dim, False))
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
    _check_projections(hooks, small)
    prefixes = dict(zip(_block_names(hooks), sites, strict=True))
    state, new = hf.state_dict(), {}
    for name, wanted in small.state_dict().items():
        site = next((site for prefix, site in prefixes.items() if name.startswith(prefix)), None)
        if name not in state and name.endswith(".bias"):
            new[name] = torch.zeros(wanted.shape, dtype=weight_dtype(hf), device=entry_device(hf))
        elif name not in state or (state[name].shape != wanted.shape and site is None):
            raise _refused(hf, f"{name} depends on the number of heads")
        elif state[name].shape == wanted.shape:
            new[name] = state[name]
        else:
            assert site is not None
            if is_norm(hf.get_submodule(name.rpartition(".")[0])):
                raise _refused(hf, f"{name} normalises over all heads of its layer")
            new[name] = _cut(
                hf, name, state[name], wanted.shape, kept[site.layer], (heads, kv_heads, site.head_dim)
            )
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
    config: Any = copy.deepcopy(hf.config)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
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
            return type(hf)(type(config).from_dict(config.to_dict()))  # type: ignore[no-any-return]
    except Exception as error:
        known = "head_dim" in hf.config.get_text_config().to_dict()  # type: ignore[operator, union-attr]
        reason = (
            f"transformers makes no such model with {heads} heads: {first_line(error.__cause__ or error)}"
        )
        raise _refused(hf, reason if known else _BY_WIDTH) from error


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


def _check_projections(hooks: HeadHooks, small: nn.Module) -> None:
    """Raise unless the output projections read as many heads of the same size as the configuration says."""
    text = small.config.get_text_config()  # type: ignore[operator, union-attr]
    for name, site in zip(_projection_names(hooks), hooks.sites, strict=True):
        if input_width(small.get_submodule(name)) != text.num_attention_heads * site.head_dim:
            raise _refused(
                hooks.model,
                "its code takes the head size to be width / heads, so fewer heads would be larger ones",
            )


def _has_biases(hooks: HeadHooks, small: nn.Module) -> bool:
    return all(
        getattr(small.get_submodule(name), "bias", None) is not None for name in _projection_names(hooks)
    )


def _projection_names(hooks: HeadHooks) -> list[str]:
    names = {module: name for name, module in hooks.model.named_modules()}
    return [names[site.projections[0]] for site in hooks.sites]


def _block_names(hooks: HeadHooks) -> list[str]:
    names = {module: name for name, module in hooks.model.named_modules()}
    return [names[hooks.blocks[site.block]] + "." for site in hooks.sites]


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
