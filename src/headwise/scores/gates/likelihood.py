"""The likelihood of targets under gates, and its slope by every gate, at a small part of the usual memory.

Several fits share one pass: each row of a batch carries the gates of its own fit. Rows are run in pieces whose
gradients add up, so the whole batch's activations are never held. On a CPU the rows of a piece stand one behind the
other, elsewhere they are of similar length, so little or no padding is computed. Logits exist at scored positions
only; no weight asks for a gradient, and nothing below the first gate is differentiated.

S fits, B examples of one update, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.metrics.token_logprobs import token_logprobs
from headwise.model.backward.packing import Packed
from headwise.model.backward.recompute import feed_forward_parts
from headwise.model.backward.row_attention import RowAttention
from headwise.model.backward.target_logprobs import target_logprobs
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.onednn import whole_rows
from headwise.model.forward.out_of_memory import fits, in_halves
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block
from headwise.model.model import Model
from headwise.scores.gates.pieces import packed_pieces, padded_pieces
from headwise.scores.gates.replay import ShapedSlopes
from headwise.tasks.examples import Task

CPU_TOKENS = 448
"""Tokens of one piece on a CPU: of the bundled model, each keeps .5 MB for the backward pass."""
RECOMPUTE = 0.8
"""Share of the blocks whose feed-forward parts are computed again in the backward pass."""
CPU_SHARE, CPU_FEWEST, CPU_MOST = 0.42, 40, 168
"""Where no memory is spared: this share of an update's rows × the task's longest row, within these bounds."""
DEVICE_SHARE, DEVICE_MOST = 4, 16_384
"""Elsewhere: this part of the tokens of a plain forward pass, and no more than so many."""
CPU_OVERHEAD, DEVICE_OVERHEAD = 30, 4096
"""What one more piece costs, in tokens: on a CPU reading the weights twice more."""


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
        # One sequence of everything has a table of all pairs of tokens: no matter for the few of a CPU's piece.
        self.packed = model.device.type == "cpu" and model.capabilities.pack
        self.low_memory = self.packed and model.capabilities.low_memory
        self._recompute = feed_forward_parts(model.hooks, RECOMPUTE) if self.low_memory else []
        self._lengths = np.array([len(row.ids) for row in self.engine.rows])
        self._shaped: ShapedSlopes | None = None
        if model.device.type == "cuda" and ShapedSlopes.suits(self.engine):
            self._shaped = ShapedSlopes(self.engine, self._budget(np.arange(len(self._lengths))))

    def slopes(self, gates: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean over each fit's own examples `[S]` under its own gates, and its derivative `[S, L, H]`.

        gates `[S, L, H]`; examples `[S, B]`: numbers of the examples in the task.
        """
        shaped, found = self._shaped, []
        if shaped is not None:
            if fits(lambda: found.append(self._shaped_slopes(shaped, gates, examples))):
                return found[0]
            self._shaped = None
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

        def add(piece: Sequence[int]) -> None:
            rows = np.asarray(piece)
            # A pass that fails has added nothing to the slopes: gradients arrive at the gates last.
            values = self._backward(leaf, fit_of[rows], numbers[rows], 1 / B)
            total.index_add_(0, torch.from_numpy(fit_of[rows]).to(total.device), values.double())

        with model.frozen():
            for piece in reversed(self._pieces(numbers)):
                budget = int(self._lengths[numbers[piece]].sum())
                in_halves(piece.tolist(), add, self._too_large(numbers), lambda b=budget: self._shrink(b))  # type: ignore[misc]
        assert leaf.grad is not None
        return (total / B).cpu().numpy(), leaf.grad.double().cpu().numpy()

    def _too_large(self, numbers: np.ndarray) -> Callable[[int], HeadwiseError]:
        return lambda place: self.engine.table.too_large(int(numbers[place]))

    def _shrink(self, tokens: int) -> None:
        self.tokens = max(1, min(self.tokens or tokens, tokens) // 2)

    def _pieces(self, numbers: np.ndarray) -> list[np.ndarray]:
        lengths, budget = self._lengths[numbers], self._budget(numbers)
        if self.packed:
            return packed_pieces(lengths, budget)
        overhead = CPU_OVERHEAD if self.model.device.type == "cpu" else DEVICE_OVERHEAD
        return padded_pieces(lengths, budget, overhead)

    def _budget(self, numbers: np.ndarray) -> int:
        """Most tokens of one piece of an update over these examples."""
        if self.tokens is not None:
            return self.tokens
        if self.model.device.type != "cpu":
            return min(self.model.batch_tokens // DEVICE_SHARE, DEVICE_MOST)
        if self.low_memory:
            return CPU_TOKENS
        padded = len(numbers) * self._lengths.max()
        return int(np.clip(CPU_SHARE * padded, CPU_FEWEST, CPU_MOST))

    def _backward(self, leaf: Tensor, fits: np.ndarray, numbers: np.ndarray, weight: float) -> Tensor:
        block = self.engine.table.block(numbers.tolist())
        per_row = leaf[torch.from_numpy(fits).to(leaf.device)]  # rows, L, H
        values = self._packed(block, per_row) if self.packed else self.engine.differentiable(block, per_row)
        (weight * values.sum()).backward()
        return values.detach()

    def _packed(self, block: Block, gates: Tensor) -> Tensor:
        """What `Engine.differentiable` gives, of rows that stand one behind the other."""
        tokens = sum(len(row.ids) for row in block.rows)
        packed = Packed.of(block.rows, self.model.device, whole_rows(tokens))
        unembedding = self.model.capabilities.plain_unembedding
        places = (packed.row, packed.place)
        asked = packed.pass_(
            heads=HeadGates(gates, reference=block.references, acts=block.acts, packed=places),
            attention=RowAttention(packed.place) if self.low_memory else None,
            recompute=self._recompute,
            hidden=unembedding is not None,
        )
        found = self.model.run(asked).logits
        if unembedding is None:
            each = token_logprobs(found, packed.tokens)
        else:
            each = target_logprobs(found, unembedding, packed.tokens)
        sums = each.new_zeros(block.size).index_add(0, packed.scored_row, each[0])
        return sums / torch.bincount(packed.scored_row, minlength=block.size)

    def values(self, gates: np.ndarray) -> np.ndarray:
        """The same quantity without slopes, for every example of the task: `[S, E]`."""
        return self.engine.measure(gates).values
