"""Which heads to cut out: loss of the smaller model by the ranking, at every size that its checkpoint can have.

    python benchmarks/shrink.py --rank-on wikitext2-valid.txt --text wikitext2-test.txt --device cuda

Heads are ranked on passages of one text by *nested* masks (of query heads, and of key/value heads) and by one gradient
(*attribution*); *magnitude* is the norm of a head's part of the output projection, *random* the mean of several draws.
All remove as many heads of every layer. Loss: cross-entropy in nats per token on passages of another text, with removed
heads at their mean output, as in the checkpoint. Differences to *nested* are paired over passages (95 % intervals). The
folder of the first size is written with `hw.export`, and its loss is compared with that of the gates.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, write
from headwise import stats
from headwise.heads import mask_gates
from headwise.model.load.export import heads_to_cut
from headwise.model.load.shrink import counts, sizes
from headwise.sparsify.data import read_text
from headwise.tasks.plain_text import passages

RANKED, KINDS = ("nested", "attribution", "magnitude"), ("heads", "kv_heads")


def magnitude(model: Any) -> list[Any]:
    """All heads, the largest norm of their part of the output projection first."""
    norms = {}
    for site in model.hooks.sites:
        parts = site.projections[0].weight.detach().float().unflatten(1, (site.heads, site.head_dim))
        norms |= {hw.Head(site.layer, h): float(parts[:, h].norm()) for h in range(site.heads)}
    return sorted(norms, key=lambda head: -norms[head])


def orders(
    model: Any, task: Any, updates: int, seeds: int, draws: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Kind/ranking -> order, and the seconds of the learned ones."""
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for kind in KINDS:
        for method, options in (("nested", {"updates": updates, "seeds": seeds}), ("attribution", {})):
            began = time.perf_counter()
            scores = hw.score(model, task, method, components=[kind], progress=False, **options)
            seconds[f"{kind}/{method}"] = round(time.perf_counter() - began, 1)
            found[f"{kind}/{method}"] = scores.order()
        found[f"{kind}/magnitude"] = magnitude(model)
        for draw in range(draws):
            found[f"{kind}/random {draw}"] = random.Random(draw).sample(model.heads(), len(model.heads()))
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rank-on", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=256, help="of each text")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()

    began = time.perf_counter()
    model = hw.load(asked.model, device=asked.device, dtype="float32")
    quick = hw.load(asked.model, device=asked.device, dtype="bfloat16") if "cuda" in asked.device else model
    found_on, tested = (passages(read_text(p), asked.passages, p.name) for p in (asked.rank_on, asked.text))
    ranked, seconds = orders(quick, found_on, asked.updates, asked.seeds, asked.draws)
    del quick

    total = counts(model.hooks)[0]
    named = [(kind, size) for kind in KINDS for size in sizes(model.hooks, kind)]
    cuts = {
        (name, size): heads_to_cut(model, ranked[name], 1 - size[0] / total, kind)
        for kind, size in named
        for name in ranked
        if name.startswith(f"{kind}/")
    }
    gates = np.stack([mask_gates(heads, model.shape) for heads in cuts.values()])
    how: dict[str, Any] = {"metric": "mean_logprob", "progress": False}
    measured = hw.measure(model, tested, gates, reference="mean", reference_task=found_on, **how)
    losses = dict(zip(cuts, -measured.values, strict=True))
    whole = -measured.full[0]

    rows = []
    for kind, size in named:
        draws = [losses[f"{kind}/random {draw}", size] for draw in range(asked.draws)]
        by = {name: losses[f"{kind}/{name}", size] for name in RANKED} | {"random": np.mean(draws, axis=0)}
        for name, values in by.items():
            lo, hi = stats.mean_interval(values - whole)
            row = {"components": kind, "kept": list(size), "share": 1 - size[0] / total, "ranking": name}
            row |= {"loss": values.mean(), "cost": (values - whole).mean(), "cost_lo": lo, "cost_hi": hi}
            if name != "nested":
                lo, hi = stats.difference_interval(values, by["nested"])
                row |= {"above_nested": (values - by["nested"]).mean(), "lo": lo, "hi": hi}
            rows.append(
                {
                    key: float(one) if isinstance(one, np.floating | np.ndarray) else one
                    for key, one in row.items()
                }
            )
            print(*(f"{value:.3f}" if isinstance(value, float) else value for value in rows[-1].values()))

    kind, size = named[0]
    prompts = [example.prompt + example.target for example in found_on]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = hw.export(
            model,
            cuts[f"{kind}/nested", size],
            Path(folder) / "small",
            shrink=True,
            reference_prompts=prompts,
        )
        small = hw.load(str(path), device=asked.device, dtype="float32")
        written = -hw.measure(small, tested, **how).values
    gap = float(np.abs(written - losses[f"{kind}/nested", size]).max())
    print(
        f"whole {whole.mean():.3f}; folder {written.mean():.3f}, at most {gap:.1e} from the gates on a passage"
    )
    setting = {name: getattr(value, "name", value) for name, value in vars(asked).items()}
    result = {"setting": setting, "whole": float(whole.mean()), "rows": rows, "seconds_of_ranking": seconds}
    result |= {
        "folder_loss": float(written.mean()),
        "folder_gap": gap,
        "seconds": round(time.perf_counter() - began, 1),
    }
    write(
        asked.out or RESULTS / f"shrink-{asked.device.split(':')[0]}.json", {**about(asked.device), **result}
    )


if __name__ == "__main__":
    main()
