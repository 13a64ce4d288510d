"""Error bars, tests and stability for numbers that were measured on examples. Arrays in, arrays out.

E examples, K columns (heads, points of a curve), B resamples. Every function that takes `columns[E, ...]`
treats each trailing position as a column of its own and gives back arrays of the trailing shape. Intervals
are percentile intervals of the bootstrap over examples (Efron 1979); all columns share one set of resamples,
so columns stay paired. A column with a NaN or an infinity in it gives NaN and leaves the others alone; fewer
than two examples give NaN intervals, because one number says nothing of its own spread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from headwise.errors import HeadwiseError

_BLOCK = 4_000_000
"""Numbers held at once in one work array: 32 MB of float64."""
_EXACT_EXAMPLES = 14
"""Up to here all 2^E sign vectors are tried: at most 16,384, fewer than a random draw would use."""
_LEAST_FLIPS = 10_000


class Ratio(NamedTuple):
    """A ratio of means and its interval; all three NaN where the ratio is undefined."""

    value: np.ndarray
    lo: np.ndarray
    hi: np.ndarray


# --- intervals ------------------------------------------------------------------------------------


def bootstrap_mean(
    columns: np.ndarray, *, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The interval `(lo, hi)` of the mean over examples of each column of `columns[E, ...]`."""
    flat, shape = _columns(columns)
    E, K = flat.shape
    bounds = np.full((2, K), np.nan)
    usable = np.flatnonzero(np.isfinite(flat).all(axis=0))
    if E > 1:
        for block in _blocks(usable, draws):
            bounds[:, block] = _bounds(_resampled_means(flat[:, block], draws, seed), level)
    return bounds[0].reshape(shape), bounds[1].reshape(shape)


