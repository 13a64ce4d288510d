"""Data that nobody here wrote: which public files load by their path alone, and which heads they find.

    python benchmarks/outside.py FOLDER [--model smollm2 --model Gemma=gemma.gguf] [--examples 32]

FOLDER holds copies of the repositories under the names that `docs/outside.md` lists; the data are not part of headwise.
Every .json and .csv file in them is read with the tokenizer of the first model. The files of `SCORED` are measured:
accuracy (the target beats every foil by summed log probability), and the heads with the largest attribution under
patching where every example has a counterfactual, else under the mean. Written to `results/outside.json`, and the page
is written again from it. A model that was measured before keeps its rows unless it is named.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import headwise as hw
from common import RESULTS, about, write
from headwise.errors import HeadwiseError
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.stats.intervals import share_interval
from table import replaced

SCORED = {
    "causalgym/agr_gender.json": 0,
    "causalgym/agr_sv_num_pp.json": 0,
    "causalgym/agr_refl_num_subj-relc.json": 0,
    "causalgym/filler_gap_obj.json": 0,
    "causalgym/npi_any_subj-relc.json": 0,
    "causalgym/garden_mvrr.json": 0,
    "eap-ig-faithfulness/data/sva/gpt2.csv": 0,
    "eap-ig-faithfulness/data/gender-bias/gpt2.csv": 0,
    "eap-ig-faithfulness/data/hypernymy-comma/gpt2.csv": 0,
    "eap-ig-faithfulness/data/fact-retrieval-comma/gpt2.csv": 0,
    "eap-ig-faithfulness/data/greater-than-price/gpt2.csv": 0,
    "eap-ig-faithfulness/data/ioi/gpt2.csv": 0,
    "feature-circuits/data/nounpp_test.json": 0,
    "function_vectors/dataset_files/abstractive/antonym.json": 5,
    "function_vectors/dataset_files/abstractive/country-capital.json": 5,
    "function_vectors/dataset_files/abstractive/present-past.json": 5,
    "function_vectors/dataset_files/extractive/choose_first_of_3.json": 5,
    "icl-heads/dataset_files/new_tasks/bind_fruit_val.json": 5,
}
"""Files that are measured, and the solved examples before each prompt."""
PAGE = Path(__file__).parents[1] / "docs" / "outside.md"
SHOWN = 3


def loaded(folder: Path, model: hw.Model) -> dict[str, Any]:
    """Which files of each repository load without an option, by what mapping, and what is said of the others."""
    found: dict[str, Any] = {}
    for repository in sorted(path for path in folder.iterdir() if path.is_dir()):
        mappings: Counter[str] = Counter()
        refused = {}
        data = repository / ("dataset_files" if (repository / "dataset_files").is_dir() else "data")
        for path in sorted((data if data.is_dir() else repository).rglob("*")):
            if path.suffix in (".json", ".csv"):
                try:
                    mappings[hw.task(path, 16, model=model).settings["mapping"]] += 1
                except HeadwiseError as error:
                    refused[str(path.relative_to(repository))] = str(error).replace(f"{path}", "it")[:160]
        found[repository.name] = {"loaded": dict(mappings), "refused": refused}
    return found


def measured(path: Path, shots: int, model: hw.Model, n: int) -> dict[str, Any]:
    """One row of the table."""
    task = hw.task(path, n + shots, model=model, **({"shots": shots} if shots else {}))
    right = Engine(model, task, metric("accuracy")).full()
    lo, hi = share_interval(right[:, None])
    reference = "patch" if all(example.counterfactual for example in task) else "mean"
    scores = hw.score(model, task, "attribution", reference=reference)
    rows = scores.table().sort_values("score", key=abs, ascending=False).head(SHOWN).to_dict("records")
    kept = ("score", "lo", "hi", "q")
    return {
        "n": len(task),
        "shots": shots,
        "mapping": task.settings["mapping"],
        "accuracy": [float(right.mean()), float(lo[0]), float(hi[0])],
        "chance": sum(1 / (1 + len(example.foils)) for example in task) / len(task),
        "metric": task.metric,
        "reference": reference,
        "heads": [
            {"head": f"L{row['layer']}H{row['head']}"} | {name: row[name] for name in kept} for row in rows
        ],
    }


def table(result: dict[str, Any]) -> str:
    """The measured files as a table: accuracy and heads of every model."""
    models = list(result["models"])
    lines = [
        "| file | n, shots | metric, reference | "
        + " | ".join(f"{m}: accuracy; heads" for m in models)
        + " |",
        "|---|---|---|" + "---|" * len(models),
    ]
    for path in SCORED:
        rows = [result["models"][model]["files"].get(path) for model in models]
        first = next((row for row in rows if row), None)
        if first is None:
            continue
        cells = []
        for row in rows:
            if row is None:
                cells.append("not measured")
                continue
            share, lo, hi = row["accuracy"]
            heads = "<br>".join(
                f"{h['head']} {h['score']:+.2f} [{h['lo']:.2f}, {h['hi']:.2f}]{'*' if h['q'] < 0.05 else ''}"
                for h in row["heads"]
            )
            cells.append(f"{share:.2f} [{lo:.2f}, {hi:.2f}]<br>{heads}")
        n = "/".join(str(row["n"]) if row else "–" for row in rows)
        lines.append(
            f"| `{path}` (chance {first['chance']:.2f}) | {n}, {first['shots']} | {first['metric']}, "
            f"{first['reference']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def loading(result: dict[str, Any]) -> str:
    """How many files load, and what is said of the others."""
    lines = ["| repository | files that load, by mapping | files that do not |", "|---|---|---|"]
    for repository, found in result["loaded"].items():
        mappings = ", ".join(f"`{name}` {count}" for name, count in sorted(found["loaded"].items())) or "none"
        refused = ", ".join(f"`{Path(name).name}`" for name in found["refused"]) or "none"
        lines.append(f"| {repository} | {mappings} | {refused} |")
    return "\n".join(lines)


def page(before: str, result: dict[str, Any]) -> str:
    """docs/outside.md with the tables of a result."""
    return replaced(replaced(before, "loaded", loading(result)), "table", table(result))


def _measured_before(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"loaded": {}, "models": {}}
    return found | (json.loads(out.read_text(encoding="utf-8")) if out.exists() else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", action="append", help="NAME, or LABEL=NAME")
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--only", default="", help="measure only the files whose path has this in it")
    parser.add_argument("--device")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    out = RESULTS / "outside.json"
    result = _measured_before(out)
    for number, named in enumerate(arguments.model or ["SmolLM2=smollm2"]):
        label, _, name = named.rpartition("=")
        model = hw.load(name, dtype="float32", device=arguments.device)
        if not number and not result["loaded"]:
            result["loaded"] = loaded(arguments.folder, model)
            write(out, result)
        for path, shots in SCORED.items():
            if arguments.only not in path:
                continue
            row = measured(arguments.folder / path, shots, model, arguments.examples)
            print(label or name, path, row["accuracy"], row["heads"][0], flush=True)
            result = _measured_before(out)
            before = result["models"].get(label or name, {}).get("files", {})
            files = before | {path: row}
            result["models"][label or name] = about(model.device, model.dtype) | {"files": files}
            write(out, result)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
