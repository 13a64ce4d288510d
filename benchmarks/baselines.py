"""How well the bundled model does on every built-in task, before any head is touched.

    python benchmarks/baselines.py [--examples 100] [--model smollm2]

Accuracy is zero-shot: the target beats every foil by summed log probability. Written to
`benchmarks/results/baselines.json`; the table in `docs/tasks.md` is printed.
"""

from __future__ import annotations

import argparse

import headwise as hw
from common import RESULTS, about, write
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.tasks import families


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    model = hw.load(arguments.model, dtype="float32")
    rows = []
    print("| task | asks | accuracy | chance | mean of its metric |\n|---|---|---|---|---|")
    for name, family in families().items():
        task = hw.task(name, arguments.examples, model=model)
        accuracy = float(Engine(model, task, metric("accuracy")).full().mean())
        chance = sum(1 / (1 + len(e.foils)) for e in task) / len(task)
        mean = float(Engine(model, task, metric(task.metric)).full().mean())
        rows.append(
            {"task": name, "accuracy": accuracy, "chance": chance, "metric": task.metric, "mean": mean}
        )
        print(
            f"| `{name}` | {family.about} | {accuracy:.2f} | {chance:.2f} | {task.metric} {mean:.2f} |",
            flush=True,
        )
    result = about(model.device, model.dtype) | {
        "model": arguments.model,
        "examples": arguments.examples,
        "tasks": rows,
    }
    write(RESULTS / "baselines.json", result)


if __name__ == "__main__":
    main()
