"""What a condition does inside the model: attention profiles, how far each head moves, outputs, activations.

Everything is measured on tokens that all conditions share; of what is compared token by token, only on those after
the inserted ones, because nothing before them can change.

C conditions, E prompts, A shared tokens, L layers, H heads, T tokens, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from headwise import stats
from headwise.heads import Head
from headwise.model.arm.arm import mlp_gates, seen_gates
from headwise.model.attention.attention import attention
from headwise.model.forward.run import Pass
from headwise.model.model import Model
from headwise.model.tokens.spans import Located, aligned
from headwise.stats.resampling import Groups
from headwise.studies.prompts.measures import (
    affine_fit,
    attention_moved,
    kurtosis,
    mean_of,
    near_zero,
    near_zero_bound,
    profile_change,
)
from headwise.studies.prompts.problems import ProblemSet, applied, baseline_of
from headwise.studies.prompts.settings import PromptsSettings
from headwise.tasks.conditions import Condition

_MOVED = ("moved", "on_inserted", "profile_change")
_AFFINE = ("slope", "r2", "r2_unchanged")
_ACTIVATIONS = ("near_zero", "near_zero_change", "kurtosis", "kurtosis_change")
"""The columns of each table that are means over prompts, with their intervals."""
_QUERIES = 32
"""Tokens whose attention is compared one by one, spread over those after the insertion."""


@dataclass
class _Seen:
    """One prompt under one condition. Outputs and activations are reduced to numbers while the model runs."""

    profile: np.ndarray  # heads, T
    rows: np.ndarray  # heads, Q, T
    fits: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """layer -> affine fit of its outputs to those of the baseline."""
    near_zero: dict[int, float] = field(default_factory=dict)
    """block -> share of its activations that are near zero."""
    kurtosis: dict[int, float] = field(default_factory=dict)
    """block -> excess kurtosis of its activations."""
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> after, H·D
    """Only of the baseline, on the device of the model."""
    bounds: dict[int, torch.Tensor] = field(default_factory=dict)
    """Only of the baseline: block -> bound below which activations are near zero."""


def inner_tables(
    model: Model,
    problems: ProblemSet,
    conditions: Mapping[str, Condition],
    settings: PromptsSettings,
    advance: Callable[[int], None] | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables `moved`, `affine`, `activations` and `profiles` of one model on all of the problems."""
    names, base = list(conditions), list(conditions).index(baseline_of(conditions))
    gates = mlp_gates(model)
    prompts = list(zip(*(problems.prompts(model, c) for c in conditions.values()), strict=True))  # E, C
    of_prompt: list[dict[str, np.ndarray]] = []  # per prompt: numbers by name, each [C, …]
    profiled: list[tuple[np.ndarray, list[np.ndarray]]] = []
    for located in prompts:
        shared = aligned(located)  # C, A
        after = shared[:, _after(located, shared)]  # C, those of A after the insertion
        asked = list(zip(conditions.values(), located, after, strict=True))
        ground = _look(model, *asked[base], gates, settings)  # first: the others are compared with it
        seen = [
            ground if i == base else _look(model, *one, gates, settings, ground)
            for i, one in enumerate(asked)
        ]
        of_prompt.append(_numbers(seen, base, located, shared))
        if len(profiled) < settings.profile_prompts:
            profiled.append((shared, [one.profile for one in seen]))
        if advance:
            advance(1)
    numbers = {key: np.stack([one[key] for one in of_prompt]) for key in of_prompt[0]}  # E, C, …
    groups = problems.groups
    every = {name: i for i, name in enumerate(names)}
    others = {name: i for name, i in every.items() if i != base}
    heads, layers = np.array(model.heads()), sorted(site.layer for site in model.hooks.sites)
    blocks = np.array(sorted(gates), dtype=np.int32)
    tables = {
        "moved": _means(others, {"layer": heads[:, 0], "head": heads[:, 1]}, numbers, _MOVED, groups),
        "affine": _means(others, {"layer": layers}, numbers, _AFFINE, groups),
        "activations": _means(every if gates else {}, {"layer": blocks}, numbers, _ACTIVATIONS, groups),
    }
    chosen = chosen_heads(model, settings.heads)
    if not chosen and len(tables["moved"]):
        chosen = [most_changed(tables["moved"], [c.name for c in conditions.values() if c.text])]
    tables["profiles"] = _profiles(model, names, chosen or model.heads()[:1], prompts[0], profiled)
    return {name: table for name, table in tables.items() if len(table)}


def chosen_heads(model: Model, names: Sequence[str]) -> list[Head]:
    """The heads of these names, or an error that says which one the model does not have."""
    heads = [Head.parse(name) for name in names]
    model.check_heads(heads)
    return heads


def most_changed(moved: pd.DataFrame, inserted: Sequence[str]) -> Head:
    """The head whose profile the inserted texts change most, on average over them; else over all conditions."""
    part = moved[moved["condition"].isin(inserted)]
    part = part if len(part) else moved
    means = part.groupby(["layer", "head"])["profile_change"].mean()
    return Head(*(int(number) for number in means.index[int(means.to_numpy().argmax())]))


# ---- one prompt -------------------------------------------------------------------------------------------


def _after(located: Sequence[Located], shared: np.ndarray) -> np.ndarray:
    """`[A]`: which shared tokens stand after the first inserted one; all but the first where none is inserted."""
    after = np.arange(shared.shape[1]) > 0
    for prompt, positions in zip(located, shared, strict=True):
        if prompt.inserted.any():
            after &= positions > int(np.argmax(prompt.inserted))
    return after


