"""Adaptive exact scores: what they save on the bundled model, and whether their intervals keep their word.

    python benchmarks/adaptive.py [--cache exact.npz] [--examples 256] [--repetitions 2000] [--only coverage]
    python benchmarks/adaptive.py --only auto --cache tables.npz           precision: auto, three tasks × three seeds

Rows. Exact ablation of every head on every example is computed once (69,120 rows: minutes on a GPU, half an
hour on a CPU; kept in --cache), then replayed: the adaptive rule with and without its control variate asks for
pairs and the table answers, for many random orders of the examples. A row is one (head, example) pair; a
backward pass counts as two rows on top of its forward one. The engine also runs one ungated partner row per
example and layer in every batch; `with_partners` counts these too, on both sides. The mean of the table is the
truth here, so the share of intervals that cover it is reported as well.

Coverage. Made-up tables with known truth (most heads quiet, few loud and badly explained by attribution, tails
heavier than normal), a new one for each repetition: the share of 95 % intervals at the stopped estimate that
cover the mean, and of 95 % top-k sets that are right.

Auto. Exact tables of three tasks and three data seeds, 64 examples each, replayed as `precision: auto` runs them on a
CPU. Reported are the rows, the coverage of the heads that were not run on every example, and how often the first ten
are those of the exact scores, or differ from them only by heads whose intervals overlap.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, about, write
from headwise.scores.ablation import AUTO, BACKWARD_ROWS, CALL_COST
from headwise.scores.adaptive.adaptive import to_precision, top_k
from headwise.scores.adaptive.sample import Sample

PRECISION = 0.1


# --- made-up tables ------------------------------------------------------------------------------------------


def made_up_table(rng: np.random.Generator, N: int, K: int, tails: str) -> tuple[np.ndarray, np.ndarray]:
    """Exact effects and attributions `[N, K]` like those of a language model's heads.

    Sizes are log-normal; attribution explains 92 % of a quiet head's variance and down to 40 % of a loud one's,
    with a slope of its own in each head.
    """
    size = np.minimum(0.1 * np.exp(1.1 * rng.standard_normal(K)), 1.5)
    explained = np.clip(0.92 - 0.3 * np.log(np.maximum(size, 0.2) / 0.2), 0.4, 0.92)

    def noise() -> np.ndarray:
        if tails == "normal":
            return rng.standard_normal((N, K))
        skewed = np.exp(0.5 * rng.standard_normal((N, K))) * rng.choice([-1, 1], K)
        return 0.6 * rng.standard_t(5 if tails == "heavy" else 4, (N, K)) + skewed

    attribution = noise() * size * np.sqrt(explained)
    exact = attribution + noise() * size * np.sqrt(1 - explained) + size * rng.standard_normal(K)
    return exact, attribution / rng.uniform(0.6, 1.4, K)


def coverage(repetitions: int, tails: str, N: int = 256, K: int = 270) -> dict[str, Any]:
    """Each repetition is a new table and a new order of its examples."""
    rng = np.random.default_rng(0)
    covered, plain_covered, rows, plain_rows, widest = [], [], 0, 0, 0.0
    for repetition in range(repetitions):
        exact, attribution = made_up_table(rng, N, K, tails)
        truth = exact.mean(axis=0)
        found = to_precision(Sample(replay(exact), attribution, exact.shape, seed=repetition), PRECISION)
        plain = to_precision(Sample(replay(exact), None, exact.shape, seed=repetition), PRECISION)
        covered.append(((found.lo <= truth) & (truth <= found.hi)).mean())
        plain_covered.append(((plain.lo <= truth) & (truth <= plain.hi)).mean())
        rows += found.pairs + BACKWARD_ROWS * N
        plain_rows += plain.pairs
        widest = max(widest, float((found.hi - found.lo).max() / 2))
    result = {
        "tails": tails,
        "repetitions": repetitions,
        "intervals": repetitions * K,
        "coverage": float(np.mean(covered)),
        "coverage_stderr": float(np.std(covered) / np.sqrt(repetitions)),
        "coverage_without_control_variate": float(np.mean(plain_covered)),
        "widest_half_interval": widest,
        "fewer_rows": N * K * repetitions / rows,
        "fewer_rows_than_without_control_variate": plain_rows / rows,
    }
    print(
        f"{tails} tails, {repetitions} repetitions × {K} heads: {result['coverage']:.2%} of 95 % intervals cover "
        f"(± {result['coverage_stderr']:.2%}), {result['fewer_rows']:.1f}× fewer rows, "
        f"{result['fewer_rows_than_without_control_variate']:.2f}× fewer than without control variate"
    )
    return result


def right_tops(repetitions: int, N: int = 256, K: int = 270, k: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    right, pairs, covered = 0, 0, []
    for repetition in range(repetitions):
        exact, attribution = made_up_table(rng, N, K, "heavy")
        truth = exact.mean(axis=0)
        found = top_k(Sample(replay(exact), attribution, exact.shape, seed=repetition), k)
        assert found.top is not None
        right += set(found.top.tolist()) == set(np.argsort(-truth)[:k].tolist())
        pairs += found.pairs + BACKWARD_ROWS * N
        covered.append(((found.lo - 1e-12 <= truth) & (truth <= found.hi + 1e-12)).mean())
    result = {
        "k": k,
        "confidence": 0.95,
        "repetitions": repetitions,
        "right": right / repetitions,
        "coverage": float(np.mean(covered)),
        "fewer_rows": N * K * repetitions / pairs,
    }
    print(
        f"top {k} of {K}, {repetitions} repetitions: {result['right']:.1%} right, {result['fewer_rows']:.1f}× "
        f"fewer rows, {result['coverage']:.2%} of 95 % intervals cover"
    )
    return result


# --- the bundled model ---------------------------------------------------------------------------------------


class replay:  # noqa: N801  (used like a function)
    """Answers from a table, and counts the rows that an engine would have run for it."""

    def __init__(self, exact: np.ndarray, layers: np.ndarray | None = None) -> None:
        self.exact, self.layers, self.rows = exact, layers, 0

    def __call__(self, heads: np.ndarray, examples: np.ndarray) -> np.ndarray:
        partners = 0 if self.layers is None else len(np.unique(self.layers[heads]))
        self.rows += len(examples) * (len(heads) + partners)
        return self.exact[np.ix_(examples, heads)]


def exact_table(cache: Path | None, examples: int, device: str | None) -> dict[str, np.ndarray]:
    """Effects `[E, heads]`, attributions, and each head's layer; from the cache where it is there."""
    if cache is not None and cache.exists():
        with np.load(cache, allow_pickle=False) as file:
            table = dict(file)
        assert len(table["exact"]) == examples, f"{cache} has {len(table['exact'])} examples, not {examples}"
        return table
    import headwise as hw
    from headwise.heads import single_gates
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    model = hw.load("smollm2", device=device, dtype="float32")
    task = hw.task("ioi", examples, tokens=model.tokens)
    engine = Engine(model, task, metric("logit_diff"))
    layers, numbers = np.array(model.heads()).T
    attribution = engine.gradients()[1][:, layers, numbers]
    exact = engine.measure(single_gates(model.heads(), model.shape)).effects.T
    table = {"exact": exact, "attribution": attribution, "layers": layers}
    if cache is not None:
        np.savez_compressed(cache, exact=exact, attribution=attribution, layers=layers)
    return table


