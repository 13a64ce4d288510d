"""V gates × E examples -> metric values.

Rows of one batch carry different gates. Variants are ordered by the first layer they change; the residual
stream there comes from one run at the baseline (all gates at 1 unless another is given), and the decoder is
entered at that layer. Variants that have the same gates up to some block are computed once up to it: the curve of
an order, each of whose masks adds a head to the one before, takes about half the work. Every batch also holds its
rows at the baseline, so a difference never mixes two batch shapes: a head that does nothing scores exactly 0.

V variants, E examples, S rows of a block (one or more per example), T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.constraints import Number, check_values
from headwise.errors import HeadwiseError
from headwise.heads import gate_numbers, ones
from headwise.model.backward.remembered import remembering_less
from headwise.model.forward.gating import gated
from headwise.model.forward.memory import out_of_memory, release
from headwise.model.forward.prefix import entered_at, recorded_streams, shared_rows
from headwise.model.forward.schedule import alike, batch_size, blocks_of_rows, queues
from headwise.model.measure.references import (
    check_reference,
    donor_prompts,
    donor_rows,
    first_differences,
    mean_outputs,
)
from headwise.model.tokens.encode import Row, Scored, batch_of, encode_rows, pad_right

if TYPE_CHECKING:
    from headwise.metrics.registry import Metric
    from headwise.model.model import Model
    from headwise.tasks.examples import Task

CONSTRAINTS = {"seed": Number(least=0), "batch_tokens": Number(least=1)}
"""Of every call that runs a model on examples."""
LOGIT_BUDGET = 2**26
"""Most logits held at once, in numbers: 256 MB in float32; four times as many on an accelerator, which is idle with
few rows."""
CPU_FILLED = 1024
"""Tokens that keep two cores as busy as more would; a backward pass, which remembers every layer, has twice as many."""


@dataclass(frozen=True)
class Measured:
    """Metric values under gates, each beside the same example's value at the baseline in the same batch."""

    values: np.ndarray  # V, E
    full: np.ndarray  # V, E: at the baseline, which is all gates at 1 unless another was given

    @property
    def effects(self) -> np.ndarray:
        """Metric with all heads minus metric under the gates `[V, E]`: positive where what was removed helps."""
        return self.full - self.values


@dataclass
class Block:
    """Some rows of about equal length, with what is computed once for them."""

    rows: list[Row]
    tensors: dict[str, Tensor]
    baseline: np.ndarray  # L, H: the gates that variants are compared with
    acts: Tensor | None = None  # S, T: where gates act; None is everywhere
    streams: dict[int, Tensor] | None = None  # block index -> S, T, width
    references: dict[int, Tensor] | None = None  # layer -> broadcastable to S, T, H, D
    plain_logits: Tensor | None = None  # S, P, vocabulary
    """With all gates at 1: only where a metric compares with them and the baseline is another."""

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        return self.tensors["ids"].shape[1]

    def scored(self, logits: Tensor, full: Tensor | None = None) -> Scored:
        """`logits` of this block's rows, repeated any number of times."""
        times = len(logits) // self.size
        fields = {name: self.tensors[name] for name in ("tokens", "mask", "rights", "wrongs", "whole")}
        repeated = {name: t.repeat(times, *[1] * (t.dim() - 1)) for name, t in fields.items()}
        return Scored(logits, full=full, **repeated)


