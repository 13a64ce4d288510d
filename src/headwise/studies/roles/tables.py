"""From gates to the tables of `roles`, and from curves to whether they have the expected order. Arrays and tables
in, tables out.

S seeds, L layers, H heads, K points of a curve, E examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Order
from headwise.scores.gates.fit import Fit, FitSettings, sigmoid
from headwise.scores.gates.roles import ROLES, always_and_ever, role_labels, role_scores

CHECKED_AT = 20
"""Where on the curve facilitation should lie below irrelevance."""


# ---- fits ------------------------------------------------------------------------------------------


def gate_rows(fit: Fit, seeds: Sequence[int], heads: Order, about: dict[str, Any]) -> pd.DataFrame:
    """The kept part of the trajectory: one row per seed, update and head."""
    layers, numbers = (np.array(part) for part in zip(*heads, strict=True))
    steps = sorted(fit.kept)
    logits = np.stack([fit.kept[step][:, layers, numbers] for step in steps], axis=1)  # S, steps, heads
    shape = logits.shape

    def along(axis: int, values: Sequence[int] | np.ndarray) -> np.ndarray:
        spread = np.asarray(values, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(3)])
        return np.broadcast_to(spread, shape).ravel()

    columns = {"seed": along(0, seeds), "step": along(1, steps), "layer": along(2, layers)}
    columns |= {"head": along(2, numbers), "logit": logits.ravel(), "gate": sigmoid(logits).ravel()}
    return pd.DataFrame(about | columns)


def final_logits(table: pd.DataFrame, seeds: Sequence[int], shape: tuple[int, int]) -> np.ndarray:
    """Where one fit ended `[S, L, H]`, from the rows of `gates` of one model, task and fit; 0 where no head is."""
    last = table[table["step"] == table["step"].max()]
    logits = np.zeros((len(seeds), *shape))
    place = last["seed"].map({seed: i for i, seed in enumerate(seeds)}).to_numpy(dtype=int)
    logits[place, last["layer"].to_numpy(), last["head"].to_numpy()] = last["logit"].to_numpy()
    return logits


def objective_rows(fit: Fit, seeds: Sequence[int], about: dict[str, Any]) -> pd.DataFrame:
    """Every update of every seed: rate, likelihood of its own examples, objective."""
    parts = []
    for place, seed in enumerate(seeds):
        count = int(fit.updates[place])
        parts.append(
            pd.DataFrame(
                about
                | {
                    "seed": np.full(count, seed, dtype=np.int32),
                    "update": np.arange(count, dtype=np.int32),
                    "rate": fit.rates[:count, place],
                    "likelihood": fit.likelihood[:count, place],
                    "objective": fit.objective[:count, place],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def fit_rows(
    fit: Fit,
    seeds: Sequence[int],
    held_out: np.ndarray,
    held_out_objective: np.ndarray,
    ungated: float,
    settings: FitSettings,
    about: dict[str, Any],
) -> pd.DataFrame:
    """One row per seed: how many updates, and where it ended on its own and on the held-out examples."""
    window = settings.window
    ends = [slice(max(0, count - window), count) for count in fit.updates]
    return pd.DataFrame(
        about
        | {
            "seed": np.asarray(seeds, dtype=np.int32),
            "updates": fit.updates.astype(np.int32),
            "stopped_early": fit.updates < len(fit.objective),
            "objective": [float(fit.objective[end, place].mean()) for place, end in enumerate(ends)],
            "likelihood": [float(fit.likelihood[end, place].mean()) for place, end in enumerate(ends)],
            "held_out_objective": held_out_objective,
            "held_out_likelihood": held_out,
            "ungated_likelihood": ungated,
        }
    )


def overfitted(fits: pd.DataFrame) -> list[str]:
    """A sentence for each model and task whose gates, pulled open, help their own examples and harm held-out ones."""
    said = []
    for (model, task), own in fits[fits["fit"] == "plus"].groupby(["model", "task"], sort=False):
        end = own.mean(numeric_only=True)
        if end["held_out_likelihood"] < end["ungated_likelihood"] < end["likelihood"]:
            said.append(
                f"{task}, {model}: OVERFITTED, the gates suit the examples that they were fitted to "
                f"({end['likelihood']:.2f} nats per token) but not held-out ones ({end['held_out_likelihood']:.2f}; "
                f"{end['ungated_likelihood']:.2f} without gates); more examples help: a larger n, or a file of your "
                "own"
            )
    return said


# ---- roles -----------------------------------------------------------------------------------------


def role_rows(
    plus: np.ndarray, minus: np.ndarray, seeds: Sequence[int], heads: Order, about: dict[str, Any]
) -> pd.DataFrame:
    """One row per seed and head: both gates, three scores, the label."""
    layers, numbers = (np.array(part) for part in zip(*heads, strict=True))
    every = {"plus": plus, "minus": minus, **role_scores(plus, minus), "label": role_labels(plus, minus)}
    columns: dict[str, Any] = {
        "seed": np.repeat(np.asarray(seeds, dtype=np.int32), len(heads)),
        "layer": np.tile(layers.astype(np.int32), len(seeds)),
        "head": np.tile(numbers.astype(np.int32), len(seeds)),
    }
    columns |= {name: values[:, layers, numbers].ravel() for name, values in every.items()}
    return pd.DataFrame(about | columns)


def share_rows(labels: np.ndarray, exists: np.ndarray, about: dict[str, Any]) -> pd.DataFrame:
    """One row per label: heads that have it always, ever, and in the average seed."""
    table = pd.DataFrame([about | row for row in always_and_ever(labels, exists)])
    return table.assign(share=table["mean"] / table["heads"])


# ---- curves ----------------------------------------------------------------------------------------


def role_orders(plus: np.ndarray, minus: np.ndarray, heads: Order) -> dict[str, Order]:
    """Heads of one seed by each role's score, the highest first; ties keep the order of layer and head."""
    orders = {}
    for role, score in role_scores(plus, minus).items():
        first = np.argsort([-score[head] for head in heads], kind="stable")
        orders[role] = [heads[i] for i in first]
    return orders


