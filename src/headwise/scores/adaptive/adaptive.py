"""Exact ablation scores from as few examples as the question needs. Arrays and one function in, arrays out.

Attribution, known for every example, is the control variate: with y = exact − coefficient · attribution, a head's
score is coefficient · mean(attribution) + mean(y), and only mean(y) has to be sampled.

**The rule.** All heads share one random order of the examples. The first of them, the pilot, fix each head's
coefficient and how many further examples it needs; these fresh examples alone estimate the part that is not known yet:

    estimate = coefficient · mean of attribution over all N + (sum of y over the pilot + (N − m) · mean of fresh y) / N

The fresh values decide nothing, so the estimate is unbiased, whatever the distribution. A rule that stops when the
interval looks narrow enough would stop too early exactly where the interval is too narrow; a confidence sequence, valid
at any time, is wide enough for the worst time and covers far more often than it claims. The width also comes from the
pilot (Stein 1945, Annals of Mathematical Statistics 16): t with m − 1 degrees of freedom times the pilot's standard
deviation of y, so no interval is wider than asked. That variance is computed example by example from a coefficient
fitted without the example, and shrunk towards what the variance of attribution predicts (`control.moderated`); the
degrees of freedom that the shrinkage adds are not claimed, which pays for tails heavier than normal. With the mean over
the given examples as target the variance is ((N − m)/N)² · (1/n − 1/(N − m)) · S²(y): 0 once every example is run. For
the population, S²(exact)/N is added.

**Top k.** The pilot plans how many examples separate each head from the k-th rank; the intervals then hold for all
heads at once (Bonferroni). Heads still undecided are planned again from everything measured, then run on every example,
where no doubt is left.

N examples, K heads, m pilot examples, n fresh ones.
"""

from __future__ import annotations

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads import RANKED_BY
from headwise.scores.adaptive.sample import LEVEL, Adaptive, Basis, Sample, t_quantile

LEAST_FRESH = 1
"""The fewest fresh examples: the width comes from the pilot, so one can be enough."""
PLANNED_LOOKS = 2
"""How often undecided heads of a top k are planned before they are run on every example."""


def to_precision(
    sample: Sample, precision: float, confidence: float = LEVEL, *, of_largest: bool = False
) -> Adaptive:
    """Every head's score to ± `precision` at `confidence`; of_largest: to ± this share of the largest score.

    With `sample.population` an interval cannot be narrower than N examples make it; such heads are run on all of them.
    """
    basis = sample.pilot()
    if not of_largest:
        return _to_precision(sample, basis, precision, confidence)
    largest = np.abs(sample.pilot_means(basis.coefficients)).max()
    estimates = _to_precision(sample, basis, precision * largest, confidence)
    while True:
        # The pilot may have taken the largest score for larger than it is; too wide heads are run on every example.
        half = t_quantile(confidence, basis.df) * estimates.stderr
        wide = (half > precision * np.abs(estimates.values).max()) & (sample.counts < sample.N)
        if not wide.any():
            return estimates
        sample.extend(np.where(wide, sample.N, sample.counts))
        estimates = sample.result(sample.estimate(basis), basis.coefficients)


def _to_precision(sample: Sample, basis: Basis, precision: float, confidence: float) -> Adaptive:
    extra = sample.crowding * basis.variance_exact / sample.N if sample.population else 0.0
    allowed = np.maximum((precision / t_quantile(confidence, basis.df)) ** 2 - extra, 0)
    sample.extend(basis.counts + _fresh_for(allowed, basis, sample.N))
    return sample.result(sample.estimate(basis), basis.coefficients)