def bootstrap_difference(
    a: np.ndarray, b: np.ndarray, *, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of mean(a) − mean(b), where row i of both is the same example."""
    a, b = _floats(a), _floats(b)
    if a.shape != b.shape:
        raise HeadwiseError(f"a paired difference needs equal shapes, not {a.shape} and {b.shape}")
    return bootstrap_mean(a - b, draws=draws, level=level, seed=seed)


def bootstrap_ratio(
    numerator: np.ndarray,
    denominator: np.ndarray,
    *,
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Ratio:
    """mean(numerator) / mean(denominator) with its interval, resampling both by the same examples.

    A ratio of means, never a mean of ratios. Where the interval of the denominator's mean includes 0 the
    ratio is undefined: value and interval are NaN. `numerator[E, ...]` may have columns (the points of a
    curve) over one `denominator[E]`, or a denominator of its own shape.
    """
    top, shape = _columns(numerator)
    E, K = top.shape
    bottom = _columns(denominator)[0]
    if len(bottom) != E or bottom.shape[1] not in (1, K):
        raise HeadwiseError(
            f"a ratio needs a denominator for each of {E} examples, in 1 column or {K}; got {bottom.shape}"
        )
    found = np.full((3, K), np.nan)
    lo, hi = bootstrap_mean(bottom, draws=draws, level=level, seed=seed)
    defined = np.broadcast_to((lo > 0) | (hi < 0), K) & np.isfinite(top).all(axis=0)  # NaN compares as False
    for block in _blocks(np.flatnonzero(defined), draws):
        below = bottom if bottom.shape[1] == 1 else bottom[:, block]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = _resampled_means(top[:, block], draws, seed) / _resampled_means(below, draws, seed)
        found[0, block] = top[:, block].mean(axis=0) / below.mean(axis=0)
        found[1:, block] = _bounds(ratios, level)
    return Ratio(*(row.reshape(shape) for row in found))


def resampled_ratio(
    numerator: np.ndarray, denominator: np.ndarray, *, draws: int = 10_000, seed: int = 0
) -> np.ndarray:
    """`[B, K]`: mean of `numerator[E, K]` over mean of `denominator[E]` in every resample of the examples.

    For intervals of what is read off a whole curve, such as where it first reaches a height. The same seed and
    number of examples give the same resamples, so two curves over the same examples stay paired.
    """
    top, bottom = _columns(numerator)[0], _columns(denominator)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return _resampled_means(top, draws, seed) / _resampled_means(bottom, draws, seed)


def interval(resampled: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of one number over its resamples; those that are not finite are left out."""
    finite = resampled[np.isfinite(resampled)]
    if not finite.size:
        return float("nan"), float("nan")
    lo, hi = _bounds(finite[:, None], level)[:, 0]
    return float(lo), float(hi)


def bootstrap_clustered(
    values: np.ndarray,
    cluster: Sequence[Any] | np.ndarray,
    *,
    draws: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of the mean of `values[N, ...]` when whole clusters are resampled, not single values.

    `cluster[N]` names the group of each value (the problem that was sampled several times). Values of one
    cluster are no independent evidence; counted as if they were, the interval is too narrow. The mean is over
    values, so a larger cluster weighs more. One cluster gives NaN.
    """
    flat, shape = _columns(values)
    names, member = np.unique(np.asarray(cluster), return_inverse=True)
    if member.shape != (len(flat),):
        raise HeadwiseError(f"{len(flat)} values need as many cluster names, not {np.shape(cluster)}")
    bounds = np.full((2, flat.shape[1]), np.nan)
    if len(names) > 1:
        sizes = np.bincount(member).astype(float)[:, None]
        for block in _blocks(np.flatnonzero(np.isfinite(flat).all(axis=0)), draws):
            sums = np.zeros((len(names), len(block)))
            np.add.at(sums, member, flat[:, block])
            means = _resampled_means(sums, draws, seed) / _resampled_means(sizes, draws, seed)
            bounds[:, block] = _bounds(means, level)
    return bounds[0].reshape(shape), bounds[1].reshape(shape)


def bootstrap_crossed(
    values: np.ndarray, *, draws: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The interval of the mean of `values[R, E]` when rows and columns are both resampled.

    For R random draws of heads, each measured on the same E examples: another set of heads and another set of
    examples would both have changed the mean (the pigeonhole bootstrap, Owen 2007, on the cautious side).
    A single row or column leaves only the other to be resampled.
    """
    table = _floats(values)
    if table.ndim != 2:
        raise HeadwiseError(f"values must be [draws, examples], not of shape {table.shape}")
    if table.size < 2 or not np.isfinite(table).all():
        return float("nan"), float("nan")
    R, E = table.shape
    rows, columns = _resample_counts(R, draws, seed), _resample_counts(E, draws, seed + 1)
    means = np.empty(draws)
    done = 0
    for by_row, by_column in _aligned(rows, columns):
        means[done : done + len(by_row)] = ((by_row @ table) * by_column).sum(axis=1) / (R * E)
        done += len(by_row)
    lo, hi = _bounds(means[:, None], level)[:, 0]
    return float(lo), float(hi)


# --- tests ----------------------------------------------------------------------------------------


def sign_flip(columns: np.ndarray, *, flips: int | None = None, seed: int = 0) -> np.ndarray:
    """Two-sided p of the mean of each column of `columns[E, ...]` being 0, by flipping the signs of examples.

    Under the null a value and its negative are equally likely, so every pattern of signs is. With at most
    14 examples all 2^E patterns are tried, whatever `flips` says, and p is the share at least as extreme;
    otherwise p = (b + 1) / (B + 1) over B random patterns, by default 20 for each column and at least 10,000,
    so that the smallest p still survives a correction over all columns. A column of zeros gives 1.
    """
    flat, shape = _columns(columns)
    E, K = flat.shape
    p = np.full(K, np.nan)
    usable = np.flatnonzero(np.isfinite(flat).all(axis=0)) if E else np.empty(0, int)
    exact = E <= _EXACT_EXAMPLES
    B = 2 ** max(E - 1, 0) if exact else max(20 * K, _LEAST_FLIPS) if flips is None else flips
    if B < 1:
        raise HeadwiseError(f"a sign-flip test needs at least one flip, not {flips}")
    for block in _blocks(usable, min(B, _rows_at_once(E))):
        x = flat[:, block]
        x = x / np.maximum(np.abs(x).max(axis=0), np.finfo(float).tiny)  # p does not depend on the scale
        # Patterns that tie in exact arithmetic must tie here: allow for the rounding of a sum of E terms.
        bar = np.abs(x.sum(axis=0)) - 4 * E * np.finfo(float).eps * np.abs(x).sum(axis=0)
        signs = _all_signs(E) if exact else _random_signs(E, B, seed)
        extreme = np.zeros(len(block))
        for chunk in signs:
            extreme += (np.abs(chunk @ x) >= bar).sum(axis=0)
        p[block] = extreme / B if exact else (extreme + 1) / (B + 1)
    return p.reshape(shape)


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """q-values: the smallest false discovery rate at which each test is rejected (Benjamini & Hochberg 1995).

    NaN stays NaN and does not count as a test.
    """
    return _stepwise(
        p, lambda ranked, m: np.minimum.accumulate((ranked * m / np.arange(1, m + 1))[::-1])[::-1]
    )


def holm(p: np.ndarray) -> np.ndarray:
    """p-values adjusted so that the chance of any false rejection is held (Holm 1979). NaN is no test."""
    return _stepwise(p, lambda ranked, m: np.maximum.accumulate(ranked * (m - np.arange(m))))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided exact p that A and B are right equally often, from the pairs where only one of them is.

    With no such pair there is no evidence either way: p = 1.
    """
    from scipy.special import bdtr

    if only_a < 0 or only_b < 0:
        raise HeadwiseError(f"counts of discordant pairs cannot be negative: {only_a}, {only_b}")
    n = only_a + only_b
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), n, 0.5))) if n else 1.0


def detectable_difference(
    n: int, discordant_share: float, *, power: float = 0.8, level: float = 0.95
) -> float:
    """The smallest true difference of two paired proportions that `mcnemar_exact` finds with this power.

    `n` pairs, of which `discordant_share` are expected to differ. The power is computed exactly, by summing
    over how many pairs turn out discordant; the usual normal formula promises more than the exact test keeps.
    A difference cannot exceed the discordant share: NaN where even that would be missed.
    """
    from scipy.optimize import brentq
    from scipy.stats import binom

    if n < 1 or not 0 <= discordant_share <= 1:
        raise HeadwiseError(f"needs n ≥ 1 pairs and a share between 0 and 1, not {n} and {discordant_share}")
    if not 0 < power < 1:
        raise HeadwiseError(f"power lies between 0 and 1, not at {power}")
    alpha = 1 - _checked(level)
    few, many = binom.ppf([1e-10, 1 - 1e-10], n, discordant_share).astype(int)
    m = np.arange(max(few, 1), many + 1)  # counts of discordant pairs that are not too unlikely to matter
    if not m.size:
        return float("nan")
    chance = binom.pmf(m, n, discordant_share)
    last = binom.ppf(alpha / 2, m, 0.5)  # reject at `last` or fewer on one side ...
    last -= binom.cdf(last, m, 0.5) > alpha / 2  # ... and -1 where no outcome rejects

    def power_at(difference: float) -> float:
        a_wins = (1 + difference / discordant_share) / 2
        rejected = binom.cdf(last, m, a_wins) + binom.sf(m - last - 1, m, a_wins)
        return float(chance @ rejected)

    if power_at(discordant_share) < power:
        return float("nan")
    if power_at(0.0) >= power:
        return 0.0
    return float(brentq(lambda d: power_at(d) - power, 0.0, discordant_share, xtol=1e-9))


# --- agreement ------------------------------------------------------------------------------------


def jaccard(a: Collection[Any], b: Collection[Any]) -> float:
    """Shared members over all members; two empty collections are the same, 1."""
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a | b else 1.0


def agreement_of_orders(tops: Sequence[Collection[Any]]) -> float:
    """Mean Jaccard over all pairs of top sets (one per seed, method or model); NaN for fewer than two."""
    sets = [set(top) for top in tops]
    pairs = [jaccard(a, b) for i, a in enumerate(sets) for b in sets[i + 1 :]]
    return float(np.mean(pairs)) if pairs else float("nan")


def stability(
    examples: np.ndarray, k: int, *, resamples: int = 1_000, seed: int = 0, absolute: bool = False
) -> float:
    """How far the top k would change with other examples: mean Jaccard of resampled and full top k, 0 to 1.

    `examples[E, ...]`, a column per head. Ranked by the mean, or by its absolute value. Columns with a NaN
    have no rank. NaN for fewer than two examples; a k of all columns is stable by definition, 1.
    """
    flat = _columns(examples)[0]
    flat = flat[:, np.isfinite(flat).all(axis=0)]
    E, K = flat.shape
    if k < 1:
        raise HeadwiseError(f"a top k needs k ≥ 1, not {k}")
    if E < 2 or not K:
        return float("nan")
    k = min(k, K)

    def top(means: np.ndarray) -> np.ndarray:  # [B, K] -> [B, k]; equal means keep the order of columns
        return np.argsort(-np.abs(means) if absolute else -means, axis=1, kind="stable")[:, :k]

    in_full = np.zeros(K, dtype=bool)
    in_full[top(flat.mean(axis=0)[None])] = True
    total = 0.0
    for counts in _resample_counts(E, resamples, seed, K):
        shared = in_full[top(counts @ flat)].sum(axis=1)
        total += (shared / (2 * k - shared)).sum()
    return float(total / resamples)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two scores of the same heads, equal values sharing their mean rank.

    Pairs with a NaN are left out. NaN when fewer than two pairs stay or one side is constant.
    """
    from scipy.stats import rankdata

    x, y = _floats(a).ravel(), _floats(b).ravel()
    if x.shape != y.shape:
        raise HeadwiseError(
            f"a rank correlation needs as many values on both sides, not {x.size} and {y.size}"
        )
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = rankdata(x[both]), rankdata(y[both])
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


# --- inside ---------------------------------------------------------------------------------------


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _columns(values: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """`[E, ...]` as a matrix `[E, K]`, and the trailing shape."""
    array = _floats(values)
    if array.ndim == 0:
        raise HeadwiseError("expected an array with the examples along its first axis, got a single number")
    return array.reshape(len(array), int(np.prod(array.shape[1:]))), array.shape[1:]


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise HeadwiseError(f"the level of an interval lies between 0 and 1 (such as 0.95), not at {level}")
    return level


def _bounds(resampled: np.ndarray, level: float) -> np.ndarray:
    """`[2, K]`: the percentile interval of each column of `[B, K]`."""
    tail = (1 - _checked(level)) / 2
    # A NaN here is a resample that came out 0 / 0; `quantile` is much the faster where there is none.
    quantile = np.nanquantile if np.isnan(resampled).any() else np.quantile
    return quantile(resampled, [tail, 1 - tail], axis=0)


def _blocks(columns: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """The given column numbers, so few at once that `rows` of them fit into one work array."""
    width = max(1, _BLOCK // max(rows, 1))
    for start in range(0, len(columns), width):
        yield columns[start : start + width]


def _rows_at_once(width: int) -> int:
    return max(1, _BLOCK // max(width, 1))


def _resample_counts(E: int, draws: int, seed: int, width: int = 1) -> Iterator[np.ndarray]:
    """How often each of E examples is drawn in each resample, `[chunk, E]`, until `draws` are given out.

    The same E and seed give the same resamples, however many columns there are: that is what pairs them.
    """
    if draws < 1:
        raise HeadwiseError(f"a bootstrap needs at least one draw, not {draws}")
    random = np.random.default_rng(seed)
    most = _rows_at_once(max(E, width))
    for start in range(0, draws, most):
        rows = min(most, draws - start)
        drawn = random.integers(0, E, size=(rows, E))
        drawn += np.arange(rows)[:, None] * E
        yield np.bincount(drawn.ravel(), minlength=rows * E).reshape(rows, E).astype(np.float64)


def _aligned(a: Iterator[np.ndarray], b: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def _resampled_means(columns: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """`[draws, K]`: the mean of every column in every resample."""
    E = len(columns)
    # Measured from the first example, a constant column is exactly 0 and its interval exactly its value.
    shifted = columns - columns[0]
    means = np.concatenate([counts @ shifted for counts in _resample_counts(E, draws, seed)])
    return means / E + columns[0]


def _all_signs(E: int) -> Iterator[np.ndarray]:
    """Half of all sign vectors `[2^(E-1), E]`: a vector and its negative give the same absolute sum."""
    numbers = np.arange(2 ** (E - 1))[:, None]
    yield 1.0 - 2.0 * ((numbers >> np.arange(E)) & 1)


def _random_signs(E: int, B: int, seed: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    most = _rows_at_once(E)
    for start in range(0, B, most):
        yield random.integers(0, 2, size=(min(most, B - start), E), dtype=np.int8) * 2.0 - 1.0


def _stepwise(p: np.ndarray, adjust: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Adjust the p-values that are numbers, in ascending order, and put them back in their places."""
    given = _floats(p)
    flat = given.ravel()
    tests = np.flatnonzero(~np.isnan(flat))
    if ((flat[tests] < 0) | (flat[tests] > 1)).any():
        raise HeadwiseError("p-values lie between 0 and 1")
    adjusted = np.full(flat.shape, np.nan)
    if tests.size:
        ranked = tests[np.argsort(flat[tests], kind="stable")]
        adjusted[ranked] = np.minimum(adjust(flat[ranked], len(ranked)), 1.0)
    return adjusted.reshape(given.shape)
