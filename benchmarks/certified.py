"""Certificates of the published circuits: the learned rankings of gallery/circuits/orders.csv at two sizes.

    python benchmarks/certified.py --model smollm2 --model smollm2-sparse --device cuda --jobs 4 --out FOLDER
    python benchmarks/certified.py --model gemma-3-270m-q4_k_m=PATH.gguf --task ioi --reference mean

*smallest* is the published size, from which on the mean explained effect stays above 90 %. *holds* is the smallest
size that passes checks 1 to 3 of a certificate, by their values, on the examples that found the ranking; where none
does it is the former, and not certified again. *facilitating* is the set that the study `roles` finds to help most
(gallery/roles/MODEL-joint.csv). The examples of the certificate are drawn with another seed than
those that found the ranking. Writes certificates.csv and checks.csv, a row as soon as it is known; what is there
already is not computed again. `--page` writes the table of gallery/README.md from them.
"""

from __future__ import annotations

import argparse
import csv
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

import headwise as hw
from headwise.certificates.certificate import Certificate
from headwise.runs import Job
from headwise.studies.certify.study import OTHER_SEED, choose_size

GALLERY = Path(__file__).parent.parent / "gallery"
FINDING = 160
"""Examples that were halved to find the published rankings."""


def published() -> list[dict[str, Any]]:
    """Every ranking with its size."""
    with (GALLERY / "circuits" / "refits.csv").open(encoding="utf-8") as file:
        sizes = {
            (row["model"], row["task"], row["reference"]): int(row["stays"])
            for row in csv.DictReader(file)
            if row["fit"] == "0"
        }
    with (GALLERY / "circuits" / "orders.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "nested"]
    return [
        {**row, "order": row["order"].split(), "k": sizes[row["model"], row["task"], row["reference"]]}
        for row in rows
    ]


def facilitating() -> list[dict[str, Any]]:
    """The sets of the study `roles`: heads that its three fits call facilitating, most important first."""
    found = []
    for path in sorted((GALLERY / "roles").glob("*-joint.csv")):
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                order = row["heads"].split()
                key = {"model": row["model"], "task": row["task"], "reference": "mean"}
                found.append({**key, "order": order, "k": len(order)})
    return found


NAMES = {
    "smollm2": "SmolLM2",
    "smollm2-sparse": "sparse",
    "gemma-3-270m-q4_k_m": "Gemma",
    "qwen2.5-coder-1.5b-instruct-q4_k_m": "Qwen",
}
TASKS = {"greater_than": "Greater Than", "ioi": "IOI", "docstring": "Docstring", "ioi_long": "IOI Long"}
FACILITATING = "facilitating"
MARKS = ("<!-- certificates -->", "<!-- /certificates -->")


def page(folder: Path = GALLERY / "certify") -> str:
    """The table of the gallery: for every ranking the verdict at both sizes, the checks that fail, and R²."""
    index = ["model", "task", "reference", "size"]
    verdicts = pd.read_csv(folder / "certificates.csv").set_index(index)
    checks = pd.read_csv(folder / "checks.csv").set_index(index).sort_index()

    def cell(*key: str) -> str:
        if key not in verdicts.index:
            return "none passes"
        rows, row = checks.loc[key], verdicts.loc[key]
        failed = sorted({int(check) for check in rows["check"][rows["state"] == "fail"]})
        r2 = rows[rows["check"] == 3].iloc[0]
        name = "R²" if r2["measure"].startswith("R²") else "within a fifth"
        value, lo, hi = (f"{r2[end]:.2f}".replace("-", "−") for end in ("value", "lo", "hi"))
        words = f"; fails {', '.join(map(str, failed))}" if failed else ""
        return f"{row['k']}: {row['verdict']}{words}; {name} {value} [{lo}, {hi}]"

    lines = ["| | | ablation | published size | smallest size that passes 1 to 3 where it was found |"]
    lines.append("|---|---|---|---|---|")
    measured = verdicts.index.get_level_values("model")
    for model, name in NAMES.items():
        for task, title in TASKS.items() if model in measured else ():
            for reference in ("mean", "patch"):
                if (model, task, reference, "smallest") not in verdicts.index:
                    continue  # not measured
                cells = [cell(model, task, reference, size) for size in ("smallest", "holds")]
                lines.append(f"| {name} | {title} | {reference} | {' | '.join(cells)} |")
    if FACILITATING in verdicts.index.get_level_values("size"):
        lines += ["", "| | | ablation | heads that help most in `roles` |", "|---|---|---|---|"]
    for model, task, reference, size in verdicts.index:
        if size == FACILITATING:
            lines.append(f"| {NAMES[model]} | {task} | {reference} | {cell(model, task, reference, size)} |")
    return "\n".join([MARKS[0], *lines, MARKS[1]])


def write_page(path: Path = GALLERY / "README.md") -> None:
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    path.write_text(before + page() + rest.split(MARKS[1])[1], encoding="utf-8")


def append(path: Path, rows: pd.DataFrame) -> None:
    rows.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.4g")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", help="a published name, or NAME=PATH")
    parser.add_argument("--task", action="append")
    parser.add_argument("--reference", action="append", choices=("mean", "patch"))
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("-n", type=int, default=160, help="examples of a certificate")
    parser.add_argument("--jobs", type=int, default=1, help="processes; several share one GPU")
    parser.add_argument("--out", type=Path, default=GALLERY / "certify")
    parser.add_argument("--page", action="store_true", help="write the table of the gallery, compute nothing")
    asked = parser.parse_args()
    if asked.page:
        return write_page()
    asked.out.mkdir(parents=True, exist_ok=True)
    summary = asked.out / "certificates.csv"
    done = (
        {tuple(row) for row in pd.read_csv(summary)[["model", "task", "reference", "size"]].to_numpy()}
        if summary.exists()
        else set()
    )
    named = (one.partition("=") for one in asked.model or ["smollm2"])
    models = {name: path or name for name, _, path in named}
    wanted = [
        row
        for row in [*published(), *facilitating()]
        if row["model"] in models
        and row["task"] in (asked.task or [row["task"]])
        and row["reference"] in (asked.reference or [row["reference"]])
    ]
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        began = time.perf_counter()
        how = asked.n, asked.device, asked.dtype, done
        jobs = [pool.submit(certified, row, models[row["model"]], *how) for row in wanted]
        for job in as_completed(jobs):
            for about, found in job.result():
                more = {"n": found.n, "heads": " ".join(map(str, found.heads)), "sentence": found.sentence}
                lines = found.lines.drop(columns="needed")
                append(asked.out / "checks.csv", lines.assign(**about)[[*about, *lines]])
                append(summary, pd.DataFrame([about | more]))
                print(f"{time.perf_counter() - began:.0f} s  {found.sentence}", flush=True)


