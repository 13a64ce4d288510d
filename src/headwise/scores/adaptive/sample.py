"""The exact values measured so far, what they say of each head's mean, and the control variate. See `adaptive.py`.

N examples, K heads, m examples of a pilot. The cheap number (attribution) is known for all N, the expensive one (exact
ablation) for the pilot; `exact − coefficient · cheap` varies less than `exact`, so its mean needs fewer examples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headwise.stats.resampling import group_codes

PSEUDO_EXAMPLES = 2.0
"""How many examples' weight the coefficient shared by all heads has in a head's own."""
FEWEST_HEADS = 10
"""With fewer, no trend over heads can be fitted."""
MOST_PRIOR_DF = 10.0
"""Most degrees of freedom that the trend over heads adds to a head's own."""


def coefficients_of(
    exact: np.ndarray, cheap: np.ndarray, variance: np.ndarray, shared: float | None = None
) -> np.ndarray:
    """The regression coefficient `[K]` of `exact[m, K]` on `cheap[m, K]`, shrunk towards the one that heads share.

    A pilot is small and its own coefficient noisy: `PSEUDO_EXAMPLES` are added that lie on the shared line.
    `variance[K]` is that of the cheap number over all examples; where it is 0, so is the coefficient.
    """
    products, squares = _centred_sums(exact, cheap)
    if shared is None:
        shared = shared_coefficient(exact, cheap)
    weight = PSEUDO_EXAMPLES * variance
    total = squares + weight
    return np.divide(products + weight * shared, total, out=np.zeros(total.shape), where=total > 0)


def shared_coefficient(exact: np.ndarray, cheap: np.ndarray) -> float:
    """The median over heads of each head's least-squares coefficient; 1 (cheap = exact) where there is none."""
    products, squares = _centred_sums(exact, cheap)
    usable = squares > 0
    return float(np.median(products[usable] / squares[usable])) if usable.any() else 1.0


