"""What makes a backward pass small: rows packed into one sequence, and log p without the tables that torch would hold.

S rows, N tokens of all together, P scored positions (of all rows together where these are packed), B rows, W width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.model.forward.products import product
from headwise.model.forward.run import Pass, run
from headwise.model.sites.patch import hooked
from headwise.model.sites.probe import probe_input
from headwise.model.tokens.encode import Row

# ---- rows one behind the other as a single sequence, so that no padding is computed ----------------------
# Tokens are numbered anew from the start of each row, and transformers then lets no row see another. Not every family
# does: `packing_works` compares, and the others are padded.


@dataclass(frozen=True)
class Packed:
    """Some rows as one sequence."""

    ids: Tensor  # 1, N
    row: Tensor  # N: which row a token belongs to
    place: Tensor  # N: where it stands there
    positions: Tensor  # 1, P: where logits are read, in the sequence
    tokens: Tensor  # 1, P: the right next token at each
    scored_row: Tensor  # P: whose it is

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> Packed:
        lengths = torch.tensor([len(row.ids) for row in rows])
        starts = lengths.cumsum(0) - lengths
        scored = torch.tensor([len(row.positions) for row in rows])
        number = torch.arange(len(rows))
        row, scored_row = number.repeat_interleave(lengths), number.repeat_interleave(scored)
        positions = torch.tensor([p for one in rows for p in one.positions]) + starts[scored_row]
        place = torch.arange(len(row)) - starts[row]
        ids = torch.tensor([token for one in rows for token in one.ids])
        fields = (
            ids[None],
            row,
            place,
            positions[None],
            torch.tensor([[token for one in rows for token in one.tokens]]),
            scored_row,
        )
        return cls(*(field.to(device) for field in fields))

    def pass_(self, **more: Any) -> Pass:
        """The forward pass over the packed rows, logits at their scored positions."""
        return Pass(ids=self.ids, scored=self.positions, inputs={"position_ids": self.place[None]}, **more)


_ROUNDING = 1e-3
"""Most that a packed row's logits may differ from the row's alone, as a part of what seeing other rows would do."""


def packing_works(model: nn.Module) -> bool:
    """Whether four packed rows of different lengths get the logits that they get alone."""
    ids = probe_input(model)[0].tolist()
    rows = [Row(0, ids, 1, [*range(len(ids))], ids) for ids in (ids[:4], ids[::-1], ids[1:4], ids[:1])]
    packed = Packed.of(rows, next(model.parameters()).device)
    try:
        with torch.no_grad():
            together = run(model, packed.pass_()).logits[0]
            mixed = run(model, Pass(ids=packed.ids, scored=packed.positions)).logits[0]
            texts = [packed.ids[:, packed.row == row] for row in packed.row.unique()]
            alone = torch.cat([run(model, Pass(ids=text)).logits[0] for text in texts])
    except Exception:  # a family that takes no positions, or not these
        return False
    gap, seen = (float((logits - alone).abs().max()) for logits in (together, mixed))
    return gap <= _ROUNDING * seen


# ---- log p of given tokens without ever holding all their logits -----------------------------------------
# For models whose logits are a plain product. The gradient of log p by the last hidden state, the token's row of the
# unembedding less the expected row, is computed along with the value, a part of the vocabulary at a time, while those
# logits are there.


POSITIONS, WORDS = 256, 4096
"""Logits of so many positions for so many words are held at a time: few words, so that their part of the unembedding
is still at hand when it is read for the second time."""


def plain_unembedding(model: nn.Module) -> nn.Linear | None:
    """The last layer of `model`, where its results are the logits: not scaled, capped or cut afterwards."""
    layer = model.get_output_embeddings()  # type: ignore[operator]
    if type(layer) is not nn.Linear or layer.weight.dtype not in (torch.float32, torch.float64):
        return None
    results: list[Tensor] = []
    with torch.no_grad(), hooked([layer], after=lambda _, __, ___, result: results.append(result)):
        logits = run(model, Pass(ids=probe_input(model))).logits
    same = (
        len(results) == 1 and results[0].data_ptr() == logits.data_ptr() and results[0].shape == logits.shape
    )
    return layer if same else None


def target_logprobs(hidden: Tensor, unembedding: nn.Linear, tokens: Tensor) -> Tensor:
    """log p of `tokens[B, P]`, from what the unembedding reads at their positions `[B, P, W]` (`Pass.hidden`)."""
    logprobs: Tensor = _Logprobs.apply(hidden, unembedding.weight, unembedding.bias, tokens)
    return logprobs


class _Logprobs(torch.autograd.Function):
    """Of a frozen unembedding: no gradient by its weight is computed."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        rows, right = hidden.flatten(0, 1), tokens.flatten()
        gradients = weight[right]
        values = (rows * gradients).sum(-1)
        if bias is not None:
            values += bias[right]
        for part in (slice(first, first + POSITIONS) for first in range(0, len(rows), POSITIONS)):
            log_total, expected = _expected(rows[part], weight, bias)
            values[part] -= log_total
            gradients[part] -= expected
        ctx.save_for_backward(gradients)
        ctx.shape = hidden.shape
        return values.unflatten(0, tokens.shape)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (gradients,) = ctx.saved_tensors
        return (gradients * gradient[0].flatten()[:, None]).reshape(ctx.shape), None, None, None


