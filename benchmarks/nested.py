"""Circuit sizes by order: learned nested masks beside integrated gradients, exact ablation and attribution.

    python benchmarks/nested.py --device cuda                              all tasks, references mean and patch
    python benchmarks/nested.py --device cuda --part design --task ioi     what each choice of the training is worth
    python benchmarks/nested.py --part small --task ioi --rows 3000        one seed with a bounded number of rows
    python benchmarks/nested.py --device cuda --part mib                   MIB's CPR and CMD of each order

Heads are ranked on one half of 160 examples and swept on the other. For each task, reference and order: the number of
heads at which 90 % of the effect is reached (k) and from which on it stays there (stays), CMD and CPR, each with its
interval over examples; seconds of each part. Numbers are saved after each part.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import headwise as hw
from common import RESULTS, about, timed, write
from headwise.heads import COMPONENTS, Head, Scores
from headwise.model.model import Model
from headwise.tasks import Task

TASKS = ("greater_than", "ioi", "docstring", "ioi_long")
REFERENCES = ("mean", "patch")
FITS = ("nested", "nested most")
SIMPLE = ("integrated", "ablation", "attribution")
DESIGN: dict[str, dict[str, Any]] = {
    "default": {},
    "colder": {"temperature": (1.0, 0.03)},
    "warmer": {"temperature": (1.0, 0.3)},
    "every example": {"of_mean": 0.0},
    "mean alone": {"of_mean": 1.0},
    "both sides alike": {"below": 1.0},
    "below twice": {"below": 2.0},
    "fewer sizes": {"examples": 16, "masks": 4},
    "from attribution": {"start": "attribution"},
    "hard from the start": {"hard": 0.0},
    "half the updates": {"updates": 200},
}
"""Options of the method, one changed at a time."""


def sizes(total: int) -> list[int]:
    """Every k up to 32, then every fourth, and both ends."""
    return sorted({*range(min(33, total + 1)), *range(32, total + 1, 4), total})


def curve(
    model: Model, tested: Task, order: Scores | list[Head], reference: str, found: Task
) -> dict[str, Any]:
    """What the held-out curve of an order says, with intervals over examples."""
    seconds, swept = timed(
        lambda: hw.sweep(
            model,
            tested,
            order,
            reference=reference,
            reference_task=found,
            k=sizes(len(model.heads())),
            controls=(),
            progress=False,
        ),
        model.device,
    )
    row = swept.summary(0.9)
    names = (
        "k",
        "k_lo",
        "k_hi",
        "stays",
        "stays_lo",
        "stays_hi",
        "cmd",
        "cmd_lo",
        "cmd_hi",
        "cpr",
        "cpr_lo",
        "cpr_hi",
    )
    shares = swept.explained()["value"].round(4).tolist()
    return {name: row[name] for name in names} | {
        "defined": row["defined"],
        "sweep_s": round(seconds, 2),
        "curve": dict(zip(map(str, swept.k.tolist()), shares, strict=True)),
    }


def ranked(model: Model, found: Task, method: str, reference: str, **options: Any) -> tuple[float, Scores]:
    return timed(
        lambda: hw.score(model, found, method, reference=reference, progress=False, **options), model.device
    )


def line(name: str, row: dict[str, Any], seconds: float | None = None) -> str:
    took = "" if seconds is None else f", {seconds:.1f} s"
    return (
        f"  {name:<22} k {row['k']:.0f} [{row['k_lo']:.0f}, {row['k_hi']:.0f}], stays {row['stays']:.0f} "
        f"[{row['stays_lo']:.0f}, {row['stays_hi']:.0f}], CMD {row['cmd']:.3f}, CPR {row['cpr']:.3f}{took}"
    )


def fitted(
    model: Model, halves: tuple[Task, Task], reference: str, each_seed: bool, **options: Any
) -> dict[str, Any]:
    """A fit of `nested`, the held-out curve of the chosen order, and where asked for those of every seed."""
    found, tested = halves
    seconds, scores = ranked(model, found, "nested", reference, **options)
    details = scores.details
    row = curve(model, tested, scores, reference, found) | {"score_s": round(seconds, 2)}
    names = ("chosen", "costs", "updates", "rows", "rows_forward", "seconds")
    row |= {name: details[name] for name in names if name in details}
    row |= {
        "held_back": details["curve"],
        "order": details["order"][:40],
        "checks": details["training"]["held_back"],
    }
    if each_seed:
        named = [list(map(Head.parse, order)) for order in details["orders"]]
        row["orders"] = [curve(model, tested, order, reference, found) for order in named]
    return row


def case(model: Model, name: str, reference: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All orders of one task and reference."""
    halves = hw.task(name, arguments.n, model=model).halves()
    found, tested = halves
    result: dict[str, Any] = {}
    for method in arguments.method or SIMPLE:
        seconds, scores = ranked(model, found, method, reference)
        result[method] = curve(model, tested, scores, reference, found) | {"score_s": round(seconds, 2)}
        print(line(method, result[method], seconds), flush=True)
    for label, options in (
        ("nested", {"seeds": arguments.seeds}),
        ("nested most", {"seeds": 1, "objective": "most"}),
    ):
        if label in arguments.skip:
            continue
        row = fitted(model, halves, reference, each_seed=label == "nested", **options)
        result[label] = row
        print(line(label, row, row["score_s"]), row["chosen"], flush=True)
        for seed, one in enumerate(row.get("orders", [])):
            print(line(f"  seed {seed}", one), flush=True)
    return result


