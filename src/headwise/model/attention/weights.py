"""Attention weights of chosen heads, block by block of queries, from one batch through the model.

The caller decides what it keeps of a block, so a long text needs no memory for whole maps. Fused kernels never store
the weights. The family's eager function is called again on the queries, keys and values of the chosen heads, one block
of queries after another. Queries and keys include the rotary embedding already; soft-capping, sinks and scaling are
part of the function; the mask is converted to the form it takes. Weights times values must equal the head's output in
every block, or the layer is refused.

Some families call no attention function. They run once more in their eager form and report the maps of all heads at
once, which takes memory for every map. That these are the weights of our heads is checked on the first layer, where a
token's value vector does not depend on the tokens before it.

B rows of a batch, H heads, h chosen heads of one layer, T queries, t queries of a block, S keys (s: of a block), D head
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.forward.run import Pass, run
from headwise.model.sites.attention_function import Call, HeadHook, Watcher, own_attention
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import attention_named
from headwise.model.sparse.edge_gates import HARD

if TYPE_CHECKING:
    from headwise.model.model import Model

Take = Callable[[list[int], int, Tensor], None]
"""Gets the indices of a layer's heads in the list of chosen heads, the first query's number, and the weights
`[B, h, t, s]`, which it may change; keys from s on have weight 0."""

LARGEST = 2**30
"""Maximum size of the reported maps of all heads, in numbers: 4 GB in float32."""


def watchable(hooks: HeadHooks) -> HeadHooks | None:
    """The same layers hooked at their attention function, where they call one; else None.

    Some families call it and change its result before the output projection (by a norm over all heads). Their
    gates need the projection hook, their weights do not.
    """
    if hooks.mechanism == "attention function":
        return hooks
    with hooks.without_hooks():
        try:
            other = HeadHooks(hooks.model, "attention function")
        except HeadwiseError:
            return None
    same = [(s.layer, s.heads) for s in other.sites] == [(s.layer, s.heads) for s in hooks.sites]
    return other if same else None


def attention_blocks(
    model: Model, watched: HeadHooks | None, ids: Tensor, heads: Sequence[Head], take: Take
) -> None:
    """One batch `[B, T]` through the model; `take` gets every block of the chosen heads' weights.

    watched: `watchable(model.hooks)`; where it is None, `take` gets the whole maps that the model reports. Layers
    after the last chosen head are not computed where the model allows it.
    """
    of_layer = _by_layer(heads)
    if watched is None:
        maps = _reported_weights(model, ids)
        for layer, indices in of_layer.items():
            take(indices, 0, maps[layer][:, [heads[i].head for i in indices]])
        return
    last = max(site.block for site in watched.sites if site.layer in of_layer)
    once = all(site.calls == 1 for site in watched.sites)
    request = Pass(
        ids=ids.to(model.device),
        scored=torch.zeros(len(ids), 1, dtype=torch.long),
        watch=watcher(model, heads, take),
        last=last if once else None,
    )
    with torch.inference_mode():
        run(model.hf, request, watched)


def watcher(model: Model, heads: Sequence[Head], take: Take) -> Watcher:
    """Sees the attention calls of one pass, and gives `take` every block of the chosen heads' weights."""
    of_layer, seen = _by_layer(heads), set[int]()

    def watch(layer: int, call: Call) -> None:
        if layer not in of_layer:
            return
        if layer in seen:
            raise HeadwiseError(
                f"layer {layer} of {model.name} calls its attention function several times per pass, so its heads "
                "have no single attention map"
            )
        seen.add(layer)
        for start, weights in weight_blocks(call, [heads[i].head for i in of_layer[layer]]):
            take(of_layer[layer], start, weights)

    return watch


def _by_layer(heads: Sequence[Head]) -> dict[int, list[int]]:
    """Layer -> the places of its heads in `heads`."""
    of_layer: dict[int, list[int]] = {}
    for place, head in enumerate(heads):
        of_layer.setdefault(head.layer, []).append(place)
    return of_layer


# ---- families that call no attention function -----------------------------------------------------------------


def _reported_weights(model: Model, ids: Tensor) -> dict[int, Tensor]:
    """layer -> weights `[B, H, T, T]` of one run, checked on the first layer."""
    numbers = sum(site.heads for site in model.hooks.sites) * ids.numel() * ids.shape[1]
    if numbers > LARGEST:
        raise HeadwiseError(
            f"{type(model.hf).__name__} calls no attention function, so all maps of all heads are held at once: "
            f"{numbers / 2**28:.0f} GB for {ids.shape[1]} tokens; use a shorter prompt"
        )
    with model.hooks.without_hooks():
        _check_first_layer(model)
    return _eager_maps(model, ids)


