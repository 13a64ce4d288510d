"""Resamples of examples, drawn so that all columns share them and little is held in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError

_BLOCK = 4_000_000
"""Numbers held at once in one work array: 32 MB of float64."""


def floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def as_matrix(values: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """`[E, ...]` as a matrix `[E, K]`, and the trailing shape."""
    array = floats(values)
    if array.ndim == 0:
        raise HeadwiseError("expected an array with the examples along its first axis, got a single number")
    return array.reshape(len(array), int(np.prod(array.shape[1:]))), array.shape[1:]


def checked(level: float) -> float:
    if not 0 < level < 1:
        raise HeadwiseError(f"the level of an interval lies between 0 and 1 (such as 0.95), not at {level}")
    return level


def percentiles(resampled: np.ndarray, level: float) -> np.ndarray:
    """`[2, K]`: the percentile interval of each column of `[B, K]`."""
    tail = (1 - checked(level)) / 2
    # A NaN here is a resample that came out 0 / 0; `quantile` is much the faster where there is none.
    quantile = np.nanquantile if np.isnan(resampled).any() else np.quantile
    return quantile(resampled, [tail, 1 - tail], axis=0)


def blocks(columns: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """The given column numbers, so few at once that `rows` of them fit into one work array."""
    width = max(1, _BLOCK // max(rows, 1))
    for start in range(0, len(columns), width):
        yield columns[start : start + width]


def rows_at_once(width: int) -> int:
    return max(1, _BLOCK // max(width, 1))


def resample_counts(E: int, draws: int, seed: int, width: int = 1) -> Iterator[np.ndarray]:
    """How often each of E examples is drawn in each resample, `[chunk, E]`, until `draws` are given out.

    The same E and seed give the same resamples, however many columns there are: that is what pairs them.
    """
    if draws < 1:
        raise HeadwiseError(f"a bootstrap needs at least one draw, not {draws}")
    random = np.random.default_rng(seed)
    most = rows_at_once(max(E, width))
    for start in range(0, draws, most):
        rows = min(most, draws - start)
        drawn = random.integers(0, E, size=(rows, E))
        drawn += np.arange(rows)[:, None] * E
        yield np.bincount(drawn.ravel(), minlength=rows * E).reshape(rows, E).astype(np.float64)


def aligned(a: Iterator[np.ndarray], b: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Two streams of rows in step, whatever the lengths of their chunks."""
    left: np.ndarray = np.empty((0, 0))
    right: np.ndarray = np.empty((0, 0))
    while True:
        left = left if len(left) else next(a, left)
        right = right if len(right) else next(b, right)
        rows = min(len(left), len(right))
        if not rows:
            return
        yield left[:rows], right[:rows]
        left, right = left[rows:], right[rows:]


def resampled_means(columns: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """`[draws, K]`: the mean of every column in every resample."""
    E = len(columns)
    # Measured from the first example, a constant column is exactly 0 and its interval exactly its value.
    shifted = columns - columns[0]
    means = np.concatenate([counts @ shifted for counts in resample_counts(E, draws, seed)])
    return means / E + columns[0]
