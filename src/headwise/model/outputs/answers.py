"""What each head writes while the model reads an answer: its output, averaged over the answer's tokens.

B rows of a batch, T tokens, E examples, L layers, H heads, D head size (the largest, where layers differ).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.model.forward.out_of_memory import example_too_large, in_halves
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import batches
from headwise.model.tokens.encode import Row, encode_rows, pad_right

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Example

_LOGITS = 2**26
"""Most logits held at once, in numbers: 256 MB in float32."""


def answer_outputs(
    model: Model,
    examples: Sequence[Example],
    *,
    tokens: int | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Each head's mean output over the target's tokens `[E, L, H, D]`, all of them read, the last one too.

    tokens: only that many of the target's tokens, those the model gives the lowest probability; all of them by
    default, and wherever there are no more. Heads that do not exist, and sizes beyond a head's own, are 0.
    """
    if tokens is not None and tokens < 1:
        raise HeadwiseError(f"the mean over an answer needs at least one of its tokens, not {tokens}")
    rows = encode_rows(model.text, examples, "target")
    budget = batch_tokens or model.batch_tokens
    layers, heads = model.shape
    size = max(site.head_dim for site in model.hooks.sites)
    found = np.zeros((len(rows), layers, heads, size), dtype=np.float32)

    def fill(numbers: Sequence[int]) -> None:
        for layer, mean in _means(model, [rows[n] for n in numbers], tokens).items():
            found[numbers, layer, : mean.shape[1], : mean.shape[2]] = mean.float().cpu().numpy()
        if advance:
            advance(len(numbers))

    with torch.inference_mode():
        for numbers in batches([len(_read(row)) for row in rows], budget):
            in_halves(numbers, fill, example_too_large)
    return found


def _read(row: Row) -> list[int]:
    """The whole text: scoring stops before the last token, which is predicted; here it is read."""
    return [*row.ids, row.tokens[-1]]


def _means(model: Model, rows: list[Row], tokens: int | None) -> dict[int, Tensor]:
    """Layer -> mean head outputs `[B, H, D]`."""
    ids = pad_right([_read(row) for row in rows]).to(model.device)
    weights = torch.zeros(ids.shape)  # B, T: 1 / (number of tokens taken) at the tokens that are taken
    for b, (row, places) in enumerate(zip(rows, _taken(model, rows, tokens), strict=True)):
        weights[b, [row.start + place for place in places]] = 1 / len(places)
    means: dict[int, Tensor] = {}

    def average(layer: int, z: Tensor) -> Tensor:
        if layer in means:
            raise HeadwiseError(
                f"layer {layer} of {model.name} runs several times per pass (shared weights), so its heads have no "
                "single output to probe; use a causal method such as 'ablation'"
            )
        # Summed at least in float32; nothing of z itself is kept.
        wide = z if z.dtype == torch.float64 else z.float()
        means[layer] = torch.einsum("bt,bthd->bhd", weights.to(z.device, wide.dtype), wide)
        return z

    first = torch.zeros(len(rows), 1, dtype=torch.long, device=model.device)
    model.run_whole(Pass(ids=ids, scored=first, heads=average))
    return means


def _taken(model: Model, rows: list[Row], tokens: int | None) -> list[list[int]]:
    """Which of each row's answer tokens are averaged, by their place in the answer."""
    everything = [list(range(len(row.tokens))) for row in rows]
    if tokens is None or all(len(places) <= tokens for places in everything):
        return everything
    widest = max(len(row.tokens) for row in rows)
    at_once = max(1, _LOGITS // (widest * model.vocabulary))
    taken: list[list[int]] = []
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        ids = pad_right([row.ids for row in part]).to(model.device)
        positions = pad_right([row.positions for row in part]).to(model.device)
        logprobs = model.run_whole(Pass(ids=ids, scored=positions)).logits.log_softmax(-1)
        for row, of_row in zip(part, logprobs, strict=True):
            own = of_row[torch.arange(len(row.tokens)), torch.tensor(row.tokens)]
            taken.append(sorted(own.argsort(stable=True)[:tokens].tolist()))
    return taken