def rows_on_the_model(table: dict[str, np.ndarray], orders: int) -> dict[str, Any]:
    """Every head to ± 0.1, replayed for many orders of the examples."""
    exact, attribution, layers = table["exact"], table["attribution"], table["layers"]
    N, K = exact.shape
    truth, everything = exact.mean(axis=0), replay(exact, layers)
    everything(np.arange(K), np.arange(N))
    spent: dict[str, list[float]] = {"adaptive": [], "plain": [], "adaptive_run": [], "plain_run": []}
    covered, plain_covered = [], []
    for seed in range(orders):
        ours, theirs = replay(exact, layers), replay(exact, layers)
        found = to_precision(Sample(ours, attribution, exact.shape, seed=seed), PRECISION)
        plain = to_precision(Sample(theirs, None, exact.shape, seed=seed), PRECISION)
        spent["adaptive"].append(found.pairs + BACKWARD_ROWS * N)
        spent["adaptive_run"].append(ours.rows + BACKWARD_ROWS * N)
        spent["plain"].append(plain.pairs)
        spent["plain_run"].append(theirs.rows)
        covered.append((found.lo - 1e-9 <= truth) & (truth <= found.hi + 1e-9))
        plain_covered.append((plain.lo - 1e-9 <= truth) & (truth <= plain.hi + 1e-9))
        assert (found.hi - found.lo).max() / 2 <= PRECISION + 1e-9
    mean = {name: float(np.mean(values)) for name, values in spent.items()}
    ratios = N * K / np.array(spent["adaptive"])
    correlation = [np.corrcoef(e, a)[0, 1] for e, a in zip(exact.T, attribution.T, strict=True) if a.any()]
    result = {
        "examples": N,
        "heads": K,
        "orders": orders,
        "precision": PRECISION,
        "rows": mean["adaptive"],
        "rows_exhaustive": N * K,
        "fewer_rows": N * K / mean["adaptive"],
        "fewer_rows_5_to_95_percent": np.quantile(ratios, [0.05, 0.95]).tolist(),
        "rows_without_control_variate": mean["plain"],
        "fewer_rows_than_without_control_variate": mean["plain"] / mean["adaptive"],
        "with_partners": {
            "fewer_rows": everything.rows / mean["adaptive_run"],
            "fewer_rows_than_without_control_variate": mean["plain_run"] / mean["adaptive_run"],
        },
        "coverage": float(np.mean(covered)),
        "coverage_without_control_variate": float(np.mean(plain_covered)),
        "median_variance_explained": float(np.median(np.square(correlation))),
    }
    print(
        f"smollm2, ioi, {N} examples, ± {PRECISION} for each of {K} heads: {mean['adaptive']:,.0f} rows instead of "
        f"{N * K:,}, {result['fewer_rows']:.1f}× fewer, {result['fewer_rows_than_without_control_variate']:.2f}× "
        f"fewer than without control variate; {result['coverage']:.2%} of intervals cover"
    )
    return result


