"""The rows of a task, cut into blocks that fit a forward pass, with what replaces their ablated heads; and the variants
of a block, cut into batches.

S rows of a block (one or more per example), T tokens, L layers, H heads (and two columns more with other components),
D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.heads import HEADS, ComponentKinds, Head
from headwise.model.forward.decode import Past
from headwise.model.forward.gate import HeadGates, per_query_head
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import blocks_of_rows, in_batches, try_run
from headwise.model.forward.short_view import ShortView
from headwise.model.measure.positions import Positions, acting, check_positions
from headwise.model.measure.references import (
    ReferenceName,
    ReferenceSource,
    donor_rows,
    first_differences,
    reference_named,
)
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.tokens.encode import Needs, Row, Scored, batch_of, encode_rows, pad_right
from headwise.names import window_of
from headwise.settings import Count, Seed, Settings
from headwise.tasks.examples import Task

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass
class Block:
    """Some rows of about equal length, with what is computed once for them."""

    rows: list[Row]
    tensors: dict[str, Tensor]
    mask: Tensor | None = None  # S, T: where gates act; None is everywhere
    references: dict[Any, Tensor] | ShortView | None = None
    """Layer, MLP or input -> broadcastable to `[S, T, H, D]`; None for zero. A short view is computed in each pass."""
    modules: dict[Head, nn.Module] = field(default_factory=dict)
    """MLPs and the embeddings, where they are gated."""
    groups: Tensor | None = None
    """`[L, H]`: the key/value head of each query head, where key/value heads have the gates."""
    past: Past | None = None
    """What stands before these tokens, where they are not the first ones."""

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        return self.tensors["ids"].shape[1]

    def pass_(self, times: int = 1, **more: Any) -> Pass:
        """The forward pass over the rows, all of them repeated, with logits at their scored positions."""
        ids, positions = self.tensors["ids"].repeat(times, 1), self.tensors["positions"].repeat(times, 1)
        if self.past is not None:
            more["inputs"] = self.past.inputs(times, more.get("shared", {}), self.length)
        return Pass(ids=ids, scored=positions, **more)

    def at(self, position: int, hooks: HeadHooks | None) -> Block:
        """The same rows with gates that act at one position only.

        hooks: to run the tokens before the position once; None where they are run with every variant.
        """
        first, references, past = 0, self.references, None
        if hooks is not None and position:
            first, past = position, Past.read(hooks, self.tensors["ids"][:, :position])
            if isinstance(references, dict):
                references = {of: r if r.dim() == 2 else r[..., first:, :, :] for of, r in references.items()}
        ids = self.tensors["ids"][:, first:]
        tensors = {**self.tensors, "ids": ids, "positions": self.tensors["positions"] - first}
        mask = torch.arange(ids.shape[1], device=ids.device) == position - first
        return replace(self, tensors=tensors, mask=mask.expand_as(ids), references=references, past=past)

    def gated(self, values: Tensor, times: int = 1, leave: Container[Head] = (), **more: Any) -> Pass:
        """The same under gates `[B, L, H]` of the rows; of MLPs and the input, those in `leave` have a gate of 1.

        more: fields of `HeadGates`, and `shared` of the pass.
        """
        shared = more.pop("shared", {})
        values = per_query_head(values, self.groups)
        heads = HeadGates(values, reference=self.references, mask=self.mask, block=self.size, **more)
        modules = {
            module: partial(heads.module, component)
            for component, module in self.modules.items()
            if component not in leave
        }
        return self.pass_(times, heads=heads, attention=heads.attention, modules=modules, shared=shared)

    def scored(self, logits: Tensor, full: Tensor | None = None) -> Scored:
        """`logits` of this block's rows, repeated any number of times."""
        times = len(logits) // self.size
        fields = {name: self.tensors[name] for name in ("tokens", "mask", "rights", "wrongs", "whole")}
        repeated = {name: t.repeat(times, *[1] * (t.dim() - 1)) for name, t in fields.items()}
        return Scored(logits, full=full, **repeated)


class MeasureSettings(Settings):
    """What replaces an ablated head, where gates act, and how much runs at once."""

    reference: ReferenceName = "zero"
    """What replaces an ablated head: zero, mean, position_mean, resample, patch, window (`window:128:8`: it sees the
    last 128 tokens and the first 8), or a plug-in's."""
    positions: Positions = "all"
    """Where gates act: `all`, from the `last` prompt token on, token positions (negative ones count from the end of the
    prompt), the name of a span, or of several."""
    seed: Seed = 0
    batch_tokens: Count | None = None
    """Most tokens in one forward pass (default: what suits the device); where that saves a pass, a sixteenth more."""
    components: ComponentKinds = HEADS
    """What has gates: heads, mlps (the output of each MLP), input (the embeddings); or kv_heads alone (the query heads
    of each key/value head together)."""


