"""Confidence intervals over examples: Student's t for means, Wilson for shares, Fieller for ratios of means.

E examples, K columns, R draws of heads or seeds, G independent units (examples, or groups of them). Simulated coverage
at 8 to 64 examples: `benchmarks/coverage.py`, docs/statistics.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError
from headwise.stats import resampling
from headwise.stats.resampling import Groups, by_example, floats

Interval = tuple[np.ndarray, np.ndarray]


class Ratio(NamedTuple):
    """A ratio of means and its interval; all three NaN where the ratio is undefined."""

    value: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


# ---- means and shares ------------------------------------------------------------------------------------------------


def mean_interval(columns: np.ndarray, groups: Groups = None, *, level: float = 0.95) -> Interval:
    """The interval `(lo, hi)` of the mean over examples of each column of `columns[E, ...]`: mean ± t · standard error.

    `groups[E]` names what each example has in common with others: groups are then the independent units, with a
    cluster-robust standard error and G − 1 degrees of freedom.
    """
    values = by_example(columns)
    codes = resampling.group_codes(groups, len(values))
    half = _t(resampling.units(len(values), codes) - 1, level) * resampling.standard_error(values, codes)
    mean = _mean(values)
    return mean - half, mean + half


def share_interval(columns: np.ndarray, *, groups: Groups = None, level: float = 0.95) -> Interval:
    """The interval of the share of ones in each column of `columns[E, ...]` of zeros and ones (Wilson 1927).

    It stays inside [0, 1], and 0 of 37 gives [0, .094], not [0, 0]. With groups the number of examples is divided by
    the design effect (Kish 1965), and t with G − 1 degrees of freedom stands for the normal quantile. Where all
    examples agree there is no estimate of the design effect; groups then count once.
    """
    values = by_example(columns)
    E, codes = len(values), resampling.group_codes(groups, len(values))
    G = resampling.units(E, codes)
    if G < 2:
        return _undefined(values)
    if codes is None:
        return _wilson(values.mean(axis=0), E, _t(np.inf, level))
    variance = resampling.standard_error(values, codes) ** 2 * (G - 1) / G
    return _wilson(values.mean(axis=0), _effective(values.mean(axis=0), variance, G, E), _t(G - 1, level))


def metric_interval(columns: np.ndarray, *, groups: Groups = None) -> Interval:
    """The interval of the mean of a metric: of a share where all of `columns[E, ...]` are 0 or 1, else of a mean."""
    return (share_interval if is_share(columns) else mean_interval)(columns, groups=groups)


def difference_interval(
    a: np.ndarray, b: np.ndarray, *, groups: Groups = None, level: float = 0.95
) -> Interval:
    """The interval of mean(a) − mean(b), where row i of both is the same example.

    Where both hold zeros and ones it is an interval of a difference of paired shares (Bonett & Price 2012), which has a
    width even if the two agree on every example.
    """
    a, b = floats(a), floats(b)
    if a.shape != b.shape:
        raise HeadwiseError(f"a paired difference needs equal shapes, not {a.shape} and {b.shape}")
    interval = _share_difference if is_share(a) and is_share(b) else mean_interval
    return interval(a - b, groups=groups, level=level)


SHARES = ("accuracy", "exact", "contains", "math", "agreement")
"""Metrics whose values are 0 and 1."""


def effect_interval(effects: np.ndarray, *, groups: Groups = None, metric: str = "") -> Interval:
    """The interval of the mean of each column of `effects[E, ...]`, differences of a metric of the same examples.

    Of a metric that counts answers (`SHARES`) they are differences of shares (`difference_interval`); of one that is
    not known, where all are −1, 0 or 1 and some are not 0. A head that changes nothing in any example has the interval
    [0, 0] in every other metric.
    """
    values = by_example(effects)
    of_shares = bool(np.isin(values, (-1, 0, 1)).all() and (metric in SHARES or values.any()))
    return (_share_difference if of_shares else mean_interval)(values, groups=groups)


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean over examples, exact where they agree."""
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore"):
        return np.asarray(values[0] + (values - values[0]).mean(axis=0))


def is_share(values: np.ndarray) -> bool:
    """Whether all values are 0 or 1, so that their mean is a share of examples."""
    return bool(np.isin(floats(values), (0, 1)).all())


