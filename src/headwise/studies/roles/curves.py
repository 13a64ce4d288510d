"""The curves of `roles`: the gates behind each point, their table, and whether they have the expected order.

S seeds, L layers, H heads, K points of a curve, E examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Order, ranked
from headwise.scores.gates.gating import ROLES, role_scores

CHECKED_AT = 20
"""Where on the curve facilitation should lie below irrelevance."""


def curve_gates(plus: np.ndarray, minus: np.ndarray, heads: Order, ks: Sequence[int]) -> np.ndarray:
    """From one seed's G⁺ `[L, H]`: the first k heads of each role at 0, and at 1: `[roles, K, 2, L, H]`.

    Heads are ordered by the role's score, the highest first; ties keep the order of layer and head.
    """
    gates = np.empty((len(ROLES), len(ks), 2, *plus.shape))
    gates[:] = plus
    for r, estimates in enumerate(role_scores(plus, minus).values()):
        order = ranked(heads, [estimates[head] for head in heads], "signed")
        for i, k in enumerate(ks):
            for layer, head in order[:k]:
                gates[r, i, :, layer, head] = (0, 1)
    return gates


def curve_rows(
    values: np.ndarray, ks: Sequence[int], groups: Sequence[str | None] | None = None
) -> pd.DataFrame:
    """The table `curves` from y `[S, roles, K, E]`; groups `[E]` of the examples, where some share one.

    `lo`, `hi`: 95 % over seeds (Student's t); `both_lo`, `both_hi`: over seeds and examples.
    A single seed has only the second.
    """
    lo, hi = stats.mean_interval(values.mean(axis=3))  # roles, K
    single = len(values) == 1  # one seed has no spread of its own; its band is over examples
    rows = []
    for (r, role), (i, k) in product(enumerate(ROLES), enumerate(ks)):
        point = values[:, r, i]
        both = stats.crossed_interval(point, groups=groups) if k else (0.0, 0.0)
        band = both if single else (lo[r, i], hi[r, i])
        row = {"series": role, "action": "mask", "k": k, "metric": "logprob"}
        row |= {"value": float(point.mean()), "lo": band[0], "hi": band[1]}
        row |= {"n": values.shape[3], "seeds": len(values), "both_lo": both[0], "both_hi": both[1]}
        rows.append(row)
    return pd.DataFrame(rows)


def expected_order(curves: pd.DataFrame) -> dict[str, Any]:
    """Whether the curves of one model and task have the order that the roles promise.

    At k = 20 (or the last point before it) facilitation's band lies below irrelevance's; at the k where
    interference peaks its band lies above irrelevance's.
    """
    points = curves.pivot(index="k", columns="series")
    value, lo, hi, ks = points["value"], points["lo"], points["hi"], points.index.to_numpy()
    k = ks[ks <= CHECKED_AT].max()
    peak = ks[np.argmax(np.where(ks > 0, value["interference"], -np.inf))]
    return {
        "k": int(k),
        "facilitation": float(value["facilitation"][k]),
        "irrelevance": float(value["irrelevance"][k]),
        "below": bool(hi["facilitation"][k] < lo["irrelevance"][k]),
        "peak": int(peak),
        "interference_at_peak": float(value["interference"][peak]),
        "irrelevance_at_peak": float(value["irrelevance"][peak]),
        "above": bool(lo["interference"][peak] > hi["irrelevance"][peak]),
    }
