"""The likelihood of targets under gates, and its gradient with respect to every gate, with little memory.

Several fits share one pass: each row of a batch carries the gates of its fit. Rows are run in pieces whose gradients
add up, so the activations of the whole batch are never held at once. On a CPU the rows of a piece are packed into one
sequence, elsewhere they are of similar length, so little or no padding is computed. Logits are computed at scored
positions only; no weight needs a gradient, and nothing below the first gate is differentiated.

S fits, B examples of one update, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.backward import Packed, target_logprobs, token_logprobs
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.schedule import in_halves, try_run
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block
from headwise.model.model import Model
from headwise.names import window_of
from headwise.scores.gates.row_gradients import (
    CPU_OVERHEAD,
    DEVICE_OVERHEAD,
    ShapedGradients,
    device_tokens,
    packed_pieces,
    padded_pieces,
)
from headwise.tasks.examples import Task

CPU_SHARE, CPU_FEWEST, CPU_MOST = 0.42, 40, 168
"""Tokens of one piece on a CPU: this share of an update's rows × the task's longest row, within these bounds."""
CALM_UPDATES = 30
"""After so many updates that fitted into memory, pieces may be twice as large again as when memory ran out."""


class GateLikelihood:
    """Mean log probability per target token of a task's examples, as a function of gates."""

    def __init__(self, model: Model, task: Task, *, batch_tokens: int | None = None, **engine: Any) -> None:
        """batch_tokens: most tokens in one backward pass (default: what suits the device).

        engine: `reference`, `positions`, `reference_task` and `seed` of `Engine`.
        """
        self.engine = Engine(model, task, metric("mean_logprob"), **engine)
        self.model, self.task = model, task
        self.tokens = batch_tokens
        """Most tokens of a piece; None where it depends on the update."""
        self._room: int | None = None
        """Most tokens of a piece since memory ran out."""
        self._calm = 0
        # A packed sequence has an attention mask of all pairs of tokens: small for the few tokens of a CPU's piece.
        # A short view counts tokens from the start of a row, which a packed one does not begin.
        short = window_of(self.engine.reference)
        self.packed = model.device.type == "cpu" and model.capabilities.pack and not short
        self._lengths = np.array([len(row.ids) for row in self.engine.rows])
        self._shaped: ShapedGradients | None = None
        if model.device.type == "cuda" and ShapedGradients.suits(self.engine):
            self._shaped = ShapedGradients(self.engine, self._budget(np.arange(len(self._lengths))))

    def gradients(self, gates: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean over the examples of each fit `[S]` under its gates, and its gradient `[S, L, H]`.

        gates `[S, L, H]`; examples `[S, B]`: numbers of the examples in the task.
        """
        shaped, results = self._shaped, []
        if shaped is not None:
            if try_run(lambda: results.append(self._shaped_gradients(shaped, gates, examples))):
                return results[0]
            self._shaped = None
        return self._gradients_in_pieces(gates, examples)

    def _shaped_gradients(
        self, shaped: ShapedGradients, gates: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        per_fit = torch.tensor(gates, dtype=self.model.gate_dtype, device=self.model.device)
        with self.model.frozen():
            both = shaped(per_fit.repeat_interleave(examples.shape[1], 0), examples.ravel())
        values, gradients = (rows.unflatten(0, examples.shape).mean(1).cpu().numpy() for rows in both)
        return values, gradients

    def _gradients_in_pieces(self, gates: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._calm += 1
        if (
            self._room is not None and self._calm > CALM_UPDATES
        ):  # memory may have been short for a while only
            self._room, self._calm = 2 * self._room, 0
        S, B = examples.shape
        model, table = self.model, self.engine.table
        leaf = torch.tensor(gates, dtype=model.gate_dtype, device=model.device, requires_grad=True)
        total = torch.zeros(S, dtype=torch.float64, device=model.device)
        fit_of, numbers = np.repeat(np.arange(S), B), examples.ravel()

        def add(piece: Sequence[int]) -> None:
            rows = list(piece)
            block = table.block(numbers[rows].tolist())
            fit_of_row = torch.from_numpy(fit_of[rows]).to(model.device)
            per_row = leaf[fit_of_row]  # rows, L, H
            values = (
                self._packed(block, per_row) if self.packed else self.engine.differentiable(block, per_row)
            )
            # A pass that fails has added nothing to the gradients: they arrive at the gates last.
            (1 / B * values.sum()).backward()
            total.index_add_(0, fit_of_row, values.detach().double())

        def too_large(row: int) -> HeadwiseError:
            return table.too_large(int(numbers[row]))

        with model.frozen():
            for piece in reversed(self._pieces(numbers)):
                tokens = int(self._lengths[numbers[piece]].sum())
                in_halves(piece.tolist(), add, too_large, partial(self._shrink, tokens))
        assert leaf.grad is not None
        return (total / B).cpu().numpy(), leaf.grad.double().cpu().numpy()

    def _shrink(self, tokens: int) -> None:
        self._room, self._calm = max(1, min(self._room or tokens, tokens) // 2), 0

    def _pieces(self, numbers: np.ndarray) -> list[np.ndarray]:
        lengths, budget = self._lengths[numbers], self._budget(numbers)
        if self.packed:
            return packed_pieces(lengths, budget)
        overhead = CPU_OVERHEAD if self.model.device.type == "cpu" else DEVICE_OVERHEAD
        return padded_pieces(lengths, budget, overhead)

    def _budget(self, numbers: np.ndarray) -> int:
        """Most tokens of one piece of an update over these examples."""
        if self.tokens is not None:
            budget = self.tokens
        elif self.model.device.type != "cpu":
            budget = device_tokens(self.model.batch_tokens)
        else:
            padded = len(numbers) * self._lengths.max()
            budget = int(np.clip(CPU_SHARE * padded, CPU_FEWEST, CPU_MOST))
        return budget if self._room is None else min(budget, self._room)

    def _packed(self, block: Block, gates: Tensor) -> Tensor:
        """The values of `Engine.differentiable`, from rows packed into one sequence."""
        packed = Packed.of(block.rows, self.model.device)
        unembedding = self.model.capabilities.plain_unembedding
        positions = (packed.row, packed.place)
        forward_pass = packed.pass_(
            heads=HeadGates(gates, reference=block.references, mask=block.mask, packed=positions),
            hidden=unembedding is not None,
        )
        logits = self.model.run(forward_pass).logits  # hidden states where there is a plain unembedding
        if unembedding is None:
            each = token_logprobs(logits, packed.tokens)
        else:
            each = target_logprobs(logits, unembedding, packed.tokens)
        sums = each.new_zeros(block.size).index_add(0, packed.scored_row, each[0])
        return sums / torch.bincount(packed.scored_row, minlength=block.size)

    def values(self, gates: np.ndarray) -> np.ndarray:
        """The same quantity without gradients, for every example of the task: `[S, E]`."""
        return self.engine.measure(gates).values