class Rows:
    """Every row of a task under one model and one kind of intervention."""

    def __init__(
        self, model: Model, task: Task, needs: Needs, settings: MeasureSettings, reference_task: Task | None
    ) -> None:
        self.model, self.task, self.positions = model, task, settings.positions
        check_positions(task, settings.positions)
        self.all = encode_rows(model.text, task.examples, needs)
        tokens = settings.batch_tokens or model.batch_tokens
        layout = model.layout(settings.components)
        self.groups = None if layout.groups is None else torch.from_numpy(layout.groups).to(model.device)
        self._components = tuple(layout.modules)
        self._modules = model.modules(self._components)
        source = ReferenceSource(
            model,
            task,
            self.all,
            reference_task,
            settings.seed,
            tokens,
            self._components,
            window_of(settings.reference),
        )
        reference = reference_named(settings.reference)(source)
        self._donors = donor_rows(source, reference) if isinstance(reference, list) else None
        self._view = reference if isinstance(reference, ShortView) else None
        self._outputs: dict[Any, Tensor] | None = None
        self._donated: tuple[Any, dict[Any, Tensor]] | None = None
        """The rows whose donors ran last, and what their heads put out."""
        if isinstance(reference, dict):
            self._outputs = reference
            if missing := [str(one) for one in self._components if one not in reference]:  # of a plug-in
                raise HeadwiseError(
                    f"the reference {settings.reference!r} has no output for {missing[0]}; it knows heads alone, so "
                    "use it without components, or let it return outputs for these components too"
                )

    def partition(self, variants: int, budget: int, examples: set[int] | None = None) -> Iterator[list[int]]:
        """Row numbers in blocks of about equal length, small enough that `variants` copies fit the budget of tokens.

        examples: only the rows of these.
        """
        rows = [n for n, row in enumerate(self.all) if examples is None or row.example in examples]
        lengths = np.array([len(row.ids) for row in self.all])
        return blocks_of_rows(lengths, rows, variants, budget)

    def block(self, numbers: Sequence[int]) -> Block:
        """The rows of these numbers, any of them several times, as tensors with their references."""
        rows = [self.all[n] for n in numbers]
        tensors = {name: t.to(self.model.device) for name, t in batch_of(rows).items()}
        block = Block(rows, tensors, modules=self._modules, groups=self.groups)
        length = block.length
        mask = self.mask(numbers, length)
        if self._donors is not None:
            block.references = self._donor_outputs(self._donors, numbers)
        elif self._view is not None:
            block.references = self._view
        elif self._outputs is not None:
            block.references = {k: z[:length] if z.dim() == 3 else z for k, z in self._outputs.items()}
        block.mask = None if bool(mask.all()) else mask.to(self.model.device)
        return block

    def _donor_outputs(self, donors: list[list[int]], numbers: Sequence[int]) -> dict[Any, Tensor]:
        """Head outputs of the rows' donors; each donor runs once, and not again for the same rows under other gates."""
        rows = list(dict.fromkeys(numbers))
        # Tensors of inference mode cannot take part in a backward pass.
        if self._donated is None or self._donated[0] != (rows, torch.is_inference_mode_enabled()):
            self._donated = None
            outputs = self.model.outputs(pad_right([donors[n] for n in rows]), components=self._components)
            self._donated = (rows, torch.is_inference_mode_enabled()), outputs
        outputs = self._donated[1]
        if len(rows) == len(numbers):
            return outputs
        at = torch.tensor([rows.index(n) for n in numbers])
        return {of: z[at.to(z.device)] for of, z in outputs.items()}

    def mask(self, numbers: Sequence[int], length: int) -> Tensor:
        """Where gates act on the rows of these numbers `[S, T]`; length: T, at least that of every row."""
        rows = [self.all[n] for n in numbers]
        mask = acting(self.model.text, self.task, rows, length, self.positions)
        if self._donors is not None:
            mask &= first_differences(rows, [self._donors[n] for n in numbers], length)
        if self._view is not None:  # before, the short view is the whole one
            mask &= torch.arange(length) >= self._view.sink + self._view.window
        return mask

    def too_large(self, number: int) -> HeadwiseError:
        """The error for a row that does not fit into memory, however small the batch."""
        row = self.all[number]
        return HeadwiseError(
            f"example {row.example + 1} of task {self.task.name!r} ({len(row.ids)} tokens) does not fit into memory "
            "even alone; use a shorter prompt, a smaller dtype or another device"
        )


# ---- variants beside their baseline ----------------------------------------------------------------------
# Every batch has the unablated rows too, so that a score is a difference within it.


class Batching(Protocol):
    """What an engine says about its batches."""

    advance: Callable[[int], Any]

    def variants_at_once(self, block: Block) -> int: ...

    def shrink(self) -> None: ...


def beside_baseline(
    engine: Batching,
    block: Block,
    variants: Sequence[int],
    measure: Callable[[np.ndarray], np.ndarray],
    first: np.ndarray | None = None,
    note: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> np.ndarray:
    """Values of V variants on a block's rows, in as few passes as fit, and at the baseline in the same pass
    `[2, V, S]`.

    variants: 0 to V - 1, in the order in which they are run. measure: one pass, from some of these numbers to the
    metric at the baseline and under each of them `[1 + v, S]`; with several metrics, here and in the result, an axis
    more. first: `[V]`, batches with larger numbers are run first; which variants share a batch does not depend on it,
    so no result does. note: called after each batch with its variants and their values `[2, v, S]`.
    """
    values = np.empty((2, len(variants), 0))
    pending = in_batches(variants, max(1, engine.variants_at_once(block) - 1))
    if first is not None:
        pending.sort(key=lambda some: -first[some].max())
    while pending:
        some = pending[0]

        def fill(some: np.ndarray = some) -> None:
            nonlocal values
            measured = measure(some)
            if not values.size:
                values = np.empty((2, len(variants), *measured.shape[1:]))
            values[0, some], values[1, some] = measured[1:], measured[0]

        if len(some) == 1:
            fill()  # where one variant does not fit, the rows are halved
        elif not try_run(fill):
            engine.shrink()
            pending = in_batches(np.concatenate(pending), max(1, engine.variants_at_once(block) - 1))
            continue
        del pending[0]
        if note is not None:
            note(some, values[:, some])
        engine.advance(len(some) * block.size)
    return values
