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
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.arm import arm
from headwise.model.attention import attention
from headwise.model.load import Model
from headwise.model.mlp_gates import mlp_gates, watching_gates
from headwise.model.spans import Located, aligned
from headwise.model.unembed import logits_at
from headwise.tasks.conditions import ARM, Condition

_QUERIES = 32
"""Tokens whose attention is compared one by one, spread over those after the insertion."""
_NEAR = 1.4826 * 0.13
"""Near zero is below this many median absolute deviations of the baseline's |a|, as in ARM's own rule."""


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
    seed: int = 0,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables `moved`, `affine`, `activations` and `profiles` of one model; `prompts[condition][E]`."""
    names = [condition.name for condition in conditions]
    chosen = [Head.parse(name) for name in heads]
    for head in chosen:
        if head not in model.heads():
            raise HeadwiseError(
                f"{model.name} has no head {head}; it has {model.shape[0]} layers of up to {model.shape[1]}"
            )
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
    tables = {
        "moved": _moved(model, names, baseline, numbers, seed),
        "affine": _affine(model, names, baseline, numbers, seed),
        "activations": _activations(names, baseline, numbers, seed),
    }
    if not chosen:
        chosen = [most_changed(tables["moved"], [c.name for c in conditions if c.text])]
    first = [prompts[name][0] for name in names]
    tables["profiles"] = _profiles(model, names, chosen, first, shown)
    return {name: table for name, table in tables.items() if len(table)}


def most_changed(moved: pd.DataFrame, inserted: Sequence[str]) -> Head:
    """The head whose profile the inserted texts change most, on average over them; else over all conditions."""
    part = moved[moved["condition"].isin(inserted)] if inserted else moved
    if not len(part):
        return Head(0, 0)
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
        with torch.inference_mode(), watching_gates(gates, see), model.visiting(note):
            # Not `model.logits`, which leaves out most of the last MLP.
            logits_at(
                model.hf, torch.tensor([prompt.ids], device=model.device), torch.zeros(1, 1, dtype=torch.long)
            )
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
        "on_inserted": np.array([_mean_of(one.rows[:, :, p.inserted].sum(2)) for one, p, _ in places]),
        "profile_change": np.array(
            [profile_change(ground.profile, at, one.profile, to) for one, _, to in places]
        ),
        "fits": fits,
        "near_zero": np.array(near),
        "kurtosis": np.array(tails),
        "blocks": np.array(blocks),
    }


def _mean_of(by_query: np.ndarray) -> np.ndarray:
    """Mean over queries `[heads, Q]`; NaN where no token stands after the insertion."""
    return by_query.mean(1) if by_query.shape[1] else np.full(len(by_query), np.nan)


def attention_moved(
    old: np.ndarray, old_keys: np.ndarray, new: np.ndarray, new_keys: np.ndarray
) -> np.ndarray:
    """`[heads]`: the share of its attention that a token now spends elsewhere, mean over the same tokens.

    Total variation between rows `[heads, Q, T]`: half of all that is gained and lost, over shared keys and over
    the keys that only one of the two has (the inserted ones), which count as one. From 0 to 1.
    """
    x, y = old.astype(np.float64), new.astype(np.float64)
    changed = np.abs(y[:, :, new_keys] - x[:, :, old_keys]).sum(2)
    alone = [np.delete(rows, keys, axis=2).sum(2) for rows, keys in ((x, old_keys), (y, new_keys))]
    return _mean_of((changed + np.abs(alone[1] - alone[0])) / 2)


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


def affine_fit(old: np.ndarray, new: np.ndarray) -> tuple[float, float, float]:
    """(λ, R², R² of no change) of new[A, D] ≈ λ · old[A, D] + shift, one λ and one shift for all tokens.

    R² is the share of the spread of the new outputs over tokens that is explained. The third number takes λ = 1
    and the best shift. NaN for fewer than two tokens.
    """
    if len(old) < 2:
        return float("nan"), float("nan"), float("nan")
    x, y = (part.astype(np.float64) - part.mean(0, dtype=np.float64) for part in (old, new))
    total, inner = float((y * y).sum()), float((x * x).sum())
    if total == 0 or inner == 0:
        return float("nan"), float("nan"), float("nan")
    slope = float((x * y).sum()) / inner
    left = y - slope * x
    return slope, 1 - float((left * left).sum()) / total, 1 - float(((y - x) ** 2).sum()) / total


def near_zero(gates: np.ndarray, ground: np.ndarray) -> float:
    """Share of activations below a bound that is set by the baseline's, so that conditions are comparable."""
    if not gates.size:
        return float("nan")
    size = np.abs(ground)
    bound = _NEAR * np.median(np.abs(size - np.median(size)))
    return float((np.abs(gates) < bound).mean())


def kurtosis(gates: np.ndarray) -> float:
    """Excess kurtosis over all tokens and units: 0 for a normal distribution, large for rare large values."""
    if not gates.size:
        return float("nan")
    centred = gates.astype(np.float64) - gates.mean(dtype=np.float64)
    spread = float((centred**2).mean())
    return float((centred**4).mean()) / spread**2 - 3 if spread else float("nan")


# ---- tables -----------------------------------------------------------------------------------------------


def _mean(values: np.ndarray, name: str, seed: int) -> dict[str, np.ndarray]:
    """Columns: the mean over prompts `[E, …]` and its interval, flattened."""
    lo, hi = stats.bootstrap_mean(values, seed=seed)
    return {name: values.mean(0).ravel(), f"{name}_lo": lo.ravel(), f"{name}_hi": hi.ravel()}


def _moved(
    model: Model, names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], seed: int
) -> pd.DataFrame:
    heads = model.heads()
    parts = []
    for place, name in enumerate(names):
        if name != baseline:
            columns = _mean(numbers["moved"][:, place], "moved", seed)
            columns |= _mean(numbers["on_inserted"][:, place], "on_inserted", seed)
            columns |= _mean(numbers["profile_change"][:, place], "profile_change", seed)
            about = {"condition": name, "layer": [h.layer for h in heads], "head": [h.head for h in heads]}
            parts.append(pd.DataFrame(about | columns | {"n": len(numbers["moved"])}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _affine(
    model: Model, names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], seed: int
) -> pd.DataFrame:
    layers = sorted(site.layer for site in model.reach.sites)
    parts = []
    for place, name in enumerate(names):
        if name != baseline:
            fits = numbers["fits"][:, place]  # E, L, 3
            columns = _mean(fits[..., 0], "slope", seed) | _mean(fits[..., 1], "r2", seed)
            columns |= {"r2_unchanged": fits[..., 2].mean(0)}
            parts.append(pd.DataFrame({"condition": name, "layer": layers} | columns | {"n": len(fits)}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _activations(
    names: Sequence[str], baseline: str, numbers: dict[str, np.ndarray], seed: int
) -> pd.DataFrame:
    parts = []
    blocks, base = numbers["blocks"][0], names.index(baseline)
    for place, name in enumerate(names):
        if len(blocks):
            columns: dict[str, Any] = {"condition": name, "layer": blocks.astype(np.int32)}
            for kind in ("near_zero", "kurtosis"):
                values = numbers[kind]
                columns |= _mean(values[:, place], kind, seed)
                columns |= _mean(values[:, place] - values[:, base], f"{kind}_change", seed)
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
