"""What a condition does inside the model: attention profiles, how far each head moves, outputs, activations.

Everything is measured on tokens that all conditions share; of what is compared token by token, only on those after
the inserted ones, because nothing before them can change.

C conditions, E prompts, A shared tokens, L layers, H heads, T tokens, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from headwise import stats
from headwise.heads import Head
from headwise.model.arm.arm import arm, mlp_gates, seen_gates
from headwise.model.attention.attention import attention
from headwise.model.forward.run import Pass
from headwise.model.model import Model
from headwise.model.tokens.spans import Located, aligned
from headwise.studies.prompts.measures import (
    affine_fit,
    attention_moved,
    kurtosis,
    mean_of,
    near_zero,
    profile_change,
)
from headwise.tasks.conditions import ARM, Condition

_QUERIES = 32
"""Tokens whose attention is compared one by one, spread over those after the insertion."""


@dataclass
class _Seen:
    """One prompt under one condition."""

    profile: np.ndarray  # heads, T
    rows: np.ndarray  # heads, Q, T
    outputs: list[np.ndarray]  # of each layer with attention: after, H·D
    gates: dict[int, np.ndarray]  # block -> after, U


def inner_tables(
    model: Model,
    conditions: Sequence[Condition],
    prompts: dict[str, list[Located]],
    *,
    baseline: str,
    heads: Sequence[str] = (),
    profile_prompts: int = 1,
    arm_options: dict[str, Any] | None = None,
    groups: Sequence[str | None] | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables `moved`, `affine`, `activations` and `profiles` of one model; `prompts[condition][E]`.

    groups `[E]`: of the problems, where some share one.
    """
    names = [condition.name for condition in conditions]
    chosen = chosen_heads(model, heads)
    gates = mlp_gates(model)
    of_prompt: list[dict[str, np.ndarray]] = []  # per prompt: numbers by name, each [C, …]
    shown: list[tuple[np.ndarray, list[np.ndarray]]] = []
    for number in range(len(prompts[baseline])):
        located = [prompts[name][number] for name in names]
        shared = aligned(located)  # C, A
        after = _after(located, shared)
        seen = [
            _look(model, condition, one, places[after], gates, arm_options, batch_tokens)
            for condition, one, places in zip(conditions, located, shared, strict=True)
        ]
        of_prompt.append(_numbers(seen, names.index(baseline), located, shared))
        if number < profile_prompts:
            shown.append((shared, [one.profile for one in seen]))
        if advance:
            advance(1)
    numbers = {key: np.stack([one[key] for one in of_prompt]) for key in of_prompt[0]}  # E, C, …
    how = {"groups": groups, "seed": seed}
    tables = {
        "moved": _moved(model, names, baseline, numbers, how),
        "affine": _affine(model, names, baseline, numbers, how),
        "activations": _activations(names, baseline, numbers, how),
    }
    if not chosen and not len(tables["moved"]):
        chosen = model.heads()[:1]
    if not chosen:
        chosen = [most_changed(tables["moved"], [c.name for c in conditions if c.text])]
    first = [prompts[name][0] for name in names]
    tables["profiles"] = _profiles(model, names, chosen, first, shown)
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
    for one, places in zip(located, shared, strict=True):
        if one.inserted.any():
            after &= places > int(np.argmax(one.inserted))
    return after


def _look(
    model: Model,
    condition: Condition,
    prompt: Located,
    after: np.ndarray,
    gates: dict[int, nn.Module],
    arm_options: dict[str, Any] | None,
    batch_tokens: int | None,
) -> _Seen:
    picked = after[np.unique(np.linspace(0, len(after) - 1, _QUERIES).astype(int))] if len(after) else after
    activations: dict[int, np.ndarray] = {}
    outputs: dict[int, np.ndarray] = {}

    def see(block: int, of_tokens: torch.Tensor) -> None:
        activations[block] = of_tokens[after].float().cpu().numpy()

    def note(layer: int, z: torch.Tensor) -> torch.Tensor:
        outputs[layer] = z[0, after].flatten(1).float().cpu().numpy()
        return z

    with arm(model, **(arm_options or {})) if condition.kind == ARM else nullcontext():
        (found,) = attention(
            model,
            [prompt.ids],
            queries=[int(q) for q in picked] or [-1],
            keys=(0,),
            batch_tokens=batch_tokens,
        )
        asked = Pass(
            ids=torch.tensor([prompt.ids], device=model.device),
            scored=torch.zeros(1, 1, dtype=torch.long),
            heads=note,
            modules=seen_gates(gates, see),
        )
        with torch.inference_mode():
            model.run_whole(asked)  # `run` leaves out most of the last MLP
    rows = found.rows if len(picked) else found.rows[:, :0]
    return _Seen(found.profile, rows, [outputs[layer] for layer in sorted(outputs)], activations)


