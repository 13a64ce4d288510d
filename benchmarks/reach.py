"""Which key/value heads need to see far: rankings at equal KV cache, at other lengths and on other tasks.

    python benchmarks/reach.py --device cuda --out FILE                      SmolLM2, needles at 1,000 tokens
    python benchmarks/reach.py --device cuda --model PATH --length 2000 --out FILE

Half of the examples rank the heads, all numbers are of the other half. Per key/value head and per query head: the
learned ranking (nested), exact ablation, gradient (all under the reference `window`), attention mass on the needle's
answer, random and layer-matched key/value heads. For each: key/value heads at 90 % of the effect with interval; effect,
log p and accuracy at a cache budget, and the paired difference of the learned ranking to the others. Then, without
refitting: a longer prompt, `recall_from_context`, plain text. Numbers are saved after each part; parts that no longer
fit into `--seconds` are left out and named. `--rankings RESULT --outside FILE` takes the rankings of an earlier result
with the same settings, and measures these and those of the file at the budget, all in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, write
from headwise import stats
from headwise.heads import Head, Order
from headwise.model.forward.kernels import tf32_products
from headwise.studies.reach.kept import (
    GROUPS,
    UNITS,
    Cache,
    Kept,
    all_sets,
    by_group,
    far_points,
    measure_kept,
)
from headwise.tasks.plain_text import text_by_position

THRESHOLD = 0.9
LEARNED, ATTENTION, RANDOM, MATCHED = "nested", "attention mass", "random", "random_layer"


class Bench:
    """One model, its tasks, and what was found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.perf_counter()
        self.model = hw.load(args.model, device=args.device, dtype=args.dtype)
        self.cache = Cache.of(self.model, args.sink, args.window)
        self.reference = f"window:{args.window}:{args.sink}"
        self.found, self.tested = self.task("needle", args.length, args.n).halves()
        self.orders: dict[str, dict[str, Order]] = {}
        self.result: dict[str, Any] = about(self.model.device, self.model.dtype_name) | {
            "model": self.model.name,
            "settings": {
                k: v for k, v in vars(args).items() if k not in ("out", "model", "outside", "rankings")
            },
            "key_value_heads": len(self.cache.groups),
            "left_out": [],
        }

    def task(self, name: str, length: int, n: int) -> hw.Task:
        return hw.task(name, n, model=self.model, length=length, seed=self.args.seed)

    def part(self, name: str, seconds: float, work: Any, *args: Any) -> None:
        """One part, if it can be done in the seconds that are left; the result is saved after it."""
        left = self.args.seconds - (time.perf_counter() - self.began)
        if left < seconds:
            self.result["left_out"].append(name)
            print(f"left out: {name} ({left:.0f} s left)", flush=True)
        else:
            began = time.perf_counter()
            self.result[name] = work(*args)
            self.result[name]["seconds"] = round(time.perf_counter() - began, 1)
            print(
                f"{name}: {self.result[name]['seconds']} s, at {time.perf_counter() - self.began:.0f} s",
                flush=True,
            )
        self.result["seconds"] = round(time.perf_counter() - self.began, 1)
        write(self.args.out, self.result)

    # ---- rankings --------------------------------------------------------------------------------------

    def rank(self, unit: str) -> dict[str, Any]:
        orders, seconds = {}, {}
        options: dict[str, Any] = {"reference": self.reference, "components": [unit], "progress": False}
        nested = {"seeds": self.args.fits, "start": self.args.start}
        nested |= {"rows": self.args.rows} if self.args.rows else {"updates": self.args.updates}
        few = self.found.take(range(min(self.args.n_exact or self.args.n, len(self.found))))
        for name, method, own in (
            ("ablation", "ablation", {}),
            ("attribution", "attribution", {}),
            (LEARNED, "nested", nested),
        ):
            began = time.perf_counter()
            found = few if method == "ablation" else self.found
            scores = hw.score(self.model, found, method, metric=self.args.metric, **options, **own)
            orders[name], seconds[name] = scores.order(), round(time.perf_counter() - began, 2)
            print(f"  {unit} {name}: {seconds[name]} s, {' '.join(map(str, orders[name][:8]))}", flush=True)
        began = time.perf_counter()
        seen = hw.score(self.model, self.found, "pattern", kind="retrieval", progress=False)
        orders[ATTENTION] = by_group(self.model, seen) if unit == GROUPS else seen.order()
        seconds[ATTENTION] = round(time.perf_counter() - began, 2)
        self.orders[unit] = orders | (self.outside() if unit == GROUPS else {})
        first = {name: [str(head) for head in order[:32]] for name, order in orders.items()}
        return {"ranking_seconds": seconds, "first": first}

    def outside(self) -> dict[str, Order]:
        """The rankings of another tool."""
        orders = {}
        listed = json.loads(Path(self.args.outside).read_text()) if self.args.outside else {}
        for name, rows in listed.items():
            values = np.array(rows)
            orders[name] = sorted(self.cache.groups, key=lambda group, v=values: -v[group.cell])
        return orders

    def beside(self) -> dict[str, Any]:
        """The rankings of an earlier result, which has their first heads, and those from outside, at the budget."""
        before = json.loads(self.args.rankings.read_text())[f"ranking {GROUPS}"]["first"]
        orders = {name: [Head.parse(head) for head in first] for name, first in before.items()}
        self.orders[GROUPS] = {
            name: [*first, *(head for head in self.cache.groups if head not in first)]
            for name, first in orders.items()
        } | self.outside()
        budget = self.cache.far(self.args.budget, self.args.length)
        first = {name: [str(head) for head in order[:budget]] for name, order in self.orders[GROUPS].items()}
        return {"first": first} | self.at(GROUPS, self.tested, self.args.length, {"budget": budget})

    # ---- curves ----------------------------------------------------------------------------------------

    def measured(
        self, unit: str, task: hw.Task, far: Sequence[int], metric: str | None = None
    ) -> dict[str, Kept]:
        args = self.args
        sets = all_sets(self.model, unit, self.orders[unit], far, args.draws, args.seed, LEARNED)
        how: dict[str, Any] = {"reference": self.reference, "unit": unit, "seed": args.seed}
        return measure_kept(self.model, task, sets, metric=metric or args.metric, **how)

    def curves(self, unit: str) -> dict[str, Any]:
        budget = self.cache.far(self.args.budget, self.args.length)
        far = far_points(len(self.cache.groups), self.args.points, budget)
        kept = self.measured(unit, self.tested, far)
        rows = {name: self._curve(one) for name, one in kept.items()}
        full = next(iter(kept.values()))
        learned = kept[LEARNED].curve.k_at(THRESHOLD)
        needed = budget if np.isnan(learned.k) else int(np.ceil(learned.k))
        ends = {
            "n": len(self.tested),
            "effect": list(full.curve.effect),
            "full": float(full.curve.full.mean()),
            "none": float(full.curve.none.mean()),
            "accuracy_full": float(full.right[-1].mean()),
            "accuracy_none": float(full.right[0].mean()),
        }
        at = self.at(unit, self.tested, self.args.length, {"budget": budget, "needed": needed})
        return ends | {"budget_far": budget, "needed_far": needed, "curves": rows, "at": at}

    def _curve(self, one: Kept) -> dict[str, Any]:
        needed, shares = one.curve.k_at(THRESHOLD), one.curve.explained()
        row = {
            "needed": [needed.k, needed.lo, needed.hi],
            "stays": [needed.stays, needed.stays_lo, needed.stays_hi],
            "far": one.curve.k.tolist(),
            "share": self.cache.share(one.curve.k, one.tokens).round(4).tolist(),
            "accuracy": one.right.mean(1).round(4).tolist(),
        }
        return row | {name: shares[name].round(4).tolist() for name in ("value", "lo", "hi")}

    def at(self, unit: str, task: hw.Task, tokens: int, far: Mapping[str, int]) -> dict[str, Any]:
        """At some numbers of key/value heads: effect, log p and accuracy of each ranking, and paired differences."""
        counts = sorted({0, *far.values(), len(self.cache.groups)})
        by_metric = {
            "metric": self.measured(unit, task, counts),
            "logprob": self.measured(unit, task, counts, "logprob"),
        }
        found: dict[str, Any] = {}
        for name, count in far.items():
            rows: dict[str, Any] = {}
            examples: dict[str, dict[str, np.ndarray]] = {}
            for series in [*self.orders[unit], RANDOM, MATCHED]:
                these = {
                    m: [k for n, k in kept.items() if n == series or n.startswith(f"{series} ")]
                    for m, kept in by_metric.items()
                }
                if not these["metric"] or not all(count in one.curve.k for one in these["metric"]):
                    continue
                place = [int(np.flatnonzero(one.curve.k == count)[0]) for one in these["metric"]]
                examples[series] = {
                    m: np.mean([one.curve.values[i] for one, i in zip(some, place, strict=True)], axis=0)
                    for m, some in these.items()
                }
                examples[series]["accuracy"] = np.mean(
                    [one.right[i] for one, i in zip(these["metric"], place, strict=True)], axis=0
                )
                one = these["metric"][0].curve
                gains = examples[series]["metric"] - one.none
                share = stats.ratio_interval(gains[:, None], one.effects)
                rows[series] = {"explained": [float(np.squeeze(x)) for x in share]}
                rows[series] |= {m: with_interval(examples[series][m]) for m in ("logprob", "accuracy")}
            paired = {
                f"{LEARNED} - {other}": {
                    m: with_interval(examples[LEARNED][m], examples[other][m])
                    for m in ("logprob", "accuracy")
                }
                for other in examples
                if other != LEARNED
            }
            log_p = by_metric["logprob"][LEARNED].curve
            found[name] = {
                "far": count,
                "share": round(float(self.cache.share(count, tokens)), 4),
                "n": len(task),
                "series": rows,
                "paired": paired,
                "full": {
                    "logprob": float(log_p.full.mean()),
                    "accuracy": float(by_metric["metric"][LEARNED].right[-1].mean()),
                },
                "none": {
                    "logprob": float(log_p.none.mean()),
                    "accuracy": float(by_metric["metric"][LEARNED].right[0].mean()),
                },
            }
        return found

    # ---- without refitting -----------------------------------------------------------------------------

    def elsewhere(self, unit: str, name: str, length: int, n: int) -> dict[str, Any]:
        """The same heads on another task or length: as many as the threshold needed, and those of the budget there."""
        budget = self.cache.far(self.args.budget, length)
        return self.at(
            unit,
            self.task(name, length, n),
            length,
            {"needed": self.result[unit]["needed_far"], "budget": budget},
        )

    def depths(self) -> dict[str, Any]:
        """Effect that the needed heads keep, by the depth of the needle."""
        count = self.result[GROUPS]["needed_far"]
        one = self.measured(GROUPS, self.tested, [0, count, len(self.cache.groups)])[LEARNED]
        curve, rows = one.curve, {}
        place = int(np.flatnonzero(curve.k == count)[0])
        for level, members in self.tested.families()["depth"].items():
            share = stats.ratio_interval(
                (curve.values[place] - curve.none)[members][:, None], curve.effects[members]
            )
            rows[level] = {
                "n": len(members),
                "explained": [float(np.squeeze(x)) for x in share],
                "accuracy": float(one.right[place][members].mean()),
            }
        return rows

    def text(self) -> dict[str, Any]:
        """Cross-entropy of plain text by position: all heads, the needed ones, none."""
        task = text_by_position(
            self.model.tokens, self.args.text, self.args.length, self.args.n_text, self.args.seed
        )
        count = self.result[GROUPS]["needed_far"]
        kept = self.measured(GROUPS, task, [0, count, len(self.cache.groups)], "mean_logprob")
        rows: dict[str, Any] = {"far": count}
        for position, members in task.families()["position"].items():
            row: dict[str, Any] = {"full": -float(kept[LEARNED].curve.full[members].mean())}
            row["none_minus_full"] = with_interval(
                (kept[LEARNED].curve.full - kept[LEARNED].curve.none)[members]
            )
            for series in (*self.orders[GROUPS], f"{RANDOM} 1"):
                curve = kept[series].curve
                row[f"{series}_minus_full"] = with_interval((curve.full - curve.values[1])[members])
            rows[position] = row | {"n": len(members)}
        return rows

    def lengths(self) -> dict[str, Any]:
        """Whether the model itself answers, by length."""
        rows: dict[str, Any] = {}
        for name in ("needle", "recall_from_context"):
            for length in self.args.lengths:
                task = self.task(name, length, 32)
                right = hw.measure(self.model, task, metric="accuracy", progress=False).full
                lo, hi = stats.share_interval(right[:, None])
                rows[f"{name} {length}"] = [
                    float(right.mean()),
                    float(np.squeeze(lo)),
                    float(np.squeeze(hi)),
                    len(task),
                ]
        return rows