def _centred_sums(exact: np.ndarray, cheap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centred = cheap - cheap.mean(axis=0)
    return (centred * exact).sum(axis=0), (centred**2).sum(axis=0)


def left_out_variance(
    exact: np.ndarray, cheap: np.ndarray | None = None, variance: np.ndarray | None = None
) -> np.ndarray:
    """Leave-one-out: mean squared distance of each pilot example from its prediction by the others `[K]`.

    The coefficient is fitted without the example, so that it cannot follow the noise. This exceeds the variance of
    `exact − coefficient · cheap` by about 1/m, which a small pilot of heavy-tailed values needs: most such pilots see
    too little of the tail.
    """
    m = len(exact)
    if cheap is None:  # the mean of the others is off by m/(m − 1) times the distance from the mean of all
        return exact.var(axis=0) * (m / (m - 1)) ** 2
    assert variance is not None
    shared = shared_coefficient(exact, cheap)
    total = np.zeros(exact.shape[1])
    for left in range(m):
        others = np.arange(m) != left
        rest = exact - coefficients_of(exact[others], cheap[others], variance, shared) * cheap
        total += (rest[left] - rest[others].mean(axis=0)) ** 2
    return total / m


def moderated(variance: np.ndarray, df: int, predictor: np.ndarray | None) -> np.ndarray:
    """Variances `[K]` of small samples, each shrunk towards what the heads together make likely for it.

    Empirical Bayes with a trend (Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3):
    log variance is a line in log `predictor[K]` (the variance of attribution, known from all examples) plus
    noise; the part of that noise that the small samples do not explain says how many degrees of freedom the line is
    worth. Few heads give no line, and a head that does not vary stays at 0.
    """
    from scipy.special import digamma

    design = np.ones((len(variance), 1))
    usable = np.ones(len(variance), dtype=bool)
    if predictor is not None:
        usable = predictor > 0
        design = np.stack([design[:, 0], np.log(np.where(usable, predictor, 1.0))], axis=1)
    seen = usable & (variance > 0)
    if seen.sum() < FEWEST_HEADS:
        return variance
    log_chi = float(digamma(df / 2) - np.log(df / 2))  # the mean of log(variance / truth)
    observed = np.log(variance[seen]) - log_chi
    fitted = np.linalg.lstsq(design[seen], observed, rcond=None)[0]
    left = observed - design[seen] @ fitted
    prior_df = _prior_df(float((left**2).sum() / (seen.sum() - design.shape[1])), df)
    line = np.exp(design @ fitted + digamma(prior_df / 2) - np.log(prior_df / 2))
    drawn = (prior_df * line + df * variance) / (prior_df + df)
    return np.where(seen if predictor is None else usable, drawn, variance)


def _prior_df(variance: float, df: int) -> float:
    """Degrees of freedom of the line, from the variance of log variances about it."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    unexplained = variance - float(polygamma(1, df / 2))
    if unexplained <= float(polygamma(1, MOST_PRIOR_DF / 2)):
        return MOST_PRIOR_DF
    return float(brentq(lambda d: polygamma(1, d / 2) - unexplained, 1e-3, MOST_PRIOR_DF))


Exact = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From head numbers `[k]` and example numbers `[e]` to exact values `[e, k]`."""

PILOT = 8
"""Examples of the pilot."""
LEVEL = 0.95
"""Of the intervals in every table."""


@dataclass(frozen=True)
class Adaptive:
    """Estimates, a number per head `[K]`, and what they took."""

    values: np.ndarray
    stderr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    """The 95 % interval of the target."""
    p: np.ndarray
    """Two-sided, of the mean over examples like these being 0."""
    n: np.ndarray
    """Examples run for the head."""
    coefficients: np.ndarray
    """Of the control variate."""
    examples: np.ndarray
    """Exact values `[N, K]`; NaN where none was run."""
    top: np.ndarray | None = None
    """The heads of the top k, largest first."""

    @property
    def pairs(self) -> int:
        """(head, example) pairs run."""
        return int(self.n.sum())


class Basis(NamedTuple):
    """What is fixed before fresh examples are looked at, per head."""

    counts: np.ndarray  # how many examples, a prefix of the order
    coefficients: np.ndarray
    variance: np.ndarray  # of exact − coefficient · attribution
    variance_exact: np.ndarray
    df: np.ndarray


class HeadEstimates(NamedTuple):
    """A number per head, its standard error over the given examples, and its degrees of freedom."""

    values: np.ndarray
    stderr: np.ndarray
    df: np.ndarray
    variance_exact: np.ndarray

    def where(self, mask: np.ndarray, other: HeadEstimates) -> HeadEstimates:
        """`other` where the mask holds."""
        return HeadEstimates(*(np.where(mask, b, a) for a, b in zip(self, other, strict=True)))


class Sample:
    """Exact values: for each head a prefix of one random order of the examples."""

    def __init__(
        self,
        exact: Exact,
        attribution: np.ndarray | None,
        shape: tuple[int, int],
        *,
        population: bool = False,
        crowding: float = 1.0,
        seed: int = 0,
        call_cost: float = 0.0,
    ) -> None:
        """shape: (N examples, K heads). attribution: `[N, K]`, or None where there is no control variate.

        population: the target is the mean over all examples like these, not over the given ones. crowding: see
        `design_effect`; the mean over the given examples does not depend on it.
        call_cost: what one call of `exact` costs besides its pairs, in pairs; it changes no number, only the time.
        """
        self.exact, self.call_cost = exact, call_cost
        self.population, self.crowding = population, crowding
        self.N, self.K = shape
        self.order = np.random.default_rng(seed).permutation(self.N)
        self.values = np.full(shape, np.nan)  # rows in the random order
        self.counts = np.zeros(self.K, int)
        self.controlled = attribution is not None
        control = np.zeros(shape) if attribution is None else np.asarray(attribution, float)
        self.attribution = control[self.order]

    def extend(self, counts: np.ndarray) -> None:
        """Run what is missing for each head to have its first `counts[K]` examples, in rectangles.

        Cut where a head begins or ends, every stretch of examples is run once, with all heads that need it. Stretches
        are run together where the pairs that nobody asked for cost less than another call; these values are dropped,
        so that no number depends on what a call costs.
        """
        edges = np.unique(np.concatenate([self.counts, counts]))
        needed = np.array([(self.counts <= start) & (stop <= counts) for start, stop in pairwise(edges)])
        lengths = np.diff(edges)
        for first, last in grouped_stretches(needed, lengths, self.call_cost):
            heads = np.flatnonzero(needed[first:last].any(axis=0))
            if len(heads):
                rows = slice(edges[first], edges[last])
                measured = self.exact(heads, self.order[rows])
                requested = np.repeat(needed[first:last, heads], lengths[first:last], axis=0)
                self.values[rows, heads] = np.where(requested, measured, self.values[rows, heads])
        self.counts = np.maximum(self.counts, counts)

    def pilot(self) -> Basis:
        """Run the pilot; what it fixes."""
        self.extend(np.full(self.K, min(PILOT, self.N)))
        return self.basis()

    def basis(self, coefficients: np.ndarray | None = None) -> Basis:
        """Variances from all that is measured; coefficients are fitted on the pilot, and passed in afterwards."""
        fitted = np.zeros(self.K) if coefficients is None else coefficients
        predictor = self.attribution.var(axis=0)
        variance, variance_exact = np.full((2, self.K), np.inf)  # of a single example nothing is known
        for count in np.unique(self.counts[self.counts > 1]):
            heads = np.flatnonzero(self.counts == count)
            exact, cheap = self.values[:count, heads], self.attribution[:count, heads]
            variance_exact[heads] = left_out_variance(exact)
            if self.controlled and coefficients is None:
                fitted[heads] = coefficients_of(exact, cheap, predictor[heads])
                variance[heads] = left_out_variance(exact, cheap, predictor[heads])
            else:
                variance[heads] = left_out_variance(exact - fitted[heads] * cheap)
        df = np.maximum(self.counts - 1, 1)
        if coefficients is None and np.isfinite(variance).all():
            variance = moderated(variance, int(df[0]), predictor if self.controlled else None)
            # Silent on the pilot, but its attribution is not: the variance is not 0 but unseen.
            variance = np.where((variance == 0) & (predictor > 0), predictor, variance)
        return Basis(self.counts.copy(), fitted, variance, variance_exact, df)

    def pilot_means(self, coefficients: np.ndarray) -> np.ndarray:
        """The plain estimate from the pilot `[K]`, to plan by; not to be reported."""
        rest, offset = self._rest(coefficients)
        means: np.ndarray = offset + np.nanmean(rest, axis=0)
        return means

    def estimate(self, basis: Basis, pooled: bool = False) -> HeadEstimates:
        """From the examples after `basis.counts`. pooled: their variance counts too; it decides no width."""
        rest, offset = self._rest(basis.coefficients)
        position = np.arange(self.N)[:, None]
        before = position < basis.counts
        fresh = ~before & (position < self.counts)
        n, left = fresh.sum(axis=0), self.N - basis.counts
        complete = n == left
        mean = np.where(fresh, rest, 0).sum(axis=0) / np.maximum(n, 1)
        values = offset + (np.where(before, rest, 0).sum(axis=0) + left * mean) / self.N
        variance, df = basis.variance, basis.df
        if pooled:
            squares = np.where(fresh, (rest - mean) ** 2, 0).sum(axis=0)
            more = np.maximum(n - 1, 0)
            variance, df = (variance * df + squares) / (df + more), df + more
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt((left / self.N) ** 2 * (1 / n - 1 / left) * variance)
        # With every example run, the mean is the mean: no coefficient, no rounding of one, no error.
        measured = np.where(complete, self.values, 0)
        return HeadEstimates(
            np.where(complete, measured.sum(axis=0) / self.N, values),
            np.where(complete, 0, error),
            np.where(complete, max(self.N - 1, 1), df),
            np.where(complete, measured.var(axis=0, ddof=self.N > 1), basis.variance_exact),
        )

    def _rest(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """exact − coefficient · attribution `[N, K]`, and the mean of the second part over all examples `[K]`."""
        control = coefficients * self.attribution
        return self.values - control, coefficients * self.attribution.mean(axis=0)

    def result(
        self, estimate: HeadEstimates, coefficients: np.ndarray, top: np.ndarray | None = None
    ) -> Adaptive:
        """Intervals and p-values of the estimates; examples in their own order."""
        from scipy.special import stdtr

        beyond = np.sqrt(estimate.stderr**2 + self.crowding * estimate.variance_exact / self.N)
        # Groups of equal examples are worth N / crowding examples, and leave as few degrees of freedom.
        df_beyond = np.minimum(estimate.df, max(self.N / self.crowding - 1, 1))
        stderr, df = (beyond, df_beyond) if self.population else (estimate.stderr, estimate.df)
        half = t_quantile(LEVEL, df) * stderr
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * stdtr(df_beyond, -np.abs(np.where(estimate.values == 0, 0.0, estimate.values / beyond)))
        lo, hi = estimate.values - half, estimate.values + half
        examples = np.empty_like(self.values)
        examples[self.order] = self.values
        return Adaptive(estimate.values, stderr, lo, hi, p, self.counts, coefficients, examples, top)


def design_effect(groups: Sequence[Hashable] | None) -> float:
    """Σ size² / N over the groups of N examples: the factor on a mean's variance if the examples of a group are equal.

    >>> design_effect(["a", "a", "b", "b"]), design_effect(["a", None, None]), design_effect(None)
    (2.0, 1.0, 1.0)
    """
    codes = group_codes(groups, len(groups or ()))
    return 1.0 if codes is None else float((np.bincount(codes) ** 2).sum() / len(codes))


def grouped_stretches(needed: np.ndarray, lengths: np.ndarray, call_cost: float) -> list[tuple[int, int]]:
    """Which of S neighbouring stretches are run in one call: first and one past the last of each group.

    needed `[S, K]`: the heads of each stretch; lengths `[S]`: its examples. A group runs all of its heads on all of its
    examples; the cut with the least pairs plus `call_cost` per group.

    >>> needed = np.array([[True, True, True], [True, True, False], [False, False, True]])
    >>> grouped_stretches(needed, np.array([1, 1, 50]), 5)
    [(0, 2), (2, 3)]
    """
    count = len(lengths)
    cost, cut = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    for end in range(1, count + 1):
        # Heads and examples of a group from each possible start.
        heads = np.logical_or.accumulate(needed[:end][::-1], axis=0)[::-1].sum(axis=1)
        examples = np.cumsum(lengths[:end][::-1])[::-1]
        options = cost[:end] + heads * examples + call_cost * (heads > 0)
        cut[end] = options.argmin()
        cost[end] = options.min()
    groups, end = [], count
    while end:
        groups.append((int(cut[end]), end))
        end = int(cut[end])
    return groups[::-1]


def t_quantile(level: float, df: np.ndarray) -> np.ndarray:
    """Student's t: half the width of a two-sided interval at `level`, in standard errors."""
    from scipy.special import stdtrit

    return stdtrit(df, (1 + level) / 2)
