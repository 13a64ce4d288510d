"""What each head writes: its output averaged over the tokens of an answer, or at the last token of a text, and the
steering directions between right and wrong texts.

B rows of a batch, T tokens, E examples, L layers, H heads, D head size (the largest, where layers differ), N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import LOGIT_BUDGET, batches, example_too_large, in_halves
from headwise.model.tokens.encode import Row, encode_rows, pad_right
from headwise.settings import several

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Example


def answer_outputs(
    model: Model,
    examples: Sequence[Example],
    *,
    tokens: int | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Each head's mean output over the target's tokens, `[E, L, H, D]`; the last token is read too.

    tokens: average only that many of the target's tokens, those with the lowest probability; by default all. Heads that
    do not exist, and dimensions beyond a head's size, are 0.
    """
    if tokens is not None and tokens < 1:
        raise HeadwiseError(f"the mean over an answer needs at least one of its tokens, not {tokens}")
    rows = encode_rows(model.text, examples, "target")
    read = [[*row.ids, row.tokens[-1]] for row in rows]  # scoring predicts the last token; here it is read

    def mean(numbers: Sequence[int]) -> Callable[[Tensor], Tensor]:
        batch = [rows[n] for n in numbers]
        width = max(len(read[n]) for n in numbers)
        weights = torch.zeros(len(batch), width)  # B, T: 1 / (number of averaged tokens) at those tokens
        for b, (row, averaged) in enumerate(zip(batch, _averaged(model, batch, tokens), strict=True)):
            weights[b, [row.start + number for number in averaged]] = 1 / len(averaged)

        def average(z: Tensor) -> Tensor:
            wide = z if z.dtype == torch.float64 else z.float()
            return torch.einsum("bt,bthd->bhd", weights.to(z.device, wide.dtype), wide)

        return average

    return head_outputs(model, read, mean, batch_tokens or model.batch_tokens, np.float32, advance)


def head_outputs(
    model: Model,
    rows: Sequence[Sequence[int]],
    reduction: Callable[[Sequence[int]], Callable[[Tensor], Tensor]],
    budget: int,
    dtype: type[np.floating[Any]],
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """A reduction of each head's output over the tokens of each row, `[rows, L, H, D]`; 0 for heads that do not exist.

    reduction: from the numbers of the rows of a batch to a function from z `[B, T, H, D]` to `[B, H, D]`.
    budget: tokens of a batch.
    """
    outputs = np.zeros((len(rows), *model.shape, max(site.head_dim for site in model.hooks.sites)), dtype)

    def fill(numbers: Sequence[int]) -> None:
        ids = pad_right([rows[n] for n in numbers])
        for layer, z in model.outputs(ids, reduction(numbers)).items():
            outputs[numbers, layer, : z.shape[1], : z.shape[2]] = z.double().cpu().numpy()
        if advance:
            advance(len(numbers))

    with torch.inference_mode():
        for numbers in batches([len(row) for row in rows], budget):
            in_halves(numbers, fill, example_too_large)
    return outputs


def _averaged(model: Model, rows: list[Row], tokens: int | None) -> list[list[int]]:
    """Which tokens of each row's answer are averaged, counted from the first token of the answer."""
    widest = max(len(row.tokens) for row in rows)
    if tokens is None or widest <= tokens:
        return [list(range(len(row.tokens))) for row in rows]
    at_once = max(1, LOGIT_BUDGET // (widest * model.vocabulary))
    averaged: list[list[int]] = []
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        ids = pad_right([row.ids for row in part]).to(model.device)
        positions = pad_right([row.positions for row in part]).to(model.device)
        logprobs = model.run_whole(Pass(ids=ids, scored=positions)).logits.log_softmax(-1)
        for row, of_row in zip(part, logprobs, strict=True):
            of_tokens = of_row[torch.arange(len(row.tokens)), torch.tensor(row.tokens)]
            averaged.append(sorted(of_tokens.argsort(stable=True)[:tokens].tolist()))
    return averaged


# ---- steering directions: each head's output on right texts minus that on wrong ones ---------------------
# After inference-time intervention (Li et al. 2023, arXiv 2306.03341), which Cognitive Mirrors (arXiv 2512.10978)
# takes over: adding α·σ·direction to a head's output pushes the text towards what right answers have in common.


@dataclass(frozen=True)
class Directions:
    """Each head's mean output on right texts minus that on wrong texts."""

    unit: np.ndarray
    """`[L, H, D]`: mean over right texts minus mean over wrong ones, scaled to length 1; 0 where they are equal."""
    spread: np.ndarray
    """`[L, H]`: σ, the standard deviation of the head's output along its direction, over all texts."""
    right: int
    wrong: int
    """How many texts of each kind."""

    def shifts(self, heads: Iterable[Head], alpha: float) -> np.ndarray:
        """`[L, H, D]` for `hw.generate(shifts=...)`: α·σ·direction at the given heads, 0 at all others."""
        added = np.zeros_like(self.unit)
        for layer, head in heads:
            added[layer, head] = alpha * self.spread[layer, head] * self.unit[layer, head]
        return added


def directions(model: Model, right: Sequence[str], wrong: Sequence[str]) -> Directions:
    """Directions from texts that end right and texts that end wrong, read at their last token."""
    right, wrong = several(right), several(wrong)
    if not right or not wrong:
        raise HeadwiseError(
            f"a direction from wrong to right needs texts of both kinds; got {len(right)} right and {len(wrong)} wrong"
        )
    outputs = last_outputs(model, [*right, *wrong])  # N, L, H, D
    difference = outputs[: len(right)].mean(axis=0) - outputs[len(right) :].mean(axis=0)
    length = np.linalg.norm(difference, axis=-1, keepdims=True)
    unit = np.divide(difference, length, out=np.zeros_like(difference), where=length > 0)
    spread = (outputs * unit).sum(axis=-1).std(axis=0)
    return Directions(unit, spread, len(right), len(wrong))


def last_outputs(model: Model, texts: Sequence[str]) -> np.ndarray:
    """Every head's output at the last token of each text, `[N, L, H, D]`; 0 for heads that do not exist."""
    encoded = [ids or model.text.start() for ids in model.text.encode_many(list(texts))]

    def at_last(numbers: Sequence[int]) -> Callable[[Tensor], Tensor]:
        last = torch.tensor([len(encoded[n]) - 1 for n in numbers])
        return lambda z: z[torch.arange(len(last), device=z.device), last.to(z.device)]

    return head_outputs(model, encoded, at_last, model.batch_tokens, np.float64)
