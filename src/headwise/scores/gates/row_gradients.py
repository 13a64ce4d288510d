"""A metric and its gradient for rows that each have gates of their own: what every method that learns gates needs.

On a GPU rows run in a few fixed shapes that are recorded as CUDA graphs; elsewhere in pieces of rows of similar length.
On the GPU all rows of a task lie on the device, with what replaces their ablated heads; a piece is picked there, padded
to a length and a number of scored positions that are rounded up, and to a full number of rows. Rows that only fill a
piece are computed and dropped.

n rows, R rows of a piece, T tokens, P scored positions, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.model.forward.kernels import GraphPool, Replay, tf32_products
from headwise.model.forward.schedule import try_run
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import Block
from headwise.model.tokens.encode import batch_of

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
        """Values `[n]` and gradients `[n, L, H]` of the rows `numbers[n]` under `gates[n, L, H]`; on a GPU float32
        products are rounded to TF32."""
        with tf32_products(self.engine.model.device):
            return self._rounded(gates, numbers)

    def _rounded(self, gates: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


# ---- fixed shapes, for CUDA graphs --------------------------------------------------------------------


_TOKENS, _POSITIONS = 16, 8
"""Lengths and numbers of scored positions are rounded up to a multiple of these: few shapes, little padding."""
_MOST_REFERENCE = 2**31
"""Most bytes of references that lie on the device for all rows at once."""


class ShapedGradients:
    """Values and gradients of any rows of an engine's task, from recordings of a few shapes."""

    def __init__(self, engine: Engine, budget: int, *, record: bool = True) -> None:
        """budget: most tokens of one piece; record: as CUDA graphs."""
        self.engine = engine
        self._pool = GraphPool() if record else None
        self._all = _everything(engine, budget)
        self._lengths = np.array([len(row.ids) for row in engine.rows])
        self._scored = np.array([len(row.positions) for row in engine.rows])
        self._rows = max(1, budget // int(self._lengths.max()))
        """Rows of a piece: at first the most, then what suits the first call."""
        self._shapes: dict[tuple[int, int], _Shape] = {}

    @staticmethod
    def suits(engine: Engine) -> bool:
        """Whether a block needs its own rows alone, and the references of all rows fit on the device."""
        if engine.metric.compares:
            return False
        stored = _stored(_longest(engine))
        per_row = [z.numel() * z.element_size() for z in stored.values() if z.dim() == 4]
        return sum(per_row) * len(engine.rows) <= _MOST_REFERENCE

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
            sizes = (self._rows, tokens, scored)
            self._shapes[tokens, scored] = _Shape(self.engine, self._all, sizes, self._pool)
        return self._shapes[tokens, scored]


def _up(number: int, step: int) -> int:
    return -(-int(number) // step) * step


def _longest(engine: Engine) -> Block:
    """A block of one row, the longest."""
    lengths = [len(row.ids) for row in engine.rows]
    return engine.table.block([int(np.argmax(lengths))])


def _everything(engine: Engine, budget: int) -> Block:
    """All rows of the task as one block; references that differ from row to row are computed in parts of it."""
    device = engine.model.device
    whole = Block(engine.rows, {name: t.to(device) for name, t in batch_of(engine.rows).items()})
    longest = _longest(engine)
    per_row = any(z.dim() == 4 for z in _stored(longest).values())
    if not per_row:
        whole.references = longest.references
    if not per_row and engine.positions == "all" and longest.mask is None:
        return whole
    step = max(1, budget // whole.length)
    masks: list[Tensor] = []
    references: dict[Any, list[Tensor]] = {}
    for first in range(0, whole.size, step):
        part = engine.table.block(range(first, min(first + step, whole.size)))
        missing = whole.length - part.length
        everywhere = torch.ones(part.size, part.length, dtype=torch.bool, device=device)
        masks.append(pad(everywhere if part.mask is None else part.mask, (0, missing)))
        for of, z in _stored(part).items() if per_row else ():
            references.setdefault(of, []).append(pad(z, (0, 0, 0, 0, 0, missing)))
    whole.mask = torch.cat(masks)
    if per_row:
        whole.references = {of: torch.cat(parts) for of, parts in references.items()}
    return whole


def _stored(block: Block) -> dict[Any, Tensor]:
    """What replaces heads, as far as it is not computed in the pass itself."""
    return block.references if isinstance(block.references, dict) else {}


class _Shape:
    """Tensors of one shape, and the work on them."""

    def __init__(
        self, engine: Engine, everything: Block, sizes: tuple[int, int, int], pool: GraphPool | None
    ) -> None:
        self.engine, model = engine, engine.model
        rows, tokens, scored = sizes
        device = model.device
        widths = {"ids": tokens, "positions": scored, "tokens": scored, "mask": scored}
        tensors = {
            name: torch.zeros(rows, *_cut(t, widths.get(name)).shape[1:], dtype=t.dtype, device=device)
            for name, t in everything.tensors.items()
        }
        modules = model.modules(engine.layout.modules)
        self.block = Block([engine.rows[0]] * rows, tensors, modules=modules, groups=engine.table.groups)
        if everything.mask is not None:
            self.block.mask = torch.ones(rows, tokens, dtype=torch.bool, device=device)
        self.block.references = everything.references
        if isinstance(everything.references, dict):
            self.block.references = {
                of: z[:1, :tokens].repeat(rows, 1, 1, 1)
                if z.dim() == 4
                else z[:tokens]
                if z.dim() == 3
                else z
                for of, z in everything.references.items()
            }
        self.gates = torch.ones(rows, *engine.layout.shape, dtype=model.gate_dtype, device=device)
        self.gates.requires_grad_()
        self.values = torch.zeros(rows, dtype=torch.float64, device=device)
        self.gradients = torch.zeros_like(self.gates, requires_grad=False)
        self.run = Replay(self._work, pool)

    def fill(self, everything: Block, numbers: Tensor, gates: Tensor) -> None:
        for name, target in self.block.tensors.items():
            target.copy_(
                _cut(everything.tensors[name][numbers], target.shape[1] if target.dim() == 2 else None)
            )
        if everything.mask is not None:
            assert self.block.mask is not None
            self.block.mask.copy_(everything.mask[numbers, : self.block.length])
        for of, z in _stored(self.block).items():
            if z.dim() == 4:
                z.copy_(_stored(everything)[of][numbers, : self.block.length])
        with torch.no_grad():
            self.gates[: len(gates)].copy_(gates)

    def _work(self) -> None:
        values = self.engine.differentiable(self.block, self.gates)
        (gradients,) = torch.autograd.grad(values.sum(), self.gates)
        self.values.copy_(values.detach())
        self.gradients.copy_(gradients)


def _cut(tensor: Tensor, width: int | None) -> Tensor:
    return tensor if width is None or tensor.dim() < 2 else tensor[:, :width]


CPU_OVERHEAD, DEVICE_OVERHEAD = 30, 4096
"""What one more piece costs, in tokens: on a CPU reading the weights twice more."""
_DEVICE_SHARE, _DEVICE_MOST = 4, 16_384


def device_tokens(batch_tokens: int) -> int:
    """Most tokens of one backward pass on an accelerator: a part of those of a plain forward pass, and no more than
    fill it."""
    return max(1, min(batch_tokens // _DEVICE_SHARE, _DEVICE_MOST))


def batches(n: int, size: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Numbers of the examples for one update after another: every example once per round, in an order of the seed."""
    random = np.random.default_rng(list(seed))
    waiting = np.empty(0, dtype=int)
    while True:
        while len(waiting) < min(n, size):
            waiting = np.concatenate([waiting, np.arange(n) if size >= n else random.permutation(n)])
        yield waiting[:size]
        waiting = waiting[size:]


def packed_pieces(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Row numbers in few pieces of about equal size, for rows that stand one behind the other.

    No piece has more than `budget` tokens, unless a single row has.

    >>> [piece.tolist() for piece in packed_pieces(np.array([9, 4, 5, 2]), 12)]
    [[0, 3], [1, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    count = max(1, -(-int(lengths.sum()) // budget))
    while True:
        filled, of_row = np.zeros(count, dtype=int), np.empty(len(lengths), dtype=int)
        for row in order:  # the longest first, each to the piece that has least
            of_row[row] = filled.argmin()
            filled[of_row[row]] += lengths[row]
        if count >= len(lengths) or filled.max() <= budget:
            return [np.flatnonzero(of_row == piece) for piece in range(count) if (of_row == piece).any()]
        count += 1


def padded_pieces(lengths: np.ndarray, budget: int, overhead: int) -> list[np.ndarray]:
    """Row numbers in pieces of similar length, for rows that are padded to the longest of their piece: least tokens,
    padding included, plus `overhead` per piece.

    No piece has more than `budget` tokens, unless a single row has.

    >>> [piece.tolist() for piece in padded_pieces(np.array([5, 40, 5, 41]), 1000, 10)]
    [[0, 2], [1, 3]]
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    cost, cut = np.zeros(len(order) + 1), np.zeros(len(order) + 1, dtype=int)
    for end in range(1, len(order) + 1):
        longest = int(ordered[end - 1])
        first = max(0, end - max(1, budget // longest))
        # One for each row with which the piece that ends here could begin.
        options = cost[first:end] + longest * np.arange(end - first, 0, -1) + overhead
        cut[end] = first + int(options.argmin())
        cost[end] = options.min()
    pieces, end = [], len(order)
    while end:
        pieces.append(order[cut[end] : end])
        end = cut[end]
    return pieces[::-1]