def top_k(sample: Sample, k: int, confidence: float = LEVEL, order: str = "signed") -> Adaptive:
    """The k heads whose mean over the given examples is largest, all k right with at least `confidence`.

    order: largest by value (`signed`), by size (`absolute`), or most negative (`hinders`). `sample.population` changes
    only the standard errors; the ranking is that of the given examples.
    """
    if not 1 <= k < sample.K:
        raise HeadwiseError(f"a top k of {sample.K} heads needs k from 1 to {sample.K - 1}, not {k}")
    key = RANKED_BY[order]
    basis = sample.pilot()
    coefficients, current = basis.coefficients, None
    values = sample.pilot_means(coefficients)
    level = 1 - (1 - confidence) / (sample.K * PLANNED_LOOKS)
    inside, candidates, undecided = np.zeros(sample.K, bool), np.ones(sample.K, bool), np.ones(sample.K, bool)
    for look in range(PLANNED_LOOKS + 1):
        fresh = sample.N - basis.counts
        if look < PLANNED_LOOKS:
            fresh = _fresh_to_rank(key(values), k, level, basis, sample.N)
        sample.extend(np.where(undecided, basis.counts + fresh, sample.counts))
        estimate = sample.estimate(basis, pooled=True)
        current = estimate if current is None else current.where(undecided, estimate)
        values, half = current.values, t_quantile(level, current.df) * current.stderr
        lowest = 0.0 if order == "absolute" else -np.inf
        _decide(k, inside, candidates, np.maximum(key(values) - half, lowest), key(values) + half)
        undecided = candidates & (current.stderr > 0)
        if not undecided.any():
            break
        basis = sample.basis(coefficients)
    assert current is not None
    ranking = np.argsort(-key(values), kind="stable")
    # Heads that no bound could separate are equal to the last bit; the earlier ones are taken.
    inside[ranking[candidates[ranking]][: k - inside.sum()]] = True
    return sample.result(current, coefficients, ranking[inside[ranking]])


def _decide(k: int, inside: np.ndarray, candidates: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> None:
    """Move the candidates `[K]` that these bounds settle into the first k, `inside[K]`, or drop them; in place."""
    while True:
        ranks = k - int(inside.sum())
        heads = np.flatnonzero(candidates)
        above = lo[heads][:, None] > hi[heads][None, :]  # a surely beats b
        takes = above.sum(axis=1) >= len(heads) - ranks
        drops = above.sum(axis=0) >= ranks
        if not (takes | drops).any():
            return
        inside[heads[takes]] = True
        candidates[heads[takes | drops]] = False


def _fresh_to_rank(keys: np.ndarray, k: int, level: float, basis: Basis, N: int) -> np.ndarray:
    """Fresh examples `[K]` that should separate each head from the middle between the k-th key and the next."""
    largest = np.sort(keys)[::-1]
    half_gap = np.abs(keys - (largest[k - 1] + largest[k]) / 2) / 2
    left = N - basis.counts
    fresh = np.full(len(keys), LEAST_FRESH)
    for _ in range(3):  # the fresh examples add degrees of freedom, so more of them need less
        allowed = (half_gap / t_quantile(level, basis.df + fresh)) ** 2
        # What does not vary is known already, however near the k-th rank it is.
        fresh = _fresh_for(np.where(basis.variance > 0, allowed, np.inf), basis, N)
    # Beyond two thirds of the rest, a fallback to all of it would cost little more than the attempt.
    return np.where(fresh > 2 / 3 * left, left, fresh)


def _fresh_for(allowed: np.ndarray, basis: Basis, N: int) -> np.ndarray:
    """Fresh examples `[K]` so that the variance of the estimate is at most `allowed[K]`, all of them if need be."""
    left = N - basis.counts
    share = left / N
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = share**2 * basis.variance / (allowed + share**2 * basis.variance / left)
    # 0/0: no variance and no width allowed. Only running everything can answer a precision of 0.
    needed = np.where(allowed > 0, np.where(basis.variance > 0, needed, 0), left)
    count = np.ceil(np.maximum(np.nan_to_num(needed, posinf=N), LEAST_FRESH)).astype(int)
    # Equal counts make full batches: from 16 on in steps of an eighth of the octave.
    step = 2 ** np.maximum(np.floor(np.log2(count)).astype(int) - 3, 0)
    return np.minimum(-(-count // step) * step, left)
