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

import headwise as hw
from common import RESULTS, about, write
from headwise import stats
from headwise.heads import mask_gates
from headwise.model.load.export import heads_to_cut
from headwise.model.load.shrink import counts, sizes
from headwise.sparsify.data import read_text
from headwise.tasks.plain_text import WORDS, passages

RANKED, KINDS = ("nested", "attribution", "magnitude"), ("heads", "kv_heads")
HOW: dict[str, Any] = {"metric": "mean_logprob", "progress": False}


def magnitude(model: Any) -> list[Any]:
    """All heads, the largest norm of their part of the output projection first."""
    norms = {}
    for site in model.hooks.sites:
        parts = site.projections[0].weight.detach().float().unflatten(1, (site.heads, site.head_dim))
        norms |= {hw.Head(site.layer, h): float(parts[:, h].norm()) for h in range(site.heads)}
    return sorted(norms, key=lambda head: -norms[head])


def orders(model: Any, task: Any, kind: str, asked: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Ranking -> order, and the seconds of the learned one."""
    began = time.perf_counter()
    how: dict[str, Any] = {"components": [kind], "progress": False}
    fit = {"rows": asked.rows} if asked.rows else {"updates": asked.updates}
    fit |= {"seeds": asked.seeds, "checks": 5, "start": asked.start}
    nested = hw.score(model, task, "nested", **fit, **how)
    seconds = round(time.perf_counter() - began, 1)
    print(f"{kind}: nested ranking in {seconds} s", flush=True)
    found = {"nested": nested.order(), "attribution": hw.score(model, task, "attribution", **how).order()}
    found["magnitude"] = magnitude(model)
    for draw in range(asked.draws):
        found[f"random {draw}"] = random.Random(draw).sample(model.heads(), len(model.heads()))
    return found, seconds


def compared(
    model: Any, found_on: Any, tested: Any, kind: str, ranked: dict[str, Any], draws: int
) -> tuple[Any, ...]:
    """Rows of the table; of the first size what nested masks cut, and its losses; the losses of the whole model."""
    total, possible = counts(model.hooks)[0], sizes(model.hooks, kind)
    cuts = {
        (name, size): heads_to_cut(model, order, 1 - size[0] / total, kind)
        for size in possible
        for name, order in ranked.items()
    }
    gates = np.stack([mask_gates(heads, model.shape) for heads in cuts.values()])
    measured = hw.measure(model, tested, gates, reference="mean", reference_task=found_on, **HOW)
    losses, whole = dict(zip(cuts, -measured.values, strict=True)), -measured.full[0]
    rows = []
    for size in possible:
        by = {name: losses[name, size] for name in RANKED}
        by["random"] = np.mean([losses[f"random {draw}", size] for draw in range(draws)], axis=0)
        for name, values in by.items():
            numbers = {"loss": values.mean(), "cost": (values - whole).mean()}
            numbers["cost_lo"], numbers["cost_hi"] = stats.mean_interval(values - whole)
            if name != "nested":
                numbers["above_nested"] = (values - by["nested"]).mean()
                numbers["lo"], numbers["hi"] = stats.difference_interval(values, by["nested"])
            row = {"components": kind, "kept": list(size), "share": 1 - size[0] / total, "ranking": name}
            rows.append(row | {key: float(number) for key, number in numbers.items()})
            print(
                *(f"{value:.3f}" if isinstance(value, float) else value for value in rows[-1].values()),
                flush=True,
            )
    return rows, cuts["nested", possible[0]], losses["nested", possible[0]], whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rank-on", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=128, help="of each text")
    parser.add_argument("--words", type=int, default=WORDS, help="of a passage")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--rows", type=int, help="of the learned ranking, instead of updates: for a CPU")
    parser.add_argument("--start", default="zero", help="of the learned ranking: zero or attribution")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()

    model = hw.load(asked.model, device=asked.device, dtype="float32")
    quick = hw.load(asked.model, device=asked.device, dtype="bfloat16") if "cuda" in asked.device else model
    found_on, tested = (
        passages(read_text(p), asked.passages, p.name, asked.words) for p in (asked.rank_on, asked.text)
    )
    setting = {name: getattr(value, "name", value) for name, value in vars(asked).items()}
    result: dict[str, Any] = {**about(asked.device), "setting": setting, "rows": [], "seconds_of_nested": {}}
    for kind in KINDS:
        ranked, result["seconds_of_nested"][kind] = orders(quick, found_on, kind, asked)
        rows, cut, losses, whole = compared(model, found_on, tested, kind, ranked, asked.draws)
        prompts = [example.prompt + example.target for example in found_on]
        with tempfile.TemporaryDirectory() as folder:
            path = hw.export(model, cut, Path(folder) / "small", shrink=True, reference_prompts=prompts)
            small = hw.load(str(path), device=asked.device, dtype="float32")
            written = -hw.measure(small, tested, **HOW).values
        gap = float(np.abs(written - losses).max())
        print(
            f"whole {whole.mean():.3f}; folder {written.mean():.3f}, at most {gap:.1e} from the gates on a passage"
        )
        result |= {"whole": float(whole.mean()), f"folder_gap_{kind}": gap, "rows": [*result["rows"], *rows]}
        write(asked.out or RESULTS / f"shrink-{asked.device.split(':')[0]}.json", result)


if __name__ == "__main__":
    main()
