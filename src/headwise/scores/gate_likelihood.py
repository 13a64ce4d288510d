"""The likelihood of targets under gates, and its slope by every gate, at a small part of the usual memory.

Several fits share one pass: each row of a batch carries the gates of its own fit. Rows are sorted by length and
run in pieces whose gradients add up, so neither padding nor the whole batch's activations are ever held; logits
exist at scored positions only; no weight asks for a gradient, and nothing below the first gate is differentiated.

S fits, B examples of one update, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.metrics import metric
from headwise.model.engine import Engine
from headwise.model.load import Model
from headwise.model.memory import out_of_memory, release
from headwise.scores.gate_replay import ShapedSlopes
from headwise.tasks.examples import Task

CPU_SHARE, CPU_FEWEST, CPU_MOST = 0.3, 36, 192
"""Tokens of one piece on a CPU: this share of an update's rows × longest row, within these bounds. A piece remembers
about 1 MB per token of the bundled model for its backward pass; fewer tokens no longer fill two cores."""
DEVICE_SHARE = 4
"""Elsewhere: this part of the tokens of a plain forward pass."""
CPU_OVERHEAD, DEVICE_OVERHEAD = 20, 4096
"""What starting one more piece costs, in tokens."""


class GateLikelihood:
    """Mean log probability per target token of a task's examples, as a function of gates."""

    def __init__(
        self,
        model: Model,
        task: Task,
        *,
        reference: str = "zero",
        positions: str = "all",
        reference_task: Task | None = None,
        seed: int = 0,
        batch_tokens: int | None = None,
    ) -> None:
        """batch_tokens: most tokens in one backward pass (default: what suits the device)."""
        self.engine = Engine(
            model,
            task,
            metric("mean_logprob"),
            reference=reference,
            positions=positions,
            reference_task=reference_task,
            seed=seed,
        )
        self.model, self.task = model, task
        self.tokens = batch_tokens
        """Most tokens of a piece; None where it depends on the update."""
        self.overhead = CPU_OVERHEAD if model.device.type == "cpu" else DEVICE_OVERHEAD
        self._lengths = np.array([len(row.ids) for row in self.engine.rows])
        self._shaped: ShapedSlopes | None = None
        if model.device.type == "cuda" and ShapedSlopes.suits(self.engine):
            self._shaped = ShapedSlopes(self.engine, self._budget(np.arange(len(self._lengths))))

    def slopes(self, gates: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean over each fit's own examples `[S]` under its own gates, and its derivative `[S, L, H]`.

        gates `[S, L, H]`; examples `[S, B]`: numbers of the examples in the task.
        """
        if self._shaped is not None:
            try:
                return self._shaped_slopes(self._shaped, gates, examples)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                self._shaped = None
                release()
        return self._slopes_in_pieces(gates, examples)

    def _shaped_slopes(
        self, shaped: ShapedSlopes, gates: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        S, B = examples.shape
        model = self.model
        given = torch.tensor(gates, dtype=model.gate_dtype, device=model.device)
        with model.frozen():
            values, slopes = shaped(given.repeat_interleave(B, 0), examples.ravel())
        means = [numbers.unflatten(0, (S, B)).mean(1).cpu().numpy() for numbers in (values, slopes)]
        return means[0], means[1]

    def _slopes_in_pieces(self, gates: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S, B = examples.shape
        model = self.model
        leaf = torch.tensor(gates, dtype=model.gate_dtype, device=model.device, requires_grad=True)
        total = torch.zeros(S, dtype=torch.float64, device=model.device)
        fit_of, numbers = np.repeat(np.arange(S), B), examples.ravel()
        with model.frozen():
            waiting = pieces(self._lengths[numbers], self._budget(numbers), self.overhead)
            while waiting:
                piece = waiting.pop()
                try:
                    values = self._backward(leaf, fit_of[piece], numbers[piece], 1 / B)
                except (torch.OutOfMemoryError, RuntimeError) as error:
                    if not out_of_memory(error):
                        raise
                    if len(piece) == 1:
                        raise self.engine.does_not_fit(int(numbers[piece][0])) from error
                    # A pass that failed has added nothing to the slopes: gradients arrive at the gates last.
                    release()
                    self.tokens = max(1, int(self._lengths[numbers[piece]].sum()) // 2)
                    waiting += [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
                    continue
                total.index_add_(0, torch.from_numpy(fit_of[piece]).to(total.device), values.double())
        assert leaf.grad is not None
        return (total / B).cpu().numpy(), leaf.grad.double().cpu().numpy()

    def _budget(self, numbers: np.ndarray) -> int:
        """Most tokens of one piece of an update over these examples."""
        if self.tokens is not None:
            return self.tokens
        if self.model.device.type != "cpu":
            return self.model.batch_tokens // DEVICE_SHARE
        padded = len(numbers) * self._lengths[numbers].max()
        return int(np.clip(CPU_SHARE * padded, CPU_FEWEST, CPU_MOST))

    def _backward(self, leaf: Tensor, fits: np.ndarray, numbers: np.ndarray, weight: float) -> Tensor:
        block = self.engine.block(numbers.tolist())
        per_row = leaf[torch.from_numpy(fits).to(leaf.device)]  # rows, L, H
        values = self.engine.differentiable(block, per_row)
        (weight * values.sum()).backward()
        return values.detach()

    def values(self, gates: np.ndarray) -> np.ndarray:
        """The same quantity without slopes, for every example of the task: `[S, E]`."""
        return self.engine.measure(gates).values


def pieces(lengths: np.ndarray, budget: int, overhead: int) -> list[np.ndarray]:
    """Row numbers in pieces of similar length: least tokens, padding included, plus `overhead` per piece.

    No piece has more than `budget` tokens, unless a single row has.

    >>> [piece.tolist() for piece in pieces(np.array([5, 40, 5, 41]), 1000, 10)]
    [[0, 2], [1, 3]]
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    cost, cut = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=int)
    for end in range(1, len(order) + 1):
        longest = int(ordered[end - 1])
        first = max(0, end - max(1, budget // longest))
        # From each place where the piece that ends here could begin.
        options = cost[first:end] + longest * np.arange(end - first, 0, -1) + overhead
        cut[end] = first + int(options.argmin())
        cost[end] = options.min()
    found, end = [], len(order)
    while end:
        found.append(order[cut[end] : end])
        end = cut[end]
    return found[::-1]


class Batches:
    """Examples for one update after the other: every example once per round, in an order of the seed's own."""

    def __init__(self, n: int, size: int, seed: Sequence[int]) -> None:
        self.n, self.size = n, min(n, size)
        self._draw = np.random.default_rng(list(seed))
        self._left = np.empty(0, dtype=int)

    def next(self) -> np.ndarray:
        if self.size == self.n:
            return np.arange(self.n)
        while len(self._left) < self.size:
            self._left = np.concatenate([self._left, self._draw.permutation(self.n)])
        taken, self._left = self._left[: self.size], self._left[self.size :]
        return taken
