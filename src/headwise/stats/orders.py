"""How far orders of heads agree, between methods, seeds and resamples; and how many heads stand out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.stats import resampling
from headwise.stats.resampling import Groups, floats


def jaccard(a: Collection[Any], b: Collection[Any]) -> float:
    """Shared members over all members; two empty collections are the same, 1."""
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a | b else 1.0


def agreement_of_orders(tops: Sequence[Collection[Any]]) -> float:
    """Mean Jaccard over all pairs of top sets (one per seed, method or model); NaN for fewer than two."""
    pairs = [jaccard(a, b) for a, b in combinations(tops, 2)]
    return float(np.mean(pairs)) if pairs else float("nan")


def stability(
    examples: np.ndarray,
    k: int,
    *,
    groups: Groups = None,
    resamples: int = 1_000,
    seed: int = 0,
    absolute: bool = False,
) -> float:
    """How far the top k would change with other examples: mean Jaccard of resampled and full top k, 0 to 1.

    `examples[E, ...]`, a column per head. Ranked by the mean, or by its absolute value. Columns with a NaN
    have no rank. NaN for fewer than two examples; a k of all columns is stable by definition, 1. `groups[E]` names
    what examples have in common: whole groups are resampled.
    """
    flat = resampling.as_matrix(examples)[0]
    flat = flat[:, np.isfinite(flat).all(axis=0)]
    E, K = flat.shape
    if k < 1:
        raise HeadwiseError(f"a top k needs k ≥ 1, not {k}")
    codes = resampling.group_codes(groups, E)
    if resampling.units(E, codes) < 2 or not K:
        return float("nan")
    k = min(k, K)

    def top(means: np.ndarray) -> np.ndarray:  # [B, K] -> [B, k]; equal means keep the order of columns
        return np.argsort(-np.abs(means) if absolute else -means, axis=1, kind="stable")[:, :k]

    in_full = np.zeros(K, dtype=bool)
    in_full[top(flat.mean(axis=0)[None])] = True
    total = 0.0
    # All columns of one resample are over the same examples, so their sums rank as their means do.
    sums = flat if codes is None else resampling.group_sums(flat, codes)
    for counts in resampling.resample_counts(len(sums), resamples, seed, K):
        shared = in_full[top(counts @ sums)].sum(axis=1)
        total += (shared / (2 * k - shared)).sum()
    return float(total / resamples)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two scores of the same heads, equal values sharing their mean rank.

    Pairs with a NaN are left out. NaN when fewer than two pairs stay or one side is constant.
    """
    from scipy.stats import rankdata

    x, y = floats(a).ravel(), floats(b).ravel()
    if x.shape != y.shape:
        raise HeadwiseError(
            f"a rank correlation needs as many values on both sides, not {x.size} and {y.size}"
        )
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = rankdata(x[both]), rankdata(y[both])
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def elbow_count(scores: np.ndarray) -> int:
    """How many of the scores, by absolute value, lie before the elbow of their sorted curve.

    The elbow is the point farthest from the chord that joins the first and the last point of the curve
    (Kneedle without smoothing, Satopää et al. 2011). Below the chord it is the first of those that are alike,
    and not counted; above it the last of those that stand out, and counted. NaN is no score. A curve without a
    bend (all scores equal, or fewer than three) gives 0: none stands out. Scaling the scores changes nothing.

    >>> elbow_count(np.array([0.1, 9.0, 0.1, -8.0, 0.1, 0.1]))
    2
    """
    curve = np.sort(np.abs(np.asarray(scores, dtype=np.float64).ravel()))
    curve = curve[~np.isnan(curve)][::-1]
    if len(curve) < 3:
        return 0
    # The distance to a line is the height above it times a constant, so heights are enough.
    height = curve - np.linspace(curve[0], curve[-1], len(curve))
    # Rounding of the chord must not pass for a bend.
    if np.abs(height).max() <= 1e-12 * curve[0]:
        return 0
    elbow = int(np.abs(height).argmax())
    return elbow if height[elbow] < 0 else elbow + 1
