"""Gradients of rows that each have their own gates, in a few fixed shapes, so that a GPU can replay CUDA graphs.

All rows of a task lie on the device; a piece is picked there, padded to a length and a number of scored positions that
are rounded up, and to a full number of rows. Rows that only fill a piece are computed and dropped.

R rows of a piece, T tokens, P scored positions, L layers, H heads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.model.forward.cuda_graph import Replay
from headwise.model.measure.engine import Engine

_TOKENS, _POSITIONS = 16, 8
"""Lengths and numbers of scored positions are rounded up to a multiple of these: few shapes, little padding."""


class ShapedGradients:
    """Values and gradients of any rows of an engine's task, from recordings of a few shapes."""

    def __init__(self, engine: Engine, budget: int, *, record: bool = True) -> None:
        """budget: most tokens of one piece; record: as CUDA graphs."""
        self.engine, self.record = engine, record
        self._all = engine.table.block(range(len(engine.rows))).tensors
        self._lengths = np.array([len(row.ids) for row in engine.rows])
        self._scored = np.array([len(row.positions) for row in engine.rows])
        self._rows = max(1, budget // int(self._lengths.max()))
        """Rows of a piece: at first the most, then what suits the first call."""
        self._shapes: dict[tuple[int, int], _Shape] = {}

    @staticmethod
    def suits(engine: Engine) -> bool:
        """Whether a block needs its rows alone: references and positions would have shapes too."""
        return engine.reference == "zero" and engine.positions == "all" and not engine.metric.compares

    def __call__(self, gates: Tensor, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Values `[n]` and gradients `[n, L, H]` of the rows `numbers[n]` under `gates[n, L, H]`."""
        if not self._shapes:
            pieces = -(-len(numbers) // self._rows)
            self._rows = -(-len(numbers) // pieces)  # all pieces full, as far as that goes
        values = torch.empty(len(numbers), dtype=torch.float64, device=gates.device)
        gradients = torch.empty(gates.shape, dtype=torch.float64, device=gates.device)
        order = np.argsort(self._lengths[numbers], kind="stable")
        # The piece that is not full is the one of the shortest rows.
        first = len(order) % self._rows or self._rows
        for part in np.split(order, range(first, len(order), self._rows)):
            chosen = numbers[part]
            shape = self._shape(chosen)
            filled = np.concatenate([chosen, np.repeat(chosen[:1], self._rows - len(chosen))])
            where = torch.from_numpy(part).to(gates.device)
            shape.fill(self._all, torch.from_numpy(filled).to(gates.device), gates[where])
            shape.run()
            values[where] = shape.values[: len(part)].double()
            gradients[where] = shape.gradients[: len(part)].double()
        return values, gradients

    def _shape(self, numbers: np.ndarray) -> _Shape:
        tokens = min(_up(self._lengths[numbers].max(), _TOKENS), int(self._lengths.max()))
        scored = min(_up(self._scored[numbers].max(), _POSITIONS), int(self._scored.max()))
        if (tokens, scored) not in self._shapes:
            self._shapes[tokens, scored] = _Shape(self.engine, self._rows, tokens, scored, self.record)
        return self._shapes[tokens, scored]


def _up(number: int, step: int) -> int:
    return -(-int(number) // step) * step


class _Shape:
    """Tensors of one shape, and the work on them."""

    def __init__(self, engine: Engine, rows: int, tokens: int, scored: int, record: bool) -> None:
        self.engine, model = engine, engine.model
        self.block = engine.table.block([0] * rows)
        widths = {"ids": tokens, "positions": scored, "tokens": scored, "mask": scored}
        for name, width in widths.items():
            kind = self.block.tensors[name].dtype
            self.block.tensors[name] = torch.zeros(rows, width, dtype=kind, device=model.device)
        self.gates = torch.ones(rows, *model.shape, dtype=model.gate_dtype, device=model.device)
        self.gates.requires_grad_()
        self.values = torch.zeros(rows, dtype=torch.float64, device=model.device)
        self.gradients = torch.zeros_like(self.gates, requires_grad=False)
        self.run = Replay(self._work, record=record)

    def fill(self, everything: dict[str, Tensor], numbers: Tensor, gates: Tensor) -> None:
        for name, target in self.block.tensors.items():
            source = everything[name][numbers]
            target.copy_(source if source.dim() < 2 else source[:, : target.shape[1]])
        with torch.no_grad():
            self.gates[: len(gates)].copy_(gates)

    def _work(self) -> None:
        values = self.engine.differentiable(self.block, self.gates)
        (gradients,) = torch.autograd.grad(values.sum(), self.gates)
        self.values.copy_(values.detach())
        self.gradients.copy_(gradients)
