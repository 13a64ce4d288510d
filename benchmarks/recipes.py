"""Other published ways to rank components for a circuit, beside `nested`: same model, examples, metric and rows.

    python benchmarks/recipes.py --device cuda --out DIR --model smollm2 --model gemma=FILE.gguf     five minutes
    python benchmarks/recipes.py --quick --out DIR                   a check of every part on a CPU, not a measurement
    python benchmarks/recipes_table.py DIR                           the numbers of the page, from the files in DIR

Each recipe is written here from its paper; what differs from the paper is said beside it. All are trained through one
engine on the first half of a task, with the same number of rows (one example under one set of gates, forward and
backward), and every order is measured on the other half. Components are heads, MLPs and the embeddings under
counterfactual patching (as in MIB, arXiv 2504.13151), and heads alone under mean ablation. Pairs of model and task run
in processes of their own; each part of a pair is a file, and a part whose file is there is not run again.

N components, S seeds, R rows of an update, E examples, K sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import headwise as hw
from common import about, timed
from headwise.errors import HeadwiseError
from headwise.files import replacing
from headwise.heads import COMPONENTS, keep_gates, ones
from headwise.metrics import metric as metric_named
from headwise.model.forward.kernels import tf32_products
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.scores.gates.row_gradients import batches
from headwise.scores.nested.fit import NestedFit, fit_orders, row_losses
from headwise.scores.nested.problem import Problem, grid_sizes, mask_gradient, soft_masks
from headwise.sweeps.mib import FRACTIONS
from headwise.tasks import Task

TASKS = ("ioi_long", "docstring", "greater_than", "ioi")  # the longest prompts first
ROWS = 2000
"""Rows of a fit."""
STEP_ROWS = 4
"""Rows of one update of the recipes below."""
SHARED_TOKENS = 8_192
"""Tokens of a pass where several processes share the memory of one GPU."""
GRID = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 180, 256, 360)
"""Sizes at which the first seed of every recipe is measured, beside MIB's."""

# ---- the recipes --------------------------------------------------------------------------------------
# A recipe has a state for every seed. `masks` draws what an update runs, `learn` takes the loss's slope by each mask.