def curve_gates(plus: np.ndarray, orders: dict[str, Order], ks: Sequence[int]) -> np.ndarray:
    """From G⁺ `[L, H]`: the first k heads at 0, and at 1, for every role and k: `[roles, K, 2, L, H]`."""
    gates = np.empty((len(ROLES), len(ks), 2, *plus.shape))
    gates[:] = plus
    for r, role in enumerate(ROLES):
        for i, k in enumerate(ks):
            for layer, head in orders[role][:k]:
                gates[r, i, :, layer, head] = (0, 1)
    return gates


def curve_rows(
    values: np.ndarray,
    ks: Sequence[int],
    seed: int,
    about: dict[str, Any],
    groups: Sequence[str | None] | None = None,
) -> pd.DataFrame:
    """The contract's curves from y `[S, roles, K, E]`; groups `[E]` of the examples, where some share one.

    `lo`, `hi`: 95 % by resampling seeds; `both_lo`, `both_hi`: seeds and examples, which is wider.
    A single seed has only the second.
    """
    lo, hi = stats.bootstrap_mean(values.mean(axis=3), seed=seed)  # roles, K
    single = len(values) == 1  # one seed has no spread of its own; its band is over examples
    rows = []
    for r, role in enumerate(ROLES):
        for i, k in enumerate(ks):
            point = values[:, r, i]
            both = stats.bootstrap_crossed(point, groups=groups, seed=seed) if k else (0.0, 0.0)
            rows.append(
                about
                | {
                    "series": role,
                    "action": "mask",
                    "k": k,
                    "metric": "logprob",
                    "value": float(point.mean()),
                    "lo": both[0] if single else lo[r, i],
                    "hi": both[1] if single else hi[r, i],
                    "n": values.shape[3],
                    "seeds": len(values),
                    "both_lo": both[0],
                    "both_hi": both[1],
                }
            )
    return pd.DataFrame(rows)


