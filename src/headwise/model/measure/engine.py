"""V gates × E examples -> metric values and gradients.

Rows of one batch carry different gates. Variants with the same gates in blocks 0 to k share one run of those blocks:
the curve of an order, each of whose masks adds a head to the one before, takes about half the work. Every batch also
holds its rows at the baseline (all gates at 1 unless another is given), so a difference never mixes two batch shapes: a
head that does nothing scores exactly 0.

V variants, E examples, S rows of a block (one or more per example), L layers, H heads (and two columns more where MLPs
or the embeddings have gates as well; key/value heads where these have the gates: `heads/components.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, quoted
from headwise.heads import gate_numbers, ones
from headwise.model.forward.gate import Frozen, HeadGates, per_query_head
from headwise.model.forward.run import SharedRows
from headwise.model.forward.schedule import LOGIT_BUDGET, equal_prefixes, in_halves
from headwise.model.measure.rows import Block, MeasureSettings, Rows, beside_baseline
from headwise.model.tokens.encode import Needs, Row, Scored
from headwise.progress import scaled_progress
from headwise.tasks.examples import Task

if TYPE_CHECKING:
    from headwise.model.model import Model


class Metric(Protocol):
    """What the engine asks of a metric; `headwise.metrics` has the metrics themselves."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs:
        """Which rows of an example it reads."""

    @property
    def differentiable(self) -> bool: ...

    @property
    def first_order(self) -> bool:
        """Whether its gradient at all gates 1 says anything; that of `kl` is 0 there."""

    @property
    def compares(self) -> bool:
        """Whether it needs the full model's logits beside the gated ones."""

    @property
    def per_row(self) -> Callable[[Scored], Tensor]:
        """From scored rows to one number per row."""

    def combine(self, rows: Sequence[Row], values: np.ndarray, examples: int) -> np.ndarray:
        """Values per row `[V, rows]` to values per example `[V, E]`."""


CPU_FILLED = 1024
"""Tokens that keep two cores as busy as more would; a backward pass, which keeps every layer, has twice as many."""