class Adam:
    """Kingma and Ba 2015 (arXiv 1412.6980); without weight decay AdamW is the same."""

    def __init__(self, rate: float, second: float = 0.999) -> None:
        self.rate, self._betas, self._step = rate, (0.9, second), 0
        self._mean: np.ndarray | float = 0.0
        self._square: np.ndarray | float = 0.0

    def __call__(self, gradient: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """How far to go down."""
        first, second = self._betas
        self._step += 1
        self._mean = first * self._mean + (1 - first) * gradient
        self._square = second * self._square + (1 - second) * gradient**2
        size = np.sqrt(self._square / (1 - second**self._step)) + 1e-8
        return self.rate * factor * (self._mean / (1 - first**self._step)) / size


def copy_slopes(errors: np.ndarray) -> np.ndarray:
    """Slope of the Huber loss of each row's own error: for recipes whose loss is KL to the whole model."""
    return row_losses(errors[:, None], "match", 0.0, 1.0)[1][:, 0]


def most_slopes(errors: np.ndarray) -> np.ndarray:
    """Slope of minus the metric: as much of it as possible."""
    return np.full(errors.shape, -1.0)


def distance_slopes(errors: np.ndarray) -> np.ndarray:
    """Slope of |1 − explained effect|, the height under CMD."""
    return np.sign(errors)


Slopes = Callable[[np.ndarray], np.ndarray]


@dataclass
class Recipe:
    """The state of S seeds of one recipe."""

    size: int  # N
    seeds: Sequence[int]
    updates: int
    slopes: Slopes

    def __post_init__(self) -> None:
        self.random = [np.random.default_rng([seed, 21]) for seed in self.seeds]
        self.done = 0
        self.values = np.zeros((len(self.seeds), self.size))
        """What components are ranked by `[S, N]`."""
        self.start()

    def start(self) -> None: ...

    def masks(self) -> np.ndarray:
        """What each row of an update keeps `[S, R, N]`."""
        raise NotImplementedError

    def learn(self, by_mask: np.ndarray) -> None:
        """by_mask `[S, R, N]`: the gradient of each row's loss by its mask."""
        raise NotImplementedError

    def uniform(self, *shape: int) -> np.ndarray:
        return np.stack([random.uniform(size=shape) for random in self.random])


@dataclass
class Mattr(Recipe):
    """Matryoshka attribution (Arora et al. 2026, arXiv 2609.25518).

    One score per component, from 0. Each update draws a size k and keeps sigmoid((s − τ)/T), T = .5, with τ such that
    the mask sums to k; Adam, rate .05, 500 updates; the loss is minus the logit difference. As in its repository, k is
    uniform between 1 and N; `log`: log-uniform. Here: the task's metric, and all rows of an update share the mask.
    """

    log: bool = False
    temperature = 0.5

    def start(self) -> None:
        self.adam = Adam(0.05 * 500 / max(1, self.updates))

    def masks(self) -> np.ndarray:
        u = self.uniform()
        sizes = np.exp(u * np.log(self.size)) if self.log else 1 + u * (self.size - 1)
        self.soft = soft_masks(self.values, sizes, self.temperature)
        return np.repeat(self.soft[:, None], STEP_ROWS, axis=1)

    def learn(self, by_mask: np.ndarray) -> None:
        self.values -= self.adam(mask_gradient(self.soft, by_mask.mean(1), self.temperature))


@dataclass
class Ugs(Recipe):
    """Uniform gradient sampling (Li and Janson 2024, arXiv 2409.09951).

    Each component is kept with probability p = sigmoid(θ), θ = 1 at the start. A row's gate is uniform in (0, 1) with
    probability p (1 − p), else 0 or 1 with mean p; the gradient by p is the mean over the rows whose gate was uniform.
    The loss has λ Σp more; AdamW with β₂ = .995, gradient norm at most 5. Here: the Huber loss of the metric instead of
    KL; λ = 1/N in shares of the effect (keeping all costs as much as keeping nothing); 100 updates of 20 rows for 1,900
    of 60, with a rate that goes as far in total.
    """

    together = 5
    """Passes of one update."""

    def start(self) -> None:
        self.values += 1.0
        self.adam = Adam(19 * self.together / max(self.together, self.updates), 0.995)
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def masks(self) -> np.ndarray:
        p = _sigmoid(self.values)[:, None]
        width = p * (1 - p)
        self.drawn = np.clip(0.5 - (self.uniform(STEP_ROWS, self.size) - p) / width, 0, 1)
        return self.drawn

    def learn(self, by_mask: np.ndarray) -> None:
        self.seen.append((self.drawn, by_mask))
        if len(self.seen) < self.together:
            return
        drawn, by_mask = (np.concatenate(parts, axis=1) for parts in zip(*self.seen, strict=True))
        self.seen = []
        inside = (drawn > 0) & (drawn < 1)
        mean = (by_mask * inside).sum(1) / np.maximum(inside.sum(1), 1)
        p = _sigmoid(self.values)
        gradient = (mean + 1 / self.size) * p * (1 - p)
        norm = np.sqrt((gradient**2).sum(1, keepdims=True))
        self.values -= self.adam(gradient * np.minimum(1, 5 / np.maximum(norm, 1e-12)))


@dataclass
class NodePruning(Recipe):
    """Hard-concrete gates with a target for their number (Edge Pruning, arXiv 2406.16778, at nodes).

    z = clip(1.2·sigmoid((logit(u) + log α) / T) − .1, 0, 1), T = 2/3. The loss has λ₁(s − t) + λ₂(s − t)² more, s the
    share of components left out, whose target t rises to .9 in the first 83 % of the updates; λ are trained upwards.
    AdamW, rising for 7 % of the updates, then falling to 0. Ranked by log α. Here: the Huber loss of the metric instead
    of KL; each row draws its own gates; 500 updates of 4 rows for 3,000. These are too few to leave log α = 10, where
    one gate in 5,000 moves: it starts at 3, s is the expected share (as in L0 regularisation, Louizos et al. 2018,
    arXiv 1712.01312), and rates are .05 (gates) and .1 (λ) instead of .8.
    """

    target = 0.9

    def start(self) -> None:
        self.values += 3 + np.stack([random.normal(0, 0.01, self.size) for random in self.random])
        self.multipliers = np.zeros((len(self.seeds), 2))
        self.adam, self.ascent = Adam(25 / max(1, self.updates)), Adam(50 / max(1, self.updates))

    def masks(self) -> np.ndarray:
        u = np.clip(self.uniform(STEP_ROWS, self.size), 1e-6, 1 - 1e-6)
        self.concrete = _sigmoid((np.log(u / (1 - u)) + self.values[:, None]) / (2 / 3))
        return np.clip(1.2 * self.concrete - 0.1, 0, 1)

    def learn(self, by_mask: np.ndarray) -> None:
        done = self.done / max(1, self.updates)
        masks = np.clip(1.2 * self.concrete - 0.1, 0, 1)
        slope = 1.2 * self.concrete * (1 - self.concrete) / (2 / 3) * ((masks > 0) & (masks < 1))
        kept = _sigmoid(self.values - 2 / 3 * np.log(0.1 / 1.1))  # P(z > 0)
        gap = (1 - kept.mean(1)) - self.target * min(1.0, done / 0.83)
        one, two = self.multipliers.T
        price = -(one + 2 * two * gap)[:, None] / self.size * kept * (1 - kept)
        factor = min(1.0, done / 0.07, (1 - done) / 0.93)
        self.values -= self.adam((by_mask * slope).mean(1) + price, factor)
        self.multipliers += self.ascent(np.stack([gap, gap**2], axis=1), factor)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))
    return result