def with_interval(values: np.ndarray, minus: np.ndarray | None = None) -> list[float]:
    """Mean over examples, lower and upper end of its 95 % interval; minus: of the paired difference."""
    one, other = values[:, None], None if minus is None else minus[:, None]
    interval = stats.metric_interval(one) if other is None else stats.difference_interval(one, other)
    mean = values.mean() - (0 if minus is None else minus.mean())
    return [float(mean), *(float(np.squeeze(end)) for end in interval)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--longer", type=int, default=4000)
    parser.add_argument("--lengths", type=int, nargs="*", default=[500, 1000, 2000, 4000, 8000])
    parser.add_argument("--n", type=int, default=128, help="examples, half of them to rank")
    parser.add_argument("--n-longer", type=int, default=32)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--sink", type=int, default=4)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--metric")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rows", type=int, help="of the learned ranking, instead of updates: for a CPU")
    parser.add_argument("--start", default="zero", help="of the learned ranking: zero or attribution")
    parser.add_argument("--n-exact", type=int, help="examples of exact ablation; all by default")
    parser.add_argument("--units", nargs="*", default=UNITS)
    parser.add_argument("--n-text", type=int, default=16)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--text", default="sentences", help="a text file")
    parser.add_argument("--outside", help="JSON: name -> scores [layers][key/value heads] of another tool")
    parser.add_argument("--rankings", type=Path, help="take the rankings of this result; no other parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tf32", action="store_true", help="a GPU may round float32 products to TF32")
    parser.add_argument("--seconds", type=float, default=235)
    parser.add_argument("--out", type=Path, default=RESULTS / "reach.json")
    args = parser.parse_args()
    bench = Bench(args)
    with tf32_products(bench.model.device if args.tf32 else torch.device("cpu")):
        run_parts(bench, args)


def run_parts(bench: Bench, args: argparse.Namespace) -> None:
    if args.rankings:
        bench.part("beside", 0, bench.beside)
        return
    for unit in args.units:
        bench.part(f"ranking {unit}", 50, bench.rank, unit)
        if unit in bench.orders:
            bench.part(unit, 25, bench.curves, unit)
        if unit == GROUPS and unit in bench.result:
            bench.part("longer", 25, bench.elsewhere, unit, "needle", args.longer, args.n_longer)
            bench.part(
                "recall_from_context",
                12,
                bench.elsewhere,
                unit,
                "recall_from_context",
                args.length,
                args.n // 2,
            )
            bench.part("depths", 5, bench.depths)
            bench.part("text", 10, bench.text)
    bench.part("accuracy_by_length", 20, bench.lengths)
    if UNITS[1] in bench.result:
        bench.part("longer heads", 25, bench.elsewhere, UNITS[1], "needle", args.longer, args.n_longer)


if __name__ == "__main__":
    main()
