"""What a condition changes, in numbers: attention, outputs and activations without and with it.

Attention comes in arrays. Outputs and activations are large: they come in tensors and are reduced on their device.

Q queries, T tokens, A tokens that are compared, D numbers per token, U units.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_NEAR = 1.4826 * 0.13
"""Near zero is below this many median absolute deviations of the baseline's |a|, as in ARM's own rule."""


def mean_of(by_query: np.ndarray) -> np.ndarray:
    """Mean over queries `[heads, Q]`; NaN where no token stands after the insertion."""
    return by_query.mean(1) if by_query.shape[1] else np.full(len(by_query), np.nan)


def attention_moved(
    old: np.ndarray, old_keys: np.ndarray, new: np.ndarray, new_keys: np.ndarray
) -> np.ndarray:
    """`[heads]`: the share of its attention that a token now spends elsewhere, mean over the same tokens.

    Total variation between rows `[heads, Q, T]`: half of all that is gained and lost, over shared keys and over
    the keys that only one of the two has (the inserted ones), which count as one. From 0 to 1.
    """
    of_shared = [rows.take(keys, axis=2) for rows, keys in ((old, old_keys), (new, new_keys))]
    changed = np.abs(np.subtract(*of_shared, dtype=np.float64)).sum(2)
    alone = [
        np.delete(rows, keys, axis=2).sum(2, dtype=np.float64)
        for rows, keys in ((old, old_keys), (new, new_keys))
    ]
    return mean_of((changed + np.abs(alone[1] - alone[0])) / 2)


def profile_change(
    old: np.ndarray, old_keys: np.ndarray, new: np.ndarray, new_keys: np.ndarray
) -> np.ndarray:
    """`[heads]`: mean |change| of the profile over shared keys, each weighted by the queries behind its mean.

    Unweighted, the last few keys would decide: their means are over one or two queries. The sum over keys is
    taken, so that it is attention per query.
    """
    later = old.shape[1] - 1 - old_keys  # queries after each key
    change = np.abs(new[:, new_keys] - old[:, old_keys]) * later / max(old.shape[1] - 1, 1)
    return np.nansum(change, axis=1)


def affine_fit(old: Tensor, new: Tensor) -> tuple[float, float, float]:
    """(λ, R², R² of no change) of new[A, D] ≈ λ · old[A, D] + shift, one λ and one shift for all tokens.

    R² is the share of the spread of the new outputs over tokens that is explained. The third number takes λ = 1
    and the best shift. NaN for fewer than two tokens.
    """
    if len(old) < 2:
        return float("nan"), float("nan"), float("nan")
    x, y = (part - part.mean(0) for part in (_float64(old), _float64(new)))
    total, inner = float((y * y).sum()), float((x * x).sum())
    if total == 0 or inner == 0:
        return float("nan"), float("nan"), float("nan")
    slope = float((x * y).sum()) / inner
    left = y - slope * x
    return slope, 1 - float((left * left).sum()) / total, 1 - float(((y - x) ** 2).sum()) / total


def near_zero_bound(ground: Tensor) -> Tensor:
    """The absolute value below which an activation is near zero, set by the activations of the baseline."""
    size = ground.abs()
    return _NEAR * _median((size - _median(size)).abs())


def near_zero(gates: Tensor, bound: Tensor) -> float:
    """Share of activations below the bound, which is the baseline's, so that conditions are comparable."""
    return int((gates.abs() < bound).sum()) / gates.numel() if gates.numel() else float("nan")


def kurtosis(gates: Tensor) -> float:
    """Excess kurtosis over all tokens and units: 0 for a normal distribution, large for rare large values.

    NaN without activations and where all are equal.
    """
    wide = _float64(gates)
    squared = (wide - wide.mean()).square_()
    spread = float(squared.mean())
    return float(squared.square_().mean()) / spread**2 - 3 if spread else float("nan")


def _median(values: Tensor) -> Tensor:
    """The mean of the two middle values of an even number; torch's own median is the lower of the two."""
    return (values.median() - (-values).median()) / 2


def _float64(values: Tensor) -> Tensor:
    """Apple's GPUs have no float64: there on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).to(torch.float64)
