"""What each mechanism of a forward or backward pass saves: the same job with and without it, in turns.

    python benchmarks/mechanisms.py [--device cuda] [--model smollm2]

A mechanism is kept if it saves at least 5 % of the time or 20 % of the memory of a job that users run. Time is the
median over rounds of the ratio without / with; memory is the peak of live tensors. Written to
`results/mechanisms-DEVICE.json`; docs/benchmarks.md has the table.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, peak_mb, timed, write
from headwise.heads import keep_gates, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.tasks import Task
from jobs.shapes import SHAPES, random_model, word_task, word_tokenizer

Job = Callable[[], object]
Without = Callable[[Model], Any]


@contextmanager
def capability(model: Model, **facts: Any) -> Iterator[None]:
    """While this holds, the model counts as having been proven otherwise."""
    before = model.capabilities
    model.capabilities = replace(
        before, **{k: v for k, v in facts.items() if k in before.__dataclass_fields__}
    )
    lazy = {k: v for k, v in facts.items() if k not in before.__dataclass_fields__}
    vars(model.capabilities).update(lazy)
    try:
        yield
    finally:
        model.capabilities = before


MECHANISMS: dict[str, Without] = {
    "share rows": lambda model: capability(model, share_rows=False),
    "narrow the last block": lambda model: capability(model, narrow=()),
    "packed rows": lambda model: capability(model, pack=False),
    "log p in parts": lambda model: capability(model, plain_unembedding=None),
    "CUDA graphs": lambda _: patch(
        "headwise.scores.gates.row_gradients.ShapedGradients.suits", lambda engine: False
    ),
}
CPU_ONLY = {"packed rows", "log p in parts"}
OF_JOB = {
    "ablation": ["share rows", "narrow the last block"],
    "keep curve": ["share rows", "narrow the last block"],
    "attribution": ["narrow the last block"],
    "gate update": ["narrow the last block", "packed rows", "log p in parts", "CUDA graphs"],
}
"""What could matter to each job."""


def jobs(model: Model, tasks: Mapping[str, Task], layers: int) -> dict[str, Callable[[], Job]]:
    """Each job, made anew for every setting: what is proven is read when an engine is made."""
    short, answers = tasks["short"], tasks["answers"]
    chosen = np.linspace(0, model.shape[0] - 1, layers).round().astype(int)
    heads = [head for head in model.heads() if head.layer in set(chosen.tolist())]
    order = [model.heads()[i] for i in np.random.default_rng(0).permutation(len(model.heads()))]
    ks = np.unique(np.linspace(0, len(order), 2 * layers).round().astype(int))
    curve = np.stack([keep_gates(order[:k], model.shape) for k in ks])

    def ablation() -> Job:
        engine = Engine(model, short, metric("logit_diff"))
        return lambda: engine.measure(single_gates(heads, model.shape))

    def keep_curve() -> Job:
        engine = Engine(model, short, metric("logit_diff"), reference="mean")
        return lambda: engine.measure(curve)

    def attribution() -> Job:
        engine = Engine(model, answers, metric("logprob"))
        return lambda: engine.gradients()

    def gate_update() -> Job:
        fit = GateLikelihood(model, answers)
        draw = np.random.default_rng(0)
        gates = draw.random((1, *model.shape))
        examples = np.arange(min(8 if model.device.type == "cpu" else 64, len(answers)))[None]
        return lambda: fit.gradients(gates, examples)

    return {
        "ablation": ablation,
        "keep curve": keep_curve,
        "attribution": attribution,
        "gate update": gate_update,
    }


def measured(model: Model, make: Callable[[], Job], without: Without, rounds: int) -> dict[str, float]:
    """The ratio of time and of memory without / with one mechanism."""
    device = model.device

    def run(off: bool) -> tuple[float, float]:
        with ExitStack() as stack:
            if off:
                stack.enter_context(without(model))
            job = make()
            for _ in range(5 if device.type == "cuda" else 1):
                job()  # kernels are chosen, graphs recorded
            seconds = min(timed(job, device)[0] for _ in range(2))
            return seconds, peak_mb(job, device)

    pairs = [(run(False), run(True)) for _ in range(rounds)]
    return {
        "time": statistics.median(off[0] / on[0] for on, off in pairs),
        "memory": statistics.median(off[1] / max(on[1], 1e-9) for on, off in pairs),
        "seconds": statistics.median(on[0] for on, _ in pairs),
        "mb": statistics.median(on[1] for on, _ in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="smollm2", help="bundled alias, or a shape of jobs/shapes.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="jobs, separated by commas")
    given = parser.parse_args()
    cuda = given.device.startswith("cuda")
    dtype = torch.bfloat16 if cuda else torch.float32
    if given.model in SHAPES:
        hf = random_model(SHAPES[given.model], given.device, dtype)
        model = hw.load(hf, tokenizer=word_tokenizer(), name=given.model)
        tasks = {"short": word_task(16, 64), "answers": word_task(64, 64)}
    else:
        model = hw.load(given.model, device=given.device, dtype=str(dtype).removeprefix("torch."))
        count = 16 if cuda else 8
        tasks = {
            "short": hw.task("ioi", count, model=model),
            "answers": hw.task("math", 64 if cuda else 8, model=model),
        }
    wanted = given.only.split(",") if given.only else list(OF_JOB)
    found: dict[str, Any] = {"about": about(given.device), "model": given.model, "jobs": {}}
    made = jobs(model, tasks, layers=model.shape[0] if cuda else 8)
    for name in wanted:
        found["jobs"][name] = {}
        for mechanism in OF_JOB[name]:
            if mechanism in (CPU_ONLY if cuda else {"CUDA graphs"}):
                continue
            numbers = measured(model, made[name], MECHANISMS[mechanism], given.rounds)
            found["jobs"][name][mechanism] = numbers
            print(
                f"{name}, without {mechanism}: {numbers['time']:.2f}x the time, {numbers['memory']:.2f}x the memory "
                f"({numbers['seconds']:.3f} s, {numbers['mb']:.0f} MB with it)",
                flush=True,
            )
    write(RESULTS / f"mechanisms-{'cuda' if cuda else 'cpu'}-{given.model}.json", found)


if __name__ == "__main__":
    main()