def design(model: Model, name: str, reference: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What each choice of the training is worth, two seeds each."""
    halves = hw.task(name, arguments.n, model=model).halves()
    result = {}
    for label, options in DESIGN.items():
        if arguments.only and label not in arguments.only:
            continue
        row = fitted(model, halves, reference, each_seed=True, **{"seeds": 2, **options})
        result[label] = row
        print(line(label, row, row["score_s"]), row["chosen"], flush=True)
        for seed, one in enumerate(row["orders"]):
            print(line(f"  seed {seed}", one), flush=True)
    return result


def small(model: Model, name: str, reference: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One seed with at most so many rows, as on two cores."""
    halves = hw.task(name, arguments.n, model=model).halves()
    row = fitted(model, halves, reference, each_seed=False, seeds=1, rows=arguments.rows)
    print(line(f"{arguments.rows} rows", row, row["score_s"]), row["chosen"], flush=True)
    return row


def mib(model: Model, name: str, reference: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """MIB's areas over heads, MLPs and the input, held out: both objectives minus integrated gradients, paired."""
    found, tested = hw.task(name, arguments.n, model=model).halves()
    asked: dict[str, dict[str, Any]] = {
        "integrated": {},
        "nested": {"seeds": arguments.seeds, "below": 1.0},  # CMD counts both sides of 1 alike
        "nested most": {"seeds": arguments.seeds, "objective": "most"},
    }
    made, result = {}, {}
    for label, options in asked.items():
        how = {"components": COMPONENTS, **options}
        seconds, scores = ranked(model, found, label.split()[0], reference, **how)
        made[label] = hw.sweep.mib(model, tested, scores, progress=False)
        result[label] = {which: getattr(made[label], which)._asdict() for which in ("cpr", "cmd")}
        result[label] |= {"score_s": round(seconds, 2), "k": made[label].k.tolist()}
        result[label] |= {
            rule: made[label].faithfulness(rule).round(4).tolist() for rule in ("signed", "absolute")
        }
        print(f"  {label:<22} {made[label]}, {seconds:.1f} s", flush=True)
    for label in ("nested", "nested most"):
        gained = made[label].minus(made["integrated"])
        result[f"{label} minus integrated"] = {which: one._asdict() for which, one in gained.items()}
        print(f"  {label} minus integrated: {gained}", flush=True)
    return result


PARTS = {"cases": case, "design": design, "small": small, "mib": mib}
USUAL = {"cases": REFERENCES, "mib": ("patch",)}
"""References of the parts that do not take `mean` alone; MIB's protocol has counterfactuals."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--part", choices=PARTS, default="cases")
    parser.add_argument("--task", action="append", choices=TASKS, default=None)
    parser.add_argument("--reference", action="append", choices=REFERENCES, default=None)
    parser.add_argument(
        "--only", action="append", default=None, help="of the part design: only these variants"
    )
    parser.add_argument("-n", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--method", action="append", choices=SIMPLE, help="only these beside the fits")
    parser.add_argument("--skip", action="append", default=[], choices=FITS, help="leave out a fit")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--out", type=Path, default=RESULTS / "nested.json")
    arguments = parser.parse_args()
    model = hw.load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    result: dict[str, Any] = {**about(model.device, model.dtype), "part": arguments.part, "n": arguments.n}
    references = arguments.reference or USUAL.get(arguments.part, REFERENCES[:1])
    began = time.perf_counter()
    for name in arguments.task or TASKS:
        for reference in references:
            print(f"{name}, {reference} ({time.perf_counter() - began:.0f} s)", flush=True)
            result[f"{name}/{reference}"] = PARTS[arguments.part](model, name, reference, arguments)
            result["seconds"] = round(time.perf_counter() - began, 1)
            write(arguments.out, result)


if __name__ == "__main__":
    main()
