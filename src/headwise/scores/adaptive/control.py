"""The control variate: what a cheap number per example says about an expensive one. Arrays in, arrays out.

N examples, K heads, m examples of a pilot. The cheap number (attribution) is known for all N, the expensive
one (exact ablation) for the pilot; `exact − coefficient · cheap` varies less than `exact`, so its mean needs fewer
examples.
"""

from __future__ import annotations

import numpy as np

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
