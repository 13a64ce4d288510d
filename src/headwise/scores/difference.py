"""Two models on the same examples: the paired change of every head's score and of the answers. Begin with `diff`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.heads import Scores, heads_of
from headwise.metrics import metric as metric_named
from headwise.model.load.load import load
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.sites.probe import input_width, is_transposed
from headwise.model.sites.sites import Site
from headwise.model.tokens.encode import encode_rows
from headwise.names import method_name
from headwise.scores.registry import method as method_named
from headwise.scores.registry import own_options
from headwise.scores.run import score
from headwise.stats.paired import compare_paired
from headwise.stats.resampling import Groups
from headwise.tables.frames import long_table, significant_first
from headwise.tasks import Task
from headwise.tasks import task as open_task

log = logging.getLogger("headwise")

ACCURACY = "accuracy"


@dataclass(frozen=True)
class Diff:
    """The scores of two models on the same examples, and their paired difference."""

    base: Scores
    tuned: Scores
    change: Scores
    """tuned − base, per example: positive where a head helps the tuned model more than the base model."""
    outcomes: pd.DataFrame
    """Accuracy and metric of both models with all heads, their difference, its interval and its test."""
    weights: np.ndarray | None = None
    """How much the weights of each head changed (`weight_change`); None where they cannot be compared."""
    seed: int = 0

    def table(self) -> pd.DataFrame:
        """One row per head, significant changes first: both scores, the difference, its interval, p and q.

        `weight_change` is ‖ΔW‖ / ‖W‖ of the head's weights, where they can be compared.
        """
        return diff_table(self.base, self.tuned, self.seed, self.weights)

    def plot(self) -> Any:
        """Draw both maps, the difference, the largest changes and the accuracies; returns the matplotlib figure."""
        from headwise.charts.comparison import difference_chart
        from headwise.charts.static import figure

        scores = pd.concat([self.base.table(self.seed), self.tuned.table(self.seed)], ignore_index=True)
        return figure(difference_chart(scores, self.table(), self.outcomes))

    def __repr__(self) -> str:
        table = self.table()
        first = ", ".join(f"L{r.layer}H{r.head} {r.difference:+.3g}" for r in table[:3].itertuples())
        accuracy = self.outcomes.set_index("metric").loc[ACCURACY]
        return (
            f"Diff({self.tuned.model} − {self.base.model}, {method_name(self.base.method, self.base.reference)} on "
            f"{self.base.task}, n = {self.base.n}; "
            f"accuracy {accuracy.base_value:.0%} → {accuracy.tuned_value:.0%}; {(table['q'] < 0.05).sum()} of "
            f"{len(table)} heads changed at q < .05; first: {first})"
        )

    def _repr_png_(self) -> bytes:
        """In a notebook, the maps."""
        from headwise.charts.style import png

        return png(self.plot())


def diff(
    base: Model | str | Path,
    tuned: Model | str | Path,
    task: Task | str | Path,
    method: str = "ablation",
    *,
    n: int | None = None,
    metric: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Diff:
    """Which heads changed between two models: the paired difference of each head's score, tuned − base.

    base, tuned: loaded models, or what `hw.load` takes (a folder may be an adapter). task: a task, or a name or file
    of which `n` examples are taken. method: any signed method with a value for every example. options: those of
    `hw.score`.
    """
    check_pairable(method, options)
    models = [model if isinstance(model, Model) else load(model) for model in (base, tuned)]
    check_same_heads(*models)
    if not isinstance(task, Task):
        task = open_task(task, n, seed=seed, model=models[0])
    check_same_tokens(models, [task, task])
    scores = [score(m, task, method, metric=metric, seed=seed, **options) for m in models]
    if scores[0].model == scores[1].model:
        scores = [
            replace(s, model=f"{s.model} ({w})") for s, w in zip(scores, ("base", "tuned"), strict=True)
        ]
    answers = [answer_table(model, task, metric) for model in models]
    names = {"base": scores[0].model, "tuned": scores[1].model}
    outcomes = outcome_table(task, answers[0], answers[1], seed).assign(**names)
    weights, problem = compare_weights(*models)
    if problem:
        log.warning(problem)
    return Diff(scores[0], scores[1], scores[1] - scores[0], outcomes, weights, seed)


def compare_weights(base: Model, tuned: Model) -> tuple[np.ndarray | None, str]:
    """How much the weights of each head changed; or None, and a sentence that says why they are not compared."""
    try:
        return weight_change(base, tuned), ""
    except HeadwiseError as error:
        return None, f"the weights of the two models are not compared: {error}"


# ---- what can be compared -------------------------------------------------------------------------------------------


def check_pairable(name: str, options: dict[str, Any]) -> None:
    """Refuse a method whose values have no sign, or that does not run every example on every head."""
    chosen = method_named(name)
    if not chosen.signed:
        raise HeadwiseError(
            f"the method {name!r} has no sign, so a difference of its scores does not say whether a head helps more "
            "or less; use a signed method, such as ablation or attribution"
        )
    if getattr(chosen.settings(**own_options(name, options)), "stops_early", False):
        raise HeadwiseError(
            "precision and top run a head on some of the examples only, and a paired difference needs all of them for "
            "both models; leave precision and top out, and choose the number of examples by n"
        )


def check_same_heads(base: Model, tuned: Model) -> None:
    """Refuse two models that do not have the same heads."""
    if base.shape != tuned.shape or (base.exists != tuned.exists).any():
        described = [f"{m.name} has {m.shape[0]} layers × {m.shape[1]} heads" for m in (base, tuned)]
        if base.shape == tuned.shape:
            described = [f"{m.name} has {int(m.exists.sum())} heads" for m in (base, tuned)]
            described[1] += " in other layers"
        raise HeadwiseError(
            f"{described[0]} and {described[1]}; diff compares head by head, so give two models with the same "
            "architecture, such as a model and its fine-tuned version"
        )


def check_same_tokens(models: Sequence[Model], tasks: Sequence[Task]) -> None:
    """Refuse two models that do not read the same tokens; `tasks` are the examples as made for each of them."""
    if len({len(task) for task in tasks}) > 1:
        raise HeadwiseError(
            f"{tasks[0].name} has {len(tasks[0])} examples for {models[0].name} and {len(tasks[1])} for "
            f"{models[1].name}, so their scores cannot be paired; compare models with the same tokenizer"
        )
    rows = [encode_rows(m.text, t.examples, "candidates") for m, t in zip(models, tasks, strict=True)]
    for a, b in zip(*rows, strict=False):
        if a != b:
            raise HeadwiseError(
                f"{models[0].name} and {models[1].name} read different tokens in example {a.example + 1} of "
                f"{tasks[0].name} ({len(a.ids)} and {len(b.ids)} tokens), so their scores cannot be paired; compare "
                "models with the same tokenizer"
            )


# ---- numbers --------------------------------------------------------------------------------------------------------


def diff_table(base: Scores, tuned: Scores, seed: int = 0, weights: np.ndarray | None = None) -> pd.DataFrame:
    """One row per head: both scores, tuned − base, its interval, p and q, and the change of its `weights`.

    p: sign-flip test over examples; q: Benjamini–Hochberg over heads. Significant changes (q < .05) come first, the
    largest first, then all others by size: a noisy head can have the largest mean change by chance.
    """
    change = tuned - base
    table = significant_first(change.table(seed)).reset_index(drop=True)
    heads, table = heads_of(table), table.rename(columns={"score": "difference"})
    both = {"base_score": base, "tuned_score": tuned}
    scores = {name: [one[head] for head in heads] for name, one in both.items()}
    table = table.assign(base=base.model, tuned=tuned.model, **scores)
    columns = ["task", "method", "base", "tuned", "layer", "head", *both]
    columns += ["difference", "stderr", "lo", "hi", "n", "p", "q"]
    if weights is not None:
        table["weight_change"] = [weights[head] if head.head >= 0 else np.nan for head in heads]
        columns.append("weight_change")
    return table[[*columns, "metric", "reference"]]


def answer_table(model: Model, task: Task, metric: str | None, **options: Any) -> pd.DataFrame:
    """Accuracy, and the metric where it does not compare the model with itself, of each example with all heads."""
    measured = [metric_named(name) for name in dict.fromkeys((ACCURACY, metric or task.metric))]
    values = {m.name: Engine(model, task, m, **options).full() for m in measured if not m.compares}
    axes: list[dict[str, Any]] = [{"metric": list(values)}, {"example": task.numbers}]
    names = {"model": model.name, "task": task.name}
    return long_table(names, axes, {"value": np.stack(list(values.values()))})


def outcome_table(task: Task, base: pd.DataFrame, tuned: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """A row per metric, from the `answer_table` of both models."""
    rows = []
    for metric in base["metric"].unique():
        before, after = (table["value"][table["metric"] == metric].to_numpy() for table in (base, tuned))
        row = {"task": task.name, "base": base["model"].iloc[0], "tuned": tuned["model"].iloc[0]}
        rows.append(row | {"metric": metric} | outcome(metric, before, after, task.shared_groups(), seed))
    return pd.DataFrame(rows)


def outcome(metric: str, base: np.ndarray, tuned: np.ndarray, groups: Groups, seed: int) -> dict[str, Any]:
    """How well both models do with all heads: means, tuned − base with its interval, and a paired test."""
    columns = np.stack([base, tuned, tuned - base], axis=1)  # E, 3
    intervals = [stats.metric_interval(values, groups=groups) for values in (base, tuned)]
    lo, hi = zip(*intervals, stats.difference_interval(tuned, base, groups=groups), strict=True)
    row: dict[str, Any] = {}
    for number, name in enumerate(("base_", "tuned_", "")):
        row |= {f"{name}value" if name else "difference": columns[:, number].mean()}
        row |= {f"{name}lo": float(lo[number]), f"{name}hi": float(hi[number])}
    if metric == ACCURACY:
        tested = compare_paired(base, tuned, groups=groups, seed=seed)
        p, test = tested.p, tested.test
    else:
        p, test = float(stats.sign_flip(columns[:, 2:], groups=groups, seed=seed)[0]), "sign flip"
    better = {"only_base": int((base > tuned).sum()), "only_tuned": int((tuned > base).sum())}
    return row | {"p": p, "test": test, **better, "n": len(base)}


_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = {"qkv_proj": "o_proj", "c_attn": "c_proj"}
"""One matrix with all queries, then all keys, then all values -> the output projection beside it. Other matrices have
these names too, with other orders."""


def weight_change(base: Model, tuned: Model) -> np.ndarray:
    """‖W_tuned − W_base‖ / ‖W_base‖ of every head (Frobenius norm), `[L, H]`; NaN where there is no head.

    Of a layer with an adapter that is not merged the effective weights count. Raises where weights cannot be read.
    """
    found = np.full(base.shape, np.nan)
    for site, other in zip(base.hooks.sites, tuned.hooks.sites, strict=True):
        changed, whole = np.zeros(site.heads), np.zeros(site.heads)
        parts = zip(_parts(base, site), _parts(tuned, other), strict=True)
        for (count, before), (other_count, after) in parts:
            if (count, before.shape) != (other_count, after.shape):
                raise HeadwiseError(
                    f"the projections of layer {site.layer} have other shapes in {tuned.name} than in {base.name}"
                )
            before, after = before.float(), after.to(before.device).float()
            for norms, matrix in ((changed, after - before), (whole, before)):
                squares = matrix.reshape(count, -1).square().sum(1).cpu().numpy()
                norms += np.repeat(squares, site.heads // count)  # a group's rows count for each of its heads
        found[site.layer, : site.heads] = np.sqrt(changed / np.where(whole > 0, whole, np.nan))
    return found


def _parts(model: Model, site: Site) -> Iterator[tuple[int, Tensor]]:
    """Each projection of a layer: how many heads or groups its rows belong to, and the rows, `[rows, ...]`."""
    output = site.projections[0]
    owners = [site.module, *(one for one in model.hf.modules() if output in one.children())]
    counts = (site.heads, site.kv_heads, site.kv_heads)
    for owner in owners:
        parts = [getattr(owner, name, None) for name in _SEPARATE]
        fused = next((getattr(owner, name) for name in _FUSED if _has(owner, name)), None)
        if all(isinstance(part, nn.Module) for part in parts):
            matrices = [_matrix(part, model) for part in parts]
        elif fused is not None:
            matrix = _matrix(fused, model)
            width = len(matrix) // sum(counts)
            matrices = list(matrix.split([count * width for count in counts]))
        else:
            continue
        rows = [*zip(counts, matrices, strict=True), (site.heads, _matrix(output, model).T)]
        if all(len(matrix) % count == 0 for count, matrix in rows):
            yield from rows
            return
    raise HeadwiseError(
        f"the query, key and value projections of {model.name} ({type(model.hf).__name__}) cannot be told apart"
    )


def _has(owner: nn.Module, name: str) -> bool:
    fused = getattr(owner, name, None)
    return (
        isinstance(fused, nn.Module)
        and hasattr(owner, _FUSED[name])
        and (name != "c_attn" or is_transposed(fused))
    )


def _matrix(projection: Any, model: Model) -> Tensor:
    """The weights `[out, in]` that a projection applies; with an adapter, packed or offloaded: found by applying it."""
    weight = getattr(projection, "weight", None)
    if type(projection) is nn.Linear and isinstance(weight, Tensor) and not weight.is_meta:
        return weight.detach()
    if is_transposed(projection) and isinstance(weight, Tensor) and not weight.is_meta:
        return weight.detach().T
    with torch.no_grad():
        one = torch.eye(input_width(projection), device=model.device, dtype=model.dtype)
        contribution: Tensor = projection(one) - projection(torch.zeros_like(one[:1]))
    return contribution.T
