"""Rows one behind the other as a single sequence, so that no padding is computed.

Tokens are numbered anew from the start of each row, and transformers then lets no row see another. Not every family
does: `packing_works` compares, and the others are padded.

S rows, T tokens of the longest, N tokens of all together, P scored positions of all together, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headwise.model.forward.gating import gated
from headwise.model.forward.unembed import logits_at
from headwise.model.sites.probe import probe_input
from headwise.model.tokens.encode import Row


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
    def of(cls, rows: Sequence[Row], device: torch.device, tokens: int = 0) -> Packed:
        """tokens: at least so many in all; more than the rows have are taken from the first, and never scored."""
        lengths = torch.tensor([len(row.ids) for row in rows])
        starts = lengths.cumsum(0) - lengths
        scored = torch.tensor([len(row.positions) for row in rows])
        number = torch.arange(len(rows))
        row, scored_row = number.repeat_interleave(lengths), number.repeat_interleave(scored)
        positions = torch.tensor([p for one in rows for p in one.positions]) + starts[scored_row]
        place = torch.arange(len(row)) - starts[row]
        ids = torch.tensor([token for one in rows for token in one.ids])
        more = torch.arange(max(0, tokens - len(row))) % lengths[0]
        fields = (
            torch.cat([ids, ids[more]])[None],
            torch.cat([row, row[more]]),
            torch.cat([place, more]),
            positions[None],
            torch.tensor([[token for one in rows for token in one.tokens]]),
            scored_row,
        )
        return cls(*(field.to(device) for field in fields))

    def visitor(
        self, gates: Tensor, acts: Tensor | None, references: dict[int, Tensor] | None
    ) -> Callable[[int, Tensor], Tensor]:
        """z' = g·z + (1 − g)·r with each row's own gates `[S, L, H]`.

        acts `[S, T]`: where gates act, None for everywhere. references: layer -> `[S, T, H, D]`, `[T, H, D]` or
        `[H, D]`; None for zero.
        """
        per_token = gates.index_select(0, self.row)  # N, L, H
        where = None if acts is None else acts[self.row, self.place][:, None, None]

        def gate(layer: int, z: Tensor) -> Tensor:
            g = per_token[:, layer, : z.shape[2], None].to(z.dtype)
            reference = None if references is None else self._of_tokens(references[layer].to(z.dtype))
            return gated(z[0], g, reference, where)[None]

        return gate

    def _of_tokens(self, reference: Tensor) -> Tensor:
        """What stands for each token, broadcastable to `[N, H, D]`."""
        if reference.dim() == 4:
            return reference[self.row, self.place]
        return reference[self.place] if reference.dim() == 3 else reference


_ROUNDING = 1e-3
"""Most that a packed row's logits may differ from the row's alone, as a part of what seeing other rows would do."""


def packing_works(model: nn.Module) -> bool:
    """Whether rows that are packed get the logits that they get alone."""
    ids = probe_input(model)[0].tolist()
    lists = [ids[:4], ids[::-1], ids[1:4]]
    rows = [Row(0, one, 1, list(range(len(one))), one) for one in lists]
    packed = Packed.of(rows, next(model.parameters()).device)
    try:
        with torch.no_grad():
            found = logits_at(model, packed.ids, packed.positions, places=packed.place[None])[0]
            mixed = logits_at(model, packed.ids, packed.positions)[0]
            alone = [_logits(model, packed.ids[:, packed.row == row]) for row in range(len(rows))]
    except Exception:  # a family that takes no positions, or not these
        return False
    expected = torch.cat(alone)
    gap, seen = (float((logits - expected).abs().max()) for logits in (found, mixed))
    return gap <= _ROUNDING * seen


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1], device=ids.device)[None]
    return logits_at(model, ids, places)[0]
