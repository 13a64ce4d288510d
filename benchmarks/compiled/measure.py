"""How well each score method finds the heads and edges of compiled programs: `python -m compiled.measure`.

Writes results/compiled.json: per program what was measured of it, and per method AUROC and average precision of the
heads that the program uses against those that it does not, and of its edges against all others. Started again, it
computes only what the file does not have yet; delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from compiled.known import Known, known
from compiled.rasp_programs import PROGRAMS

RESULTS = Path(__file__).parent.parent / "results" / "compiled.json"
REFERENCES = ("mean", "zero", "resample", "patch")
EXACT_AND_GRADIENT = ("ablation", "keep", "attribution", "integrated", "sensitivity")
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"{method}, {r}": (method, r, {}) for method in EXACT_AND_GRADIENT for r in REFERENCES},
    "direct, mean": ("direct", "mean", {}),
    "direct, zero": ("direct", "zero", {}),
    "nested, mean": ("nested", "mean", {}),
    "nested from ablation, mean": ("nested", "mean", {"seeds": 1, "start": "ablation"}),
    **{f"nested of one seed, {r}": ("nested", r, {"seeds": 1}) for r in REFERENCES[1:]},
    "gating of one seed, mean": ("gating", "mean", {"seeds": 1}),
    "random, –": ("random", "mean", {}),
}
"""What is computed: name and reference as the table has them → method, reference, options."""
EDGE_RUNS = [(method, r) for method in ("exact", "attribution", "integrated") for r in ("mean", "patch")]
SHUFFLED, SWAPPED = "ablation, labels of heads shuffled", "ablation, answers of half the examples swapped"


def auroc(scores: np.ndarray, used: np.ndarray) -> float:
    """The chance that a used head has a higher score than an unused one; ties count half."""
    gaps = scores[used][:, None] - scores[~used][None]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def average_precision(scores: np.ndarray, used: np.ndarray) -> float:
    """The mean precision at each used head, where heads with equal scores come in together."""
    return float(np.mean([used[scores >= score].mean() for score in scores[used]]))


def both(scores: np.ndarray, used: np.ndarray) -> dict[str, float]:
    """AUROC and average precision of the scores, and the AUROC of their sizes without sign."""
    return {"auroc": auroc(scores, used), "ap": average_precision(scores, used),
            "auroc_size": auroc(np.abs(scores), used)}  # fmt: skip


def measure(
    name: str, before: dict[str, Any] | None = None, runs: Collection[str] = tuple(RUNS)
) -> dict[str, Any]:
    """Those of these runs on one program that `before` does not have."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    began, one = time.process_time(), known(name)
    heads = one.model.heads()
    used = np.array([head in one.heads for head in heads])
    rows, edges = ({} if before is None else dict(before[key]) for key in ("scores", "edge_scores"))
    for label, (method, reference, options) in RUNS.items():
        if label in rows or label not in runs:
            continue
        seed = list(PROGRAMS).index(name) if method == "random" else 0
        scored = hw.score(
            one.model, one.task, method, reference=reference, seed=seed, progress=False, **options
        )
        values = scored.values[one.model.exists]
        rows[label] = both(values, used)
        if label == "ablation, mean":
            turned = np.random.default_rng(list(PROGRAMS).index(name)).permutation(used)
            rows[f"{SHUFFLED}, mean"] = both(values, turned)
            rows[f"{SWAPPED}, mean"] = both(_swapped(one), used)
    listed = before["edges"] if before else 0
    for method, reference in EDGE_RUNS:
        if f"{method}, {reference}" not in edges:
            found = hw.edges(one.model, one.task, method, reference=reference, components=["heads", "mlps"],
                             progress=False)  # fmt: skip
            true = np.array([str(edge) in one.edges for edge in found])
            edges[f"{method}, {reference}"] = both(found.values.ravel(), true)
            listed = len(found)
    shape = {"heads": len(heads), "used": [str(head) for head in one.heads],
             "layers_used": len({head.layer for head in one.heads}),
             "edges": listed, "edges_used": sorted(one.edges)}  # fmt: skip
    spent = time.process_time() - began + (before["cpu_seconds"] if before else 0)
    return {"name": name, **shape, **one.facts, "cpu_seconds": spent, "scores": rows, "edge_scores": edges}


def _swapped(one: Known) -> np.ndarray:
    """Exact scores where half of the examples call the wrong answer right."""
    turned = np.random.default_rng(len(one.name)).permutation(len(one.task)) < len(one.task) // 2
    examples = tuple(
        replace(e, target=e.foils[0], foils=(e.target,)) if turn else e
        for e, turn in zip(one.task, turned, strict=True)
    )
    swapped = replace(one.task, examples=examples)
    values: np.ndarray = hw.score(one.model, swapped, "ablation", progress=False).values
    return values[one.model.exists]


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--without", default=[], nargs="*", help="methods to leave for later, by their beginning"
    )
    given = parser.parse_args()
    runs = [label for label in RUNS if not label.startswith(tuple(given.without))]
    done: dict[str, dict[str, Any]] = {}
    if RESULTS.exists():
        done = {one["name"]: one for one in json.loads(RESULTS.read_text(encoding="utf-8"))["programs"]}
    missing = [name for name in PROGRAMS if name not in done or not set(runs) <= set(done[name]["scores"])]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for number, one in enumerate(
            pool.imap_unordered(partial(_resumed, done, runs), missing, chunksize=1)
        ):
            done[one["name"]] = one
            listed = [done[name] for name in PROGRAMS if name in done]
            text = json.dumps(rounded({"programs": listed})).replace('{"name"', '\n{"name"')
            RESULTS.write_text(text + "\n", encoding="utf-8")
            print(f"{number + 1}/{len(missing)} {one['name']} {one['cpu_seconds']:.0f} CPU s", flush=True)


def _resumed(done: dict[str, dict[str, Any]], runs: list[str], name: str) -> dict[str, Any]:
    return measure(name, done.get(name), runs)


if __name__ == "__main__":
    main()
