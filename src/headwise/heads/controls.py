"""What an order of heads is compared with: heads drawn at random, and heads drawn from the same layers.

A head of an early layer does more than one of a late layer, whatever the behaviour, so an order may look good
for its layers alone. A layer-matched draw has as many heads in each layer as the order it is compared with.
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


def random_order(heads: Sequence[Head], seed: int | str) -> Order:
    """All heads, shuffled."""
    return random.Random(f"random order/{seed}").sample(list(heads), len(heads))


def layer_matched_order(order: Sequence[Head], seed: int | str) -> Order:
    """A random order that visits the layers in the sequence in which `order` does."""
    generator = random.Random(f"layer-matched order/{seed}")
    waiting: dict[int, Order] = {}
    for head in order:
        waiting.setdefault(head.layer, []).append(head)
    for heads in waiting.values():
        heads.sort()  # the draw depends on the layers visited, not on which head came first
        generator.shuffle(heads)
    return [waiting[head.layer].pop() for head in order]


def random_heads(heads: Iterable[Head], top: Sequence[Head], seed: int | str) -> Draw:
    """As many heads as `top` has, none of them in it."""
    free = _free(heads, top)
    return Draw(sorted(random.Random(f"random heads/{seed}").sample(free, len(top))), 0)


def layer_matched_heads(heads: Iterable[Head], top: Sequence[Head], seed: int | str) -> Draw:
    """As many heads from each layer as `top` has there, none of them in it.

    Where a layer has too few free heads, the rest come from the nearest layers that have some.
    """
    generator = random.Random(f"layer-matched heads/{seed}")
    free: dict[int, Order] = {}
    for head in _free(heads, top):
        free.setdefault(head.layer, []).append(head)
    for others in free.values():
        generator.shuffle(others)
    drawn: Order = []
    lacking: list[int] = []
    for layer, wanted in sorted(Counter(head.layer for head in top).items()):
        there = free.get(layer, [])
        drawn += there[:wanted]
        free[layer] = there[wanted:]
        lacking += [layer] * (wanted - len(there[:wanted]))
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
