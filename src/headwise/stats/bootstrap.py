"""Intervals: percentile intervals of the bootstrap over examples (Efron 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError
from headwise.stats import resampling
from headwise.stats.resampling import Groups, floats


class Ratio(NamedTuple):
    """A ratio of means and its interval; all three NaN where the ratio is undefined."""

    value: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


def bootstrap_mean(
    columns: np.ndarray, *, groups: Groups = None, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The interval `(lo, hi)` of the mean over examples of each column of `columns[E, ...]`.

    `groups[E]` names what each example has in common with others: whole groups are then resampled.
    """
    flat, shape = resampling.as_matrix(columns)
    E, K = flat.shape
    codes = resampling.group_codes(groups, E)
    bounds = np.full((2, K), np.nan)
    usable = np.flatnonzero(np.isfinite(flat).all(axis=0))
    if resampling.units(E, codes) > 1:
        for block in resampling.blocks(usable, draws):
            bounds[:, block] = resampling.percentiles(
                resampling.resampled_means(flat[:, block], draws, seed, codes), level
            )
    return bounds[0].reshape(shape), bounds[1].reshape(shape)


def bootstrap_difference(a: np.ndarray, b: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The interval of mean(a) − mean(b), where row i of both is the same example; options of `bootstrap_mean`."""
    a, b = floats(a), floats(b)
    if a.shape != b.shape:
        raise HeadwiseError(f"a paired difference needs equal shapes, not {a.shape} and {b.shape}")
    return bootstrap_mean(a - b, **options)


def bootstrap_ratio(
    numerator: np.ndarray,
    denominator: np.ndarray,
    *,
    groups: Groups = None,
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Ratio:
    """mean(numerator) / mean(denominator) with its interval, resampling both by the same examples.

    A ratio of means, never a mean of ratios. Where the interval of the denominator's mean includes 0 the
    ratio is undefined: value and interval are NaN. `numerator[E, ...]` may have columns (the points of a
    curve) over one `denominator[E]`, or a denominator of its own shape. `groups`: as in `bootstrap_mean`.
    """
    top, shape = resampling.as_matrix(numerator)
    E, K = top.shape
    bottom = resampling.as_matrix(denominator)[0]
    if len(bottom) != E or bottom.shape[1] not in (1, K):
        raise HeadwiseError(
            f"a ratio needs a denominator for each of {E} examples, in 1 column or {K}; got {bottom.shape}"
        )
    codes = resampling.group_codes(groups, E)
    ratio = np.full((3, K), np.nan)
    lo, hi = bootstrap_mean(bottom, groups=codes, draws=draws, level=level, seed=seed)
    defined = np.broadcast_to((lo > 0) | (hi < 0), K) & np.isfinite(top).all(axis=0)  # NaN compares as False
    for block in resampling.blocks(np.flatnonzero(defined), draws):
        below = bottom if bottom.shape[1] == 1 else bottom[:, block]
        resampled = resampled_ratio(top[:, block], below, groups=codes, draws=draws, seed=seed)
        ratio[0, block] = top[:, block].mean(axis=0) / below.mean(axis=0)
        ratio[1:, block] = resampling.percentiles(resampled, level)
    return Ratio(*(row.reshape(shape) for row in ratio))


def resampled_ratio(
    numerator: np.ndarray,
    denominator: np.ndarray,
    *,
    groups: Groups = None,
    draws: int = 10_000,
    seed: int = 0,
) -> np.ndarray:
    """`[B, K]`: mean of `numerator[E, K]` over mean of `denominator[E]` in every resample of the examples.

    For intervals of what is read off a whole curve, such as where it first reaches a height. The same seed, number
    of examples and groups give the same resamples, so two curves over the same examples stay paired.
    """
    top, bottom = resampling.as_matrix(numerator)[0], resampling.as_matrix(denominator)[0]
    codes = resampling.group_codes(groups, len(top))
    with np.errstate(divide="ignore", invalid="ignore"):
        return resampling.resampled_means(top, draws, seed, codes) / resampling.resampled_means(
            bottom, draws, seed, codes
        )


def interval(resampled: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of one number over its resamples; those that are not finite are left out."""
    finite = resampled[np.isfinite(resampled)]
    if not finite.size:
        return float("nan"), float("nan")
    lo, hi = resampling.percentiles(finite[:, None], level)[:, 0]
    return float(lo), float(hi)


def bootstrap_clustered(
    values: np.ndarray, cluster: Sequence[Any] | np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of the mean of `values[N, ...]` when whole clusters are resampled; options of `bootstrap_mean`.

    `cluster[N]` names the group of each value (the problem that was sampled several times). Values of one
    cluster are no independent evidence; counted as if they were, the interval is too narrow. The mean is over
    values, so a larger cluster weighs more. One cluster gives NaN.
    """
    return bootstrap_mean(values, groups=cluster, **options)


def bootstrap_crossed(
    values: np.ndarray,
    *,
    denominator: np.ndarray | None = None,
    groups: Groups = None,
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval of the mean of `values[R, E]` when rows and columns are both resampled.

    For R random draws of heads, each measured on the same E examples: another set of heads and another set of
    examples would both have changed the mean (the pigeonhole bootstrap, Owen 2007, on the cautious side).
    A single row or column leaves only the other to be resampled. With `denominator[E]` it is the interval of the
    ratio of the means, both over the same examples; `groups[E]`: whole groups of examples are resampled.
    """
    table = floats(values)
    if table.ndim != 2:
        raise HeadwiseError(f"values must be [draws, examples], not of shape {table.shape}")
    R, E = table.shape
    below = np.ones(E) if denominator is None else floats(denominator)
    codes = resampling.group_codes(groups, E)
    if R * resampling.units(E, codes) < 2 or not (np.isfinite(table).all() and np.isfinite(below).all()):
        return float("nan"), float("nan")
    if codes is not None:
        table, below = resampling.group_sums(table.T, codes).T, resampling.group_sums(below, codes)
    row_counts = np.concatenate(list(resampling.resample_counts(R, draws, seed)))
    means: list[np.ndarray] = []
    for by_column in resampling.resample_counts(table.shape[1], draws, seed + 1):
        by_row, row_counts = np.split(row_counts, [len(by_column)])
        with np.errstate(divide="ignore", invalid="ignore"):
            means.append(((by_row @ table) * by_column).sum(axis=1) / (R * (by_column @ below)))
    lo, hi = resampling.percentiles(np.concatenate(means)[:, None], level)[:, 0]
    return float(lo), float(hi)
