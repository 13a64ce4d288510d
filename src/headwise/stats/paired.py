"""Two conditions on the same problems: how far they differ, and how small a difference could have been found.

E problems, S sampled answers of each (one where decoding is greedy). Values are shares of right answers, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.stats.resampling import Groups, group_codes, standard_error


class Paired(NamedTuple):
    """mean(b) − mean(a), with its interval and its test."""

    difference: float
    lo: float
    hi: float
    p: float
    test: str
    """`McNemar` (exact, one answer per problem) or `sign flip` (of per-problem means, several answers)."""
    only_a: int
    """Problems where a is right more often than b."""
    only_b: int
    n: int
    detectable: float
    """The smallest true difference that this test finds in 80 % of all repetitions."""


def compare_paired(
    a: np.ndarray, b: np.ndarray, *, groups: Groups = None, comparisons: int = 1, seed: int = 0
) -> Paired:
    """`b[E, S]` against `a[E, S]`: 1 where an answer is right; row e of both is the same problem.

    The interval is over problems: sampled answers of one problem are not independent. `comparisons`: how
    many tests are made at once; what can be detected is computed for the strictest of them, as Holm's rule
    begins. `groups[E]` names what problems have in common: groups are then the independent units, and the test flips
    the sign of whole groups, also where each problem has one answer (McNemar's test would count a group's problems
    apart).
    """
    a, b = _table(a), _table(b)
    if len(a) != len(b) or not len(a):
        raise HeadwiseError(
            f"paired conditions need the same problems, at least one; got {len(a)} and {len(b)}"
        )
    by_problem = b.mean(1) - a.mean(1)
    only_a, only_b = int((by_problem < 0).sum()), int((by_problem > 0).sum())
    n, strictest = len(a), 1 - (1 - 0.95) / max(comparisons, 1)
    codes = group_codes(groups, n)
    if a.shape == b.shape:
        units = np.repeat(np.arange(n) if codes is None else codes, a.shape[1])
        lo, hi = stats.difference_interval(b.ravel(), a.ravel(), groups=units)
    else:
        lo, hi = stats.mean_interval(by_problem, groups=codes)
    if a.shape[1] == b.shape[1] == 1 and codes is None:
        p, test = stats.mcnemar_exact(only_a, only_b), "McNemar"
        smallest = detectable_by_mcnemar(n, (only_a + only_b) / n, level=strictest)
    else:
        p = float(stats.sign_flip(by_problem[:, None], groups=codes, seed=seed)[0])
        test, smallest = "sign flip", detectable_mean(by_problem, groups=codes, level=strictest)
    return Paired(float(by_problem.mean()), float(lo), float(hi), p, test, only_a, only_b, n, smallest)


def answer_interval(right: np.ndarray, groups: Groups = None) -> tuple[float, float]:
    """The interval of the share of right answers `right[E, S]`; the answers of one problem are not independent."""
    table = _table(right)
    codes = group_codes(groups, len(table))
    units = np.repeat(np.arange(len(table)) if codes is None else codes, table.shape[1])
    lo, hi = stats.metric_interval(table.ravel(), groups=units)
    return float(lo), float(hi)


POWER = 0.8
"""The share of all repetitions in which a detectable difference is found."""


def detectable_by_mcnemar(n: int, discordant: float, *, level: float = 0.95) -> float:
    """The smallest true difference that the exact test finds, for this share of problems that come out differently.

    Where so few come out differently that no difference among them would be found, the share that would be, all
    of it in one direction; NaN where not even all n problems would do.
    """
    smallest = stats.detectable_difference(n, discordant, power=POWER, level=level)
    if not np.isnan(smallest) or stats.largest_power(n, 1.0, level=level) < POWER:
        return smallest
    low, high = discordant, 1.0
    for _ in range(40):  # with all of it in one direction, more is always easier to find
        middle = (low + high) / 2
        missed = stats.largest_power(n, middle, level=level) < POWER
        low, high = (middle, high) if missed else (low, middle)
    return high


def detectable_mean(
    differences: Sequence[float] | np.ndarray, *, groups: Groups = None, level: float = 0.95
) -> float:
    """The smallest true mean difference found, from the spread over problems (normal approximation).

    NaN for fewer than two problems, or where no two differ: then nothing is known of the spread.
    """
    from scipy.stats import norm

    values = np.asarray(differences, dtype=float)
    codes, detectable = group_codes(groups, len(values)), float("nan")
    errors = norm.ppf((1 + level) / 2) + norm.ppf(POWER)  # how many standard errors away it must be
    if codes is not None:
        detectable = float(errors * standard_error(values[:, None], codes)[0])
    elif len(values) > 1:
        detectable = float(errors * values.std(ddof=1) / np.sqrt(len(values)))
    return detectable if detectable > 0 else float("nan")


def _table(values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not np.isfinite(array).all():
        raise HeadwiseError(
            f"right answers must be finite numbers [problems, samples], not of shape {array.shape}"
        )
    return array
