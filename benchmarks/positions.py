"""Every head at every token position: how long it takes, and whether a loop of hooks gives the same.

    python benchmarks/positions.py --device cuda          40 IOI prompts, all heads of smollm2, reference mean
    python benchmarks/positions.py --device cpu -n 4      fewer prompts; the time per prompt is printed too

The loop of hooks is one forward pass of plain transformers for each head and position, one prompt at a time; it runs
some cells, drawn at random, whose scores must agree to 1e-4. Results: results/positions-DEVICE.json.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, timed, write
from headwise.heads import Head


def mean_outputs(model: hw.Model, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each output projection reads, mean over all tokens of all prompts: a vector per layer."""
    layers = model.hf.model.layers
    sums: list[Any] = [0.0] * len(layers)

    def note(layer: int) -> Any:
        def add(_: Any, args: tuple[Any, ...]) -> None:
            sums[layer] = sums[layer] + args[0][0].double().sum(0)

        return add

    hooks = [block.self_attn.o_proj.register_forward_pre_hook(note(k)) for k, block in enumerate(layers)]
    with torch.inference_mode():
        for ids in prompts:
            model.hf(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    tokens = sum(ids.shape[1] for ids in prompts)
    return [total / tokens for total in sums]


def by_hooks(model: hw.Model, task: hw.Task, cells: list[tuple[Head, int]]) -> tuple[float, np.ndarray]:
    """Seconds per cell, and logit_diff(all heads) − logit_diff(the head at its mean at the position) `[cells, E]`."""
    prompts = [torch.tensor([model.tokens(example.prompt)], device=model.device) for example in task]
    answers = [[model.tokens(text)[0] for text in (e.target, e.foils[0])] for e in task]
    means = mean_outputs(model, prompts)
    size = model.hf.config.hidden_size // model.hf.config.num_attention_heads

    def logit_diff(number: int) -> float:
        last = model.hf(input_ids=prompts[number], use_cache=False).logits[0, -1].float()
        right, wrong = answers[number]
        return float(last[right] - last[wrong])

    def effects() -> np.ndarray:
        found = np.full((len(cells), len(task)), np.nan)
        for row, (head, position) in enumerate(cells):
            columns = slice(head.head * size, (head.head + 1) * size)

            def change(
                _: Any, args: tuple[Any, ...], columns: slice = columns, head: Head = head, t: int = position
            ) -> Any:
                z = args[0].clone()
                z[:, t, columns] = means[head.layer][columns].to(z)
                return (z,)

            projection = model.hf.model.layers[head.layer].self_attn.o_proj
            for number, ids in enumerate(prompts):
                if position < ids.shape[1]:
                    hook = projection.register_forward_pre_hook(change)
                    found[row, number] = full[number] - logit_diff(number)
                    hook.remove()
        return found

    with torch.inference_mode():
        full = [logit_diff(number) for number in range(len(task))]
        seconds, found = timed(effects, model.device)
    return seconds / len(cells), found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--model", default="smollm2")
    asked.add_argument("-n", type=int, default=40)
    asked.add_argument(
        "--cells", type=int, default=12, help="head-position pairs that the loop of hooks runs"
    )
    given = asked.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = hw.load(given.model, device=given.device, dtype="float32")
    task = hw.task("ioi", given.n, model=model)
    hw.score(
        model, task.take(range(1)), positions=0, heads=["L0H0"], progress=False
    )  # what is done once per process
    seconds, scores = timed(
        lambda: hw.score(model, task, positions="each", reference="mean", progress=sys.stderr.isatty()),
        model.device,
    )
    draw = random.Random(0)
    heads, positions = scores.shape
    cells = [(draw.choice(scores.heads()), draw.randrange(positions)) for _ in range(given.cells)]
    cells += scores.top(4)
    per_cell, expected = by_hooks(model, task, cells)
    ours = np.stack([scores.examples[:, scores.heads().index(head), t] for head, t in cells])
    worst = float(np.nanmax(np.abs(ours - expected)))
    assert np.array_equal(np.isnan(ours), np.isnan(expected))
    result = {
        "seconds": round(seconds, 1),
        "seconds_per_prompt": round(seconds / len(task), 2),
        "seconds_of_hooks": round(per_cell * heads * positions, 1),
        "prompts": len(task),
        "heads": heads,
        "positions": positions,
        "rows": scores.details["rows"],
        "cells_compared": len(cells),
        "largest_difference": worst,
    }
    print(result, flush=True)
    print(scores, flush=True)
    assert worst < 1e-4, "a loop of hooks gives other numbers"
    write(
        RESULTS / f"positions-{model.device.type}.json",
        {**about(model.device, model.dtype), "positions": result},
    )


if __name__ == "__main__":
    main()
