"""The control variate: what a cheap number per example says about an expensive one. Arrays in, arrays out.

N examples, K heads, m examples of a pilot. The cheap number (attribution) is known for all N, the expensive
one (exact ablation) for the pilot; `exact − slope · cheap` varies less than `exact`, so fewer examples pin
its mean down.
"""

from __future__ import annotations

import numpy as np

PSEUDO_EXAMPLES = 2.0
"""How many examples' weight the slope shared by all heads has in a head's own slope."""
FEWEST_HEADS = 10
"""With fewer, what heads have in common cannot be told."""
MOST_WORTH = 10.0
"""Degrees of freedom that the heads together may add to a head's own, so that its own values are heard."""


def slopes(
    exact: np.ndarray, cheap: np.ndarray, spread: np.ndarray, shared: float | None = None
) -> np.ndarray:
    """The slope `[K]` of `exact[m, K]` on `cheap[m, K]`, drawn towards the one that heads share.

    A pilot is small and a slope of its own noisy: as many pseudo-examples as `PSEUDO_EXAMPLES` lie on the
    shared slope. `spread[K]` is the variance of the cheap number over all examples; where it is 0 so is the slope.
    """
    centred = cheap - cheap.mean(axis=0)
    together = (centred * exact).sum(axis=0)
    alone = (centred**2).sum(axis=0)
    if shared is None:
        shared = shared_slope(exact, cheap)
    weight = PSEUDO_EXAMPLES * spread
    return np.divide(
        together + weight * shared, alone + weight, out=np.zeros(alone.shape), where=alone + weight > 0
    )


def shared_slope(exact: np.ndarray, cheap: np.ndarray) -> float:
    """The median over heads of each head's least-squares slope; 1 (cheap = exact) where there is none."""
    centred = cheap - cheap.mean(axis=0)
    alone = (centred**2).sum(axis=0)
    usable = alone > 0
    if not usable.any():
        return 1.0
    return float(np.median((centred * exact).sum(axis=0)[usable] / alone[usable]))


def left_out_spread(
    exact: np.ndarray, cheap: np.ndarray | None = None, spread: np.ndarray | None = None
) -> np.ndarray:
    """How far each pilot example is, squared and averaged, from what the other examples say of it `[K]`.

    The slope is fitted without the example, so a slope that follows the noise is not rewarded. It exceeds the
    variance of `exact − slope · cheap` by about 1/m, which a small pilot of heavy-tailed values needs: most
    such pilots see too little of the tail.
    """
    m = len(exact)
    if cheap is None:  # the mean of the others is off by m/(m − 1) times the distance from the mean of all
        return exact.var(axis=0) * (m / (m - 1)) ** 2
    assert spread is not None
    shared = shared_slope(exact, cheap)
    total = np.zeros(exact.shape[1])
    for left in range(m):
        others = np.arange(m) != left
        rest = exact - slopes(exact[others], cheap[others], spread, shared) * cheap
        total += (rest[left] - rest[others].mean(axis=0)) ** 2
    return total / m


def moderated(spread: np.ndarray, df: int, predictor: np.ndarray | None) -> np.ndarray:
    """Variances `[K]` of small samples, each drawn towards what the heads together make likely for it.

    Empirical Bayes with a trend (Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3):
    log variance is a line in log `predictor[K]` (the variance of attribution, known from all examples) plus
    noise; what of that noise the small samples do not explain says how many degrees of freedom the line is
    worth. Few heads give no line, and a head that varies in nothing is left at 0.
    """
    from scipy.special import digamma

    seen = spread > 0
    if predictor is not None:
        seen &= predictor > 0
    if seen.sum() < FEWEST_HEADS:
        return spread
    log_chi = float(digamma(df / 2) - np.log(df / 2))  # the mean of log(variance / truth)
    columns = [np.ones(len(spread))]
    if predictor is not None:
        columns.append(np.log(np.where(predictor > 0, predictor, 1.0)))
    design = np.stack(columns, axis=1)
    observed = np.log(spread[seen]) - log_chi
    fitted = np.linalg.lstsq(design[seen], observed, rcond=None)[0]
    left = observed - design[seen] @ fitted
    worth = _worth(float((left**2).sum() / (seen.sum() - design.shape[1])), df)
    line = np.exp(design @ fitted + digamma(worth / 2) - np.log(worth / 2))
    drawn = (worth * line + df * spread) / (worth + df)
    return np.where(seen if predictor is None else predictor > 0, drawn, spread)


def _worth(variance: float, df: int) -> float:
    """Degrees of freedom of the line, from the variance of log spreads about it."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    unexplained = variance - float(polygamma(1, df / 2))
    if unexplained <= float(polygamma(1, MOST_WORTH / 2)):
        return MOST_WORTH
    return float(brentq(lambda d: polygamma(1, d / 2) - unexplained, 1e-3, MOST_WORTH))
