"""What `diff` says of a copy of the bundled model in which one head is weakened, by ablation type.

    python benchmarks/weakened.py [--task ioi ...] [--reference zero ...] [-n 64] [--device cuda]

For each task, the head with the highest score under each ablation type is weakened in a copy of the model: its columns
of the output projection are multiplied by 0.3. Base and copy are then compared under each ablation type. `place` is the
weakened head's place in the table of `diff`, `size` its place by absolute change alone (1: no other change is larger).
"""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import torch

import headwise as hw
from common import RESULTS, about, write
from headwise.heads import heads_of
from headwise.scores.difference import diff_table

WEAK = 0.3


def weakened(model: hw.Model, head: hw.Head) -> hw.Model:
    """A copy of the model in which one head writes 30 % of its output."""
    hf = copy.deepcopy(model.hf)
    size = hf.config.head_dim
    with torch.no_grad():
        weight = hf.model.layers[head.layer].self_attn.o_proj.weight
        weight[:, size * head.head : size * (head.head + 1)] *= WEAK
    return hw.load(hf, tokenizer=model.text.tokenizer, name=f"{head} at {WEAK}")


def compared(base: hw.Scores, tuned: hw.Scores, head: hw.Head) -> dict[str, Any]:
    """Where the weakened head stands, and the five largest changes."""
    table = diff_table(base, tuned)
    sizes = table["difference"].abs()
    place = heads_of(table).index(head)
    largest = table.reindex(sizes.sort_values(ascending=False).index)[:5]
    return {
        "place": place + 1,
        "size": int((sizes > sizes[place]).sum()) + 1,
        "change": round(float(table["difference"][place]), 3),
        "q": float(table["q"][place]),
        "significant": int((table["q"] < 0.05).sum()),
        "largest": [
            [f"L{r.layer}H{r.head}", round(r.difference, 3), round(r.q, 4)] for r in largest.itertuples()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", nargs="+", default=["ioi", "greater_than"])
    parser.add_argument("--reference", nargs="+", default=["zero", "mean", "patch"])
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--heads", type=int, help="score only so many heads: the largest by attribution")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    model = hw.load("smollm2", device=given.device, dtype="float32")
    found: dict[str, Any] = {"about": about(given.device), "n": given.n, "tasks": {}}
    for name in given.task:
        task, results = hw.task(name, given.n, model=model), {}
        heads = None
        if given.heads:
            heads = hw.score(model, task, "attribution").top(given.heads, by="absolute")
            heads += [
                hw.Head(layer, head) for layer in range(3) for head in range(9) if (layer, head) not in heads
            ]
        how = {r: {"reference": r, "heads": heads, "progress": False} for r in given.reference}
        base = {r: hw.score(model, task, **how[r]) for r in given.reference}
        for head in dict.fromkeys(scores.top(1)[0] for scores in base.values()):
            weak = weakened(model, head)
            for reference in given.reference:
                tuned = hw.score(weak, task, **how[reference])
                row = compared(base[reference], tuned, head)
                row["highest"] = base[reference].top(1)[0] == head
                results[f"{head}, {reference}"] = row
                print(name, head, reference, json.dumps(row), flush=True)
        found["tasks"][name] = results
        write(RESULTS / "weakened.json", found)


if __name__ == "__main__":
    main()