def _eager_maps(model: Model, ids: Tensor, hook: HeadHook | None = None) -> dict[int, Tensor]:
    """layer -> the weights that the model reports in its eager form; other forms report none."""
    request = Pass(ids=ids.to(model.device), inputs={"output_attentions": True}, heads=hook)
    with torch.inference_mode(), attention_named(model.hf, lambda _: "eager"):
        raw = model.run_whole(request).raw
    maps = [weights for weights in getattr(raw, "attentions", None) or () if weights is not None]
    sites, (rows, length) = model.hooks.sites, ids.shape
    if [tuple(weights.shape) for weights in maps] != [(rows, site.heads, length, length) for site in sites]:
        raise HeadwiseError(
            f"{model.name} ({type(model.hf).__name__}) calls no attention function and reports no map for each of "
            f"its {len(sites)} layers, so its attention cannot be shown"
        )
    return {site.layer: weights for site, weights in zip(sites, maps, strict=True)}


def _check_first_layer(model: Model) -> None:
    """After [a, b] and after [c, b], weights and outputs must give the same value vector of b."""
    outputs: dict[int, Tensor] = {}
    layer, ids = model.hooks.sites[0].layer, torch.tensor([[3, 5], [4, 5]])
    weights = _eager_maps(model, ids, outputs.__setitem__)[layer].double()  # 2, H, 2, 2
    z = outputs[layer].double().transpose(1, 2)  # 2, H, 2, D
    # The first token attends to itself alone, so this is its value vector.
    first = z[:, :, 0] / weights[:, :, 0, :1]
    rest = z[:, :, 1] - weights[:, :, 1, :1] * first  # weight of b × its value vector
    weight = weights[:, :, 1, 1:]
    gap = float((rest[0] * weight[1] - rest[1] * weight[0]).abs().max())
    allowed = max(3e-5, 8 * torch.finfo(model.dtype).eps) * float(first.abs().max())
    if not gap <= allowed:
        raise HeadwiseError(
            f"the weights that {type(model.hf).__name__} reports do not give the outputs of its heads (off by "
            f"{gap:.2g} in the first layer), so they are not shown"
        )


# ---- the weights of one call of the attention function ---------------------------------------------------


_BLOCK_CPU, _BLOCK_ACCELERATOR = 2**22, 2**26
"""Weights of a block, in numbers: small enough for a CPU's cache, large enough to fill an accelerator."""

_TIGHTEST = 3e-5
"""Allowed difference between output and weights × values, as a share of the largest value. Kernels that sum in
another order differ by a tenth of it in float32; a wrong mask or a lost cap, by a hundred times as much."""


