"""What an order of heads is compared with: heads drawn at random, and heads drawn from the same layers.

A head of an early layer does more than one of a late layer, whatever the behaviour, so an order may look good
for its layers alone. A layer-matched draw has as many heads in each layer as the heads it is compared with. A draw
never holds one of these: it would show their effect, not chance.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headwise.errors import HeadwiseError
from headwise.heads import Head, Order


class Draw(NamedTuple):
    """Heads drawn as a control."""

    heads: Order
    moved: int
    """How many had to come from a neighbouring layer, because theirs had too few free heads."""


def random_heads(heads: Iterable[Head], top: Sequence[Head], seed: int | str) -> Draw:
    """As many heads as `top` has, none of them in it."""
    free = _free(heads, top)
    return Draw(sorted(random.Random(f"random heads/{seed}").sample(free, len(top))), 0)


def layer_matched_heads(heads: Iterable[Head], top: Sequence[Head], seed: int | str) -> Draw:
    """As many heads from each layer as `top` has there, none of them in it.

    Where a layer has too few free heads, the rest come from the nearest layers that have some.
    """
    generator = random.Random(f"layer-matched heads/{seed}")
    free = _by_layer(_free(heads, top))
    for others in free.values():
        generator.shuffle(others)
    return _matched(free, top)


def control_sets(
    kind: str, heads: Iterable[Head], order: Sequence[Head], ks: Sequence[int], seed: int | str
) -> list[Draw]:
    """A draw for the order's first k heads at each of `ks`, none of them among these k; one seed, one draw.

    kind: `random`, or `random_layer`: as many heads from each layer as the first k have there. All heads are shuffled
    once, and at each k the first that are free are taken: a set grows with k and loses a head only to the order.
    There are such sets up to half of all heads (`most_k`).
    """
    every = list(heads)
    shuffled = random.Random(f"{kind} control/{seed}").sample(every, len(every))
    drawn = []
    for k in ks:
        top = order[:k]
        free = _free(shuffled, top)
        drawn.append(_matched(_by_layer(free), top) if kind == "random_layer" else Draw(free[:k], 0))
    return drawn


def most_k(total: int) -> int:
    """The largest k for which `total` heads hold k others."""
    return total // 2


def _by_layer(heads: Iterable[Head]) -> dict[int, Order]:
    by_layer: dict[int, Order] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head)
    return by_layer


def _matched(free: dict[int, Order], top: Sequence[Head]) -> Draw:
    """From each layer the first free heads, as many as `top` has there; what a layer lacks, from the nearest."""
    drawn: Order = []
    lacking: list[int] = []
    for layer, count in sorted(Counter(head.layer for head in top).items()):
        available = free.get(layer, [])
        drawn += available[:count]
        free[layer] = available[count:]
        lacking += [layer] * (count - len(available[:count]))
    for layer in lacking:
        nearest = min((other for other in free if free[other]), key=lambda other: (abs(other - layer), other))
        drawn.append(free[nearest].pop())
    return Draw(sorted(drawn), len(lacking))


def _free(heads: Iterable[Head], top: Sequence[Head]) -> Order:
    taken = set(top)
    free = [head for head in heads if head not in taken]
    if len(free) < len(top):
        raise HeadwiseError(
            f"a control for {len(top)} heads needs as many others, and only {len(free)} are left; mask fewer"
        )
    return free
