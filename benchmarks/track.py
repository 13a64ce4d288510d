"""Circuits that hold in every family and on every prompt: the objectives `match` and `track` of `nested`.

    python benchmarks/track.py --device cuda --seeds 5 --jobs 6 --out FILE     mean ablation, heads
    python benchmarks/track.py --device cuda --reference patch --components heads,mlps
    python benchmarks/track.py --quick                                         a check of two minutes on two cores

The task is the union of four families of IOI (short and long, receiver first and giver first), 40 examples of each.
Heads are ranked on one half and swept on the other, once per data seed, with one fit of each objective and equal rows.
For each fit: the number of heads from which on every family has at least 90 % of its effect (`stays`), R² and explained
effect at 64 heads, and the number of heads from which on R² is at least .5. Objectives are compared seed by seed:
ratios of `stays` by their geometric mean, R² by the mean difference, with 95 % t-intervals over seeds.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, timed, write
from headwise import stats
from headwise.model.model import Model
from headwise.sweeps.curve import Sweep
from headwise.sweeps.explained import heads_needed
from headwise.tasks import Task

FAMILIES = tuple((name, pattern) for name in ("ioi", "ioi_long") for pattern in ("ABB", "BAB"))
FITS: dict[str, dict[str, Any]] = {
    "match": {},
    "track": {"objective": "track"},
    "match, every example": {"of_mean": 0.0},
    "track, every example": {"objective": "track", "of_mean": 0.0},
    "track, both sides alike": {"objective": "track", "below": 1.0},
    "track, every example, both sides alike": {"objective": "track", "of_mean": 0.0, "below": 1.0},
}
"""Options of the fits. The first is what others are compared with."""
AT, EXPLAINED, R2 = 64, 0.9, 0.5


def union(model: Model, n: int, seed: int) -> Task:
    """n examples of each family, which is also the only facet: spreads are those within the four families."""
    examples = []
    for name, pattern in FAMILIES:
        task = hw.task(name, n, model=model, pattern=pattern, seed=seed)
        family = f"{name} {pattern}"
        examples += [replace(example, label=family, family={"family": family}) for example in task]
    return Task("four families of ioi", tuple(examples), "logit_diff")


def sizes(total: int, quick: bool = False) -> list[int]:
    """Every k up to 16, every second up to 32, every fourth up to 128, then every eighth, and both ends."""
    if quick:
        return [0, 8, AT, total // 2, total]
    grid = [*range(17), *range(18, 33, 2), *range(36, 129, 4), *range(136, total, 8), total]
    return [k for k in grid if k <= total]


def read(swept: Sweep, tested: Task) -> dict[str, Any]:
    """What a held-out curve says of the union and of each family."""
    labels = np.array([example.label for example in tested])
    shares = {}
    for label in dict.fromkeys(labels.tolist()):
        inside = labels == label
        gained = (swept.values[:, inside] - swept.none[inside]).mean(1)
        shares[label] = gained / (swept.full[inside] - swept.none[inside]).mean()
    worst = np.min(list(shares.values()), axis=0)
    errors = ((swept.values - swept.full) ** 2).mean(1)
    r2 = 1 - errors / swept.full.var()
    at = int(np.argmin(np.abs(swept.k - AT)))
    return {
        "stays": float(heads_needed(swept.k, worst, EXPLAINED, stays=True)),
        "stays_by_family": {
            label: float(heads_needed(swept.k, one, EXPLAINED, stays=True)) for label, one in shares.items()
        },
        "r2_stays": float(heads_needed(swept.k, r2, R2, stays=True)),
        "k": int(swept.k[at]),
        "tracking": swept.tracking(int(swept.k[at]))._asdict(),
        "explained": float(swept.explained()["value"].iloc[at]),
        "worst": float(worst[at]),
        "curves": {
            "k": swept.k.tolist(),
            "worst": worst.round(4).tolist(),
            "r2": r2.round(4).tolist(),
            "explained": swept.explained()["value"].round(4).tolist(),
        },
    }


def fitted(
    model: Model, found: Task, tested: Task, options: dict[str, Any], how: dict[str, Any], quick: bool
) -> dict[str, Any]:
    """One fit on the first half, and its curves on the other."""
    score_s, scores = timed(
        lambda: hw.score(model, found, "nested", progress=False, **how, **options), model.device
    )
    sweep_s, swept = timed(
        lambda: hw.sweep(
            model,
            tested,
            scores,
            reference=how["reference"],
            reference_task=found,
            seed=how["seed"],
            k=sizes(len(scores.details["order"]), quick),
            controls=(),
            progress=False,
        ),
        model.device,
    )
    details = {name: scores.details[name] for name in ("rows", "updates", "chosen", "order", "effect")}
    return read(swept, tested) | details | {"score_s": round(score_s, 1), "sweep_s": round(sweep_s, 1)}


def compared(runs: list[dict[str, dict[str, Any]]], name: str, base: str) -> dict[str, Any]:
    """One objective beside another, paired by data seed: [mean, lo, hi] of each."""

    def interval(values: np.ndarray) -> list[float]:
        ends = stats.mean_interval(values) if len(values) > 1 else (np.nan, np.nan)
        return [float(values.mean()), *map(float, ends)]

    def rows(which: str) -> dict[str, np.ndarray]:
        found = [run[which] for run in runs]
        return {
            **{key: np.array([row[key] for row in found]) for key in ("stays", "r2_stays", "worst")},
            **{key: np.array([row["tracking"][key] for row in found]) for key in ("r2", "within")},
        }

    new, old = rows(name), rows(base)
    ratios = {key: interval(np.log(new[key] / old[key])) for key in ("stays", "r2_stays")}
    return {
        "seeds": len(runs),
        **{f"{key}_ratio": np.exp(ends).tolist() for key, ends in ratios.items()},
        **{f"{key}_gained": interval(new[key] - old[key]) for key in ("r2", "within", "worst")},
    }


def line(name: str, row: dict[str, Any]) -> str:
    tracking = row["tracking"]
    return (
        f"  {name:<24} every family stays from {row['stays']:.0f}, R² ≥ {R2} from {row['r2_stays']:.0f}; "
        f"at {row['k']}: R² {tracking['r2']:.2f} [{tracking['r2_lo']:.2f}, {tracking['r2_hi']:.2f}], "
        f"explained {row['explained']:.2f}, lowest family {row['worst']:.2f}; {row['rows']} rows, "
        f"{row['score_s']} + {row['sweep_s']} s"
    )


def one(arguments: argparse.Namespace, seed: int, name: str) -> dict[str, Any]:
    """One fit of one data seed, in a process that loads the model once."""
    if arguments.jobs > 1:
        torch.set_num_threads(1)
    model = _loaded(arguments.model, arguments.device, arguments.dtype)
    found, tested = union(model, arguments.n, seed).halves()
    how = {"reference": arguments.reference, "seed": seed, "seeds": 1, "rows": arguments.rows}
    how |= {"checks": 1, "grid": 4} if arguments.quick else {}
    how["components"] = arguments.components.split(",")
    return fitted(model, found, tested, FITS[name], how, arguments.quick)


_loaded = lru_cache(maxsize=1)(lambda name, device, dtype: hw.load(name, device=device, dtype=dtype))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--reference", choices=("mean", "patch", "resample"), default="mean")
    parser.add_argument("--components", default="heads", help="such as heads,mlps")
    parser.add_argument("--fit", action="append", choices=FITS, help="by default match and track")
    parser.add_argument("-n", type=int, default=40, help="examples of each family")
    parser.add_argument("--seeds", type=int, default=5, help="data seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=None, help="most rows of a fit; by default 400 × 64")
    parser.add_argument("--jobs", type=int, default=1, help="processes; several share one GPU")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check, not a measurement: 4 examples per family, 48 rows, 5 points",
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "track.json")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.n, arguments.seeds, arguments.rows = 4, 2, 48
    names = arguments.fit or ["match", "track"]
    setting = {
        name: getattr(arguments, name)
        for name in ("model", "reference", "components", "n", "rows", "first_seed")
    }
    result: dict[str, Any] = {**about(arguments.device or "cpu", arguments.dtype), **setting}
    result["jobs"] = arguments.jobs
    began, runs = time.perf_counter(), [{} for _ in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        asked = {
            pool.submit(one, arguments, arguments.first_seed + s, name): (s, name)
            for s in range(len(runs))
            for name in names
        }
        for done in as_completed(asked):
            seed, name = asked[done]
            runs[seed][name] = done.result()
            print(
                f"{time.perf_counter() - began:.0f} s, data seed {arguments.first_seed + seed}"
                + line(name, runs[seed][name]),
                flush=True,
            )
            whole = {other: [run for run in runs if {names[0], other} <= set(run)] for other in names[1:]}
            result["seeds"] = runs
            result["compared"] = {other: compared(of, other, names[0]) for other, of in whole.items() if of}
            result["seconds"] = round(time.perf_counter() - began, 1)
            write(arguments.out, result)
    for name, row in result["compared"].items():
        print(f"{name} beside {names[0]}: {row}", flush=True)


if __name__ == "__main__":
    main()
