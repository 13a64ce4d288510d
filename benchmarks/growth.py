"""How cost grows: time and memory against examples, prompt length, heads, model size, and number of masks.

    python benchmarks/growth.py [--device cuda] [--scale 2]

Random weights of the bundled model's shape; nothing but one thing grows in each curve. Time should grow as its first
power everywhere (prompt length a little faster: attention is a small part that grows as the square). Memory is held
by the token budget, so it should not grow with examples, heads or masks at all. Each exponent is the slope of a
straight line through the logarithms. Written to `results/growth-DEVICE.json`, `.png` and `.svg`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, peak_mb, timed, write
from headwise.heads import mask_gates, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from jobs.ablation import spread
from jobs.shapes import SHAPES, random_model, word_task, word_tokenizer

Work = Callable[[], object]
TITLES = {
    "examples": "Examples",
    "length": "Tokens per prompt",
    "heads": "Heads",
    "size": "Parameters without embeddings",
    "masks": "Masks of a generation",
}
ROUNDS = 2


def scoring(
    model: Model, examples: int, tokens: int, layers: int, per_layer: int | None = None, budget: int = 1024
) -> Work:
    """Exact ablation of the heads of some layers, with few tokens per pass so that the budget is what binds."""
    chosen = spread(model.shape[0], layers)
    heads = [h for h in model.heads() if h.layer in chosen and (per_layer is None or h.head < per_layer)]
    engine = Engine(model, word_task(examples, tokens), metric("logit_diff"), batch_tokens=budget)
    return lambda: engine.measure(single_gates(heads, model.shape))


def writing(model: Model, masks: int) -> Work:
    draw, heads = np.random.default_rng(0), model.heads()
    gates = np.stack(
        [
            mask_gates([heads[i] for i in draw.choice(len(heads), 8, replace=False)], model.shape)
            for _ in range(masks)
        ]
    )
    prompts = [example.prompt for example in word_task(4, 16)]
    return lambda: hw.generate(model, prompts, gates, max_new_tokens=4, batch_tokens=320)


def curves(device: str, dtype: torch.dtype, scale: int) -> dict[str, list[tuple[float, Work]]]:
    """Name -> (x, work) of each point."""
    tokenizer = word_tokenizer()
    shape = SHAPES["SmolLM2-135M"]

    def model(**changed: int) -> Model:
        return hw.load(random_model(shape | changed, device, dtype), tokenizer=tokenizer, name="random")

    whole = model()
    sizes = []
    for width in (192, 384, 576, 768):
        one = model(width=width, inner=width * 8 // 3, layers=12, heads=width // 64, keys=3, vocabulary=1_000)
        parameters = sum(p.numel() for name, p in one.hf.named_parameters() if "layers" in name)
        sizes.append((float(parameters), scoring(one, 4 * scale, 32, 3, per_layer=3)))
    return {
        "examples": [(n, scoring(whole, n, 16, 2)) for n in (4 * scale, 8 * scale, 16 * scale, 32 * scale)],
        "length": [(n, scoring(whole, 2 * scale, n, 2, budget=2048)) for n in (16, 32, 64, 128)],
        "heads": [(9 * n, scoring(whole, 4 * scale, 16, n)) for n in (2, 4, 8, 15)],
        "size": sizes,
        "masks": [(n, writing(whole, n)) for n in (5, 10, 20, 40)],
    }


def exponent(x: list[float], y: list[float]) -> float:
    """Slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def measured(points: list[tuple[float, Work]], device: str) -> dict[str, Any]:
    """The best of several rounds over all points, so that noise meets all of them; memory in a run of its own."""
    points[0][1]()  # warm
    best = [float("inf")] * len(points)
    for _ in range(ROUNDS):
        for place, (_, work) in enumerate(points):
            best[place] = min(best[place], timed(work, device)[0])
    memory = [peak_mb(work, device) for _, work in points]
    x = [float(at) for at, _ in points]
    return {
        "x": x,
        "seconds": best,
        "peak_mb": memory,
        "time_exponent": exponent(x, best),
        "memory_exponent": exponent(x, memory),
    }


def draw(found: dict[str, Any], path: Any) -> None:
    """One page: time above, memory below, a panel for each thing that grows."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    from headwise.charts.style import house_style

    with house_style():
        figure, axes = plt.subplots(2, len(found), figsize=(2.4 * len(found), 4.6), layout="constrained")
        for column, (name, curve) in enumerate(found.items()):
            for row, (field, kind) in enumerate((("seconds", "time"), ("peak_mb", "memory"))):
                panel = axes[row][column]
                panel.plot(curve["x"], curve[field], marker="o", color=("#1f77b4", "#d62728")[row])
                panel.set_xscale("log")
                panel.set_yscale("log")
                low, high = min(curve[field]), max(curve[field])
                middle = (low * high) ** 0.5
                half = max((high / low) ** 0.5 * 1.3, 4.0)  # a flat curve is to look flat
                panel.set_ylim(middle / half, middle * half)
                panel.xaxis.set_minor_locator(NullLocator())
                panel.set_xticks(curve["x"], [_short(x) for x in curve["x"]])
                panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                panel.yaxis.set_minor_formatter(NullFormatter())
                panel.set_title(f"∝ $x^{{{curve[f'{kind}_exponent']:.2f}}}$", fontsize=9)
                if row:
                    panel.set_xlabel(TITLES[name])
            axes[0][0].set_ylabel("Seconds")
            axes[1][0].set_ylabel("Peak memory (MB)")
        for kind in ("png", "svg"):
            figure.savefig(path.with_suffix(f".{kind}"), dpi=110)
        plt.close(figure)


def _short(x: float) -> str:
    return f"{x / 1e6:.0f}M" if x >= 1e6 else f"{x:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--scale", type=int, default=1, help="times as many examples")
    parser.add_argument("--only", help=f"of {','.join(TITLES)}")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    path = RESULTS / f"growth-{torch.device(arguments.device).type}.json"
    found = {}
    for name, points in curves(arguments.device, dtype, arguments.scale).items():
        if arguments.only and name not in arguments.only.split(","):
            continue
        found[name] = measured(points, arguments.device)
        print(
            f"{TITLES[name]}: time ∝ x^{found[name]['time_exponent']:.2f}, memory ∝ x^"
            f"{found[name]['memory_exponent']:.2f}; {found[name]['seconds'][-1]:.2f} s, "
            f"{found[name]['peak_mb'][-1]:.0f} MB at {_short(found[name]['x'][-1])}",
            flush=True,
        )
    if not arguments.only:
        write(path, about(arguments.device, dtype) | {"curves": found})
        draw(found, path)


if __name__ == "__main__":
    main()