def _look(
    model: Model,
    condition: Condition,
    prompt: Located,
    after: np.ndarray,
    gates: dict[int, nn.Module],
    settings: PromptsSettings,
    ground: _Seen | None = None,
) -> _Seen:
    """Run one prompt under one condition; `after`: the positions of the shared tokens after the insertion.

    ground: the same prompt under the baseline; None if this is the baseline, which is compared with itself.
    """
    picked = after[np.unique(np.linspace(0, len(after) - 1, _QUERIES).astype(int))] if len(after) else after
    with applied(condition, model, settings):
        queries = [int(query) for query in picked] or [-1]
        (looks,) = attention(
            model, [prompt.ids], queries=queries, keys=(0,), batch_tokens=settings.batch_tokens
        )
        seen = _Seen(looks.profile, looks.rows if len(picked) else looks.rows[:, :0])
        against = ground or seen

        def see(block: int, of_tokens: torch.Tensor) -> None:
            activations = of_tokens[after].float()
            if ground is None:
                seen.bounds[block] = near_zero_bound(activations)
            seen.near_zero[block] = near_zero(activations, against.bounds[block])
            seen.kurtosis[block] = kurtosis(activations)

        def note(layer: int, z: torch.Tensor) -> torch.Tensor:
            outputs = z[0, after].flatten(1)
            if ground is None:
                seen.outputs[layer] = outputs
            seen.fits[layer] = affine_fit(against.outputs[layer], outputs)
            return z

        forward = Pass(
            ids=torch.tensor([prompt.ids], device=model.device),
            scored=torch.zeros(1, 1, dtype=torch.long),
            heads=note,
            modules=seen_gates(gates, see),
        )
        with torch.inference_mode():
            model.run_whole(forward)  # `run` leaves out most of the last MLP
    return seen


def _numbers(
    seen: Sequence[_Seen], base: int, located: Sequence[Located], shared: np.ndarray
) -> dict[str, np.ndarray]:
    """Everything that becomes a mean over prompts, each `[C, …]`."""
    ground, at = seen[base], shared[base]
    blocks, layers = sorted(ground.kurtosis), sorted(ground.fits)
    placed = list(zip(seen, located, shared, strict=True))
    fits = [[one.fits[layer] for layer in layers] for one in seen]
    lists: dict[str, list[Any]] = {
        "moved": [attention_moved(ground.rows, at, one.rows, to) for one, _, to in placed],
        "on_inserted": [mean_of(one.rows[:, :, prompt.inserted].sum(2)) for one, prompt, _ in placed],
        "profile_change": [profile_change(ground.profile, at, one.profile, to) for one, _, to in placed],
        "near_zero": [[one.near_zero[block] for block in blocks] for one in seen],
        "kurtosis": [[one.kurtosis[block] for block in blocks] for one in seen],
    }
    numbers = {name: np.array(values) for name, values in lists.items()}
    numbers |= zip(_AFFINE, np.moveaxis(np.array(fits), 2, 0), strict=True)  # from C, L, 3
    return numbers | {
        f"{name}_change": numbers[name] - numbers[name][base] for name in ("near_zero", "kurtosis")
    }


# ---- tables -----------------------------------------------------------------------------------------------


def _means(
    conditions: Mapping[str, int],
    about: Mapping[str, Any],
    numbers: Mapping[str, np.ndarray],
    columns: Sequence[str],
    groups: Groups,
) -> pd.DataFrame:
    """The mean over prompts of each of these numbers `[E, C, …]` with its interval.

    conditions: their indices in the second axis; groups: of the prompts.
    """
    parts = []
    for name, i in conditions.items():
        part: dict[str, Any] = {"condition": name, **about}
        for column in columns:
            values = numbers[column][:, i]
            lo, hi = stats.mean_interval(values, groups=groups)
            part |= {column: values.mean(0), f"{column}_lo": lo, f"{column}_hi": hi}
        parts.append(pd.DataFrame(part | {"n": len(values)}))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    # Of no change there is no interval: it is what the fit is compared with.
    return table.drop(columns=["r2_unchanged_lo", "r2_unchanged_hi"], errors="ignore")


def _profiles(
    model: Model,
    names: Sequence[str],
    heads: Sequence[Head],
    first: Sequence[Located],
    profiled: Sequence[tuple[np.ndarray, list[np.ndarray]]],
) -> pd.DataFrame:
    """Profiles of the chosen heads on the first prompt, or the mean over several, as far as the shortest goes."""
    rows = model.heads()
    parts = []
    for i, (name, prompt) in enumerate(zip(names, first, strict=True)):
        length = min(profiles[i].shape[1] for _, profiles in profiled)
        shared = profiled[0][0][i]
        number = pd.array([pd.NA] * len(prompt.ids), dtype="Int32")
        number[shared] = np.arange(len(shared))
        about = {
            "position": np.arange(length, dtype=np.int32),
            "token": model.text.readable(prompt.ids[:length]),
            "inserted": prompt.inserted[:length],
            "aligned": number[:length],
        }
        for head in heads:
            mean = np.mean([profiles[i][rows.index(head), :length] for _, profiles in profiled], axis=0)
            which = {"condition": name, "layer": np.int32(head.layer), "head": np.int32(head.head)}
            parts.append(pd.DataFrame(which | about | {"attention": mean, "n": np.int32(len(profiled))}))
    return pd.concat(parts, ignore_index=True)