RECIPES: dict[str, Callable[..., Recipe]] = {
    "mattr": lambda *a: Mattr(*a, most_slopes),
    "mattr log": lambda *a: Mattr(*a, most_slopes, log=True),
    "mattr cmd": lambda *a: Mattr(*a, distance_slopes),
    "ugs": lambda *a: Ugs(*a, copy_slopes),
    "ugs most": lambda *a: Ugs(*a, most_slopes),
    "node pruning": lambda *a: NodePruning(*a, copy_slopes),
    "node pruning most": lambda *a: NodePruning(*a, most_slopes),
}
OURS: dict[str, dict[str, Any]] = {
    "nested": {},
    "nested most": {"objective": "most"},
    "nested track": {"objective": "track"},
    "nested below=1": {"below": 1.0},
    # What others do, one thing at a time, as options of ours.
    "nested most, soft": {"objective": "most", "hard": 1.0, "temperature": (0.5, 0.5)},
    "nested most, start": {"objective": "most", "start": "integrated"},
    "nested below=1, start": {"below": 1.0, "start": "integrated"},
}  # fmt: skip
SIMPLE = ("ablation", "attribution", "atp*", "integrated", "eap-ig inputs", "random")


@dataclass(frozen=True)
class Part:
    """A reference, the components, and what is ranked under it."""

    reference: str
    components: tuple[str, ...]
    simple: tuple[str, ...]
    recipes: tuple[str, ...]
    ours: tuple[str, ...]
    seeds: int = 3


_SAME = ("mattr", "mattr log", "ugs", "node pruning")
_AREAS = ("nested most", "nested below=1", "nested")
PARTS = {
    "ours": Part("patch", COMPONENTS, SIMPLE[1:], (), _AREAS[:2]),
    "patch": Part("patch", COMPONENTS, SIMPLE[1:], _SAME, _AREAS),
    "mean": Part("mean", ("heads",), SIMPLE[1:], _SAME, ("nested", "nested most", "nested track"), seeds=1),
    "exact": Part("patch", COMPONENTS, ("ablation",), (), ("nested track",)),
    "more": Part(
        "patch",
        COMPONENTS,
        (),
        ("mattr cmd", "ugs most", "node pruning most"),
        ("nested most, soft", "nested most, start", "nested below=1, start"),
    ),
}
USUAL = ("patch", "mean", "exact", "more")
"""The parts where none are asked for; `ours` is what `patch` has of headwise, for a device that runs nothing else."""
QUICK = ("attribution", "eap-ig inputs", "random")
"""What is checked of `SIMPLE` with `--quick`: the others take too long on a CPU."""

# ---- orders -------------------------------------------------------------------------------------------


@dataclass
class Ranked:
    """What one recipe found with one seed: component numbers, the most important first, and what it took."""

    seed: int
    signed: list[int]
    absolute: list[int]
    rows: int
    """Rows of forward and backward passes."""
    rows_forward: int
    """Further rows of forward passes alone."""
    seconds: float


