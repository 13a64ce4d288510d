"""Activation redistribution (ARM, arXiv 2510.01032): small activations of the first MLP get new values.

Per token, over the units a of the first layer's MLP after its activation: ε = 1.4826 · MAD(|a|) · c; the share of
units with |a| < ε, kept between .02 and .25, says how many of the smallest |a| are changed. A positive one is drawn
uniformly from [0, Q_p1(a)], a negative one from [min a, 0]. The paper adds the draw, the authors' code puts it in
place of the value, which is our default. The paper tunes c for each model and task.

Statistics are taken per token and draws belong to a token's position, so that a prompt is changed in the same way
alone, in a batch, and with a KV cache.

The activation of an MLP (the gate, where an MLP has one) is a module in nearly every family. `mlp_gates` finds it by
its class and by when it runs, not by the family's name: an activation inside the block, outside its attention, that
runs once per pass over every token. Mixtures of experts, which run it on selected tokens, and families that call a
bare function are refused.

B rows, T tokens, U units.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, unknown
from headwise.model.forward.run import Edit, Pass, edited
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input

if TYPE_CHECKING:
    from headwise.model.model import Model

MODES = ("replace", "add")
LEAST, MOST = 0.02, 0.25
"""Bounds of the share of units that are changed."""
_ACTIVATION = re.compile(r"gelu|silu|swish|relu|mish|tanh|sigmoid|laplace|activation", re.IGNORECASE)


@contextmanager
def arm(
    model: Model, *, c: float = 0.13, p1: float = 99.5, mode: str = "replace", seed: int = 0
) -> Iterator[None]:
    """While this holds, the model runs with redistributed activations in its first MLP.

    c: how small counts as small. p1: percentile of the activations up to which positive ones are drawn.

    >>> with arm(model, c=0.32, p1=90):                                   # doctest: +SKIP
    ...     hw.generate(model, ["2 + 2 ="])
    """
    if mode not in MODES:
        raise unknown("mode of arm", mode, MODES)
    if not c > 0 or not 0 <= p1 <= 100:
        raise HeadwiseError(f"arm needs c above 0 and p1 between 0 and 100; got c={c}, p1={p1}")
    gate = first_gate(model)
    positions: list[Tensor] = []

    @functools.cache
    def uniform(position: int, units: int) -> np.ndarray:
        return np.random.default_rng([seed, position]).random(units, np.float32)

    def note_positions(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions[:] = [_positions(args, kwargs)]

    def change(output: Tensor) -> Tensor:
        at = positions[0]
        a = output.reshape(*at.shape, output.shape[-1])  # B, T, U
        draws = [uniform(position, output.shape[-1]) for position in range(int(at.max()) + 1)]
        drawn = torch.from_numpy(np.stack(draws)[at.cpu().numpy()]).to(output.device)
        return redistributed(a.float(), drawn, c=c, p1=p1, mode=mode).to(output.dtype).reshape(output.shape)

    with hooked([model.hf], before=note_positions), edited(gate, change):
        yield


def redistributed(a: Tensor, drawn: Tensor, *, c: float, p1: float, mode: str) -> Tensor:
    """`a[..., U]` with its small values changed; `drawn` of the same shape is uniform on [0, 1)."""
    units, size = a.shape[-1], a.abs()
    sizes, order = size.sort(dim=-1, stable=True)
    middle = _quantile(sizes, 0.5)
    spread = _quantile((size - middle).abs().sort(dim=-1).values, 0.5)
    small = (size < 1.4826 * spread * c).double().mean(-1, keepdim=True)
    count = (small.clamp(LEAST, MOST) * units).round()
    rank = order.argsort(dim=-1)
    values = a.sort(dim=-1).values
    top, bottom = _quantile(values, p1 / 100).clamp_min(0), values[..., :1].clamp_max(0)
    new = torch.where(a >= 0, drawn * top, drawn * bottom)
    return torch.where(rank < count, a + new if mode == "add" else new, a)


def _quantile(rising: Tensor, share: float) -> Tensor:
    """`[..., 1]` of sorted values, between neighbours in proportion; torch's own refuses large tensors."""
    at = share * (rising.shape[-1] - 1)
    low = int(at)
    high = min(low + 1, rising.shape[-1] - 1)
    below, above = rising[..., low : low + 1], rising[..., high : high + 1]
    return below + (above - below) * (at - low)


def _positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The place of each token in its row `[B, T]`, padding not counted."""
    ids: Tensor = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
    past = kwargs.get("past_key_values")
    before = int(past.get_seq_length()) if past is not None else 0
    return (torch.arange(ids.shape[1], device=ids.device) + before).expand(ids.shape)


# ---- where the activations are ------------------------------------------------------------------------------


def mlp_gates(model: Model) -> dict[int, nn.Module]:
    """block -> the activation of its MLP, for every block where it is a module."""
    attention = {part for site in model.hooks.sites for part in site.module.modules()}
    candidates = {
        module: block
        for block, parts in enumerate(model.hooks.blocks)
        for module in parts.modules()
        if _ACTIVATION.search(type(module).__name__) and module not in attention
        if not list(module.children()) and not list(module.parameters())
    }
    ids = probe_input(model.hf)
    runs: dict[nn.Module, list[tuple[int, ...]]] = {}

    def note(module: nn.Module, _: Any, __: Any, output: Any) -> None:
        runs.setdefault(module, []).append(tuple(output.shape) if isinstance(output, Tensor) else ())

    with hooked(candidates, after=note), torch.no_grad():
        model.run_whole(Pass(ids=ids))
    of_tokens = (tuple(ids.shape), (ids.numel(),))
    once = {module: shapes[0] for module, shapes in runs.items() if len(shapes) == 1}
    places = [(candidates[m], shape[-1], m) for m, shape in once.items() if shape[:-1] in of_tokens]
    found: dict[int, nn.Module] = {}
    for block, _, module in sorted(places, key=lambda place: (place[0], -place[1])):
        found.setdefault(block, module)  # the widest; of several such, the one that runs first
    return found


def first_gate(model: Model) -> nn.Module:
    """The activation of the first block's MLP; a `HeadwiseError` where there is none to change."""
    gates = mlp_gates(model)
    if 0 not in gates:
        raise HeadwiseError(
            f"the first layer's MLP of {model.name} ({type(model.hf).__name__}) has no activation that runs once over "
            "every token (it is a mixture of experts, or a bare function); leave the condition arm out"
        )
    return gates[0]


def seen_gates(gates: Mapping[int, nn.Module], see: Callable[[int, Tensor], None]) -> dict[nn.Module, Edit]:
    """For `Pass.modules`: `see` gets (block, activations `[tokens of all rows, units]`), and nothing is changed."""

    def show(block: int, output: Tensor) -> None:
        see(block, output.detach().flatten(0, -2))

    return {module: functools.partial(show, block) for block, module in gates.items()}