def weight_blocks(call: Call, heads: Sequence[int], block: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """(number of the first query, weights `[B, h, t, s]`) block by block; keys from s on have weight 0.

    `block`: queries at once; by default what suits the device. The weights may be changed in place.
    """
    if call.query.dim() != 4 or call.z.dim() != 4 or call.query.shape[1] != call.z.shape[2]:
        raise HeadwiseError(
            f"{type(call.module).__name__} calls its attention function with queries of shape "
            f"{tuple(call.query.shape)} for outputs of shape {tuple(call.z.shape)}, which cannot be assigned to heads"
        )
    total, queries, keys = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    # A fused kernel keeps scores in float32 whatever the weights are in; the eager function would not.
    wide = call.query.dtype.itemsize < 4 and call.implementation != "eager"
    dtype = torch.float32 if wide else call.query.dtype
    chosen = torch.tensor(list(heads), device=call.query.device)
    of_key = chosen // (total // call.key.shape[1])  # key and value head of each chosen head
    of_value = chosen // (total // call.value.shape[1])
    q = call.query[:, chosen].to(dtype)  # B, h, T, D
    k, v = call.key[:, of_key].to(dtype), call.value[:, of_value].to(dtype)  # B, h, S, D
    # Edge gates are no business of the family's eager function; their own function hands out its weights.
    eager = own_attention(call.implementation if call.implementation == HARD else "eager", call.module)
    module = _OnlyTheseHeads(call.module, chosen, total)
    most = _BLOCK_CPU if call.query.device.type == "cpu" else _BLOCK_ACCELERATOR
    size = block or max(1, most // (len(q) * len(heads) * keys))
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        # Later keys cannot be reached: every loaded model has been shown to be causal.
        seen = stop if keys == queries else keys
        part = _Part(call, chosen, start, stop, seen)
        mask = _additive(part, dtype)
        options = {name: part.of(value) for name, value in call.options.items()}
        output, weights = eager(
            module, q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], mask, **{**options, "dropout": 0.0}
        )
        yield start, _verified(part, output, weights, v[:, :, :seen])


class _OnlyTheseHeads:
    """An attention module as its eager function should see it when it gets some heads, each with its own keys."""

    def __init__(self, module: nn.Module, chosen: Tensor, total: int) -> None:
        self._module, self._chosen, self._total = module, chosen, total

    def __getattr__(self, name: str) -> Any:
        if name == "num_key_value_groups":
            return 1
        return _of_heads(getattr(self._module, name), self._chosen, self._total)


def _of_heads(value: Any, chosen: Tensor, total: int) -> Any:
    """The numbers of the chosen heads where `value` has one number per head, such as a sink; else `value` itself."""
    per_head = isinstance(value, Tensor) and value.dim() == 1 and len(value) == total
    return value[chosen.to(value.device)] if per_head else value


@dataclass(frozen=True)
class _Part:
    """Some heads and queries of a call, and the keys up to the last of these queries."""

    call: Call
    heads: Tensor
    start: int
    stop: int
    seen: int

    def of(self, value: Any) -> Any:
        """This part of anything that has an axis of heads, of queries or of keys; anything else unchanged."""
        (_, total, queries, _), keys = self.call.query.shape, self.call.key.shape[2]
        shape = value.shape if isinstance(value, Tensor) else ()
        if len(shape) != 4 or shape[2] not in (1, queries) or shape[3] not in (1, keys):
            return _of_heads(value, self.heads, total)
        if shape[1] == total > 1:
            value = value[:, self.heads.to(value.device)]
        if shape[2] > 1:
            value = value[:, :, self.start : self.stop]
        return value[..., : self.seen]


def _additive(part: _Part, dtype: torch.dtype) -> Tensor:
    """The mask of a part as the eager function takes it: 0 where allowed, very negative elsewhere."""
    call, mask, device = part.call, part.call.mask, part.call.query.device
    query = torch.arange(part.start, part.stop, device=device)[:, None]  # t, 1
    query += call.key.shape[2] - call.query.shape[2]
    key = torch.arange(part.seen, device=device)[None, :]  # 1, s
    if isinstance(mask, Tensor) and mask.dim() == 4:
        allowed = part.of(mask)
        if mask.dtype != torch.bool:
            return allowed.to(dtype)
    elif mask is None:
        allowed = key <= query
        window = call.options.get("sliding_window")
        if isinstance(window, int) and window > 0:
            allowed = allowed & (key > query - window)
        allowed = allowed[None, None]
    elif hasattr(mask, "mask_mod"):  # flex attention's BlockMask: a function of the row, head, query and key
        row = torch.arange(len(call.query), device=device)[:, None, None, None]
        head = part.heads[None, :, None, None]
        allowed = torch.as_tensor(mask.mask_mod(row, head, query[None, None], key[None, None]), device=device)
    else:
        kind = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise HeadwiseError(
            f"{type(call.module).__name__} under {call.implementation!r} uses a mask of {kind}, from which no weights "
            "can be computed; load the model with attn_implementation='sdpa' or 'eager'"
        )
    blocked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=device), blocked)


def _verified(part: _Part, output: Tensor, weights: Tensor | None, v: Tensor) -> Tensor:
    """The weights, checked: the recomputed output equals z in every query, Σ weights · v equals it in the last."""
    call = part.call
    z = call.z[:, part.start : part.stop, part.heads].transpose(1, 2)  # B, h, t, D
    output = output.transpose(1, 2)
    if weights is None or weights.shape != (*z.shape[:3], part.seen) or output.shape != z.shape:
        raise HeadwiseError(
            f"the eager attention of {type(call.module).__name__} returns no weights of one number per head, query "
            "and key; its attention cannot be shown"
        )
    largest = float(v.abs().max())
    allowed = max(_TIGHTEST, 4 * torch.finfo(z.dtype).eps) * largest
    gap = _gap(torch.matmul(weights[:, :, -1:], v), output[:, :, -1:])
    if gap > allowed:
        # A sink may act as a factor on the output, after the weights were taken: then it belongs to the weights.
        plain = torch.matmul(weights, v)
        factor = (plain * output).sum(-1, keepdim=True) / (plain * plain).sum(-1, keepdim=True)
        weights = weights * factor
        gap = _gap(torch.matmul(weights, v), output)
    gap = float(np.maximum(gap, _gap(output, z)))  # unlike max, NaN wins
    if not gap <= allowed:
        raise HeadwiseError(
            f"the attention of {type(call.module).__name__} recomputed from its queries and keys does not give its "
            f"output under {call.implementation!r} (off by {gap:.2g} where values reach {largest:.2g}), so its weights "
            "would not be the model's own and are not shown"
        )
    return weights


def _gap(recomputed: Tensor, expected: Tensor) -> float:
    return float((recomputed.to(expected.dtype) - expected).abs().max())