def trained(
    problem: Problem, names: Sequence[str], seeds: Sequence[int], rows: int
) -> dict[str, list[Ranked]]:
    """All recipes and seeds at once: an update of each is part of the same pass."""
    updates = max(1, rows // STEP_ROWS)
    found = {name: RECIPES[name](problem.size, seeds, updates) for name in names}
    every = np.arange(len(problem.full))
    streams = [batches(len(every), STEP_ROWS, (seed, 22)) for seed in seeds]
    began = time.perf_counter()
    for _ in range(updates):
        numbers = np.stack(
            [np.resize(next(stream), STEP_ROWS) for stream in streams]
        )  # S, R: the same for every recipe
        masks = np.stack([recipe.masks() for recipe in found.values()])
        flat = np.tile(numbers.reshape(1, -1), (len(found), 1)).reshape(-1, 1)
        errors, by_mask = problem.gradients(masks.reshape(-1, problem.size), flat)
        errors, by_mask = errors.reshape(masks.shape[:3]), by_mask.reshape(masks.shape)
        for recipe, own, by in zip(found.values(), errors, by_mask, strict=True):
            slopes = recipe.slopes(own.ravel()).reshape(own.shape)
            recipe.learn(slopes[:, :, None] * by)
            recipe.done += 1
    seconds = (time.perf_counter() - began) / (len(found) * len(seeds))
    result: dict[str, list[Ranked]] = {}
    for name, recipe in found.items():
        orders = np.argsort(-recipe.values, axis=1, kind="stable").tolist()
        result[name] = [
            Ranked(seed, order, order, updates * STEP_ROWS, 0, seconds)
            for seed, order in zip(seeds, orders, strict=True)
        ]
    return result


def nested(problem: Problem, name: str, seeds: Sequence[int], rows: int, quick: bool) -> list[Ranked]:
    """`nested` as it is, its options apart: every seed's own order, not the best of them."""
    few = {"checks": 1, "grid": 4} if quick else {}
    options = dict(OURS[name])
    begin, spent = np.zeros(problem.size), 0
    if options.pop("start", None):
        begin, spent = integrated_start(problem)
    fit = NestedFit(rows=rows, **options, **few)
    before = problem.rows
    seconds, fits = timed(lambda: fit_orders(problem, begin, list(seeds), fit), problem.engine.model.device)
    backward = (problem.rows - before) // len(fits) + spent
    check = len(grid_sizes(fit.grid, problem.size)) * len(problem.held)
    result = []
    for seed, one in zip(seeds, fits, strict=True):
        order = np.argsort(-one.strengths, kind="stable").tolist()
        result.append(Ranked(seed, order, order, backward, check * len(one.checks), seconds / len(fits)))
    return result


def integrated_start(problem: Problem, steps: int = 5) -> tuple[np.ndarray, int]:
    """Strengths from -1 to 1 by the rank of integrated gradients on the training examples, and the rows they took."""
    examples = problem.engine.mean_gradients((np.arange(steps) + 0.5) / steps)[problem.train]
    scores = np.sign(problem.effect) * examples.mean(0)[problem.exists]
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    return 2 * (ranks + 1) / problem.size - 1, steps * len(problem.full)


def simple(model: Model, found: Task, part: Part, name: str, seeds: Sequence[int], rows: int) -> list[Ranked]:
    """A ranking that is not trained, by headwise's own methods."""
    layout = model.layout(part.components)
    size = len(layout.listed())
    how: dict[str, Any] = {"reference": part.reference, "progress": False}
    if name == "random":
        orders = [np.random.default_rng([seed, 23]).permutation(size).tolist() for seed in seeds]
        return [Ranked(seed, order, order, 0, 0, 0.0) for seed, order in zip(seeds, orders, strict=True)]
    if name == "eap-ig inputs":
        seconds, (values, spent) = timed(
            lambda: input_path(model, found, part, max(1, rows // len(found))), model.device
        )
    elif name == "atp*":
        # GradDrop is for heads; MLPs and the input have their absolute attribution.
        def atp() -> tuple[np.ndarray, int]:
            heads = hw.score(model, found, "attribution", graddrop=True, **how)
            if part.components == ("heads",):
                return heads.values[layout.exists], heads.details["rows"]
            all_ = hw.score(model, found, "attribution", components=part.components, **how)
            joined = np.abs(all_.values)
            joined[:, : heads.values.shape[1]] = heads.values
            return joined[layout.exists], heads.details["rows"] + all_.details["rows"]

        seconds, (values, spent) = timed(atp, model.device)
    else:
        how |= {"steps": max(1, rows // len(found))} if name == "integrated" else {}
        seconds, scores = timed(
            lambda: hw.score(model, found, name, components=part.components, **how), model.device
        )
        values, spent = scores.values[layout.exists], int(scores.details.get("rows", 0))
    backward = 0 if name == "ablation" else spent
    return [
        Ranked(
            seeds[0],
            np.argsort(-values, kind="stable").tolist(),
            np.argsort(-np.abs(values), kind="stable").tolist(),
            backward,
            spent - backward,
            seconds,
        )
    ]


def input_path(model: Model, found: Task, part: Part, steps: int) -> tuple[np.ndarray, int]:
    """EAP-IG at nodes (Hanna et al. 2024, arXiv 2403.17806): embeddings go from the counterfactual to the prompt, and a
    component has the mean of its difference times the slope. Here the difference is that of the run on the way, not
    that of the two ends."""
    if "input" not in part.components:
        raise HeadwiseError("the path over inputs needs a gate on the embeddings")
    engine = Engine(
        model, found, metric_named(found.metric), reference=part.reference, components=part.components
    )
    column = model.layout(part.components).shape[1] - 2
    total = np.zeros(engine.layout.shape)
    for step in range(steps):
        gates = np.ones((len(found), *engine.layout.shape))
        gates[:, 0, column] = (step + 0.5) / steps
        total += engine.row_gradients(list(range(len(found))), gates)[1].mean(0)
    return (total / steps)[engine.layout.exists], engine.rows_spent


# ---- one pair of model and task -----------------------------------------------------------------------


def mib_sizes(total: int) -> list[int]:
    """MIB's numbers of components that are kept."""
    return [int(fraction * total) for fraction in FRACTIONS]


def measured(
    model: Model, found: Task, tested: Task, part: Part, ranked: dict[str, list[Ranked]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Every order on the other half: arrays to keep, and which row of `values` is which order and size."""
    layout = model.layout(part.components)
    listed = layout.listed()
    total = len(listed)
    mib = sorted(set(mib_sizes(total)) - {0, total})
    wide = sorted({*mib, *(k for k in GRID if k < total)})
    sets: dict[frozenset[int], int] = {}
    curves: dict[str, dict[str, dict[str, list[int]]]] = {}
    for name, orders in ranked.items():
        for place, one in enumerate(orders):
            rows = curves.setdefault(name, {})[str(one.seed)] = {}
            for which, sizes in (("signed", wide if place == 0 else mib), ("absolute", mib)):
                order = getattr(one, which)
                rows[which] = sizes
                rows[f"{which}_rows"] = [sets.setdefault(frozenset(order[:k]), len(sets)) for k in sizes]
    gates = np.stack([*(keep_gates([listed[i] for i in kept], layout) for kept in sets), ones(layout)])
    how: dict[str, Any] = {"reference": part.reference, "components": part.components}
    if part.reference == "mean":
        how["reference_task"] = found
    engine = Engine(model, tested, metric_named(tested.metric), **how)
    run = engine.measure(gates, baseline=np.zeros(layout.shape))
    none = run.full[-1]
    values = none + (run.values - run.full)  # against the baseline of the same batch
    arrays = {"none": none, "full": values[-1], "values": values[:-1].astype(np.float32)}
    return arrays, {"total": total, "curves": curves, "rows_measured": engine.rows_spent}


def ranked_by_all(
    model: Model, found: Task, part: Part, seeds: Sequence[int], args: argparse.Namespace
) -> tuple[dict[str, list[Ranked]], dict[str, str], float]:
    """The orders of every recipe, why those that are missing are, and the effect that is explained."""
    ranked: dict[str, list[Ranked]] = {}
    refused: dict[str, str] = {}

    def attempt(names: Sequence[str], work: Callable[[], dict[str, list[Ranked]]]) -> None:
        if time.time() > args.until:
            refused.update(dict.fromkeys(names, "no time left"))
            return
        try:
            ranked.update(work())
        except (HeadwiseError, RuntimeError, ValueError) as error:  # the others' numbers must not be lost
            refused.update(dict.fromkeys(names, f"{type(error).__name__}: {error}"))
            print(f"  {model.name} {found.name} {names}: {error}", flush=True)

    how: dict[str, Any] = {"reference": part.reference, "components": part.components}
    engine = Engine(model, found, metric_named(found.metric), **how)
    problem = Problem.of(engine, model.layout(part.components).exists, 0.25, 0)
    others = replace(problem)  # with recordings of its own, of updates of another size
    if part.recipes:
        attempt(part.recipes, lambda: trained(others, part.recipes, seeds, args.rows))
    for name in part.ours:
        attempt([name], partial(_named, name, nested, problem, name, seeds, args.rows, args.quick))
    for name in part.simple:
        if args.quick and name not in QUICK:
            continue
        attempt([name], partial(_named, name, simple, model, found, part, name, seeds, args.rows))
    return ranked, refused, problem.effect


def _named(name: str, work: Callable[..., list[Ranked]], *given: Any) -> dict[str, list[Ranked]]:
    return {name: work(*given)}


def run_part(model: Model, halves: tuple[Task, Task], key: str, args: argparse.Namespace, file: Path) -> None:
    """One part of a pair: orders, what they keep on the other half, and the two files."""
    started, part = time.time(), PARTS[key]
    found, tested = halves
    seeds = range(min(part.seeds, args.seeds))
    with tf32_products(model.device):
        ranked, refused, effect = ranked_by_all(model, found, part, seeds, args)
        fitted_s = time.time() - started
        arrays, where = measured(model, found, tested, part, ranked)
    result = {
        **about(model.device, model.dtype),
        "part": key,
        "reference": part.reference,
        "components": list(part.components),
        "metric": found.metric,
        "rows": args.rows,
        "n_found": len(found),
        "n_tested": len(tested),
        "effect": effect,
        "groups": tested.shared_groups(),
        "families": tested.families(),
        "listed": [str(one) for one in model.layout(part.components).listed()],
        "refused": refused,
        "ranked": {name: [vars(one) for one in orders] for name, orders in ranked.items()},
        **where,
        "fitted_s": round(fitted_s, 1),
        "seconds": round(time.time() - started, 1),
    }
    np.savez_compressed(file.with_suffix(".npz"), **arrays)
    with replacing(file) as new:
        new.write_text(json.dumps(result), encoding="utf-8")


def pair(args: argparse.Namespace, label: str, path: str, name: str) -> None:
    """Every part of one model and task, as far as there is time."""
    began = time.time()
    shared = None if args.device == "cpu" else SHARED_TOKENS
    model = hw.load(path, device=args.device, dtype="float32", batch_tokens=shared)
    halves = hw.task(name, args.n, model=model).halves()
    print(f"{label} {name}: loaded in {time.time() - began:.0f} s", flush=True)
    for key in args.part or USUAL:
        file = args.out / f"{label}-{name}-{key}.json"
        if not file.exists() and time.time() < args.until:
            run_part(model, halves, key, args, file)
            print(f"{label} {name} {key}: after {time.time() - began:.0f} s", flush=True)


# ---- all pairs ----------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=None, help="a name, or NAME=PATH")
    parser.add_argument("--task", action="append", choices=TASKS, default=None)
    parser.add_argument("--part", action="append", choices=PARTS, default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("-n", type=int, default=160, help="examples, in two halves")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of a fit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--seconds", type=float, default=240, help="no fit is begun after so long")
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)
    parser.add_argument(
        "--quick", action="store_true", help="a check, not a measurement: 24 rows, 8 examples"
    )
    args = parser.parse_args()
    if args.quick:
        args.rows, args.n, args.seeds, args.jobs = 24, 16, 2, 1
        args.seconds = 1e6
    args.out.mkdir(parents=True, exist_ok=True)
    models = [(one.split("=")[0], one.split("=")[-1]) for one in args.model or ["smollm2"]]
    tasks = args.task or (TASKS[-1:] if args.quick else TASKS)
    if args.until is not None:  # one pair, in a process of its own
        pair(args, *models[0], tasks[0])
        return
    until = time.time() + args.seconds
    waiting = [(model, task) for task in tasks for model in models]
    running: list[subprocess.Popen[bytes]] = []
    failed = 0
    while waiting or running:
        while waiting and len(running) < args.jobs:
            (label, path), task = waiting.pop(0)
            command = [sys.executable, __file__, "--model", f"{label}={path}", "--task", task]
            command += ["--out", str(args.out), "--until", str(until), "-n", str(args.n)]
            command += ["--rows", str(args.rows), "--seeds", str(args.seeds)]
            command += [option for key in args.part or () for option in ("--part", key)]
            command += ["--device", args.device] if args.device else []
            environment = {"OMP_NUM_THREADS": "2"} | dict(os.environ)
            command += ["--quick"] if args.quick else []
            running.append(subprocess.Popen(command, env=environment))
        time.sleep(0.2)
        failed += sum(one.poll() not in (None, 0) for one in running)
        running = [one for one in running if one.poll() is None]
    if failed:
        raise SystemExit(f"{failed} pairs failed")


if __name__ == "__main__":
    main()
