"""Where the activation of each block's MLP is reached, and what it gives: `[tokens, units]`.

The activation (the gate, where an MLP has one) is a module of its own in nearly every family. It is found by what
it is and when it runs, not by the family's name: an activation inside the block, outside its attention, that runs
once per pass over every token. Mixtures of experts run it on selected tokens; they, and families that call a bare
function, are refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.model.forward.run import Pass
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input

if TYPE_CHECKING:
    from headwise.model.model import Model

_ACTIVATION = re.compile(r"gelu|silu|swish|relu|mish|tanh|sigmoid|laplace|activation", re.IGNORECASE)


def mlp_gates(model: Model) -> dict[int, nn.Module]:
    """block -> the activation of its MLP, for every block that has one within reach."""
    attention = [site.module for site in model.hooks.sites]
    inside = {part for module in attention for part in module.modules()}
    candidates = {
        module: block
        for block, whole in enumerate(model.hooks.blocks)
        for module in whole.modules()
        if _ACTIVATION.search(type(module).__name__)
        and module not in inside
        and not list(module.children())
        and not list(module.parameters())
    }
    ids = probe_input(model.hf)
    runs: dict[nn.Module, list[tuple[int, ...]]] = {}

    def note(module: nn.Module, _: Any, __: Any, output: Any) -> None:
        runs.setdefault(module, []).append(tuple(output.shape) if isinstance(output, Tensor) else ())

    with hooked(candidates, after=note), torch.no_grad():
        model.run_whole(Pass(ids=ids))
    found: dict[int, tuple[int, nn.Module]] = {}
    rows, tokens = ids.shape
    for module, shapes in runs.items():
        if len(shapes) != 1 or shapes[0][:-1] not in ((rows, tokens), (rows * tokens,)):
            continue
        block, width = candidates[module], shapes[0][-1]
        if width > found.get(block, (0, module))[0]:
            found[block] = (width, module)
    return {block: found[block][1] for block in sorted(found)}


def first_gate(model: Model) -> nn.Module:
    """The activation of the first block's MLP, or an error that says why there is none to change."""
    found = mlp_gates(model)
    if 0 not in found:
        raise HeadwiseError(
            f"the first layer's MLP of {model.name} ({type(model.hf).__name__}) has no activation that runs once over "
            "every token (it is a mixture of experts, or a bare function); leave the condition arm out"
        )
    return found[0]


def seen_gates(
    gates: Mapping[int, nn.Module], see: Callable[[int, Tensor], None]
) -> dict[nn.Module, Callable[[Tensor], Tensor]]:
    """For `Pass.modules`: `see` gets (block, activations `[tokens of all rows, units]`), and nothing is changed."""

    def show(block: int, output: Tensor) -> Tensor:
        see(block, output.detach().flatten(0, -2))
        return output

    return {module: functools.partial(show, block) for block, module in gates.items()}