class Engine:
    """A model, a task and a metric, ready to be run under any gates."""

    def __init__(
        self,
        model: Model,
        task: Task,
        metric: Metric,
        *,
        reference: str = "zero",
        positions: str = "all",
        reference_task: Task | None = None,
        seed: int = 0,
        batch_tokens: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        """
        reference: what a gated-out head is replaced by; positions: where gates act.
        reference_task: the examples behind a mean reference (default: the task itself).
        batch_tokens: most tokens in one forward pass (default: what suits the device); where that saves a pass, a
        sixteenth more.
        advance: called with the number of (variant, row) pairs just finished.
        """
        check_reference(reference, positions)
        check_values({"seed": seed, "batch_tokens": batch_tokens}, CONSTRAINTS)
        self.model, self.task, self.metric = model, task, metric
        self.reference, self.positions = reference, positions
        self.batch_tokens = batch_tokens or model.batch_tokens
        self.rows = encode_rows(model.text, task.examples, metric.needs)
        self.rows_spent = 0
        """Forward rows run so far, counting an entry in the middle as a whole row."""
        self._advance = advance or (lambda count: None)
        prompts = donor_prompts(reference, model.text, task.examples, seed)
        self._donors = (
            donor_rows(model.text, task.examples, self.rows, prompts) if prompts is not None else None
        )
        self._means: dict[int, Tensor] | None = None
        if reference in ("mean", "position_mean"):
            behind = self.rows
            if reference_task is not None:
                behind = encode_rows(model.text, reference_task.examples, "target")
            self._means = mean_outputs(model, behind, reference == "position_mean", self.batch_tokens)

    # ---- values ----------------------------------------------------------------------------------------

    def full(self) -> np.ndarray:
        """The metric with all gates at 1, per example `[E]`."""
        return self.measure(ones(self.model.shape)[None]).values[0]

    def measure(
        self,
        gates: np.ndarray,
        examples: Sequence[int] | np.ndarray | None = None,
        baseline: np.ndarray | None = None,
    ) -> Measured:
        """The metric under each of `gates[V, L, H]`, per example `[V, E]`.

        examples: run only these, by their index in the task; E is then their number, in the order given.
        baseline: the gates `[L, H]` beside which every variant is measured; all 1 by default.
        """
        gates = self._checked(gate_numbers(gates, "gates"))
        given = ones(self.model.shape) if baseline is None else baseline
        base = self._checked(gate_numbers(given, "the baseline's gates")[None])[0]
        chosen = np.arange(len(self.task)) if examples is None else np.asarray(examples, dtype=int)
        wanted = set(chosen.tolist())
        if not wanted <= set(range(len(self.task))):
            raise HeadwiseError(
                f"examples {sorted(wanted - set(range(len(self.task))))} are not in task {self.task.name!r}, "
                f"which has examples 0 to {len(self.task) - 1}"
            )
        values = np.full((len(gates), len(self.rows)), np.nan)
        full = np.full_like(values, np.nan)
        most = max(np.bincount(self._entries(gates, base), minlength=1))
        with torch.inference_mode(), self.model.running():
            for numbers in self._partition(most + 1, wanted):
                self._measure_rows(gates, base, numbers, values, full)
        combine = self.metric.combine
        return Measured(
            combine(self.rows, values, len(self.task))[:, chosen],
            combine(self.rows, full, len(self.task))[:, chosen],
        )

    def _measure_rows(
        self, gates: np.ndarray, base: np.ndarray, numbers: list[int], values: np.ndarray, full: np.ndarray
    ) -> None:
        """Fill the columns `numbers` of `values` and `full`; out of memory, in two halves."""
        try:
            entries = self._entries(gates, base)
            block = self._prepared(numbers, base, streams=False)
            waiting = self._queues(gates, entries, block)
            if self._streams_pay(block, entries, waiting):
                self._record_streams(block)
            elif self.model.proof.shares:
                waiting = [list(chain(*waiting))]
            columns = np.array(numbers)
            for pending in waiting:
                while pending:
                    chunk = np.array(pending[: batch_size(len(pending), self._variants_at_once(block))])
                    try:
                        entry = 0 if block.streams is None else int(entries[chunk[0]])
                        result, paired = self._chunk(block, gates[chunk], entry)
                    except (torch.OutOfMemoryError, RuntimeError) as error:
                        if not out_of_memory(error) or len(chunk) == 1:
                            raise
                        self._shrink()
                        continue
                    places = np.ix_(np.array(chunk), columns)
                    values[places] = result
                    full[places] = paired
                    pending = pending[len(chunk) :]
                    self._advance(len(chunk) * len(numbers))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self._shrink()
            if len(numbers) == 1:
                raise self.does_not_fit(numbers[0]) from error
            middle = len(numbers) // 2
            self._measure_rows(gates, base, numbers[:middle], values, full)
            self._measure_rows(gates, base, numbers[middle:], values, full)

    def _queues(self, gates: np.ndarray, entries: np.ndarray, block: Block) -> list[list[int]]:
        """Variants in the order in which they are run; those of one queue may share a batch."""
        if not self.model.proof.shares:
            return [np.flatnonzero(entries == entry).tolist() for entry in np.unique(entries)]
        filled = CPU_FILLED if self.model.device.type == "cpu" else self.batch_tokens
        enough = -(-filled // (block.size * block.length))
        return queues(gates, entries, enough, self._variants_at_once(block))

    def _chunk(self, block: Block, gates: np.ndarray, entry: int) -> tuple[np.ndarray, np.ndarray]:
        """Values `[v, S]` of some variants that enter at the same block, and their partners at the baseline `[S]`."""
        with_base = np.concatenate([block.baseline[None], gates])  # v + 1, L, H: the first is the baseline
        times = len(with_base)
        logits = self._logits(block, torch.from_numpy(with_base), entry)
        compare = None
        if self.metric.compares:
            plain = logits[: block.size] if block.plain_logits is None else block.plain_logits
            compare = plain.repeat(times, 1, 1)
        per_row = self.metric.per_row(block.scored(logits, compare)).double().cpu().numpy()
        self.rows_spent += times * block.size
        by_variant = per_row.reshape(times, block.size)
        return by_variant[1:], by_variant[0]

    # ---- gradients -------------------------------------------------------------------------------------

    def gradients(self, gates: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Metric values `[E]` and their derivatives by the gates, per example `[E, L, H]`.

        `gates` are shared `[L, H]` or per example `[E, L, H]`; all 1 by default. Weights ask for no gradient.
        """
        self._check_slopes()
        shape = (len(self.task), *self.model.shape)
        given = gate_numbers(ones(self.model.shape) if gates is None else gates, "gates")
        if given.shape not in (shape, shape[1:]):
            raise HeadwiseError(
                f"gates of shape {given.shape} do not fit {self.model.name}: expected {list(shape[1:])}, or "
                f"{list(shape)} with one set per example"
            )
        at = np.broadcast_to(given, shape)
        self._checked(np.array(at))
        values, slopes = np.full(shape[0], np.nan), np.full(shape, np.nan)
        # A backward pass keeps every layer's activations, so fewer tokens fit.
        with self.model.frozen():
            for numbers in self._partition(2):
                examples = [self.rows[n].example for n in numbers]
                values[examples], slopes[examples] = self._slopes(numbers, at[examples])
                self._advance(len(numbers))
        return values, slopes

    def mean_gradients(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """Derivatives by the gates `[E, L, H]`, averaged over several levels at which all gates stand together.

        Several levels share a batch where the budget has room for them.
        """
        self._check_slopes()
        total = np.zeros((len(self.task), *self.model.shape))
        with self.model.frozen():
            for numbers in self._partition(2):
                examples = [self.rows[n].example for n in numbers]
                longest = max(len(self.rows[n].ids) for n in numbers)
                at_once = max(1, self._slope_tokens // (len(numbers) * longest))
                for first in range(0, len(levels), at_once):
                    some = np.asarray(levels[first : first + at_once], dtype=np.float64)
                    at = np.broadcast_to(
                        np.repeat(some, len(numbers))[:, None, None],
                        (len(some) * len(numbers), *self.model.shape),
                    )
                    _, slopes = self._slopes(list(numbers) * len(some), at)
                    total[examples] += slopes.reshape(len(some), len(numbers), *self.model.shape).sum(axis=0)
                    self._advance(len(some) * len(numbers))
        return total / len(levels)

    @property
    def _slope_tokens(self) -> int:
        """Most tokens of a backward pass over several levels."""
        most = self.batch_tokens // 2
        return min(most, 2 * CPU_FILLED) if self.model.device.type == "cpu" else most

    def _check_slopes(self) -> None:
        if not self.metric.differentiable:
            raise HeadwiseError(
                f"the metric {self.metric.name!r} has no gradient; use one such as logit_diff or logprob"
            )

    def _slopes(self, numbers: list[int], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values `[S]` and slopes `[S, L, H]` of the rows of these numbers at gates of their own; out of memory, in
        two halves."""
        try:
            block = self._prepared(numbers, streams=False)
            gates = torch.tensor(
                at, dtype=self.model.gate_dtype, device=self.model.device, requires_grad=True
            )
            metric = self.differentiable(block, gates)
            metric.sum().backward()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self._shrink()
            if len(numbers) == 1:
                raise self.does_not_fit(numbers[0]) from error
            middle = len(numbers) // 2
            halves = [
                self._slopes(numbers[part], at[part]) for part in (slice(0, middle), slice(middle, None))
            ]
            values, slopes = (np.concatenate(parts) for parts in zip(*halves, strict=True))
            return values, slopes
        assert gates.grad is not None
        return metric.detach().double().cpu().numpy(), gates.grad.double().cpu().numpy()

    def differentiable(self, block: Block, gates: Tensor) -> Tensor:
        """The metric of a block's rows `[S]` as a function of their gates `[S, L, H]`, for autograd."""
        with self.model.visiting(self._gate_visitor(block, gates, None)), remembering_less():
            logits = self.model.logits(block.tensors["ids"], block.tensors["positions"])
        self.rows_spent += block.size
        compare = None
        if self.metric.compares:
            with torch.no_grad():
                compare = self.model.logits(block.tensors["ids"], block.tensors["positions"])
        return self.metric.per_row(block.scored(logits, compare))

    # ---- one forward pass ------------------------------------------------------------------------------

    def _logits(self, block: Block, gates: Tensor, entry: int) -> Tensor:
        """Scored logits `[v·S, P, vocabulary]` of a block's rows under each of `gates[v, L, H]`, variant by variant."""
        times = len(gates)
        changed = {int(layer) for layer in torch.nonzero((gates != 1).any(2).any(0))}
        ids = block.tensors["ids"].repeat(times, 1)
        shared = self._shared(gates.numpy(), block, entry)
        rows = {index: chosen for index, (chosen, _) in shared.items()}
        per_row = gates.to(self.model.device, self.model.gate_dtype).repeat_interleave(
            block.size, 0
        )  # v·S, L, H
        with ExitStack() as stack:
            stack.enter_context(self.model.visiting(self._gate_visitor(block, per_row, changed, rows)))
            stack.enter_context(shared_rows(self.model.reach.blocks, len(ids), shared))
            if entry > 0:
                assert block.streams is not None
                stream = block.streams[entry].repeat(times, 1, 1)
                blocks, tuples = self.model.reach.blocks, self.model.proof.blocks_return_tuples
                stack.enter_context(entered_at(blocks, entry, stream, tuples))
            return self.model.logits(ids, block.tensors["positions"].repeat(times, 1))

    def _shared(self, gates: np.ndarray, block: Block, entry: int) -> dict[int, tuple[Tensor, Tensor]]:
        """For each block from the entry on where some of `gates[v, L, H]` have been alike so far: which rows to compute
        `[r]`, and which of these every row equals `[v·S]`. The last block computes all: it is read row by row."""
        if not self.model.proof.shares or len(gates) * block.size == block.length:
            return {}  # a tensor with as many rows as tokens could not be told apart
        layers: list[list[int]] = [[] for _ in self.model.reach.blocks]
        for site in self.model.reach.sites:
            layers[site.block].append(site.layer)

        def rows_of(variants: list[int]) -> Tensor:
            rows = np.array(variants)[:, None] * block.size + np.arange(block.size)
            return torch.from_numpy(rows.reshape(-1)).to(self.model.device)

        return {
            index: (rows_of(found.first), rows_of(found.group))
            for index, found in alike(gates, layers, entry).items()
        }

    def _gate_visitor(
        self,
        block: Block,
        gates: Tensor,
        changed: set[int] | None,
        rows: Mapping[int, Tensor] | None = None,
    ) -> Callable[[int, Tensor], Tensor]:
        """z' = g·z + (1 − g)·r in the changed layers, at the positions where gates act.

        rows: for decoder blocks that compute only some rows, which.
        """
        acts, references = block.acts, block.references
        only = {
            site.layer: rows[site.block] for site in self.model.reach.sites if rows and site.block in rows
        }

        def gate(layer: int, z: Tensor) -> Tensor:
            if changed is not None and layer not in changed:
                return z
            heads = z.shape[2]
            here = gates[:, layer, :heads]
            g = (
                (here[only[layer]] if layer in only else here)
                .to(z.device, z.dtype)
                .unflatten(0, (-1, block.size))[:, :, None, :, None]
            )
            split = z.unflatten(0, (-1, block.size))  # v, S, T, H, D
            reference = None if references is None else references[layer].to(z.device, z.dtype)
            where = None if acts is None else acts.to(z.device)[None, :, :, None, None]
            return gated(split, g, reference, where).flatten(0, 1)

        return gate

    # ---- blocks of rows --------------------------------------------------------------------------------

    def blocks(self) -> Iterator[tuple[list[int], Block]]:
        """Every row once, in blocks that fit the budget (numbers of the rows, block), for methods that read z."""
        for numbers in self._partition(2):
            yield numbers, self._prepared(numbers, streams=False)

    def block(self, numbers: Sequence[int]) -> Block:
        """The rows of these numbers, any of them several times, ready for `differentiable`."""
        return self._prepared(numbers, streams=False)

    def _prepared(
        self, numbers: Sequence[int], baseline: np.ndarray | None = None, streams: bool = True
    ) -> Block:
        """The rows as tensors, with one run at the baseline for the residual streams and one for the donors."""
        rows = [self.rows[n] for n in numbers]
        tensors = {name: t.to(self.model.device) for name, t in batch_of(rows).items()}
        base = np.ones(self.model.shape) if baseline is None else baseline
        block = Block(rows, tensors, base)
        length = block.length
        acts = torch.ones(len(rows), length, dtype=torch.bool)
        if self.positions == "last":
            starts = torch.tensor([row.start for row in rows])
            acts &= torch.arange(length)[None, :] >= starts[:, None] - 1
        with torch.no_grad():
            if self._donors is not None:
                donors = [self._donors[n] for n in numbers]
                acts &= first_differences(rows, donors, length)
                block.references = self.model.outputs(pad_right(donors))
            elif self._means is not None:
                block.references = {k: m[:length] if m.dim() == 3 else m for k, m in self._means.items()}
            block.acts = None if bool(acts.all()) else acts.to(self.model.device)
            if streams and self.model.proof.reuse:
                self._record_streams(block)
            if self.metric.compares and (base != 1).any():
                block.plain_logits = self.model.logits(tensors["ids"], tensors["positions"])
        return block

    def _record_streams(self, block: Block) -> None:
        """One run at the baseline, whose residual streams are kept."""
        base = block.baseline
        block.streams = {}
        gates = torch.from_numpy(base).expand(block.size, -1, -1)
        visitor = self._gate_visitor(block, gates, set(np.flatnonzero((base != 1).any(axis=1))))
        with self.model.visiting(visitor), recorded_streams(self.model.reach.blocks, block.streams):
            self.model.logits(block.tensors["ids"], block.tensors["positions"][:, :1])

    def _streams_pay(self, block: Block, entries: np.ndarray, waiting: list[list[int]]) -> bool:
        """Whether a run at the baseline costs less than what entering at its streams saves.

        Where rows that are alike are computed once, each batch computes the blocks before its entry for one row per
        example, so that many batches must enter late to be worth a run through all blocks.
        """
        if not self.model.proof.reuse or not entries.any():
            return False
        at_once = self._variants_at_once(block)
        firsts = [entries[v] for queue in waiting for v in queue[:: batch_size(len(queue), at_once)]]
        return not self.model.proof.shares or int(sum(firsts)) > len(self.model.reach.blocks)

    def _partition(self, variants: int, examples: set[int] | None = None) -> Iterator[list[int]]:
        """Row numbers in blocks of about equal length, small enough that `variants` copies fit the budget.

        examples: only the rows of these.
        """
        rows = [n for n, row in enumerate(self.rows) if examples is None or row.example in examples]
        lengths = np.array([len(row.ids) for row in self.rows])
        return blocks_of_rows(lengths, rows, variants, self.batch_tokens)

    def _variants_at_once(self, block: Block) -> int:
        vocabulary = self.model.vocabulary
        by_tokens = self.batch_tokens // (block.size * block.length)
        budget = LOGIT_BUDGET if self.model.device.type == "cpu" else 4 * LOGIT_BUDGET
        by_logits = budget // (block.size * block.tensors["positions"].shape[1] * vocabulary)
        return max(1, min(by_tokens, by_logits) - 1)

    def _entries(self, gates: np.ndarray, baseline: np.ndarray | float = 1.0) -> np.ndarray:
        """The decoder block in which each variant first differs from the baseline `[V]`."""
        if not self.model.proof.reuse:
            return np.zeros(len(gates), dtype=int)
        changed = (gates != baseline).any(axis=2)  # V, L
        block_of_layer = {site.layer: site.block for site in self.model.reach.sites}
        last = len(self.model.reach.blocks) - 1
        first = np.where(changed.any(1), changed.argmax(1), -1)
        return np.array([last if layer < 0 else block_of_layer[layer] for layer in first], dtype=int)

    def _checked(self, gates: np.ndarray) -> np.ndarray:
        if gates.ndim != 3 or gates.shape[1:] != self.model.shape or not len(gates):
            layers, heads = self.model.shape
            raise HeadwiseError(
                f"gates of shape {gates.shape} do not fit {self.model.name}: expected [variants, {layers}, {heads}]"
            )
        return np.where(self.model.exists, gates, 1.0)

    def does_not_fit(self, number: int) -> HeadwiseError:
        """The error for a row that memory has no room for, however small the batch."""
        row = self.rows[number]
        return HeadwiseError(
            f"example {row.example + 1} of task {self.task.name!r} ({len(row.ids)} tokens) does not fit into memory "
            "even alone; use a shorter prompt, a smaller dtype or another device"
        )

    def _shrink(self) -> None:
        self.batch_tokens = max(1, self.batch_tokens // 2)
        release()