def curve_examples(
    values: np.ndarray,
    ks: Sequence[int],
    seeds: Sequence[int],
    numbers: Sequence[int],
    about: dict[str, Any],
    groups: Sequence[str | None] | None = None,
) -> pd.DataFrame:
    """The value of every example behind every point; `draw` is the seed."""
    parts = np.indices(values.shape).reshape(4, -1)
    columns = {
        "series": np.array(ROLES)[parts[1]],
        "action": "mask",
        "k": np.asarray(ks, dtype=np.int32)[parts[2]],
        "draw": np.asarray(seeds, dtype=np.int32)[parts[0]],
        "metric": "logprob",
        "example": np.asarray(numbers, dtype=np.int32)[parts[3]],
        "value": values.ravel(),
    }
    if groups is not None:
        columns["group"] = np.array(groups, dtype=object)[parts[3]]
    return pd.DataFrame(about | columns)


def expected_order(curves: pd.DataFrame) -> dict[str, Any]:
    """Whether the curves of one model and task have the order that the roles promise.

    At k = 20 (or the last point before it) facilitation's band lies below irrelevance's; at the k where
    interference peaks its band lies above irrelevance's.
    """
    by_role = {str(role): part.sort_values("k") for role, part in curves.groupby("series")}
    ks = by_role["irrelevance"]["k"].to_numpy(dtype=int)
    value, lo, hi = (
        {role: part[name].to_numpy(dtype=float) for role, part in by_role.items()}
        for name in ("value", "lo", "hi")
    )
    at = int(np.flatnonzero((ks <= CHECKED_AT) | (ks == ks.min()))[-1])
    peak = int(np.argmax(np.where(ks > 0, value["interference"], -np.inf)))
    return {
        "k": int(ks[at]),
        "facilitation": float(value["facilitation"][at]),
        "irrelevance": float(value["irrelevance"][at]),
        "below": bool(hi["facilitation"][at] < lo["irrelevance"][at]),
        "peak": int(ks[peak]),
        "interference_at_peak": float(value["interference"][peak]),
        "irrelevance_at_peak": float(value["irrelevance"][peak]),
        "above": bool(lo["interference"][peak] > hi["irrelevance"][peak]),
    }


def order_sentence(row: Mapping[Any, Any]) -> str:
    """What `expected_order` found, as a sentence."""
    below = (
        f"facilitation is below irrelevance at k = {row['k']} ({row['facilitation']:+.2f} against "
        f"{row['irrelevance']:+.2f} nats)"
    )
    above = (
        f"interference is above irrelevance where it peaks, k = {row['peak']} "
        f"({row['interference_at_peak']:+.2f} against {row['irrelevance_at_peak']:+.2f})"
    )
    holds = [text for text, true in ((below, row["below"]), (above, row["above"])) if true]
    fails = [text for text, true in ((below, row["below"]), (above, row["above"])) if not true]
    said = "; ".join(holds)
    if fails:
        said += ("; " if said else "") + "NOT shown, the bands over seeds overlap or lie the other way: "
        said += "; ".join(fails)
    return said


def arrays_fingerprint(*arrays: np.ndarray) -> str:
    """A hash of arrays, as part of what a cell depends on."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()[:16]


def joint_rows(
    top: np.ndarray, sets: np.ndarray, correlation: dict[str, float], about: dict[str, Any]
) -> pd.DataFrame:
    """The joint effect of the most facilitating heads `[E]` beside that of random sets `[sets, E]`."""
    effects = sets.mean(axis=1)
    row = {
        "effect": float(top.mean()),
        "random_mean": float(effects.mean()),
        "random_p99": float(np.quantile(effects, 0.99)),
        "larger_than": float((top.mean() > effects).mean()),
        "sets": len(effects),
        "n": len(top),
    }
    return pd.DataFrame([about | row | correlation])
