"""V gates × E examples -> metric values and gradients.

Rows of one batch carry different gates. Variants are ordered by the first layer they change; the residual stream there
comes from one run at the baseline (all gates at 1 unless another is given), and the decoder is entered at that layer.
Variants with the same gates in blocks 0 to k share one run of those blocks: the curve of an order, each of whose masks
adds a head to the one before, takes about half the work. Every batch also holds its rows at the baseline, so a
difference never mixes two batch shapes: a head that does nothing scores exactly 0.

V variants, E examples, S rows of a block (one or more per example), L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import gate_numbers, ones
from headwise.model.backward.recompute import feed_forward_parts
from headwise.model.forward.blocks import Entry, SharedRows
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.out_of_memory import fits, in_halves
from headwise.model.forward.schedule import alike, batch_size, queues
from headwise.model.measure.metric import Metric
from headwise.model.measure.references import CallSettings
from headwise.model.measure.rows import Block, Intervention, Rows

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Task

LOGIT_BUDGET = 2**26
"""Most logits held at once, in numbers: 256 MB in float32; four times as many on an accelerator, which is idle with
few rows."""
CPU_FILLED = 1024
"""Tokens that keep two cores as busy as more would; a backward pass, which keeps every layer, has twice as many."""
GRADIENT_RECOMPUTE = 0.2
"""Share of the blocks whose feed-forward parts a backward pass on a CPU computes again."""


@dataclass(frozen=True)
class Measured:
    """Metric values under gates, each beside the same example's value at the baseline in the same batch."""

    values: np.ndarray  # V, E
    full: np.ndarray  # V, E: at the baseline, which is all gates at 1 unless another was given

    @property
    def effects(self) -> np.ndarray:
        """Metric with all heads minus metric under the gates `[V, E]`: positive where what was removed helps."""
        return self.full - self.values


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
        reference, positions, reference_task, seed: see `Intervention`.
        batch_tokens: most tokens in one forward pass (default: what suits the device); where that saves a pass, a
        sixteenth more.
        advance: called with the number of (variant, row) pairs just finished.
        """
        CallSettings(seed=seed, batch_tokens=batch_tokens)
        self.model, self.task, self.metric = model, task, metric
        self.reference, self.positions = reference, positions
        self.batch_tokens = batch_tokens or model.batch_tokens
        how = Intervention(reference=reference, positions=positions, reference_task=reference_task, seed=seed)
        self.table = Rows(model, task, metric.needs, how, self.batch_tokens)
        self.rows = self.table.all
        self.rows_spent = 0
        """Forward rows run so far, counting an entry midway as a whole row."""
        self._advance = advance or (lambda count: None)

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

        def fill(numbers: Sequence[int]) -> None:
            self._measure_rows(gates, base, list(numbers), values, full)

        with torch.inference_mode(), self.model.running():
            for numbers in self.table.partition(most + 1, self.batch_tokens, wanted):
                in_halves(numbers, fill, self.table.too_large, self._shrink)
        combine = self.metric.combine
        return Measured(
            combine(self.rows, values, len(self.task))[:, chosen],
            combine(self.rows, full, len(self.task))[:, chosen],
        )

    def _measure_rows(
        self, gates: np.ndarray, base: np.ndarray, numbers: list[int], values: np.ndarray, full: np.ndarray
    ) -> None:
        """Fill the columns `numbers` of `values` and `full`."""
        entries = self._entries(gates, base)
        block = self.table.block(numbers, base)
        if self.metric.compares and (base != 1).any():
            block.plain_logits = self.model.run(block.pass_).logits
        waiting = self._queues(gates, entries, block)
        if self._streams_pay(block, entries, waiting):
            self._record_streams(block)
        elif self.model.capabilities.share_rows:
            waiting = [list(chain(*waiting))]
        columns = np.array(numbers)
        for pending in waiting:
            while pending:
                chunk = np.array(pending[: batch_size(len(pending), self._variants_at_once(block))])
                entry = 0 if block.streams is None else int(entries[chunk[0]])
                places = np.ix_(chunk, columns)

                def fill(chunk: np.ndarray = chunk, entry: int = entry, places: tuple = places) -> None:
                    values[places], full[places] = self._chunk(block, gates[chunk], entry)

                if len(chunk) == 1:
                    fill()  # where one variant does not fit, the rows are halved
                elif not fits(fill):
                    self._shrink()
                    continue
                pending = pending[len(chunk) :]
                self._advance(len(chunk) * len(numbers))

    def _queues(self, gates: np.ndarray, entries: np.ndarray, block: Block) -> list[list[int]]:
        """Variants in the order in which they are run; those of one queue may share a batch."""
        if not self.model.capabilities.share_rows:
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

        `gates` are shared `[L, H]` or per example `[E, L, H]`; all 1 by default. Weights need no gradient.
        """
        self._check_differentiable()
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
            for numbers in self.table.partition(2, self.batch_tokens):
                examples = [self.rows[n].example for n in numbers]
                values[examples], slopes[examples] = self._gradients(numbers, at[examples])
                self._advance(len(numbers))
        return values, slopes

    def mean_gradients(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """Derivatives by the gates `[E, L, H]`, averaged over several levels at which all gates stand together.

        Several levels share a batch where the budget has room for them.
        """
        self._check_differentiable()
        total = np.zeros((len(self.task), *self.model.shape))
        with self.model.frozen():
            for numbers in self.table.partition(2, self.batch_tokens):
                examples = [self.rows[n].example for n in numbers]
                longest = max(len(self.rows[n].ids) for n in numbers)
                at_once = max(1, self._gradient_tokens // (len(numbers) * longest))
                for first in range(0, len(levels), at_once):
                    some = np.asarray(levels[first : first + at_once], dtype=np.float64)
                    at = np.broadcast_to(
                        np.repeat(some, len(numbers))[:, None, None],
                        (len(some) * len(numbers), *self.model.shape),
                    )
                    _, slopes = self._gradients(list(numbers) * len(some), at)
                    total[examples] += slopes.reshape(len(some), len(numbers), *self.model.shape).sum(axis=0)
                    self._advance(len(some) * len(numbers))
        return total / len(levels)

    @property
    def _gradient_tokens(self) -> int:
        """Most tokens of a backward pass over several levels."""
        most = self.batch_tokens // 2
        return min(most, 2 * CPU_FILLED) if self.model.device.type == "cpu" else most

    def _check_differentiable(self) -> None:
        if not self.metric.differentiable:
            raise HeadwiseError(
                f"the metric {self.metric.name!r} has no gradient; use one such as logit_diff or logprob"
            )

    def _gradients(self, numbers: list[int], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values `[S]` and gradients `[S, L, H]` of the rows of these numbers, each at gates of its own."""
        values, slopes = np.empty(len(numbers)), np.empty(at.shape)

        def fill(places: Sequence[int]) -> None:
            part = list(places)
            block = self.table.block([numbers[place] for place in part])
            gates = torch.tensor(
                at[part], dtype=self.model.gate_dtype, device=self.model.device, requires_grad=True
            )
            metric = self.differentiable(block, gates)
            metric.sum().backward()
            assert gates.grad is not None
            values[part] = metric.detach().double().cpu().numpy()
            slopes[part] = gates.grad.double().cpu().numpy()

        def too_large(place: int) -> HeadwiseError:
            return self.table.too_large(numbers[place])

        in_halves(range(len(numbers)), fill, too_large, self._shrink)
        return values, slopes

    def differentiable(self, block: Block, gates: Tensor) -> Tensor:
        """The metric of a block's rows `[S]` as a function of their gates `[S, L, H]`, for autograd."""
        asked = replace(block.pass_, heads=self._gates(block, gates), recompute=self._recompute)
        logits = self.model.run(asked).logits
        self.rows_spent += block.size
        compare = None
        if self.metric.compares:
            with torch.no_grad():
                compare = self.model.run(block.pass_).logits
        return self.metric.per_row(block.scored(logits, compare))

    @cached_property
    def _recompute(self) -> list[nn.Module]:
        """On a CPU memory is what limits a backward pass; an accelerator is faster without recomputation."""
        share = GRADIENT_RECOMPUTE if self.model.device.type == "cpu" else 0.0
        return feed_forward_parts(self.model.hooks, share)

    # ---- one forward pass ------------------------------------------------------------------------------

    def _logits(self, block: Block, gates: Tensor, entry: int) -> Tensor:
        """Scored logits `[v·S, P, vocabulary]` of a block's rows under each of `gates[v, L, H]`, variant by variant."""
        times = len(gates)
        shared = self._shared(gates.numpy(), block, entry)
        per_row = gates.to(self.model.device, self.model.gate_dtype).repeat_interleave(block.size, 0)
        stream = None
        if entry > 0:
            assert block.streams is not None
            stream = Entry(entry, block.streams[entry].repeat(times, 1, 1))
        plain = block.pass_
        assert plain.scored is not None
        asked = replace(
            plain,
            ids=plain.ids.repeat(times, 1),
            scored=plain.scored.repeat(times, 1),
            heads=self._gates(block, per_row, _changed(gates), shared),
            entry=stream,
            shared=shared,
        )
        return self.model.run(asked).logits

    def _shared(self, gates: np.ndarray, block: Block, entry: int) -> dict[int, SharedRows]:
        """For each block from the entry on where some of `gates[v, L, H]` have been equal so far: the equal rows.
        The last block computes all: it is read row by row."""
        if not self.model.capabilities.share_rows or len(gates) * block.size == block.length:
            return {}  # a tensor with as many rows as tokens could not be told apart
        layers: list[list[int]] = [[] for _ in self.model.hooks.blocks]
        for site in self.model.hooks.sites:
            layers[site.block].append(site.layer)

        def rows_of(variants: list[int]) -> Tensor:
            rows = np.array(variants)[:, None] * block.size + np.arange(block.size)
            return torch.from_numpy(rows.reshape(-1)).to(self.model.device)

        return {
            index: SharedRows(rows_of(found.first), rows_of(found.group))
            for index, found in alike(gates, layers, entry).items()
        }

    def _gates(
        self,
        block: Block,
        values: Tensor,
        layers: set[int] | None = None,
        shared: Mapping[int, SharedRows] | None = None,
    ) -> HeadGates:
        """The gates of a block's rows, repeated any number of times; `layers`: only these are changed."""
        sites = self.model.hooks.sites
        rows = {s.layer: shared[s.block].compute for s in sites if shared and s.block in shared}
        return HeadGates(values, layers, block.references, block.acts, block.size, rows)

    def blocks(self) -> Iterator[tuple[list[int], Block]]:
        """Every row once, in blocks that fit the budget (numbers of the rows, block), for methods that read z."""
        for numbers in self.table.partition(2, self.batch_tokens):
            yield numbers, self.table.block(numbers)

    # ---- what runs together ----------------------------------------------------------------------------

    def _record_streams(self, block: Block) -> None:
        """One run at the baseline, whose residual streams are kept."""
        block.streams = {}
        gates = torch.from_numpy(block.baseline).expand(block.size, -1, -1)
        plain = block.pass_
        assert plain.scored is not None
        heads = self._gates(block, gates, _changed(gates))
        self.model.run(replace(plain, scored=plain.scored[:, :1], heads=heads, streams=block.streams))

    def _streams_pay(self, block: Block, entries: np.ndarray, waiting: list[list[int]]) -> bool:
        """Whether a run at the baseline costs less than what entering at its streams saves.

        Where equal rows are computed once, each batch computes the blocks before its entry for one row per example, so
        many batches must enter late to be worth a run through all blocks.
        """
        if not self.model.capabilities.enter_midway or not entries.any():
            return False
        at_once = self._variants_at_once(block)
        firsts = [entries[v] for queue in waiting for v in queue[:: batch_size(len(queue), at_once)]]
        return not self.model.capabilities.share_rows or int(sum(firsts)) > len(self.model.hooks.blocks)

    def _variants_at_once(self, block: Block) -> int:
        by_tokens = self.batch_tokens // (block.size * block.length)
        budget = LOGIT_BUDGET if self.model.device.type == "cpu" else 4 * LOGIT_BUDGET
        by_logits = budget // (block.size * block.tensors["positions"].shape[1] * self.model.vocabulary)
        return max(1, min(by_tokens, by_logits) - 1)

    def _entries(self, gates: np.ndarray, baseline: np.ndarray | float = 1.0) -> np.ndarray:
        """The decoder block in which each variant first differs from the baseline `[V]`."""
        if not self.model.capabilities.enter_midway:
            return np.zeros(len(gates), dtype=int)
        changed = (gates != baseline).any(axis=2)  # V, L
        block_of_layer = {site.layer: site.block for site in self.model.hooks.sites}
        last = len(self.model.hooks.blocks) - 1
        first = np.where(changed.any(1), changed.argmax(1), -1)
        return np.array([last if layer < 0 else block_of_layer[layer] for layer in first], dtype=int)

    def _checked(self, gates: np.ndarray) -> np.ndarray:
        if gates.ndim != 3 or gates.shape[1:] != self.model.shape or not len(gates):
            layers, heads = self.model.shape
            raise HeadwiseError(
                f"gates of shape {gates.shape} do not fit {self.model.name}: expected [variants, {layers}, {heads}]"
            )
        return np.where(self.model.exists, gates, 1.0)

    def _shrink(self) -> None:
        self.batch_tokens = max(1, self.batch_tokens // 2)


def _changed(gates: Tensor) -> set[int]:
    """Layers where some of `gates[v, L, H]` is not 1."""
    return {int(layer) for layer in torch.nonzero((gates != 1).any(2).any(0))}
