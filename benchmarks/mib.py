"""CPR and CMD of headwise beside MIB's own evaluator, on the same scores, models and examples.

    python -m venv venv-mib
    venv-mib/bin/pip install -r benchmarks/requirements-mib.txt --constraint constraints-mib.txt
    git clone https://github.com/hannamw/MIB-circuit-track
    git clone https://github.com/hannamw/EAP-IG && git -C EAP-IG checkout 7af394a
    python benchmarks/mib.py --python venv-mib/bin/python --mib MIB-circuit-track --eap EAP-IG \\
        --model smollm2 --model stories15M

`constraints-mib.txt` has one line: the version of torch to use. A model is anything that `hw.load` opens and that has
the architecture of Llama (a folder made by `benchmarks/stories.py`, for instance). For each model and task, heads, MLPs
and the embeddings are scored by integrated gradients with counterfactual patching on one half of the examples; on the
other half `hw.sweep.mib` computes CPR and CMD, and MIB's `evaluate_area_under_curve` does the same from
`importances.json` in the other environment. The largest difference is the answer: it should be below 1e-3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import headwise as hw
from common import RESULTS, about, write
from headwise.heads import COMPONENTS
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks import Task

TASKS = ("ioi", "syntax")
TOLERANCE = 1e-3


def checkpoint(model: hw.Model, folder: Path) -> None:
    """Weights and configuration for the other environment."""
    config = model.hf.config
    if config.model_type != "llama":
        raise SystemExit(f"{model.name} is of type {config.model_type}; the evaluator's side builds a Llama")
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
    names += ("intermediate_size", "vocab_size", "rms_norm_eps")
    rotation = getattr(config, "rope_parameters", None) or {}
    theta = rotation.get("rope_theta") or getattr(config, "rope_theta", 10000.0)
    values = {name: getattr(config, name) for name in names} | {"rope_theta": theta}
    (folder / "config.json").write_text(json.dumps(values))
    state = {name: weight.detach().float().contiguous() for name, weight in model.hf.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    save_file(state, folder / "weights.safetensors")


def single_step(model: hw.Model, task: Task) -> Task:
    """The examples with one wrong answer that differs from the right one in its first token: MIB reads one position."""
    chosen = []
    for number, example in enumerate(task):
        length = len(model.tokens(example.prompt))
        right, wrong = (model.tokens(example.prompt + text) for text in (example.target, example.foils[0]))
        if len(example.foils) == 1 and right[length] != wrong[length]:
            chosen.append(number)
    return task.take(chosen)


def prompts(model: hw.Model, task: Task) -> dict[str, Any]:
    """Token ids of every example's prompts and answers, which have one token each."""
    rows = Engine(model, task, metric("logit_diff")).rows
    made: dict[str, Any] = {"clean": [], "corrupted": [], "labels": []}
    for row, example in zip(rows, task, strict=True):
        clean = model.tokens(example.prompt)
        answers = [model.tokens(example.prompt + text) for text in (example.target, example.foils[0])]
        assert all(ids[: len(clean)] == clean for ids in answers), (
            "an answer changes the tokens of its prompt"
        )
        made["clean"].append(clean)
        made["corrupted"].append(model.tokens(str(example.counterfactual)))
        made["labels"].append([ids[len(clean)] for ids in answers])
        assert len(made["corrupted"][-1]) == len(clean), "clean and corrupted prompt differ in length"
        assert row.ids[: len(clean)] == clean
    return made


def ours(model: hw.Model, name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPR and CMD on one task; writes what the other environment reads."""
    found, tested = (single_step(model, half) for half in hw.task(name, args.n, model=model).halves())
    scores = hw.score(
        model, found, "integrated", reference="patch", components=COMPONENTS, metric="logit_diff"
    )
    result = hw.sweep.mib(model, tested, scores, metric="logit_diff")
    folder.mkdir()
    result.save_importances(folder / "importances.json")
    (folder / "examples.json").write_text(json.dumps(prompts(model, tested)))
    print(result, flush=True)
    return {
        "components": result.components,
        "n": len(tested),
        "plain": result.signed.full.tolist(),
        "cpr": {"value": result.cpr.value, "faithfulness": result.faithfulness("signed").tolist()},
        "cmd": {"value": result.cmd.value, "faithfulness": result.faithfulness("absolute").tolist()},
    }


def theirs(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The same by MIB's evaluator."""
    script = Path(__file__).with_name("mib_evaluator.py")
    path = os.pathsep.join([str(args.eap / "src"), str(args.mib)])
    command = [str(args.python), str(script), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    evaluated: dict[str, Any] = json.loads((folder / "evaluated.json").read_text())
    return evaluated


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The largest difference of each number: the plain metric, CPR, CMD, and f at any fraction."""

    def largest(a: list[float], b: list[float]) -> float:
        return max(abs(x - y) for x, y in zip(a, b, strict=True))

    made = {"plain": largest(one["plain"], other["plain"])}
    for which in ("cpr", "cmd"):
        made[which] = abs(one[which]["value"] - other[which]["value"])
        made[f"{which}_faithfulness"] = largest(one[which]["faithfulness"], other[which]["faithfulness"])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", default=[], help="anything that hw.load opens")
    parser.add_argument("--task", action="append", help=f"by default {', '.join(TASKS)}")
    parser.add_argument("--n", type=int, default=24, help="examples; one half is scored, the other measured")
    parser.add_argument(
        "--python", type=Path, required=True, help="of the environment with TransformerLens 2.16"
    )
    parser.add_argument("--mib", type=Path, required=True, help="checkout of MIB-circuit-track")
    parser.add_argument("--eap", type=Path, required=True, help="checkout of EAP-IG at 7af394a")
    parser.add_argument("--out", type=Path, default=RESULTS / "mib-cpu.json")
    args = parser.parse_args()
    result: dict[str, Any] = about("cpu", "float32") | {"models": {}}
    for name in args.model or ["smollm2"]:
        model = hw.load(name, device="cpu", dtype="float32")
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            checkpoint(model, folder)
            own = {task: ours(model, task, args, folder / task) for task in args.task or TASKS}
            other = theirs(folder, args)
        made = {
            task: {
                "headwise": own[task],
                "mib": other[task],
                "difference": differences(own[task], other[task]),
            }
            for task in own
        }
        result["models"][model.name] = made
        for task, numbers in made.items():
            print(model.name, task, numbers["difference"], flush=True)
        write(args.out, result)
    largest = max(
        max(task["difference"]["cpr"], task["difference"]["cmd"])
        for tasks in result["models"].values()
        for task in tasks.values()
    )
    print(f"largest difference of CPR or CMD: {largest:.2g} (below {TOLERANCE:g}: {largest < TOLERANCE})")


if __name__ == "__main__":
    main()
