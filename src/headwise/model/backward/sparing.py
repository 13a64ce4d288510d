"""One backward pass over packed rows on a CPU at half the usual memory, where that changes nothing.

Rows attend each by themselves, and in most blocks wide products are multiplied anew instead of kept. Both rest on how
a family is written, so `sparing_works` compares slopes with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from headwise.model.backward.packing import Packed
from headwise.model.backward.remembered import remembering_less
from headwise.model.backward.row_attention import RowAttention
from headwise.model.forward.unembed import logits_at
from headwise.model.sites.probe import probe_input
from headwise.model.sites.reach import Reach
from headwise.model.tokens.encode import Row

SHARE = 0.55
"""Of the blocks: in so many, wide products are multiplied anew. Each tenth takes 2 % more time and spares a twelfth of
the memory. The first ones, because by the time that they are multiplied the later ones are done with."""


@contextmanager
def sparing(
    reach: Reach, place: Tensor, share: float | None = None, by_row: bool | None = None
) -> Iterator[None]:
    """While this holds, a visited pass over packed rows, numbered `place[N]`, remembers less for its backward pass."""
    blocks = reach.blocks[: int((SHARE if share is None else share) * len(reach.blocks))]
    with reach.attending(RowAttention(place, by_row)), remembering_less(blocks):
        yield


_ROUNDING = 1e-3
"""Most that logits and slopes may differ, as a part of the largest: slopes of nonsense are large, and so is their last
digit. What sees the wrong tokens differs by about as much as there is."""


def sparing_works(reach: Reach) -> bool:
    """Whether logits and their slopes by every gate are the same with and without; weights are frozen meanwhile."""
    model = reach.model
    ids = probe_input(model)[0].tolist()
    rows = [Row(0, one, 1, list(range(len(one))), one) for one in (ids[:4], ids[::-1], ids[1:4], ids[:1])]
    packed = Packed.of(rows, next(model.parameters()).device)
    gates = torch.ones(len(rows), *reach.shape, device=packed.ids.device, requires_grad=True)

    def found(way: Callable[[], AbstractContextManager[None]]) -> tuple[Tensor, Tensor]:
        with reach.visiting(packed.visitor(gates, None, None)), way():
            logits = logits_at(model, packed.ids, packed.positions, places=packed.place[None])
        picked = logits.log_softmax(-1).gather(2, packed.tokens[:, :, None])
        return logits.detach(), torch.autograd.grad(picked.sum(), gates)[0]

    try:
        with torch.enable_grad():
            expected = found(nullcontext)
            ways = [found(lambda way=way: sparing(reach, packed.place, 1.0, way)) for way in (True, False)]  # type: ignore[misc]
    except Exception:  # a family that computes what is not expected of any
        return False
    return all(
        float((one - other).abs().max()) <= _ROUNDING * float(other.abs().max())
        for way in ways
        for one, other in zip(way, expected, strict=True)
    )