def _expected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """log Σ exp of each row's logits `[P]`, and the mean row of the unembedding under their softmax `[P, W]`."""
    peak = rows.new_full((len(rows), 1), torch.finfo(rows.dtype).min)
    total, mean = torch.zeros_like(peak), torch.zeros_like(rows)
    for first in range(0, len(weight), WORDS):
        words = slice(first, first + WORDS)
        table = product(rows, weight[words], None if bias is None else bias[words])
        higher = torch.maximum(peak, table.amax(-1, keepdim=True))
        table.sub_(higher).exp_()
        shrink = (peak - higher).exp_()
        total.mul_(shrink).add_(table.sum(-1, keepdim=True))
        mean.mul_(shrink).add_(product(table, weight[words].t()))
        peak = higher
        del table  # before the next is made
    return (peak + total.log())[:, 0], mean / total


# ---- log p of given tokens from their logits -------------------------------------------------------------
# The backward pass holds one table of the vocabulary's size beside the logits; torch's log_softmax would hold four.


CPU_NUMBERS, DEVICE_NUMBERS = 2**20, 2**27
"""Logits per chunk: few enough for the cache of a CPU, many enough to fill an accelerator."""


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax of `logits[B, P, vocabulary]` at `tokens[B, P]`."""
    if torch.is_grad_enabled() and logits.requires_grad:
        differentiable: Tensor = _TokenLogprobs.apply(logits, tokens)
        return differentiable
    return _at(logits, tokens) - logits.logsumexp(-1)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        total = logits.new_empty(tokens.shape)
        flat, flat_total = logits.flatten(0, 1), total.flatten()
        for part in _parts(flat):
            flat_total[part] = flat[part].logsumexp(-1)
        ctx.save_for_backward(logits, tokens, total)
        return _at(logits, tokens) - total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """gradient · (1 at the token − softmax)."""
        logits, tokens, total = ctx.saved_tensors
        logit_gradients = logits.new_empty(logits.shape)  # one block, however the logits lie
        flat, flat_gradients = logits.flatten(0, 1), logit_gradients.flatten(0, 1)
        for part in _parts(flat):
            rows = flat_gradients[part]
            torch.sub(flat[part], total.flatten()[part, None], out=rows)
            rows.exp_().mul_(-gradient.flatten()[part, None])
        logit_gradients.scatter_add_(2, tokens[:, :, None], gradient[:, :, None])
        return logit_gradients, None


def _at(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(2, tokens[:, :, None])[:, :, 0]


def _parts(flat: Tensor) -> Iterator[slice]:
    """Rows of `flat[rows, vocabulary]` a few at a time."""
    numbers = CPU_NUMBERS if flat.device.type == "cpu" else DEVICE_NUMBERS
    step = max(1, numbers // flat.shape[1])
    for first in range(0, len(flat), step):
        yield slice(first, first + step)
