"""Greedy backward elimination, measured exactly: a reference for how few heads can explain a behaviour.

    python benchmarks/greedy.py --device cuda --out greedy-cuda.json
    python benchmarks/greedy.py --device cuda --out greedy-cuda.json --order nested --order integrated

All heads start in the circuit. In each round every head that is left is removed on its own, the explained effect EE of
the rest is measured on the finding half, and the heads with the smallest |EE − 1| are removed for good, until none is
left. Read backwards, the heads are an order. It is then swept over every k on the held-out half.

One head per round would measure 36,585 circuits of the bundled model for each task. While more than --exact-below heads
are left, a round removes the cheapest --share of them (5 %, at least one), which leaves about 8,500 circuits; from
there on one head per round. Variants of a round differ from the present circuit in one head, so they share the blocks
before it with it. Numbers are in float32: differences between heads are smaller than bfloat16 can hold.

The file is written after every round, and the same command resumes. `--order` adds other orders, found on the same
half and swept alike. k90 is the number of heads at which EE first reaches 90 %, `stays` the number from which on it
never falls below 90 % again, each with a 95 % interval over the held-out examples.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import headwise as hw
from common import about, write
from headwise.heads import Head, keep_gates, ones
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks import Task

TASKS = ("greater_than", "ioi", "docstring", "ioi_long")
THRESHOLD = 0.9


class Elimination:
    """The circuit on one task: which heads are left, and what a round costs."""

    def __init__(self, model: hw.Model, task: Task, reference: str, removed: list[str]) -> None:
        self.model = model
        self.engine = Engine(model, task, metric(task.metric), reference=reference)
        ends = self.engine.measure(ones(model.shape)[None], baseline=np.zeros(model.shape))
        self.none, self.full = ends.full[0].mean(), ends.values[0].mean()
        self.removed = [Head.parse(name) for name in removed]

    @property
    def left(self) -> list[Head]:
        gone = set(self.removed)
        return [head for head in self.model.heads() if head not in gone]

    def explained_without(self, heads: list[Head]) -> np.ndarray:
        """EE of the circuit after the removal of each of these heads on its own."""
        kept = keep_gates(heads, self.model.shape)
        gates = np.repeat(kept[None], len(heads), axis=0)
        for variant, head in zip(gates, heads, strict=True):
            variant[head] = 0
        values = self.engine.measure(gates, baseline=kept).values.mean(axis=1)
        shares: np.ndarray = (values - self.none) / (self.full - self.none)
        return shares

    def round(self, share: float, exact_below: int) -> dict[str, Any]:
        """Remove the cheapest head, or the cheapest few while many are left."""
        left = self.left
        shares = self.explained_without(left)
        count = 1 if len(left) <= exact_below else max(1, math.floor(share * len(left)))
        cheapest = np.argsort(np.abs(shares - 1), kind="stable")[:count]
        # The cheapest goes first: read backwards it is the last of the order.
        self.removed += [left[i] for i in cheapest]
        return {"left": len(left) - count, "explained": float(shares[cheapest[-1]]), "variants": len(left)}


def order_of(removed: list[str]) -> list[str]:
    """The order whose first k heads are the last k that were left."""
    return removed[::-1]


def sizes(model: hw.Model, task: Task, order: Any, reference: str) -> dict[str, Any]:
    """k90 on these examples, over every k, with its interval."""
    every = range(len(model.heads()) + 1)
    swept = hw.sweep(model, task, order, reference=reference, k=every, controls=(), progress=False)
    needed = swept.k_at(THRESHOLD)
    curve = [round(float(value), 4) for value in swept.explained()["value"]]
    return {**needed._asdict(), "cmd": swept.cmd().value, "explained": curve}


def eliminate(model: hw.Model, name: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    """One task, from where the file is."""
    found, tested = hw.task(name, 2 * args.n, model=model, seed=args.seed).halves()
    state = result["tasks"].setdefault(name, {"removed": [], "rounds": [], "seconds": 0.0})
    circuit = Elimination(model, found, args.reference, state["removed"])
    while circuit.left:
        began = time.perf_counter()
        state["rounds"].append(circuit.round(args.share, args.exact_below))
        state["removed"] = [str(head) for head in circuit.removed]
        state["seconds"] += time.perf_counter() - began
        write_quietly(args.out, result)
    orders: dict[str, Any] = {"greedy": order_of(state["removed"])}
    for method in args.order:
        if method not in state.get("held_out", {}):
            began = time.perf_counter()
            orders[method] = hw.score(model, found, method, reference=args.reference, progress=False)
            state.setdefault("order_seconds", {})[method] = time.perf_counter() - began
    for half, examples in (("finding", found), ("held_out", tested)):
        for method, order in orders.items():
            if method not in state.setdefault(half, {}):
                state[half][method] = sizes(model, examples, order, args.reference)
                write_quietly(args.out, result)
    for method, at in state["held_out"].items():
        print(
            f"{name}, {method}: k90 {at['k']:.0f} [{at['lo']:.0f}, {at['hi']:.0f}], stays {at['stays']:.0f} "
            f"[{at['stays_lo']:.0f}, {at['stays_hi']:.0f}] of {len(model.heads())} heads, held out "
            f"(finding half {state['finding'][method]['stays']:.0f})",
            flush=True,
        )


def write_quietly(path: Path, result: dict[str, Any]) -> None:
    """The whole file at once, so that a killed run leaves the round before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
    partial.replace(path)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "n", "seed", "reference", "share", "exact_below")
    return {name: getattr(args, name) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", action="append", choices=TASKS, help="by default all four")
    parser.add_argument("--order", action="append", default=[], help="a score method to compare with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=32, help="examples of each half")
    parser.add_argument("--reference", default="mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.05, help="part of the heads that a round removes")
    parser.add_argument("--exact-below", type=int, default=100, help="one head per round from here on")
    parser.add_argument("--out", type=Path, default=Path("greedy.json"))
    args = parser.parse_args()
    result: dict[str, Any] = {"settings": settings_of(args), "tasks": {}}
    if args.out.exists():
        earlier = json.loads(args.out.read_text(encoding="utf-8"))
        if earlier["settings"] != result["settings"]:
            parser.error(f"{args.out} is of other settings: {earlier['settings']}; give another --out")
        result = earlier
    model = hw.load(args.model, device=args.device, dtype="float32")
    result |= about(args.device, model.dtype)
    for name in args.task or TASKS:
        eliminate(model, name, args, result)
    write(args.out, result)


if __name__ == "__main__":
    main()
