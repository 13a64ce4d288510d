"""The effect of gates at one token position at a time, and the gradient with respect to the gate of each position.

V variants, E examples, S rows of a block, T tokens of the longest prompt, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import Engine


def acting_positions(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """`[E, T]` twice: where an example has a prompt token, and where a gate at this token may change something.

    With a `patch` or `resample` reference nothing changes before the first token in which the two prompts differ.
    """
    rows = engine.rows
    lengths = np.full(len(engine.task), max(len(row.ids) for row in rows))
    for row in rows:
        lengths[row.example] = min(lengths[row.example], row.start)
    there = np.arange(lengths.max())[None, :] < lengths[:, None]
    masks = engine.table.mask(range(len(rows)), max(len(row.ids) for row in rows)).numpy()
    changes = np.zeros_like(there)
    for row, mask in zip(rows, masks, strict=True):
        changes[row.example] |= mask[: there.shape[1]]
    return there, there & changes


def position_effects(engine: Engine, gates: np.ndarray) -> np.ndarray:
    """m(full) − m(the gates act at one position only) `[V, E, T]`, for each of `gates[V, L, H]`.

    NaN where a prompt has no such position; exactly 0, without a pass, where nothing can change.
    """
    there, changes = acting_positions(engine)
    effects = np.where(there, 0.0, np.nan)[None].repeat(len(gates), 0)
    for position in np.flatnonzero(changes.any(0)).tolist():
        examples = np.flatnonzero(changes[:, position])
        effects[:, examples, position] = engine.measure(gates, examples, at=position).effects
    return effects


def position_gradients(engine: Engine) -> np.ndarray:
    """∂m/∂g of every gate at every position, at all gates 1 `[E, L, H, T]`; NaN where a prompt has no such position.

    One backward pass gives all positions.
    """
    engine.check_differentiable()
    there, _ = acting_positions(engine)
    gradients = np.full((*there.shape, *engine.layout.shape), np.nan)  # E, T, L, H

    def fill(numbers: Sequence[int]) -> None:
        block = engine.table.block(numbers)
        shape = (block.size, *engine.layout.shape, block.length)
        dtype, device = engine.model.gate_dtype, engine.model.device
        gates = torch.ones(shape, dtype=dtype, device=device, requires_grad=True)
        (slopes,) = torch.autograd.grad(engine.differentiable(block, gates).sum(), gates)
        for row, slope in zip(block.rows, slopes.double().cpu().numpy(), strict=True):
            tokens = int(there[row.example].sum())
            gradients[row.example, :tokens] = np.moveaxis(slope[..., :tokens], -1, 0)
        engine.advance(block.size)

    with engine.model.frozen():
        for numbers in engine.table.partition(2, engine.batch_tokens):
            in_halves(numbers, fill, engine.table.too_large, engine.shrink)
    return np.moveaxis(gradients, 1, -1)
