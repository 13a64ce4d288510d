"""From gates to the tables of `roles`, and from curves to whether they have the expected order. Arrays and tables
in, tables out.

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
from headwise.scores.gates.fit import Fit, sigmoid
from headwise.scores.gates.roles import ROLES, always_and_ever, role_labels, role_scores
from headwise.studies.tables import long_table

CHECKED_AT = 20
"""Where on the curve facilitation should lie below irrelevance."""


# ---- fits ------------------------------------------------------------------------------------------


def gate_rows(fit: Fit, seeds: Sequence[int], heads: Order, about: dict[str, Any]) -> pd.DataFrame:
    """The kept part of the trajectory: one row per seed, update and head."""
    layers, numbers = np.array(heads).T
    steps = sorted(fit.kept)
    logits = np.stack([fit.kept[step][:, layers, numbers] for step in steps], axis=1)  # S, steps, heads
    axes: list[dict[str, Any]] = [{"seed": seeds}, {"step": steps}, {"layer": layers, "head": numbers}]
    return long_table(about, axes, {"logit": logits, "gate": sigmoid(logits)})


def final_logits(table: pd.DataFrame, seeds: Sequence[int], shape: tuple[int, int]) -> np.ndarray:
    """Where one fit ended `[S, L, H]`, from the rows of `gates` of one model, task and fit; 0 where no head is."""
    last = table[table["step"] == table["step"].max()]
    logits = np.zeros((len(seeds), *shape))
    index = last["seed"].map({seed: i for i, seed in enumerate(seeds)}).to_numpy(dtype=int)
    logits[index, last["layer"].to_numpy(), last["head"].to_numpy()] = last["logit"].to_numpy()
    return logits


def objective_rows(fit: Fit, seeds: Sequence[int], about: dict[str, Any]) -> pd.DataFrame:
    """Every update of every seed: rate, likelihood of its own examples, objective."""
    values = {"rate": fit.rates.T, "likelihood": fit.likelihood.T, "objective": fit.objective.T}  # S, updates
    table = long_table(about, [{"seed": seeds}, {"update": range(len(fit.objective))}], values)
    done = table["update"] < np.repeat(fit.updates, len(fit.objective))
    return table[done].reset_index(drop=True)


def fit_rows(fit: Fit, seeds: Sequence[int], window: int, about: dict[str, Any]) -> pd.DataFrame:
    """One row per seed: how many updates, and the means over the last `window` of them."""
    last = [(slice(max(0, count - window), count), i) for i, count in enumerate(fit.updates)]
    columns = {
        "seed": np.asarray(seeds, dtype=np.int32),
        "updates": fit.updates.astype(np.int32),
        "stopped_early": fit.updates < len(fit.objective),
        "objective": [float(fit.objective[end].mean()) for end in last],
        "likelihood": [float(fit.likelihood[end].mean()) for end in last],
    }
    return pd.DataFrame(about | columns)


def overfitted(fits: pd.DataFrame) -> list[str]:
    """A sentence for each model and task whose gates, pulled open, help their own examples and harm held-out ones."""
    sentences = []
    for (model, task), part in fits[fits["fit"] == "plus"].groupby(["model", "task"], sort=False):
        end = part.mean(numeric_only=True)
        if end["held_out_likelihood"] < end["ungated_likelihood"] < end["likelihood"]:
            sentences.append(
                f"{task}, {model}: the gates OVERFIT: log probability per token {end['likelihood']:.2f} nats on the "
                f"examples they were fitted to, {end['held_out_likelihood']:.2f} on held-out ones "
                f"({end['ungated_likelihood']:.2f} without gates); use more examples: a larger n, or your own file"
            )
    return sentences


# ---- roles -----------------------------------------------------------------------------------------


def role_rows(
    plus: np.ndarray, minus: np.ndarray, seeds: Sequence[int], heads: Order, about: dict[str, Any]
) -> pd.DataFrame:
    """One row per seed and head: both gates, three scores, the label."""
    layers, numbers = np.array(heads).T
    every = {"plus": plus, "minus": minus, **role_scores(plus, minus), "label": role_labels(plus, minus)}
    values = {name: array[:, layers, numbers] for name, array in every.items()}
    return long_table(about, [{"seed": seeds}, {"layer": layers, "head": numbers}], values)


def share_rows(labels: np.ndarray, exists: np.ndarray, about: dict[str, Any]) -> pd.DataFrame:
    """One row per label: heads that have it always, ever, and in the average seed."""
    table = pd.DataFrame([about | row for row in always_and_ever(labels, exists)])
    return table.assign(share=table["mean"] / table["heads"])


# ---- curves ----------------------------------------------------------------------------------------


def role_orders(plus: np.ndarray, minus: np.ndarray, heads: Order) -> dict[str, Order]:
    """Heads of one seed by each role's score, the highest first; ties keep the order of layer and head."""
    return {
        role: ranked(heads, [score[head] for head in heads], "signed")
        for role, score in role_scores(plus, minus).items()
    }


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
    about: dict[str, Any],
    groups: Sequence[str | None] | None = None,
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
        row = about | {"series": role, "action": "mask", "k": k, "metric": "logprob"}
        row |= {"value": float(point.mean()), "lo": band[0], "hi": band[1]}
        row |= {"n": values.shape[3], "seeds": len(values), "both_lo": both[0], "both_hi": both[1]}
        rows.append(row)
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
    of_example = {"example": numbers} | ({} if groups is None else {"group": np.array(groups, dtype=object)})
    axes: list[dict[str, Any]] = [{"draw": seeds}, {"series": ROLES}, {"k": ks}, of_example]
    table = long_table(about | {"action": "mask", "metric": "logprob"}, axes, {"value": values})
    columns = [*about, "series", "action", "k", "draw", "metric", "example", "value"]
    return table[[*columns, *(["group"] if groups is not None else [])]]


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


def joint_rows(
    top: np.ndarray,
    sets: np.ndarray,
    correlation: dict[str, float],
    about: dict[str, Any],
    groups: Sequence[str | None] | None = None,
) -> pd.DataFrame:
    """The joint effect of the most facilitating heads `[E]` beside that of random sets `[sets, E]`."""
    effects = sets.mean(axis=1)
    lo, hi = map(float, stats.mean_interval(top, groups=groups))
    row = {
        "effect": float(top.mean()),
        "lo": lo,
        "hi": hi,
        "random_mean": float(effects.mean()),
        "random_p99": float(np.quantile(effects, 0.99)),
        "larger_than": float((top.mean() > effects).mean()),
        "sets": len(effects),
        "n": len(top),
    }
    return pd.DataFrame([about | row | correlation])
