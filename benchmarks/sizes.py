"""Time and memory of every study at its default settings, by model size: for planning.

    python benchmarks/sizes.py --model smollm2 --model ./qwen.gguf --shape 8B --device cuda --out sizes.json
    python benchmarks/scale_page.py                         writes benchmarks/results/sizes.json into docs/machines.md

`--shape` is a model of that size with random weights. Seconds are those of the run's steps: without imports, loading
and drawing. `roles` and `circuits` train for a part of their updates, on one of their tasks; the time of the steps that
train is multiplied accordingly (`basis`), which counts what they do once several times and so gives an upper bound.
Finished rows are kept in `--out`; the same command goes on after the last of them.
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
from headwise.model.model import Model
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
    training: str = ""
    """The steps whose time grows with the number of updates: what their name or an argument contains."""
    updates: int = 0
    """How many updates are run, and by how much the time of those steps is multiplied."""
    times: int = 1


STUDIES = {
    "functions": Plan({"cards": 0}),
    "masking": Plan({}),
    "prompts": Plan({}),
    "wiring": Plan({"cards": 0}),
    "backups": Plan({}),
    "circuits": Plan({"tasks": ["ioi"], "method_options": {"updates": 100}}, "nested", 100, 4),
    "roles": Plan({"tasks": ["commonsense"], "fit": {"updates": 25, "stop": None}}, "fit_gates", 25, 20),
}
RANDOM_WEIGHTS: dict[str, dict[str, Any]] = {
    "backups": {"primary": ["L1H0", "L1H1", "L2H0", "L2H1"]},
    "circuits": {"orders": ["integrated", "ablation"], "method_options": {}},
}
"""Settings for random weights: they have no significant heads for `backups` to begin with, and no circuit to learn."""


def _name(call: dict[str, Any]) -> str:
    """The step and its texts, in which the method or the fit is named."""
    return " ".join(
        [call["step"], *(str(value) for value in call["arguments"].values() if isinstance(value, str))]
    )


def one_row(model: str, study: str, bench: Workbench, device: str) -> dict[str, Any]:
    """Time and memory of one study with a model of the workbench."""
    plan, about = STUDIES[study], {"model": Path(model).stem, "study": study}
    settings = plan.settings | (RANDOM_WEIGHTS.get(study, {}) if model.startswith("random-") else {})
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = hw.run(
                study, Path(folder) / "run", models=[model], device=device, workbench=bench, **settings
            )
        except (hw.HeadwiseError, torch.OutOfMemoryError) as error:
            return about | {"failed": str(error).splitlines()[0]}
        with closing(sqlite3.connect(run.path / "cells.sqlite")) as cells:
            timed = [
                (json.loads(cell), seconds)
                for cell, seconds in cells.execute("SELECT cell, seconds FROM cells")
            ]
    trained = sum(seconds for call, seconds in timed if plan.training and plan.training in _name(call))
    others = sum(seconds for _, seconds in timed) - trained
    return about | {
        "settings": settings,
        "seconds": others + plan.times * trained,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
        "basis": f"{plan.updates} updates, their time × {plan.times}" if trained else "run in full",
        "measured_seconds": others + trained,
    }


def random_model(shape: str, device: str) -> Model:
    """A random Llama of this shape with SmolLM2's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(fetch("smollm2"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=8, tie_word_embeddings=False, **SHAPES[shape]
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return hw.load(model, tokenizer=tokenizer, name=f"random-{shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--shape", action="append", default=[], choices=SHAPES)
    parser.add_argument("--study", action="append", choices=STUDIES)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=common.RESULTS / "sizes.json")
    asked = parser.parse_args()
    about = common.about(asked.device)
    kept = []
    if asked.out.exists():
        before = json.loads(asked.out.read_text())
        if before["machine"] != about["machine"]:
            parser.error(f"{asked.out} was measured on {before['machine']}; give another --out")
        kept = before["rows"]
    done = {(row["model"], row["study"]) for row in kept}
    for name in (*asked.model, *(f"random-{shape}" for shape in asked.shape)):
        bench = Workbench(progress=False)  # loads the model once
        missing = [study for study in asked.study or STUDIES if (Path(name).stem, study) not in done]
        if missing and name.startswith("random-"):
            bench.add(random_model(name.removeprefix("random-"), asked.device))
        for study in missing:
            kept.append(one_row(name, study, bench, asked.device))
            print(json.dumps(kept[-1]), flush=True)
            asked.out.write_text(json.dumps({**about, "rows": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
