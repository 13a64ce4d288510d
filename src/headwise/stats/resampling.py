"""Resamples of examples, drawn so that all columns share them and little is held in memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError

Groups = Sequence[Any] | np.ndarray | None
"""A name for each example's group, or None where every example stands alone."""
_BLOCK = 4_000_000
"""Numbers held at once in one work array: 32 MB of float64."""


def floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def by_example(values: Any) -> np.ndarray:
    """An array `[E, ...]` of numbers."""
    array = floats(values)
    if array.ndim == 0:
        raise HeadwiseError("expected an array with the examples along its first axis, got a single number")
    return array


def as_matrix(values: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """`[E, ...]` as a matrix `[E, K]`, and the trailing shape."""
    array = by_example(values)
    return array.reshape(len(array), int(np.prod(array.shape[1:]))), array.shape[1:]


def checked(level: float) -> float:
    if not 0 < level < 1:
        raise HeadwiseError(
            f"the level of an interval is {level}; expected a number between 0 and 1, such as 0.95"
        )
    return level


def blocks(columns: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Column numbers in blocks, each so small that `rows` of them fit into one work array."""
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


def group_codes(groups: Groups, E: int) -> np.ndarray | None:
    """The number of each example's group `[E]`, counted in the order in which groups come first.

    An example whose group is None stands alone. None where there are no groups, or no two examples share one: then
    examples are resampled as they are.
    """
    if groups is None:
        return None
    names = [(index,) if name is None else name for index, name in enumerate(groups)]
    if len(names) != E:
        raise HeadwiseError(f"{E} values need as many cluster names (groups), not {len(names)}")
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=int)
    return codes if len(numbers) < E else None


def group_sums(columns: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """`[G, K]`: each column summed over the examples of each group."""
    sums = np.zeros((int(codes.max()) + 1, *columns.shape[1:]))
    np.add.at(sums, codes, columns)
    return sums


def units(E: int, codes: np.ndarray | None) -> int:
    """How many independent units there are: examples, or groups of them."""
    return E if codes is None else int(codes.max()) + 1


def independent(groups: Groups, E: int) -> int:
    """How many independent units E examples are."""
    return units(E, group_codes(groups, E))


def resampled_means(
    columns: np.ndarray, draws: int, seed: int, codes: np.ndarray | None = None
) -> np.ndarray:
    """`[draws, K]`: the mean of every column in every resample of the examples, or of whole groups of them.

    The mean is over examples, so a larger group weighs more.
    """
    # Measured from the first example, a constant column is exactly 0 and its interval exactly its value.
    shifted = columns - columns[0]
    if codes is None:
        drawn = resample_counts(len(columns), draws, seed)
        means = np.concatenate([shifted.T @ counts.T for counts in drawn], axis=1)
        return (means / len(columns) + columns[0][:, None]).T
    sums, sizes = group_sums(shifted, codes), np.bincount(codes).astype(float)
    drawn = resample_counts(len(sizes), draws, seed)
    means = np.concatenate([(sums.T @ counts.T) / (counts @ sizes) for counts in drawn], axis=1)
    return (means + columns[0][:, None]).T


def standard_error(columns: np.ndarray, codes: np.ndarray | None = None) -> np.ndarray:
    """The standard error of the mean of `columns[E, ...]`; with groups, from the spread of their sums.

    A group's sum of deviations is one observation (the cluster-robust error of Liang & Zeger 1986, with the
    correction G / (G − 1)); with groups of one it is the usual one. NaN for fewer than two examples or groups.
    """
    E, G = len(columns), units(len(columns), codes)
    if G < 2:
        return np.full(columns.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):
        shifted = columns - columns[0]  # a constant column is exactly 0
        deviations = shifted - shifted.mean(axis=0)
        sums = deviations if codes is None else group_sums(deviations, codes)
        error: np.ndarray = np.sqrt((sums**2).sum(axis=0) * G / (G - 1)) / E
    return error