def _share_difference(differences: np.ndarray, *, groups: Groups, level: float = 0.95) -> Interval:
    """Bonett & Price's interval: one example of each kind that differs is added, +1 and −1, and the mean is taken."""
    codes = resampling.group_codes(groups, len(differences))
    if resampling.units(len(differences), codes) < 2:
        return _undefined(differences)
    lo, hi = mean_interval(*_with_one_of_each(differences, codes), level=level)
    return np.maximum(lo, -1), np.minimum(hi, 1)


def _with_one_of_each(
    differences: np.ndarray, codes: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Differences and groups with two more units of the mean size, one all +1, the other all −1."""
    E, G = len(differences), resampling.units(len(differences), codes)
    unit = np.ones((max(1, round(E / G)), *differences.shape[1:]))
    names = None if codes is None else np.concatenate([codes, [G] * len(unit), [G + 1] * len(unit)])
    return np.concatenate([differences, unit, -unit]), names


def _undefined(values: np.ndarray) -> Interval:
    return np.full(values.shape[1:], np.nan), np.full(values.shape[1:], np.nan)


def _effective(share: np.ndarray, variance: np.ndarray, units: int, most: int) -> np.ndarray:
    """How many independent examples give a share this variance; `units` where all examples agree."""
    with np.errstate(divide="ignore", invalid="ignore"):
        number = share * (1 - share) / variance
    return np.where(variance > 0, np.minimum(number, most), units)


def _wilson(share: np.ndarray, n: np.ndarray | int, quantile: np.ndarray) -> Interval:
    z2 = quantile**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    # The ends are exact where all examples agree; elsewhere rounding must not leave the share outside.
    lo = np.where(share == 0, 0.0, np.minimum(middle - half, share))
    return np.asarray(lo), np.where(share == 1, 1.0, np.maximum(middle + half, share))


def _t(df: float | np.ndarray, level: float) -> np.ndarray:
    """How many standard errors an interval reaches; NaN without a degree of freedom."""
    from scipy.special import ndtri, stdtrit

    at = (1 + resampling.checked(level)) / 2
    df = floats(df)
    quantile = np.where(np.isinf(df), ndtri(at), stdtrit(np.where(df > 0, df, 1.0), at))
    return np.where(df > 0, quantile, np.nan)


# ---- ratios of means -------------------------------------------------------------------------------------------------


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, *, groups: Groups = None, level: float = 0.95
) -> Ratio:
    """mean(numerator) / mean(denominator) over the same examples, with its interval (Fieller 1954).

    A ratio of means, never a mean of ratios. Where the interval of the denominator's mean includes 0 the
    ratio is undefined: value and interval are NaN. `numerator[E, ...]` may have columns (the points of a
    curve) over one `denominator[E]`, or a denominator of its own shape. `groups`: as in `mean_interval`.
    """
    top, shape = resampling.as_matrix(numerator)
    E, K = top.shape
    bottom = resampling.as_matrix(denominator)[0]
    if len(bottom) != E or bottom.shape[1] not in (1, K):
        raise HeadwiseError(
            f"a ratio needs a denominator for each of {E} examples, in 1 column or {K}; got {bottom.shape}"
        )
    bottom = np.broadcast_to(bottom, top.shape)
    codes = resampling.group_codes(groups, E)
    squares = _covariances(top, bottom, codes)
    t = _t(resampling.units(E, codes) - 1, level)
    found = _fieller(top.mean(axis=0), bottom.mean(axis=0), squares, t) if E else np.full((3, K), np.nan)
    return Ratio(*(row.reshape(shape) for row in found))


def _covariances(top: np.ndarray, bottom: np.ndarray, codes: np.ndarray | None) -> np.ndarray:
    """`[3, K]`: variance of the mean of `top[E, K]`, covariance with that of `bottom`, variance of that."""
    with np.errstate(invalid="ignore"):
        variances = [resampling.standard_error(x, codes) ** 2 for x in (top, top + bottom, bottom)]
    return np.stack([variances[0], (variances[1] - variances[0] - variances[2]) / 2, variances[2]])


def _fieller(top: np.ndarray, bottom: np.ndarray, squares: np.ndarray, t: np.ndarray) -> np.ndarray:
    """`[3, K]`: the ratio and all θ for which top − θ · bottom is within t standard errors of 0."""
    a = bottom**2 - t**2 * squares[2]
    b = top * bottom - t**2 * squares[1]
    c = top**2 - t**2 * squares[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.sqrt(np.maximum(b**2 - a * c, 0)) / a
        found = np.stack([top / bottom, b / a - half, b / a + half])
    return np.where((a > 0) & np.isfinite(found), found, np.nan)  # a > 0: the denominator is clear of 0


# ---- draws of heads, or seeds, on the same examples ------------------------------------------------------------------


def crossed_interval(
    values: np.ndarray,
    *,
    before: np.ndarray | None = None,
    denominator: np.ndarray | None = None,
    groups: Groups = None,
) -> tuple[float, float]:
    """The interval of the mean of `values[R, E]`, where other draws and other examples would both have changed it.

    For R random draws of heads, each measured on the same E examples. The variance is the sum of that over draws and
    that over examples, a little on the cautious side (Owen 2007), and so is t, the mean of both weighted by their
    variances (Cochran 1964). A single draw or example leaves the other's variance. `before[E]`: of the mean of
    values − before; `denominator[E]`: of the ratio of the means; `groups[E]`: groups are the units of the examples.
    Zeros and ones: as in `share_interval`.
    """
    table = floats(values)
    if table.ndim != 2:
        raise HeadwiseError(f"values must be [draws, examples], not of shape {table.shape}")
    R, E = table.shape
    codes = resampling.group_codes(groups, E)
    share = is_share(table) and denominator is None
    if before is not None:
        share, difference = False, share and is_share(before)
        table = table - floats(before)
        if difference:  # as in `_share_difference`
            added, codes = _with_one_of_each(table.T, codes)
            table = added.T
    below = np.ones(table.shape[1]) if denominator is None else floats(denominator)
    G = resampling.units(table.shape[1], codes)
    if R * resampling.units(E, codes) < 2 or not (np.isfinite(table).all() and np.isfinite(below).all()):
        return float("nan"), float("nan")
    if share and R == 1:
        return _numbers(share_interval(table[0], groups=codes))
    mean, by_column = float(_mean(table.ravel())), _mean(table)
    residual = (
        by_column - below * mean / below.mean() if denominator is not None and below.mean() else by_column
    )
    by_draw, by_example = (
        float(np.nan_to_num(resampling.standard_error(x, c))) ** 2  # 0 where there is only one unit
        for x, c in ((_mean(table.T), None), (residual, codes))
    )
    variance = by_draw + by_example
    weights = (by_draw, by_example) if variance > 0 else (float(R > G), float(R <= G))
    t = np.average(np.nan_to_num(_t(np.array([R - 1, G - 1]), 0.95)), weights=weights)
    if denominator is not None:
        squares = np.nan_to_num(_covariances(by_column[:, None], below[:, None], codes)[:, 0])
        squares[0] += by_draw
        return _numbers(_fieller(floats(mean), below.mean(), squares, t)[1:])
    if share:
        n = _effective(floats(mean), floats(variance), G, table.size)
        return _numbers(_wilson(floats(mean), n, t))
    half = t * np.sqrt(variance)
    return _numbers((mean - half, mean + half))


def _numbers(ends: Any) -> tuple[float, float]:
    lo, hi = ends
    return float(lo), float(hi)


# ---- what is read off a whole curve ----------------------------------------------------------------------------------


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


def resampled_interval(resampled: np.ndarray, n: int, *, groups: Groups = None) -> tuple[float, float]:
    """The interval of one number over its bootstrap resamples `[B]` of n examples; a NaN is above all numbers.

    The percentiles are those that make the interval of a mean as wide as Student's t does (the expanded percentile
    interval, Hesterberg 2015): with few examples plain percentiles cover too little. NaN where a bound is not finite.
    """
    from scipy.special import ndtr

    G = resampling.units(n, resampling.group_codes(groups, n))
    if G < 2:
        return float("nan"), float("nan")
    tail = float(ndtr(-_t(G - 1, 0.95) * np.sqrt(G / (G - 1))))
    ranked = np.sort(np.where(np.isnan(resampled), np.inf, resampled))
    ends = np.quantile(ranked, [tail, 1 - tail], method="inverted_cdf")
    return _numbers(np.where(np.isfinite(ends), ends, np.nan))
