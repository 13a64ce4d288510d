"""Certificates of the published circuits: the learned rankings of gallery/circuits/orders.csv at two sizes.

    python benchmarks/certified.py --model smollm2 --model smollm2-sparse --device cuda --out FOLDER
    python benchmarks/certified.py --model gemma-3-270m-q4_k_m=PATH.gguf --task ioi --reference mean

*smallest* is the published size, from which on the mean explained effect stays above 90 %. *holds* is the smallest
size that passes checks 1 to 3 of a certificate, by their values, on the examples that found the ranking; where none
does it is the former, and not certified again. The examples of the certificate are drawn with another seed than
those that found the ranking. Writes certificates.csv and checks.csv, a row as soon as it is known; what is there
already is not computed again. `--page` writes the table of gallery/README.md from them.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import pandas as pd

import headwise as hw
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


NAMES = {"smollm2": "SmolLM2", "smollm2-sparse": "sparse", "gemma-3-270m-q4_k_m": "Gemma"}
TASKS = {"greater_than": "Greater Than", "ioi": "IOI", "docstring": "Docstring", "ioi_long": "IOI Long"}
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
        r2 = rows[rows["measure"] == "R² over examples"].iloc[0]
        value, lo, hi = (f"{r2[name]:.2f}".replace("-", "−") for name in ("value", "lo", "hi"))
        words = f"; fails {', '.join(map(str, failed))}" if failed else ""
        return f"{row['k']}: {row['verdict']}{words}; R² {value} [{lo}, {hi}]"

    lines = ["| | | ablation | published size | smallest size that passes 1 to 3 where it was found |"]
    lines.append("|---|---|---|---|---|")
    for model, name in NAMES.items():
        for task, title in TASKS.items():
            for reference in ("mean", "patch"):
                cells = [cell(model, task, reference, size) for size in ("smallest", "holds")]
                lines.append(f"| {name} | {title} | {reference} | {' | '.join(cells)} |")
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
    parser.add_argument("-n", type=int, default=160, help="examples of a certificate")
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
    for named in asked.model or ["smollm2"]:
        name, _, path = named.partition("=")
        model = hw.load(path or name, name=name, device=asked.device, dtype="float32")
        for row in published():
            if row["model"] != name or row["task"] not in (asked.task or [row["task"]]):
                continue
            if row["reference"] not in (asked.reference or [row["reference"]]):
                continue
            find = hw.task(row["task"], FINDING, model=model).halves()[0]
            test = hw.task(row["task"], asked.n, model=model, seed=OTHER_SEED)
            order = [hw.Head.parse(head) for head in row["order"]]
            options = {"reference": row["reference"], "metric": None, "seed": 0}
            chosen, problem = choose_size(model, find, order, {}, options).compute(Job())
            for size, k in {"smallest": row["k"], "holds": row["k"] if problem else chosen}.items():
                key = (name, row["task"], row["reference"], size)
                if key in done or (size == "holds" and problem):
                    continue
                began = time.perf_counter()
                found = hw.certify(
                    model,
                    test,
                    order[:k],
                    reference=row["reference"],
                    negatives=hw.task(f"{row['task']}_negative", 40, model=model),
                    progress=False,
                )
                about = dict(zip(("model", "task", "reference", "size"), key, strict=True))
                about |= {"k": k, "of": found.total, "verdict": found.verdict}
                more = {"n": found.n, "heads": " ".join(map(str, found.heads)), "sentence": found.sentence}
                append(asked.out / "checks.csv", found.lines.assign(**about)[[*about, *found.lines.columns]])
                append(summary, pd.DataFrame([about | more]))
                print(f"{time.perf_counter() - began:.0f} s  {found.sentence}", flush=True)
            if problem:
                print(f"{name} {row['task']} {row['reference']}: {problem}", flush=True)


if __name__ == "__main__":
    main()