def _numbers(
    seen: Sequence[_Seen], base: int, located: Sequence[Located], shared: np.ndarray
) -> dict[str, np.ndarray]:
    """Everything that becomes a mean over prompts, each `[C, …]`."""
    ground, at = seen[base], shared[base]
    fits = np.array(
        [[affine_fit(old, new) for old, new in zip(ground.outputs, one.outputs, strict=True)] for one in seen]
    )  # C, L, 3
    blocks = sorted(ground.gates)
    near = [[near_zero(one.gates[b], ground.gates[b]) for b in blocks] for one in seen]
    tails = [[kurtosis(one.gates[b]) for b in blocks] for one in seen]
    places = list(zip(seen, located, shared, strict=True))
    return {
        "moved": np.array([attention_moved(ground.rows, at, one.rows, to) for one, _, to in places]),
        "on_inserted": np.array([mean_of(one.rows[:, :, p.inserted].sum(2)) for one, p, _ in places]),
        "profile_change": np.array(
            [profile_change(ground.profile, at, one.profile, to) for one, _, to in places]
        ),
        "fits": fits,
        "near_zero": np.array(near),
        "kurtosis": np.array(tails),
        "blocks": np.array(blocks),
    }


# ---- tables -----------------------------------------------------------------------------------------------


def _mean(values: np.ndarray, name: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """Columns: the mean over prompts `[E, …]` and its interval, flattened; `how`: seed and groups of the bootstrap."""
    lo, hi = stats.bootstrap_mean(values, **how)
    return {name: values.mean(0).ravel(), f"{name}_lo": lo.ravel(), f"{name}_hi": hi.ravel()}


def _moved(
    model: Model, names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], how: dict[str, Any]
) -> pd.DataFrame:
    heads = model.heads()
    parts = []
    for place, name in enumerate(names):
        if name != baseline:
            columns = _mean(numbers["moved"][:, place], "moved", how)
            columns |= _mean(numbers["on_inserted"][:, place], "on_inserted", how)
            columns |= _mean(numbers["profile_change"][:, place], "profile_change", how)
            about = {"condition": name, "layer": [h.layer for h in heads], "head": [h.head for h in heads]}
            parts.append(pd.DataFrame(about | columns | {"n": len(numbers["moved"])}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _affine(
    model: Model, names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], how: dict[str, Any]
) -> pd.DataFrame:
    layers = sorted(site.layer for site in model.hooks.sites)
    parts = []
    for place, name in enumerate(names):
        if name != baseline:
            fits = numbers["fits"][:, place]  # E, L, 3
            columns = _mean(fits[..., 0], "slope", how) | _mean(fits[..., 1], "r2", how)
            columns |= {"r2_unchanged": fits[..., 2].mean(0)}
            parts.append(pd.DataFrame({"condition": name, "layer": layers} | columns | {"n": len(fits)}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _activations(
    names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], how: dict[str, Any]
) -> pd.DataFrame:
    parts = []
    blocks, base = numbers["blocks"][0], names.index(baseline)
    for place, name in enumerate(names):
        if len(blocks):
            columns: dict[str, Any] = {"condition": name, "layer": blocks.astype(np.int32)}
            for kind in ("near_zero", "kurtosis"):
                values = numbers[kind]
                columns |= _mean(values[:, place], kind, how)
                columns |= _mean(values[:, place] - values[:, base], f"{kind}_change", how)
            parts.append(pd.DataFrame(columns | {"n": len(numbers["near_zero"])}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _profiles(
    model: Model,
    names: Sequence[str],
    heads: Sequence[Head],
    first: Sequence[Located],
    shown: Sequence[tuple[np.ndarray, list[np.ndarray]]],
) -> pd.DataFrame:
    """Profiles of the chosen heads on the first prompt, or the mean over several, as far as the shortest goes."""
    rows = model.heads()
    parts = []
    for place, (name, prompt) in enumerate(zip(names, first, strict=True)):
        length = min(profiles[place].shape[1] for _, profiles in shown)
        shared = shown[0][0][place]
        number = pd.array([pd.NA] * len(prompt.ids), dtype="Int32")
        number[shared] = np.arange(len(shared))
        for head in heads:
            mean = np.mean([profiles[place][rows.index(head), :length] for _, profiles in shown], axis=0)
            parts.append(
                pd.DataFrame(
                    {
                        "condition": name,
                        "layer": np.int32(head.layer),
                        "head": np.int32(head.head),
                        "position": np.arange(length, dtype=np.int32),
                        "token": [model.text.decode([token]) for token in prompt.ids[:length]],
                        "inserted": prompt.inserted[:length],
                        "aligned": number[:length],
                        "attention": mean,
                        "n": np.int32(len(shown)),
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)