@dataclass(frozen=True)
class Measured:
    """Metric values under gates, each beside the same example's value at the baseline in the same batch."""

    values: np.ndarray  # V, E
    full: np.ndarray  # V, E: at the baseline, which is all gates at 1 unless another was given
    second: Measured | None = None
    """The same for the second of the engine's metrics, where there is one."""

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
        reference_task: Task | None = None,
        advance: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> None:
        """
        reference_task: the examples behind a mean reference; by default the task itself.
        advance: called with the number of (variant, example) pairs just finished.
        settings: reference, positions, seed, batch_tokens, components (see `MeasureSettings`).
        """
        chosen = MeasureSettings(**settings)
        if reference_task is not None and not isinstance(reference_task, Task):
            raise HeadwiseError(
                f"reference_task is {quoted(reference_task)}; expected a task: hw.task('ioi', 64)"
            )
        self.model, self.task, self.metric = model, task, metric
        self.reference, self.positions = chosen.reference, chosen.positions
        self.batch_tokens = chosen.batch_tokens or model.batch_tokens
        self.layout = model.layout(chosen.components)
        """Which components have gates; its shape is that of the gates."""
        self.table = Rows(model, task, metric.needs, chosen, reference_task)
        self.rows = self.table.all
        self.metrics = [metric]
        """What `measure` reads off the logits; a second metric may be added that reads the same rows."""
        self.rows_spent = 0
        """Forward rows run so far."""
        hooks = model.hooks
        self._layers = [[s.layer for s in hooks.sites if s.block == k] for k in range(len(hooks.blocks))]
        """The rows of the gates that belong to each decoder block: those of its heads, its MLP, and the input before
        the first block."""
        if "mlps" in self.layout.components:
            self._layers = [[k] for k in range(len(hooks.blocks))]
        elif "input" in self.layout.components:
            self._layers[0] = sorted({0, *self._layers[0]})
        # An example may have several rows, one for each answer.
        self.advance = scaled_progress(advance, len(task) / len(self.rows)) or (lambda count: None)

    # ---- values ----------------------------------------------------------------------------------------

    def full(self) -> np.ndarray:
        """The metric with all gates at 1, per example `[E]`."""
        return self.measure(ones(self.layout.shape)[None]).values[0]

    def measure(
        self,
        gates: np.ndarray,
        examples: Sequence[int] | np.ndarray | None = None,
        baseline: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
        at: int | None = None,
        first: np.ndarray | None = None,
        seen: Callable[[np.ndarray], None] | None = None,
    ) -> Measured:
        """The metric under each of `gates[V, L, H]`, per example `[V, E]`.

        examples: run only these, by their index in the task; E is then their number, in the order given.
        baseline: the gates `[L, H]` beside which every variant is measured; all 1 by default.
        frozen: `[V, L, H]`, True for the heads that keep the output that they have with all gates at 1. Cannot be
            combined with a baseline.
        at: gates act at this token position alone, whatever `positions` says; every prompt must have it.
        first: `[V]`, how soon each variant is wanted: of the same batches, those with larger numbers are run first.
        seen: called after each batch with the effects so far `[V, E]`, NaN where nothing was run.
        """
        gates = self._checked(gate_numbers(gates, "gates"))
        assert baseline is None or frozen is None, "frozen heads take their outputs from the plain baseline"
        base = gate_numbers(ones(self.layout.shape) if baseline is None else baseline, "the baseline's gates")
        base = self._checked(base[None])[0]
        chosen = np.arange(len(self.task)) if examples is None else np.asarray(examples, dtype=int)
        unknown = set(chosen.tolist()) - set(range(len(self.task)))
        if unknown:
            raise HeadwiseError(
                f"examples {sorted(unknown)} are not in task {self.task.name!r}, which has examples 0 to "
                f"{len(self.task) - 1}"
            )
        # Under the gates, and at the baseline.
        values = np.full((2, len(gates), len(self.rows), len(self.metrics)), np.nan)

        def measured() -> Measured:
            found = []
            for m, one in enumerate(self.metrics):
                under, at_base = (one.combine(self.rows, part, len(self.task)) for part in values[..., m])
                found.append(Measured(under[:, chosen], at_base[:, chosen]))
            return replace(found[0], second=found[1] if found[1:] else None)

        def fill(numbers: Sequence[int]) -> None:
            def note(some: np.ndarray, part: np.ndarray) -> None:
                values[:, some[:, None], list(numbers)] = part
                if seen is not None:
                    seen(measured().effects)

            self._measure_rows(gates, base, frozen, list(numbers), at, first, note)

        with torch.inference_mode(), self.model.running():
            for numbers in self.table.partition(1 + len(gates), self.batch_tokens, set(chosen.tolist())):
                in_halves(numbers, fill, self.table.too_large, self.shrink)
        return measured()

    def _measure_rows(
        self,
        gates: np.ndarray,
        base: np.ndarray,
        frozen: np.ndarray | None,
        numbers: list[int],
        at: int | None,
        first: np.ndarray | None,
        note: Callable[[np.ndarray, np.ndarray], None],
    ) -> None:
        """Measure the rows of these numbers under the gates, and at the baseline; `first` and `note`: see
        `beside_baseline`."""
        block = self.table.block(numbers)
        if at is not None:
            block = block.at(at, self.model.hooks if self.model.capabilities.past else None)
        plain_logits = None
        # A baseline with all gates at 1 has the plain logits itself.
        if self.metric.compares and (base != 1).any():
            plain_logits = self.model.run(block.pass_()).logits

        def measure(some: np.ndarray) -> np.ndarray:
            with_base = np.concatenate([base[None], gates[some]])
            held = None
            if frozen is not None:
                held = np.concatenate([np.zeros((1, *base.shape), bool), frozen[some]])
            return self._values(block, with_base, plain_logits, held)

        # Variants with the same gates in the first blocks stand side by side, so that they share a batch.
        order = sorted(range(len(gates)), key=lambda v: gates[v].tobytes())
        beside_baseline(self, block, order, measure, first, note)

    def _values(
        self, block: Block, gates: np.ndarray, plain_logits: Tensor | None, frozen: np.ndarray | None
    ) -> np.ndarray:
        """The metrics of a block's rows under each of `gates[v, L, H]`, the first of them the baseline `[v, S, M]`."""
        return self.read(block, self._logits(block, gates, frozen), plain_logits)

    def read(self, block: Block, logits: Tensor, plain: Tensor | None = None) -> np.ndarray:
        """The metrics off the logits of a block's rows, repeated for several variants `[v, S, M]`.

        plain: the logits that a metric compares with; by default the first variant's.
        """
        plain = logits[: block.size] if plain is None else plain
        full = plain.repeat(len(logits) // block.size, 1, 1) if self.metric.compares else None
        scored = block.scored(logits, full)
        per_row = np.stack([one.per_row(scored).double().cpu().numpy() for one in self.metrics], axis=-1)
        self.rows_spent += len(per_row)
        return per_row.reshape(-1, block.size, len(self.metrics))

    # ---- gradients -------------------------------------------------------------------------------------

    def gradients(self, gates: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Metric values `[E]` and their gradients with respect to the gates, per example `[E, L, H]`.

        `gates` are shared `[L, H]` or per example `[E, L, H]`; all 1 by default. Weights need no gradient.
        """
        self.check_differentiable()
        shape = (len(self.task), *self.layout.shape)
        given = gate_numbers(ones(self.layout.shape) if gates is None else gates, "gates")
        if given.shape not in (shape, shape[1:]):
            raise HeadwiseError(
                f"gates of shape {given.shape} do not fit {self.model.name}: expected {list(shape[1:])}, or "
                f"{list(shape)} with one set per example"
            )
        at = np.broadcast_to(given, shape)
        values, gradients = np.full(shape[0], np.nan), np.full(shape, np.nan)
        # A backward pass keeps every layer's activations, so fewer tokens fit.
        for numbers in self.table.partition(2, self.batch_tokens):
            examples = [self.rows[n].example for n in numbers]
            values[examples], gradients[examples] = self.row_gradients(numbers, at[examples])
            self.advance(len(numbers))
        return values, gradients

    def mean_gradients(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """Gradients with respect to the gates `[E, L, H]`, averaged over several levels at which all gates are equal.

        Several levels share a batch where the budget has room for them.
        """
        self.check_differentiable()
        total = np.zeros((len(self.task), *self.layout.shape))
        most_tokens = self.batch_tokens // 2
        if self.model.device.type == "cpu":
            most_tokens = min(most_tokens, 2 * CPU_FILLED)
        for numbers in self.table.partition(2, self.batch_tokens):
            examples = [self.rows[n].example for n in numbers]
            longest = max(len(self.rows[n].ids) for n in numbers)
            at_once = max(1, most_tokens // (len(numbers) * longest))
            for first in range(0, len(levels), at_once):
                some = np.asarray(levels[first : first + at_once], dtype=np.float64)
                at = np.repeat(some, len(numbers))[:, None, None] * np.ones(self.layout.shape)
                _, gradients = self.row_gradients(numbers * len(some), at)
                total[examples] += gradients.reshape(len(some), len(numbers), *self.layout.shape).sum(axis=0)
                self.advance(len(some) * len(numbers))
        return total / len(levels)

    def row_gradients(self, numbers: Sequence[int], gates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values `[n]` and gradients `[n, L, H]` of the rows of these numbers, each under its own `gates[n, L, H]`.

        A row may be there several times. Values are per row, as the metric gives them.
        """
        self.check_differentiable()
        values, gradients = np.empty(len(numbers)), np.empty(gates.shape)
        gates = np.where(self.layout.exists, gates, 1.0)  # a component that is not asked for is left as it is

        def fill(some: Sequence[int]) -> None:
            part = list(some)
            at = torch.tensor(gates[part], dtype=self.model.gate_dtype, device=self.model.device)
            metric = self.differentiable(self.table.block([numbers[i] for i in part]), at.requires_grad_())
            (gradient,) = torch.autograd.grad(metric.sum(), at)
            values[part] = metric.detach().double().cpu().numpy()
            gradients[part] = gradient.double().cpu().numpy()

        with self.model.frozen():
            in_halves(range(len(numbers)), fill, lambda i: self.table.too_large(numbers[i]), self.shrink)
        return values, gradients

    def check_differentiable(self) -> None:
        """Refuse a metric without a gradient."""
        if not self.metric.differentiable:
            raise HeadwiseError(
                f"the metric {self.metric.name!r} has no gradient; use one such as logit_diff or logprob"
            )

    def differentiable(self, block: Block, gates: Tensor) -> Tensor:
        """The metric of a block's rows `[S]` as a function of their gates `[S, L, H]`, for autograd."""
        logits = self.model.run(block.gated(gates)).logits
        self.rows_spent += block.size
        return self.metric.per_row(block.scored(logits, self.plain_logits(block)))

    def plain_logits(self, block: Block) -> Tensor | None:
        """The logits of a block's rows with every gate at 1, if the metric compares with them."""
        if not self.metric.compares:
            return None
        with torch.no_grad():
            return self.model.run(block.pass_()).logits

    # ---- one forward pass ------------------------------------------------------------------------------

    def _logits(self, block: Block, gates: np.ndarray, frozen: np.ndarray | None) -> Tensor:
        """Scored logits `[v·S, P, vocabulary]` of a block's rows under each of `gates[v, L, H]`, variant by variant."""
        if frozen is not None:  # the rows of the plain run must stay the first ones in every block
            held = torch.from_numpy(np.repeat(~frozen, block.size, axis=0)).to(self.model.device)
            per_row = torch.from_numpy(np.repeat(gates, block.size, axis=0)).to(self.model.device)
            request = block.gated(per_row.to(self.model.gate_dtype), len(gates))
            assert isinstance(request.heads, HeadGates)
            held = per_query_head(held, block.groups)
            return self.model.run(replace(request, heads=Frozen(request.heads, held))).logits
        shared = self._shared(gates, block)
        per_row = torch.from_numpy(gates).to(self.model.device, self.model.gate_dtype)
        changed = (gates != 1).any(axis=0)
        request = block.gated(
            per_row.repeat_interleave(block.size, 0),
            len(gates),
            leave=[component for component in block.modules if not changed[component]],
            layers=set(np.flatnonzero(changed[:, : self.model.shape[1]].any(axis=1)).tolist()),
            rows={layer: shared[k].compute for k in shared for layer in self._layers[k]},
            shared=shared,
        )
        return self.model.run(request).logits

    def _shared(self, gates: np.ndarray, block: Block) -> dict[int, SharedRows]:
        """For each decoder block up to which some of `gates[v, L, H]` are equal: the equal rows.
        The last block computes all: it is read row by row."""
        if not self.model.capabilities.share_rows or len(gates) * block.size == block.length:
            return {}  # a tensor with as many rows as tokens could not be told apart

        def rows_of(variants: np.ndarray) -> Tensor:
            rows = variants[:, None] * block.size + np.arange(block.size)
            return torch.from_numpy(rows.reshape(-1)).to(self.model.device)

        return {
            k: SharedRows(*map(rows_of, pair)) for k, pair in equal_prefixes(gates, self._layers[:-1]).items()
        }

    def blocks(self) -> Iterator[tuple[list[int], Block]]:
        """Every row once, in blocks that fit the budget (numbers of the rows, block), for methods that read z."""
        for numbers in self.table.partition(2, self.batch_tokens):
            yield numbers, self.table.block(numbers)

    def first_block(self, gates: np.ndarray) -> int:
        """The first decoder block where some of `gates[L, H]` is not 1."""
        changed = (gates != 1).any(axis=1)
        return next(k for k, layers in enumerate(self._layers) if changed[layers].any())

    def variants_at_once(self, block: Block) -> int:
        """How many variants of a block's rows fit into one batch."""
        by_tokens = self.batch_tokens // (block.size * block.length)
        # An accelerator is idle with few rows.
        budget = LOGIT_BUDGET if self.model.device.type == "cpu" else 4 * LOGIT_BUDGET
        by_logits = budget // (block.size * block.tensors["positions"].shape[1] * self.model.vocabulary)
        return max(1, min(by_tokens, by_logits))

    def _checked(self, gates: np.ndarray) -> np.ndarray:
        if gates.ndim != 3 or gates.shape[1:] != self.layout.shape or not len(gates):
            layers, heads = self.layout.shape
            raise HeadwiseError(
                f"gates of shape {gates.shape} do not fit {self.model.name}: expected [variants, {layers}, {heads}]"
            )
        return np.where(self.layout.exists, gates, 1.0)

    def shrink(self) -> None:
        """Halve the tokens of a batch, where memory ran out."""
        self.batch_tokens = max(1, self.batch_tokens // 2)
