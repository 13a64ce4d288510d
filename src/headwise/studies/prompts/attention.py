"""What a condition does inside the model: attention profiles, how far each head moves, outputs, activations.

Everything is measured on tokens that all conditions share; of what is compared token by token, only on those after
the inserted ones, because nothing before them can change. Attention comes in arrays. Outputs and activations are large:
they come in tensors and are reduced to numbers on their device, while the model runs.

C conditions, E prompts, A shared tokens, L layers, H heads, T tokens, Q queries, D numbers per token, U units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headwise import stats
from headwise.heads import Head
from headwise.model.arm import mlp_gates, seen_gates
from headwise.model.attention.attention import attention
from headwise.model.forward.run import Pass
from headwise.model.model import Model
from headwise.model.tokens.spans import Located, aligned
from headwise.runs import Job, step
from headwise.stats.resampling import Groups
from headwise.studies.prompts.problems import Problems, applied, baseline_of
from headwise.studies.prompts.settings import ArmSettings
from headwise.tasks.conditions import Condition

_MOVED = ("moved", "on_inserted", "profile_change")
_AFFINE = ("slope", "r2", "r2_unchanged")
_ACTIVATIONS = ("near_zero", "near_zero_change", "kurtosis", "kurtosis_change")
"""The columns of each table that are means over prompts, with their intervals."""
_QUERIES = 32
"""Tokens whose attention is compared one by one, spread over those after the insertion."""
_NEAR = 1.4826 * 0.13
"""Near zero is below this many median absolute deviations of the baseline's |a|, as in ARM's own rule."""


@step(
    cost=lambda problems, conditions, **_: 2 * len(conditions) * len(problems.task),
    label="attention on {problems.name} with {model.name}",
)
def look_inside(
    job: Job,
    model: Model,
    problems: Problems,
    conditions: Sequence[Condition],
    arm: ArmSettings | None,
    heads: Sequence[Head],
    *,
    profile_prompts: int,
) -> dict[str, pd.DataFrame]:
    """Tables `moved`, `affine`, `activations` and `profiles` of one model on all of the problems.

    heads: whose profiles are wanted; without any, that of the head whose profile changes most. profile_prompts: how
    many problems a profile is the mean of.
    """
    names = [condition.name for condition in conditions]
    base, gates = names.index(baseline_of(conditions)), mlp_gates(model)
    others = {name: i for i, name in enumerate(names) if i != base}
    prompts = list(zip(*(problems.prompts(model, c) for c in conditions), strict=True))  # E, C
    measured: list[list[dict[str, np.ndarray]]] = []  # E, C
    profiles: list[list[np.ndarray]] = []  # of the first prompts, C
    for located in prompts:
        shared = aligned(located)  # C, A
        after = shared[:, _after(located, shared)]  # C, those of A after the insertion
        looks: dict[int, _Look] = {}
        for i in (base, *others.values()):  # the others are compared with the baseline
            with applied(conditions[i], model, arm):
                of_prompt = located[i], shared[i], after[i]
                looks[i] = _look(model, *of_prompt, gates, looks.get(base), problems.batch_tokens)
            job.advance(2)
        measured.append([_numbers(looks[base], looks[i]) for i in range(len(names))])
        if len(profiles) < profile_prompts:
            profiles.append([looks[i].profile for i in range(len(names))])
    numbers = {  # each E, C, …
        name: np.array([[one[name] for one in of_prompt] for of_prompt in measured])
        for name in measured[0][0]
    }
    for name in ("near_zero", "kurtosis"):
        numbers[f"{name}_change"] = numbers[name] - numbers[name][:, [base]]
    means = partial(_means, numbers=numbers, groups=problems.task.shared_groups())
    every = {name: i for i, name in enumerate(names) if gates}
    layers, of_heads = sorted(site.layer for site in model.hooks.sites), np.array(model.heads())
    tables = {
        "moved": means(others, {"layer": of_heads[:, 0], "head": of_heads[:, 1]}, _MOVED),
        "affine": means(others, {"layer": layers}, _AFFINE),
        "activations": means(every, {"layer": np.array(sorted(gates), dtype=np.int32)}, _ACTIVATIONS),
    }
    if not heads:
        inserted = [condition.name for condition in conditions if condition.text]
        heads = [most_changed(tables["moved"], inserted)] if others else model.heads()[:1]
    tables["profiles"] = _profile_table(model, names, heads, prompts[0], profiles)
    return {name: table for name, table in tables.items() if len(table)}


def most_changed(moved: pd.DataFrame, inserted: Sequence[str]) -> Head:
    """The head whose profile the inserted texts change most, on average over them; else over all conditions."""
    part = moved[moved["condition"].isin(inserted)]
    means = (part if len(part) else moved).groupby(["layer", "head"])["profile_change"].mean()
    return Head(*(int(number) for number in means.index[int(means.to_numpy().argmax())]))


# ---- one prompt -------------------------------------------------------------------------------------------


@dataclass
class _Look:
    """One prompt under one condition."""

    prompt: Located
    keys: np.ndarray  # A
    """The positions of the tokens that all conditions share."""
    profile: np.ndarray  # H, T
    rows: np.ndarray  # H, Q, T
    fits: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """layer -> affine fit of its outputs to those of the baseline."""
    activations: dict[int, tuple[float, float]] = field(default_factory=dict)
    """block -> share of its activations that are near zero, and their excess kurtosis."""
    outputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> after, H·D
    """Only of the baseline, on the device of the model."""
    bounds: dict[int, Tensor] = field(default_factory=dict)
    """Only of the baseline: block -> bound below which activations are near zero."""


def _after(located: Sequence[Located], shared: np.ndarray) -> np.ndarray:
    """`[A]`: which shared tokens stand after the first inserted one; all but the first where none is inserted."""
    after = np.arange(shared.shape[1]) > 0
    for prompt, positions in zip(located, shared, strict=True):
        if prompt.inserted.any():
            after &= positions > int(np.argmax(prompt.inserted))
    return after


def _look(
    model: Model,
    prompt: Located,
    keys: np.ndarray,
    after: np.ndarray,
    gates: dict[int, nn.Module],
    ground: _Look | None,
    batch_tokens: int | None,
) -> _Look:
    """Run one prompt under one condition; `after`: those of the shared tokens that stand after the insertion.

    ground: the same prompt under the baseline; None if this is the baseline, which is compared with itself.
    """
    picked = after[np.unique(np.linspace(0, len(after) - 1, _QUERIES).astype(int))] if len(after) else after
    queries = [int(query) for query in picked] or [-1]
    (looks,) = attention(model, [prompt.ids], queries=queries, keys=(0,), batch_tokens=batch_tokens)
    look = _Look(prompt, keys, looks.profile, looks.rows[:, : len(picked)])
    against = ground or look

    def see(block: int, of_tokens: Tensor) -> None:
        activations = of_tokens[after].float()
        if ground is None:
            look.bounds[block] = near_zero_bound(activations)
        look.activations[block] = near_zero(activations, against.bounds[block]), kurtosis(activations)

    def note(layer: int, z: Tensor) -> None:
        outputs = z[0, after].flatten(1)
        if ground is None:
            look.outputs[layer] = outputs
        look.fits[layer] = affine_fit(against.outputs[layer], outputs)

    forward = Pass(
        ids=torch.tensor([prompt.ids], device=model.device),
        scored=torch.zeros(1, 1, dtype=torch.long),
        heads=note,
        modules=seen_gates(gates, see),
    )
    with torch.inference_mode():
        model.run_whole(forward)  # `run` leaves out most of the last MLP
    return look


def _numbers(ground: _Look, look: _Look) -> dict[str, np.ndarray]:
    """Everything that becomes a mean over prompts: by head, by layer or by block."""
    by_head = {
        "moved": attention_moved(ground, look),
        "on_inserted": mean_of(look.rows[:, :, look.prompt.inserted].sum(2)),
        "profile_change": profile_change(ground, look),
    }
    fits, activations = ([part for _, part in sorted(of.items())] for of in (look.fits, look.activations))
    by_block = np.array(activations).reshape(-1, 2).T  # also where no activation can be seen
    by_layer = dict(zip(_AFFINE, np.array(fits).T, strict=True))
    return by_head | by_layer | dict(zip(("near_zero", "kurtosis"), by_block, strict=True))


# ---- measures ---------------------------------------------------------------------------------------------


def mean_of(by_query: np.ndarray) -> np.ndarray:
    """Mean over queries `[H, Q]`; NaN where no token stands after the insertion."""
    return by_query.mean(1) if by_query.shape[1] else np.full(len(by_query), np.nan)


def attention_moved(old: _Look, new: _Look) -> np.ndarray:
    """`[H]`: the share of its attention that a token now spends elsewhere, mean over the same tokens.

    Total variation between rows: half of all that is gained and lost, over shared keys and over the keys that only
    one of the two has (the inserted ones), which count as one. From 0 to 1.
    """
    shared = [look.rows.take(look.keys, axis=2) for look in (old, new)]
    changed = np.abs(np.subtract(*shared, dtype=np.float64)).sum(2)
    before, after = (np.delete(look.rows, look.keys, axis=2).sum(2, dtype=np.float64) for look in (old, new))
    return mean_of((changed + np.abs(after - before)) / 2)


def profile_change(old: _Look, new: _Look) -> np.ndarray:
    """`[H]`: mean |change| of the profile over shared keys, each weighted by the queries behind its mean.

    Unweighted, the last few keys would decide: their means are over one or two queries. The sum over keys is
    taken, so that it is attention per query.
    """
    last = old.profile.shape[1] - 1
    change = np.abs(new.profile[:, new.keys] - old.profile[:, old.keys])
    return np.nansum(change * (last - old.keys) / max(last, 1), axis=1)  # last − key: queries after the key


def affine_fit(old: Tensor, new: Tensor) -> tuple[float, float, float]:
    """(λ, R², R² of no change) of new[A, D] ≈ λ · old[A, D] + shift, one λ and one shift for all tokens.

    R² is the share of the spread of the new outputs over tokens that is explained. The third number takes λ = 1
    and the best shift. NaN for fewer than two tokens.
    """
    x, y = (part - part.mean(0) for part in (_float64(old), _float64(new)))
    total, inner = float((y * y).sum()), float((x * x).sum())
    if len(old) < 2 or total == 0 or inner == 0:
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


# ---- tables -----------------------------------------------------------------------------------------------


def _means(
    conditions: Mapping[str, int],
    labels: Mapping[str, Any],
    columns: Sequence[str],
    *,
    numbers: Mapping[str, np.ndarray],
    groups: Groups,
) -> pd.DataFrame:
    """The mean over prompts of each of these columns with its interval; conditions: by name, their places in C."""
    parts = []
    for name, i in conditions.items():
        part: dict[str, Any] = {"condition": name, **labels}
        for column in columns:
            values = numbers[column][:, i]
            lo, hi = stats.mean_interval(values, groups=groups)
            part |= {column: values.mean(0), f"{column}_lo": lo, f"{column}_hi": hi}
        parts.append(pd.DataFrame(part | {"n": len(values)}))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    # Of no change there is no interval: it is what the fit is compared with.
    return table.drop(columns=["r2_unchanged_lo", "r2_unchanged_hi"], errors="ignore")


def _profile_table(
    model: Model,
    names: Sequence[str],
    heads: Sequence[Head],
    first: Sequence[Located],
    profiles: Sequence[Sequence[np.ndarray]],
) -> pd.DataFrame:
    """Profiles of the chosen heads on the first prompt, or the mean over several, as far as the shortest goes."""
    rows, parts = model.heads(), []
    for name, prompt, positions, of_prompts in zip(
        names, first, aligned(first), zip(*profiles, strict=True), strict=True
    ):
        length = min(profile.shape[1] for profile in of_prompts)
        number = pd.array([pd.NA] * len(prompt.ids), dtype="Int32")
        number[positions] = np.arange(len(positions))
        columns = {
            "position": np.arange(length, dtype=np.int32),
            "token": model.text.readable(prompt.ids[:length]),
            "inserted": prompt.inserted[:length],
            "aligned": number[:length],
        }
        for head in heads:
            mean = np.mean([profile[rows.index(head), :length] for profile in of_prompts], axis=0)
            which = {"condition": name, "layer": np.int32(head.layer), "head": np.int32(head.head)}
            parts.append(pd.DataFrame(which | columns | {"attention": mean, "n": np.int32(len(profiles))}))
    return pd.concat(parts, ignore_index=True)
