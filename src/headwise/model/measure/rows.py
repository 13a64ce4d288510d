"""The rows of a task, cut into blocks that fit a forward pass, with what replaces their ablated heads.

S rows of a block (one or more per example), T tokens, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import blocks_of_rows
from headwise.model.measure.references import (
    check_reference,
    donor_prompts,
    donor_rows,
    first_differences,
    mean_outputs,
)
from headwise.model.tokens.encode import Needs, Row, Scored, batch_of, encode_rows, pad_right

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Task


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

    @property
    def pass_(self) -> Pass:
        """The plain forward pass over the rows, logits at their scored positions."""
        return Pass(ids=self.tensors["ids"], scored=self.tensors["positions"])

    def scored(self, logits: Tensor, full: Tensor | None = None) -> Scored:
        """`logits` of this block's rows, repeated any number of times."""
        times = len(logits) // self.size
        fields = {name: self.tensors[name] for name in ("tokens", "mask", "rights", "wrongs", "whole")}
        repeated = {name: t.repeat(times, *[1] * (t.dim() - 1)) for name, t in fields.items()}
        return Scored(logits, full=full, **repeated)


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """What replaces an ablated head, and where gates act."""

    reference: str = "zero"
    """What replaces an ablated head: zero, mean, position_mean, resample, patch."""
    positions: str = "all"
    """Where gates act: `all`, or from the `last` prompt token on."""
    reference_task: Task | None = None
    """The examples behind a mean reference; by default the task itself."""
    seed: int = 0


class Rows:
    """Every row of a task under one model and one kind of intervention."""

    def __init__(
        self, model: Model, task: Task, needs: Needs, intervention: Intervention, batch_tokens: int
    ) -> None:
        reference, positions = intervention.reference, intervention.positions
        check_reference(reference, positions)
        self.model, self.task, self.positions = model, task, positions
        self.all = encode_rows(model.text, task.examples, needs)
        prompts = donor_prompts(reference, model.text, task.examples, intervention.seed)
        self._donors = (
            donor_rows(model.text, task.examples, self.all, prompts) if prompts is not None else None
        )
        self._means: dict[int, Tensor] | None = None
        if reference in ("mean", "position_mean"):
            behind = self.all
            if intervention.reference_task is not None:
                behind = encode_rows(model.text, intervention.reference_task.examples, "target")
            self._means = mean_outputs(model, behind, reference == "position_mean", batch_tokens)

    def partition(self, variants: int, budget: int, examples: set[int] | None = None) -> Iterator[list[int]]:
        """Row numbers in blocks of about equal length, small enough that `variants` copies fit the budget of tokens.

        examples: only the rows of these.
        """
        rows = [n for n, row in enumerate(self.all) if examples is None or row.example in examples]
        lengths = np.array([len(row.ids) for row in self.all])
        return blocks_of_rows(lengths, rows, variants, budget)

    def block(self, numbers: Sequence[int], baseline: np.ndarray | None = None) -> Block:
        """The rows of these numbers, any of them several times, as tensors with their references."""
        rows = [self.all[n] for n in numbers]
        tensors = {name: t.to(self.model.device) for name, t in batch_of(rows).items()}
        block = Block(rows, tensors, np.ones(self.model.shape) if baseline is None else baseline)
        length = block.length
        acts = torch.ones(len(rows), length, dtype=torch.bool)
        if self.positions == "last":
            starts = torch.tensor([row.start for row in rows])
            acts &= torch.arange(length)[None, :] >= starts[:, None] - 1
        if self._donors is not None:
            donors = [self._donors[n] for n in numbers]
            acts &= first_differences(rows, donors, length)
            block.references = self.model.outputs(pad_right(donors))
        elif self._means is not None:
            block.references = {k: m[:length] if m.dim() == 3 else m for k, m in self._means.items()}
        block.acts = None if bool(acts.all()) else acts.to(self.model.device)
        return block

    def too_large(self, number: int) -> HeadwiseError:
        """The error for a row that does not fit into memory, however small the batch."""
        row = self.all[number]
        return HeadwiseError(
            f"example {row.example + 1} of task {self.task.name!r} ({len(row.ids)} tokens) does not fit into memory "
            "even alone; use a shorter prompt, a smaller dtype or another device"
        )
