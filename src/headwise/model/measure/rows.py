"""The rows of a task, cut into blocks that fit a forward pass, with what replaces their ablated heads.

S rows of a block (one or more per example), T tokens, L layers, H heads (and two columns more with other components),
D head size.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, quoted
from headwise.heads import HEADS, ComponentKinds, Head
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import blocks_of_rows
from headwise.model.measure.references.donors import donor_rows, first_differences
from headwise.model.measure.references.registry import REFERENCES, Positions, ReferenceName, ReferenceSource
from headwise.model.tokens.encode import Needs, Row, Scored, batch_of, encode_rows, pad_right
from headwise.settings import Count, Seed, Settings
from headwise.tasks.examples import Task

if TYPE_CHECKING:
    from headwise.model.model import Model


@dataclass
class Block:
    """Some rows of about equal length, with what is computed once for them."""

    rows: list[Row]
    tensors: dict[str, Tensor]
    acts: Tensor | None = None  # S, T: where gates act; None is everywhere
    references: dict[Any, Tensor] | None = None  # layer, MLP or input -> broadcastable to S, T, H, D
    modules: dict[Head, nn.Module] = field(default_factory=dict)
    """MLPs and the embeddings, where they are gated."""

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        return self.tensors["ids"].shape[1]

    def pass_(self, times: int = 1, **more: Any) -> Pass:
        """The forward pass over the rows, all of them repeated, with logits at their scored positions."""
        ids, positions = self.tensors["ids"].repeat(times, 1), self.tensors["positions"].repeat(times, 1)
        return Pass(ids=ids, scored=positions, **more)

    def gated(self, values: Tensor, times: int = 1, leave: Container[Head] = (), **more: Any) -> Pass:
        """The same under gates `[B, L, H]` of the rows; of MLPs and the input, those in `leave` have a gate of 1.

        more: fields of `HeadGates`, and `shared` of the pass.
        """
        shared = more.pop("shared", {})
        heads = HeadGates(values, reference=self.references, acts=self.acts, block=self.size, **more)
        modules = {
            module: partial(heads.module, component)
            for component, module in self.modules.items()
            if component not in leave
        }
        return self.pass_(times, heads=heads, modules=modules, shared=shared)

    def scored(self, logits: Tensor, full: Tensor | None = None) -> Scored:
        """`logits` of this block's rows, repeated any number of times."""
        times = len(logits) // self.size
        fields = {name: self.tensors[name] for name in ("tokens", "mask", "rights", "wrongs", "whole")}
        repeated = {name: t.repeat(times, *[1] * (t.dim() - 1)) for name, t in fields.items()}
        return Scored(logits, full=full, **repeated)


class MeasureSettings(Settings):
    """What replaces an ablated head, where gates act, and how much runs at once."""

    reference: ReferenceName = "zero"
    """What replaces an ablated head: zero, mean, position_mean, resample, patch, or a plug-in's."""
    positions: Positions = "all"
    """Where gates act: `all`, or from the `last` prompt token on."""
    seed: Seed = 0
    batch_tokens: Count | None = None
    """Most tokens in one forward pass (default: what suits the device); where that saves a pass, a sixteenth more."""
    components: ComponentKinds = HEADS
    """What has gates: heads, mlps (the output of each MLP), input (the embeddings)."""


class Rows:
    """Every row of a task under one model and one kind of intervention."""

    def __init__(
        self, model: Model, task: Task, needs: Needs, settings: MeasureSettings, reference_task: Task | None
    ) -> None:
        if reference_task is not None and not isinstance(reference_task, Task):
            raise HeadwiseError(
                f"reference_task is {quoted(reference_task)}; give a task: reference_task=hw.task(…)"
            )
        self.model, self.task, self.positions = model, task, settings.positions
        self.all = encode_rows(model.text, task.examples, needs)
        tokens = settings.batch_tokens or model.batch_tokens
        self._components = tuple(model.layout(settings.components).modules)
        self._modules = model.modules(self._components)
        source = ReferenceSource(
            model, task, self.all, reference_task, settings.seed, tokens, self._components
        )
        reference = REFERENCES.get(settings.reference)(source)
        self._donors = donor_rows(source, reference) if isinstance(reference, list) else None
        self._outputs: dict[Any, Tensor] | None = None
        if isinstance(reference, dict):
            self._outputs = reference
            self._check_outputs(settings.reference)

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
        block = Block(rows, tensors, modules=self._modules)
        length = block.length
        acts = torch.ones(len(rows), length, dtype=torch.bool)
        if self.positions == "last":
            starts = torch.tensor([row.start for row in rows])
            acts &= torch.arange(length)[None, :] >= starts[:, None] - 1
        if self._donors is not None:
            donors = [self._donors[n] for n in numbers]
            acts &= first_differences(rows, donors, length)
            block.references = self.model.outputs(pad_right(donors), components=self._components)
        elif self._outputs is not None:
            block.references = {k: z[:length] if z.dim() == 3 else z for k, z in self._outputs.items()}
        block.acts = None if bool(acts.all()) else acts.to(self.model.device)
        return block

    def _check_outputs(self, reference: str) -> None:
        """Refuse a reference (a plug-in's) that has outputs of heads alone where MLPs or the input are gated."""
        assert self._outputs is not None
        missing = [str(one) for one in self._components if one not in self._outputs]
        if missing:
            raise HeadwiseError(
                f"the reference {reference!r} has no output for {missing[0]}; it knows heads alone, so use it without "
                "components, or let it return outputs for these components too"
            )

    def too_large(self, number: int) -> HeadwiseError:
        """The error for a row that does not fit into memory, however small the batch."""
        row = self.all[number]
        return HeadwiseError(
            f"example {row.example + 1} of task {self.task.name!r} ({len(row.ids)} tokens) does not fit into memory "
            "even alone; use a shorter prompt, a smaller dtype or another device"
        )