AUTO_TASKS, AUTO_SEEDS, AUTO_EXAMPLES = ("ioi", "greater_than", "docstring"), 3, 64


def auto_tables(cache: Path | None, device: str | None) -> dict[str, np.ndarray]:
    """`TASK-SEED-exact` and `TASK-SEED-attribution` `[E, heads]`; from the cache where it is there."""
    if cache is not None and cache.exists():
        with np.load(cache, allow_pickle=False) as file:
            return dict(file)
    import headwise as hw
    from headwise.heads import single_gates
    from headwise.metrics import metric
    from headwise.model.measure.engine import Engine

    model = hw.load("smollm2", device=device, dtype="float32")
    layers, numbers = np.array(model.heads()).T
    tables = {}
    for name in AUTO_TASKS:
        for seed in range(AUTO_SEEDS):
            task = hw.task(name, AUTO_EXAMPLES, model=model, seed=seed)
            engine = Engine(model, task, metric(task.metric))
            tables[f"{name}-{seed}-attribution"] = engine.gradients()[1][:, layers, numbers]
            tables[f"{name}-{seed}-exact"] = engine.measure(
                single_gates(model.heads(), model.shape)
            ).effects.T
    if cache is not None:
        np.savez_compressed(cache, **tables)
    return tables


def auto_on_the_model(tables: dict[str, np.ndarray], orders: int) -> list[dict[str, Any]]:
    """`precision: auto` on every table, with several random orders of its examples."""
    rows = []
    for name in AUTO_TASKS:
        for seed in range(AUTO_SEEDS):
            exact, attribution = tables[f"{name}-{seed}-exact"], tables[f"{name}-{seed}-attribution"]
            truth = exact.mean(axis=0)
            ten = set(np.argsort(-truth)[:10].tolist())
            held, sampled, same, right, spent = 0, 0, 0, 0, 0
            for order in range(orders):
                sample = Sample(
                    replay(exact), attribution, exact.shape, seed=order, call_cost=CALL_COST["cpu"]
                )
                found = to_precision(sample, AUTO, of_largest=True)
                part = sample.counts < len(exact)
                inside = (found.lo - 1e-9 <= truth) & (truth <= found.hi + 1e-9)
                held, sampled = held + int(inside[part].sum()), sampled + int(part.sum())
                mine = set(np.argsort(-found.values)[:10].tolist())
                wrong, missing = mine - ten, ten - mine
                same += not wrong
                right += all(found.lo[w] <= found.hi[m] for w in wrong for m in missing)
                spent += found.pairs + BACKWARD_ROWS * len(exact)
            row = {
                "task": name,
                "seed": seed,
                "orders": orders,
                "coverage": held / max(1, sampled),
                "heads_sampled": sampled / orders,
                "first_ten_equal": same / orders,
                "first_ten_equal_up_to_intervals": right / orders,
                "fewer_rows": exact.size * orders / spent,
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument(
        "--cache", type=Path, help="an .npz file for the exact table: read if there, else written"
    )
    parser.add_argument("--device")
    parser.add_argument("--repetitions", type=int, default=2_000)
    parser.add_argument("--orders", type=int, default=500, help="random orders of the real examples")
    parser.add_argument("--only", choices=["coverage", "rows", "auto"])
    arguments = parser.parse_args()
    path = RESULTS / "adaptive.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if arguments.only == "auto":
        result["auto"] = auto_on_the_model(auto_tables(arguments.cache, arguments.device), arguments.orders)
    if arguments.only in (None, "coverage"):
        result["coverage"] = [
            coverage(arguments.repetitions, "heavy"),
            coverage(max(200, arguments.repetitions // 10), "normal"),
            coverage(max(200, arguments.repetitions // 10), "heaviest"),
        ]
        result["top"] = right_tops(max(200, arguments.repetitions // 10))
    if arguments.only in (None, "rows"):
        table = exact_table(arguments.cache, arguments.examples, arguments.device)
        result["rows"] = rows_on_the_model(table, arguments.orders)
    write(path, result | about(arguments.device or "cpu"))


if __name__ == "__main__":
    main()
