"""Top-k masks: hard ones for the forward pass, soft ones whose gradient trains the order.

R rows, N components, S seeds.
"""

from __future__ import annotations

import numpy as np

_BISECTIONS = 30


def hard_masks(strengths: np.ndarray, k: np.ndarray) -> np.ndarray:
    """1 for the k largest of each row of `strengths[R, N]`, 0 for the others; equal ones by their place.

    >>> hard_masks(np.array([[0.1, 0.9, 0.5]]), np.array([2])).tolist()
    [[0.0, 1.0, 1.0]]
    """
    ranks = np.empty(strengths.shape, dtype=int)
    places = np.broadcast_to(np.arange(strengths.shape[1]), strengths.shape)
    np.put_along_axis(ranks, np.argsort(-strengths, axis=1, kind="stable"), places, axis=1)
    return (ranks < np.asarray(k)[:, None]).astype(float)


def soft_masks(strengths: np.ndarray, k: np.ndarray, temperature: float) -> np.ndarray:
    """a = sigmoid((s − τ) / T) for `strengths[R, N]`, with τ of each row such that Σ a = k; τ by bisection."""
    low = strengths.min(1) - 40 * temperature
    high = strengths.max(1) + 40 * temperature
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        over = _sigmoid((strengths - middle[:, None]) / temperature).sum(1) > k
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return _sigmoid((strengths - ((low + high) / 2)[:, None]) / temperature)


def mask_gradient(soft: np.ndarray, by_mask: np.ndarray, temperature: float) -> np.ndarray:
    """The gradient with respect to the strengths `[R, N]`, from that with respect to the mask.

    τ moves with s: dτ/ds = w / Σw, w = a(1 − a). Where a mask is as good as hard (Σw near 0), nothing flows.
    """
    w = soft * (1 - soft)
    total = w.sum(1, keepdims=True)
    mean = np.divide((w * by_mask).sum(1, keepdims=True), total, out=np.zeros_like(total), where=total > 1e-9)
    gradient: np.ndarray = np.where(total > 1e-9, w * (by_mask - mean), 0.0) / temperature
    return gradient


def draw_sizes(random: np.random.Generator, count: int, total: int) -> np.ndarray:
    """`count` sizes of circuits k from 1 to `total` − 1, spread over two kinds of scale in turn.

    Half of them are drawn log-uniformly, so that the first few heads are in order, and half uniformly, so that the
    curve stays at 1 once it is there.
    """
    most = max(1, total - 1)
    spread = (random.permutation(count) + random.uniform(size=count)) / count  # one from each part of (0, 1)
    logarithmic = np.exp(spread * np.log(most + 1))
    uniform = 1 + spread * most
    kinds = random.permutation(count) % 2 == 0
    return np.clip(np.where(kinds, logarithmic, uniform).astype(int), 1, most)


def grid_sizes(count: int, total: int) -> np.ndarray:
    """At most `count` sizes from 1 to `total` − 1: half at even steps of the logarithm, half at even steps.

    >>> grid_sizes(8, 100).tolist()
    [1, 4, 13, 20, 40, 42, 59, 79]
    """
    most = max(1, total - 1)
    half = max(2, count // 2)
    logarithmic = np.exp((np.arange(half) + 0.25) / half * np.log(most))
    uniform = (np.arange(half) + 1) / (half + 1) * most
    return np.unique(np.clip(np.round(np.concatenate([logarithmic, uniform])).astype(int), 1, most))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))
    return result
