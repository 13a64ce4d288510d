"""Variants beside their baseline: every batch has the unablated rows too, so that a score is a difference within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from headwise.model.forward.schedule import in_batches, try_run
from headwise.model.measure.rows import Block


class Batching(Protocol):
    """What an engine says about its batches."""

    advance: Callable[[int], Any]

    def variants_at_once(self, block: Block) -> int: ...

    def shrink(self) -> None: ...


def beside_baseline(
    engine: Batching,
    block: Block,
    variants: Sequence[int],
    measure: Callable[[np.ndarray], np.ndarray],
    first: np.ndarray | None = None,
    note: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> np.ndarray:
    """Values of V variants on a block's rows, in as few passes as fit, and at the baseline in the same pass
    `[2, V, S]`.

    variants: 0 to V - 1, in the order in which they are run. measure: one pass, from some of these numbers to the
    metric at the baseline and under each of them `[1 + v, S]`; with several metrics, here and in the result, an axis
    more. first: `[V]`, batches with larger numbers are run first; which variants share a batch does not depend on it,
    so no result does. note: called after each batch with its variants and their values `[2, v, S]`.
    """
    values = np.empty((2, len(variants), 0))
    pending = in_batches(variants, max(1, engine.variants_at_once(block) - 1))
    if first is not None:
        pending.sort(key=lambda some: -first[some].max())
    while pending:
        some = pending[0]

        def fill(some: np.ndarray = some) -> None:
            nonlocal values
            measured = measure(some)
            if not values.size:
                values = np.empty((2, len(variants), *measured.shape[1:]))
            values[0, some], values[1, some] = measured[1:], measured[0]

        if len(some) == 1:
            fill()  # where one variant does not fit, the rows are halved
        elif not try_run(fill):
            engine.shrink()
            pending = in_batches(np.concatenate(pending), max(1, engine.variants_at_once(block) - 1))
            continue
        del pending[0]
        if note is not None:
            note(some, values[:, some])
        engine.advance(len(some) * block.size)
    return values
