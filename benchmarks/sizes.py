"""Time and memory of every study at its default settings, by model size: for planning.

    python benchmarks/sizes.py --model smollm2 --model ./qwen.gguf --shape 1B --shape 8B --device cuda

`--shape` is a model of that size with random weights. Seconds are those of the run's cells: without imports, loading
and drawing. `roles` and `circuits` are run at two small numbers of updates; the time at the default follows from the
straight line through both (column `basis`). Finished rows are kept in `--out`; the same command goes on after the last
of them.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

import common
import headwise as hw
from headwise.model.load.bundled import fetch
from headwise.studies.workbench import Workbench

SHAPES = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
}
"""Llama 3.2 1B and Llama 3.1 8B, both with 8 key/value heads."""


class Plan(NamedTuple):
    """How the time of a study is found."""

    settings: dict[str, Any]
    scaled: str = ""
    """The setting that time grows with; empty: the study runs at its default."""
    small: tuple[int, int] = (0, 0)
    default: int = 0


class Measured(NamedTuple):
    seconds: float
    peak_gb: float | None


STUDIES = {
    "functions": Plan({"cards": 0}),
    "masking": Plan({}),
    "prompts": Plan({}),
    "wiring": Plan({"cards": 0}),
    "backups": Plan({}),
    "circuits": Plan(
        {"tasks": ["ioi"], "method_options": {"seeds": 1}}, "method_options.updates", (10, 40), 400
    ),
    "roles": Plan({"tasks": ["commonsense"], "fit": {"stop": None}}, "fit.updates", (5, 20), 500),
}


def set_at(settings: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the settings with one of them changed.

    >>> set_at({"fit": {"stop": None}}, "fit.updates", 5)
    {'fit': {'stop': None, 'updates': 5}}
    """
    first, _, rest = path.partition(".")
    inner = set_at(settings.get(first, {}), rest, value) if rest else value
    return {**settings, first: inner}


def at_default(plan: Plan, seconds: list[float]) -> float:
    """The time at the default value, on the line through the times at the two small ones."""
    if not plan.scaled:
        return seconds[0]
    (x, y), (a, b) = plan.small, seconds
    return b + (plan.default - y) * (b - a) / (y - x)


def measured(model: str, study: str, settings: dict[str, Any], bench: Workbench, device: str) -> Measured:
    """Time and memory of one run with the models of the workbench."""
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        run = hw.run(study, Path(folder) / "run", models=[model], device=device, workbench=bench, **settings)
        with closing(sqlite3.connect(run.path / "cells.sqlite")) as cells:
            (seconds,) = cells.execute("SELECT sum(seconds) FROM cells").fetchone()
    return Measured(seconds, torch.cuda.max_memory_allocated() / 1e9 if cuda else None)


def one_row(model: str, study: str, bench: Workbench, device: str) -> dict[str, Any]:
    plan, head = STUDIES[study], {"model": Path(model).name, "study": study}
    each = (
        [set_at(plan.settings, plan.scaled, value) for value in plan.small]
        if plan.scaled
        else [plan.settings]
    )
    try:
        found = [measured(model, study, settings, bench, device) for settings in each]
    except (hw.HeadwiseError, torch.OutOfMemoryError) as error:
        return {**head, "failed": str(error).splitlines()[0]}
    return {
        **head,
        "settings": plan.settings,
        "seconds": at_default(plan, [one.seconds for one in found]),
        "peak_gb": found[-1].peak_gb,
        "basis": f"{plan.scaled} = {plan.small[0]} and {plan.small[1]}" if plan.scaled else "run in full",
        "measured_seconds": [one.seconds for one in found],
    }


def random_model(shape: str, folder: Path) -> Path:
    """A folder with a random Llama of this shape and SmolLM2's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(fetch("smollm2"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_key_value_heads=8,
        tie_word_embeddings=False,
        dtype="bfloat16",
        **SHAPES[shape],
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder / f"random-{shape}")
    tokenizer.save_pretrained(folder / f"random-{shape}")
    return folder / f"random-{shape}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--shape", action="append", default=[], choices=SHAPES)
    parser.add_argument("--study", action="append", choices=STUDIES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=common.RESULTS / "sizes.json")
    asked = parser.parse_args()
    kept = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
    done = {(row["model"], row["study"]) for row in kept}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*asked.model, *(f"random-{shape}" for shape in asked.shape)):
            missing = [study for study in asked.study or STUDIES if (Path(name).name, study) not in done]
            shape = name.removeprefix("random-")
            model = str(random_model(shape, Path(folder))) if missing and shape in asked.shape else name
            bench = Workbench(progress=False)  # loads the model once
            for study in missing:
                kept.append(one_row(model, study, bench, asked.device))
                print(json.dumps(kept[-1]), flush=True)
                asked.out.write_text(
                    json.dumps({**common.about(asked.device), "rows": kept}, indent=1) + "\n"
                )


if __name__ == "__main__":
    main()
