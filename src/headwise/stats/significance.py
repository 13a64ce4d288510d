"""Significance tests, and corrections for multiple tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from headwise.errors import HeadwiseError
from headwise.stats import resampling
from headwise.stats.resampling import Groups, floats

_EXACT_EXAMPLES = 14
"""Up to here all 2^E sign vectors are tried: at most 16,384, fewer than a random draw would use."""
_LEAST_FLIPS = 10_000
_MANY_COLUMNS = 1_000
_STAGES = ((200_000, 0.01), (None, 0.0005))
"""Most flips of a further stage, and the largest p of the stage before that goes on to it."""
_ROWS = 4_000
"""Sign patterns that are summed at once; fewer than a 16-bit counter holds."""


def sign_flip(
    columns: np.ndarray, *, groups: Groups = None, flips: int | None = None, seed: int = 0
) -> np.ndarray:
    """Two-sided p of the mean of each column of `columns[E, ...]` being 0, by flipping the signs of examples.

    Under the null a value and its negative are equally likely, so every pattern of signs is. With at most
    14 examples all 2^E patterns are tried, whatever `flips` says, and p is the share at least as extreme;
    otherwise p = (b + 1) / (B + 1) over B random patterns, by default 20 for each column and at least 10,000,
    so that the smallest p still survives a correction over all columns. A column of zeros gives 1.
    `groups[E]` names what examples have in common: the sign of a whole group is flipped, so a group counts once.
    """
    flat, shape = resampling.as_matrix(columns)
    codes = resampling.group_codes(groups, len(flat))
    if codes is not None:
        flat = resampling.group_sums(flat, codes)
    E, K = flat.shape
    p = np.full(K, np.nan)
    usable = np.flatnonzero(np.isfinite(flat).all(axis=0)) if E else np.empty(0, int)
    exact = E <= _EXACT_EXAMPLES
    B = 2 ** max(E - 1, 0) if exact else max(20 * K, _LEAST_FLIPS) if flips is None else flips
    if B < 1:
        raise HeadwiseError(f"a sign-flip test needs at least one flip, not {flips}")
    if not len(usable):
        return p.reshape(shape)
    x = flat[:, usable]
    x = x / np.maximum(np.abs(x).max(axis=0), np.finfo(float).tiny)  # p does not depend on the scale
    # Patterns that tie in exact arithmetic must tie here: allow for the rounding of a sum of E terms.
    bar = np.abs(x.sum(axis=0)) - 4 * E * np.finfo(float).eps * np.abs(x).sum(axis=0)
    extreme = np.zeros(len(usable), dtype=np.int64)
    for signs in [_all_signs(E)] if exact else _random_signs(E, B, seed):
        _count_extreme(signs, x, bar, extreme)
    p[usable] = extreme / B if exact else (extreme + 1) / (B + 1)
    return p.reshape(shape)


def smallest_p(examples: int, tests: int = 1) -> float:
    """The smallest p that `sign_flip` can give with so many examples: that of values that all have one sign.

    >>> [smallest_p(n) for n in (4, 6)]
    [0.125, 0.03125]
    """
    exact = 1 / 2 ** max(min(examples, 1_000) - 1, 0)
    return exact if examples <= _EXACT_EXAMPLES else max(exact, 1 / (max(20 * tests, _LEAST_FLIPS) + 1))


def too_few(units: int, tests: int, what: str = "head", level: float = 0.05) -> str:
    """What so few examples (or groups) cannot show: that a single test reaches q < level. Empty if they can.

    >>> too_few(6, 270)
    'with 6 examples a head reaches q < .05 only if 169 of 270 heads do; a lone head needs 14 examples'
    >>> too_few(6, 270, "edge")[:27]
    'with 6 examples an edge rea'
    """
    together = int(tests * smallest_p(units, tests) / level) + 1
    if together == 1 or not tests:
        return ""
    needed = next(n for n in range(units, 200) if tests * smallest_p(n, tests) < level)
    article = "an" if what[0] in "aeiou" else "a"
    who, only = f"{article} {what} reaches", f"only if {together} of {tests} {what}s do"
    if together > tests:
        who, only = f"no {what} reaches", "however large its effect"
    given = f"with {units} example{'s' * (units != 1)}"
    return f"{given} {who} q < {f'{level:g}'.removeprefix('0')} {only}; a lone {what} needs {needed} examples"


def skewness(columns: np.ndarray, *, groups: Groups = None) -> np.ndarray:
    """The skewness of each column of `columns[E, ...]`, of the sums of groups where examples share them.

    The sign-flip test asks whether values lie symmetrically about 0. A mean of 0 with a long tail on one side is not
    symmetric: above 2 in absolute value, q says less about the mean. NaN where nothing varies.
    """
    values = resampling.by_example(columns)
    codes = resampling.group_codes(groups, len(values))
    values = values if codes is None else resampling.group_sums(values, codes)
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations = values - values[0] - (values - values[0]).mean(axis=0)
        found: np.ndarray = (deviations**3).mean(axis=0) / (deviations**2).mean(axis=0) ** 1.5
    return found


def sign_flip_staged(columns: np.ndarray, *, groups: Groups = None, seed: int = 0) -> np.ndarray:
    """`sign_flip` for thousands of columns (pairs of heads), in seconds.

    All columns get 10,000 patterns of signs; those with p ≤ .01 then get fresh ones, 20 for each of all columns and at
    most 200,000; of these, those with p ≤ .0005 get 20 for each of all columns, however many that are: a single column
    among tens of thousands can still reach q < .05. Each p comes from one stage, and whichever it is, P(p ≤ t) is at
    most t under the null: a column reaches a stage only if its p of the stage before is small. With up to 1,000
    columns the same as `sign_flip`.
    """
    flat, shape = resampling.as_matrix(columns)
    K = flat.shape[1]
    if K <= _MANY_COLUMNS:
        return sign_flip(columns, groups=groups, seed=seed)
    p, done = sign_flip(flat, groups=groups, flips=_LEAST_FLIPS, seed=seed), _LEAST_FLIPS
    for number, (most, largest) in enumerate(_STAGES, 1):
        small, flips = p <= largest, min(20 * K, most or 20 * K)
        if small.any() and flips > done:
            p[small], done = sign_flip(flat[:, small], groups=groups, flips=flips, seed=seed + number), flips
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

    if not 0 < power < 1:
        raise HeadwiseError(f"power is {power}; expected a number between 0 and 1")
    power_at = _power_of_mcnemar(n, discordant_share, level)
    if power_at(discordant_share) < power:
        return float("nan")
    if power_at(0.0) >= power:
        return 0.0
    return float(brentq(lambda d: power_at(d) - power, 0.0, discordant_share, xtol=1e-9))


def largest_power(n: int, discordant_share: float, *, level: float = 0.95) -> float:
    """The power of `mcnemar_exact` where all discordant pairs of these n are expected on one side."""
    return _power_of_mcnemar(n, discordant_share, level)(discordant_share)


def _power_of_mcnemar(n: int, discordant_share: float, level: float) -> Callable[[float], float]:
    """The power of `mcnemar_exact` as a function of the true difference of the two proportions."""
    from scipy.stats import binom

    if n < 1 or not 0 <= discordant_share <= 1:
        raise HeadwiseError(f"needs n ≥ 1 pairs and a share between 0 and 1, not {n} and {discordant_share}")
    alpha = 1 - resampling.checked(level)
    few, many = binom.ppf([1e-10, 1 - 1e-10], n, discordant_share).astype(int)
    m = np.arange(max(few, 1), many + 1)  # counts of discordant pairs that are not too unlikely to matter
    if not m.size:
        return lambda difference: 0.0
    chance = binom.pmf(m, n, discordant_share)
    last = binom.ppf(alpha / 2, m, 0.5)  # reject at `last` or fewer on one side ...
    last -= binom.cdf(last, m, 0.5) > alpha / 2  # ... and -1 where no outcome rejects

    def power_at(difference: float) -> float:
        a_wins = (1 + difference / discordant_share) / 2
        rejected = binom.cdf(last, m, a_wins) + binom.sf(m - last - 1, m, a_wins)
        return float(chance @ rejected)

    return power_at


def _count_extreme(signs: np.ndarray, x: np.ndarray, bar: np.ndarray, extreme: np.ndarray) -> None:
    """Add to `extreme[K]` how many of `signs[B, E]` give a sum of `x[E, K]` whose size is at least `bar[K]`."""
    for start in range(0, len(signs), _ROWS):
        rows = signs[start : start + _ROWS]
        for block in resampling.blocks(np.arange(x.shape[1]), len(rows)):
            sums = rows @ x[:, block]
            beyond = np.abs(sums, out=sums) >= bar[block]
            # The sum of small integers is several times as fast as that of booleans.
            extreme[block] += beyond.view(np.uint8).sum(axis=0, dtype=np.uint16)


def _all_signs(E: int) -> np.ndarray:
    """Half of all sign vectors `[2^(E-1), E]`: a vector and its negative give the same absolute sum."""
    numbers = np.arange(2 ** (E - 1))[:, None]
    signs: np.ndarray = 1.0 - 2.0 * ((numbers >> np.arange(E)) & 1)
    return signs


def _random_signs(E: int, B: int, seed: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    most = resampling.rows_at_once(E)
    for start in range(0, B, most):
        yield random.integers(0, 2, size=(min(most, B - start), E), dtype=np.int8) * 2.0 - 1.0


def _stepwise(p: np.ndarray, adjust: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Adjust the p-values that are numbers, in ascending order, and put them back in their places."""
    values = floats(p)
    flat = values.ravel()
    tests = np.flatnonzero(~np.isnan(flat))
    if ((flat[tests] < 0) | (flat[tests] > 1)).any():
        raise HeadwiseError("p-values lie between 0 and 1")
    adjusted = np.full(flat.shape, np.nan)
    if tests.size:
        ranked = tests[np.argsort(flat[tests], kind="stable")]
        adjusted[ranked] = np.minimum(adjust(flat[ranked], len(ranked)), 1.0)
    return adjusted.reshape(values.shape)
