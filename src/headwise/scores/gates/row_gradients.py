"""A metric and its gradient for rows that each have gates of their own: what every method that learns gates needs.

On a GPU rows run in a few fixed shapes that are recorded as CUDA graphs; elsewhere in pieces of rows of similar length.

n rows, L layers, H heads.
"""

from __future__ import annotations

import numpy as np
import torch

from headwise.model.forward.schedule import try_run
from headwise.model.measure.engine import Engine
from headwise.scores.gates.batches import CPU_OVERHEAD, DEVICE_OVERHEAD, device_tokens, padded_pieces
from headwise.scores.gates.replay import ShapedGradients

CPU_TOKENS = 640
"""Tokens of one piece on a CPU."""


class RowGradients:
    """Values and gradients of any rows of an engine's task, each under its own gates."""

    def __init__(self, engine: Engine, batch_tokens: int | None = None) -> None:
        """batch_tokens: most tokens in one backward pass (default: what suits the device)."""
        self.engine, model = engine, engine.model
        self._on_cpu = model.device.type == "cpu"
        self._asked = batch_tokens
        self._lengths = np.array([len(row.ids) for row in engine.rows])
        self._shaped: ShapedGradients | None = None
        if model.device.type == "cuda" and ShapedGradients.suits(engine):
            self._shaped = ShapedGradients(engine, self.tokens)

    @property
    def tokens(self) -> int:
        """Most tokens in one backward pass; fewer after memory ran out."""
        if self._asked is not None:
            return self._asked
        return CPU_TOKENS if self._on_cpu else device_tokens(self.engine.batch_tokens)

    def __call__(self, gates: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values `[n]` and gradients `[n, L, H]` of the rows `numbers[n]` under `gates[n, L, H]`."""
        shaped, results = self._shaped, []
        if shaped is not None:
            if try_run(lambda: results.append(self._replayed(shaped, gates, numbers))):
                return results[0]
            self._shaped = None
        values, gradients = np.empty(len(numbers)), np.empty(gates.shape)
        overhead = CPU_OVERHEAD if self._on_cpu else DEVICE_OVERHEAD
        for piece in padded_pieces(self._lengths[numbers], self.tokens, overhead):
            values[piece], gradients[piece] = self.engine.row_gradients(numbers[piece].tolist(), gates[piece])
        return values, gradients

    def _replayed(
        self, shaped: ShapedGradients, gates: np.ndarray, numbers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        model = self.engine.model
        on_device = torch.tensor(gates, dtype=model.gate_dtype, device=model.device)
        with model.frozen():
            values, gradients = shaped(on_device, numbers)
        return values.cpu().numpy(), gradients.cpu().numpy()
