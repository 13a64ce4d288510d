"""Rows one behind the other as a single sequence, so that no padding is computed.

Tokens are numbered anew from the start of each row, and transformers then lets no row see another. Not every family
does: `packing_works` compares, and the others are padded.

S rows, N tokens of all together, P scored positions of all together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.forward.run import Pass, run
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


def packed_probe(model: nn.Module) -> Packed:
    """Four rows of different lengths, on which packing is tried."""
    ids = probe_input(model)[0].tolist()
    texts = (ids[:4], ids[::-1], ids[1:4], ids[:1])
    rows = [Row(0, text, 1, list(range(len(text))), text) for text in texts]
    return Packed.of(rows, next(model.parameters()).device)


def packing_works(model: nn.Module) -> bool:
    """Whether rows that are packed get the logits that they get alone."""
    packed = packed_probe(model)
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