def certified(
    row: dict[str, Any], path: str, n: int, device: str | None, dtype: str, done: set[tuple[str, ...]]
) -> list[tuple[dict[str, Any], Certificate]]:
    """The certificates of one ranking, or of one set, that are not there yet."""
    name, task, reference = key = row["model"], row["task"], row["reference"]
    model = _loaded(path, name, device, dtype)
    test = hw.task(task, n, model=model, seed=OTHER_SEED)
    order = [hw.Head.parse(head) for head in row["order"]]
    sizes, problem = {FACILITATING: row["k"]}, ""
    if "method" in row:
        find = hw.task(task, FINDING, model=model).halves()[0]
        options = {"reference": reference, "metric": None, "seed": 0}
        chosen, problem = choose_size(model, find, order, {}, options).compute(Job())
        sizes = {"smallest": row["k"]} | ({} if problem else {"holds": chosen})
    found = []
    for size, k in sizes.items():
        if (*key, size) in done:
            continue
        made = hw.certify(model, test, order[:k], reference=reference, progress=False)
        about = dict(zip(("model", "task", "reference", "size"), (*key, size), strict=True))
        found.append((about | {"k": k, "of": made.total, "verdict": made.verdict}, made))
    if problem:
        print(f"{name} {task} {reference}: {problem}", flush=True)
    return found


@lru_cache(maxsize=1)
def _loaded(path: str, name: str, device: str | None, dtype: str) -> hw.Model:
    return hw.load(path, name=name, device=device, dtype=dtype)


if __name__ == "__main__":
    main()
