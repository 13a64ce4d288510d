"""How well each score method finds the heads of compiled programs: `python -m compiled.measure`.

Writes results/compiled.json: per program what was measured of it, and per method AUROC and average precision of the
heads that the program uses against those that it does not.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from compiled.known import known
from compiled.rasp_programs import PROGRAMS

RESULTS = Path(__file__).parent.parent / "results" / "compiled.json"
REFERENCES = ("mean", "zero", "resample", "patch")
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    *(("ablation", reference, {}) for reference in REFERENCES),
    *(("attribution", reference, {}) for reference in REFERENCES),
    *(("integrated", reference, {}) for reference in REFERENCES),
    *(("keep", reference, {}) for reference in REFERENCES),
    *(("sensitivity", reference, {}) for reference in REFERENCES),
    ("direct", "zero", {}),
    ("direct", "mean", {}),
    ("nested", "mean", {"seeds": 1}),
    ("random", "mean", {}),
]


def auroc(scores: np.ndarray, used: np.ndarray) -> float:
    """The chance that a used head has a higher score than an unused one; ties count half."""
    gaps = scores[used][:, None] - scores[~used][None]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def average_precision(scores: np.ndarray, used: np.ndarray) -> float:
    """The mean precision at each used head, where heads with equal scores come in together."""
    return float(np.mean([used[scores >= score].mean() for score in scores[used]]))


def measure(name: str) -> dict[str, Any]:
    """All methods on one program."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    one = known(name)
    heads = one.model.heads()
    used = np.array([head in one.heads for head in heads])
    rows = []

    def add(label: str, reference: str, scores: np.ndarray) -> None:
        row = {"method": label, "reference": reference}
        rows.append(row | {"auroc": auroc(scores, used), "ap": average_precision(scores, used)})

    for method, reference, options in RUNS:
        seed = list(PROGRAMS).index(name) if method == "random" else 0
        scored = hw.score(
            one.model, one.task, method, reference=reference, seed=seed, progress=False, **options
        )
        add(method, reference, scored.values[one.model.exists])
    turned = np.random.default_rng(len(name)).permutation(len(one.task)) < len(one.task) // 2
    examples = tuple(
        replace(e, target=e.foils[0], foils=(e.target,)) if turn else e
        for e, turn in zip(one.task, turned, strict=True)
    )
    swapped = replace(one.task, examples=examples)
    add("ablation, right and wrong answer swapped in half of the examples", "mean",
        hw.score(one.model, swapped, "ablation", progress=False).values[one.model.exists])  # fmt: skip
    layers = len({head.layer for head in one.heads})
    shape = {"heads": len(heads), "used": [str(head) for head in one.heads], "layers_used": layers}
    return {"name": name, **shape, **one.facts, "seconds": time.perf_counter() - began, "scores": rows}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = []
        for one in pool.imap_unordered(measure, PROGRAMS, chunksize=1):
            found.append(one)
            print(f"{len(found)}/{len(PROGRAMS)} {one['name']} {one['seconds']:.0f} s", flush=True)
    found.sort(key=lambda one: list(PROGRAMS).index(one["name"]))
    result = {"seconds": time.perf_counter() - began, "cores": 2, "programs": found}
    RESULTS.write_text(json.dumps(rounded(result), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
