"""Edges: how long they take, whether a loop of hooks gives the same, spans, and dense against sparse.

    python benchmarks/edges.py --part timing --device cuda          40 × 40 heads × Q, K, V exact; all edges by gradient
    python benchmarks/edges.py --part spans --device cuda           circuits of edges with and without spans on IOI
    python benchmarks/edges.py --part sparse --device cuda          smollm2 against smollm2-sparse on four tasks
    python benchmarks/edges.py --part stories --weights FILE.tgz    stories15M against hooks (a llama2.c checkpoint)

`--out FILE.json` says where the numbers go; each part is saved when it is done, beside those that are there.
`timing` compares with a loop that hooks plain transformers, one forward pass per edge over all prompts; it runs some
of the edges and is extrapolated. Values of the sample must agree to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from headwise import stats
from headwise.heads.edges import Edge
from headwise.model.tokens.encode import pad_right
from headwise.sweeps.edge_curve import EdgeCurve, edge_curve
from headwise.sweeps.explained import heads_needed, resampled_needs
from stories import model_of, parts

TASKS = ("ioi", "ioi_long", "greater_than", "docstring")


class HookLoop:
    """Exact edges of a Llama by hooks on its projections: `patch` reference, logit_diff of one-token answers."""

    def __init__(self, model: hw.Model, task: hw.Task) -> None:
        self.hf, self.layers, self.heads = model.hf, list(model.hf.model.layers), model.shape[1]
        prompts = [model.tokens(example.prompt) for example in task]
        donors = [model.tokens(example.counterfactual or "") for example in task]
        self.ids, self.donors = (pad_right(some).to(model.device) for some in (prompts, donors))
        self.last = torch.tensor([len(ids) - 1 for ids in prompts], device=model.device)
        answers = [[model.tokens(e.prompt + text)[-1] for text in (e.target, e.foils[0])] for e in task]
        self.target, self.foil = torch.tensor(answers, device=model.device).T
        self.plain = self._recorded(self.ids)
        self.other = self._recorded(self.donors)
        self.full = self.values(self.ids)

    def values(self, ids: torch.Tensor, *hooks: tuple[Any, str, Callable[[Any], Any]]) -> torch.Tensor:
        """The metric of every prompt with some hooks: (module, in | out, function)."""
        logits = self._run(ids, *hooks)
        rows = torch.arange(len(ids), device=ids.device)
        return logits[rows, self.last, self.target] - logits[rows, self.last, self.foil]

    def _run(self, ids: torch.Tensor, *hooks: tuple[Any, str, Callable[[Any], Any]]) -> torch.Tensor:
        handles = []
        for module, where, change in hooks:
            if where == "in":
                before = lambda _, args, change=change: (change(args[0]), *args[1:])  # noqa: E731
                handles.append(module.register_forward_pre_hook(before))
            else:
                handles.append(module.register_forward_hook(lambda _, __, out, change=change: change(out)))
        try:
            with torch.no_grad():
                return self.hf(input_ids=ids, use_cache=False).logits.float()
        finally:
            for handle in handles:
                handle.remove()

    def _recorded(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """What every output projection reads."""
        seen: list[torch.Tensor] = []

        def note(x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return x

        self._run(ids, *((layer.self_attn.o_proj, "in", note) for layer in self.layers))
        return seen

    def delta(self, sender: hw.Head) -> torch.Tensor:
        projection = self.layers[sender.layer].self_attn.o_proj
        size = projection.in_features // self.heads
        columns = slice(sender.head * size, (sender.head + 1) * size)
        change = self.other[sender.layer][..., columns] - self.plain[sender.layer][..., columns]
        return change @ projection.weight[:, columns].T.detach()

    def effect(self, edge: Edge) -> np.ndarray:
        """m(full) − m(edge replaced) of every prompt."""
        delta, receiver = self.delta(edge.sender), edge.receiver
        if receiver.slot == "logits":
            replaced = self.values(self.ids, (self.hf.model.norm, "in", lambda x: x + delta))
            return (self.full - replaced).double().cpu().numpy()
        layer = self.layers[receiver.layer]
        projection = getattr(layer.self_attn, f"{receiver.slot.lower()}_proj")
        size = self.layers[0].self_attn.head_dim
        columns = slice(receiver.head * size, (receiver.head + 1) * size)
        seen: list[torch.Tensor] = []

        def stream(x: torch.Tensor) -> torch.Tensor:
            changed = torch.nn.functional.linear(layer.input_layernorm(x + delta), projection.weight)
            seen.append(changed[..., columns])
            return x

        def swap(out: torch.Tensor) -> torch.Tensor:
            out = out.clone()
            out[..., columns] = seen[0]
            return out

        replaced = self.values(self.ids, (layer, "in", stream), (projection, "out", swap))
        return (self.full - replaced).double().cpu().numpy()


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    made = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return made, time.perf_counter() - start


def timing(asked: argparse.Namespace) -> dict[str, Any]:
    model = hw.load("smollm2", device=asked.device, dtype="float32")
    task = hw.task("ioi", asked.n, model=model)
    order, _ = timed(lambda: hw.score(model, task, reference="patch", progress=False), asked.device)
    top = order.top(asked.heads, "absolute")

    def exact() -> hw.Edges:
        return hw.edges(model, task, into=top, out_of=top, reference="patch", progress=False)

    if asked.device != "cpu":
        exact()  # the first run chooses kernels
    edges, seconds = timed(exact, asked.device)
    everything = {"reference": "patch", "components": ["heads", "mlps", "input"], "progress": False}
    gradient, gradient_seconds = timed(
        lambda: hw.edges(model, task, "attribution", **everything), asked.device
    )
    loop = HookLoop(model, task)
    sample = random.Random(0).sample(range(len(edges)), min(asked.sample, len(edges)))
    by_hooks, hook_seconds = timed(lambda: [loop.effect(edges.edges[n]) for n in sample], asked.device)
    gap = float(np.abs(np.stack(by_hooks).T - edges.examples[:, sample]).max())
    shared = [gradient.edges.index(edge) for edge in edges.edges]
    return {
        "device": asked.device,
        "prompts": len(task),
        "heads": len(top),
        "edges": len(edges),
        "exact_seconds": seconds,
        "hook_loop_seconds_extrapolated": hook_seconds / len(sample) * len(edges),
        "hook_sample": len(sample),
        "speed_up": hook_seconds / len(sample) * len(edges) / seconds,
        "largest_gap_to_hooks": gap,
        "largest_effect": float(np.abs(edges.examples).max()),
        "gradient_edges": len(gradient),
        "gradient_seconds": gradient_seconds,
        "correlation_gradient_exact": float(np.corrcoef(gradient.values[shared], edges.values)[0, 1]),
        "largest": [f"{edge} {edges[edge]:+.3f}" for edge in edges.top(10)],
    }


def _needed(curve: EdgeCurve, threshold: float = 0.9) -> dict[str, Any]:
    needed = curve.k_at(threshold)
    pairs = float(np.interp(needed.k, curve.k, curve.tokens)) if np.isfinite(needed.k) else None
    points = [[int(k), round(float(e), 4)] for k, e in zip(curve.k, curve.shares, strict=True)]
    return {
        "k": needed.k,
        "lo": needed.lo,
        "hi": needed.hi,
        "stays": needed.stays,
        "pairs": pairs,
        "curve": points,
    }


def spans(asked: argparse.Namespace) -> dict[str, Any]:
    """Edges among the top heads, whole and by span, ranked on one half and kept on the other."""
    model = hw.load("smollm2", device=asked.device, dtype="float32")
    find, test = hw.task("ioi", 2 * asked.n, model=model).halves()
    top = hw.score(model, find, reference="patch", progress=False).top(asked.heads // 2, "absolute")
    made: dict[str, Any] = {}
    for name, spans_asked in (("whole", None), ("spans", "all")):
        chosen: dict[str, Any] = {
            "into": [*top, "logits"],
            "out_of": top,
            "reference": "patch",
            "progress": False,
        }
        edges = hw.edges(model, find, spans=spans_asked, **chosen)
        curve = edge_curve(model, test, edges, points=24, by="signed", progress=False)
        made[name] = _needed(curve) | {"of": len(edges), "all_pairs": float(curve.tokens[-1])}
    if made["whole"]["pairs"] and made["spans"]["pairs"]:
        made["smaller_by"] = 1 - made["spans"]["pairs"] / made["whole"]["pairs"]
    return made


def sparse(asked: argparse.Namespace) -> dict[str, Any]:
    """Edges needed at 90 % by the dense model over those of its sparse companion, each among its own top heads."""
    made: dict[str, Any] = {}
    models = {
        name: hw.load(name, device=asked.device, dtype="float32") for name in ("smollm2", "smollm2-sparse")
    }
    for task_name in asked.task or TASKS:
        curves: dict[str, EdgeCurve] = {}
        for name, model in models.items():
            find, test = hw.task(task_name, 2 * asked.n, model=model).halves()
            top = hw.score(model, find, reference="patch", progress=False).top(asked.heads // 2, "absolute")
            edges = hw.edges(
                model, find, into=[*top, "logits"], out_of=top, reference="patch", progress=False
            )
            curves[name] = edge_curve(model, test, edges, points=24, progress=False)
        row: dict[str, Any] = {
            name: _needed(curve) | {"of": int(curve.k[-1])} for name, curve in curves.items()
        }
        row |= _ratio(*curves.values())
        made[task_name] = row
        save(asked, "sparse", made)
    return made


def _ratio(dense: EdgeCurve, sparse: EdgeCurve, threshold: float = 0.9) -> dict[str, Any]:
    needed, resampled = [], []
    for curve in (dense, sparse):
        needed.append(float(heads_needed(curve.k, curve.shares, threshold)))
        resampled.append(resampled_needs(curve.k, curve.gains, curve.effects, threshold))
    lo, hi = stats.resampled_interval(resampled[0] / resampled[1], dense.n)
    return {"ratio": needed[0] / needed[1], "lo": float(lo), "hi": float(hi)}


def stories(asked: argparse.Namespace) -> dict[str, Any]:
    """stories15M (full multi-head attention): random edges against the loop of hooks, on random token ids."""
    hf = model_of(parts(asked.weights)["model.bin"])
    tokenizer = number_tokenizer(hf.config.vocab_size)
    model = hw.load(hf, tokenizer=tokenizer, name="stories15M", device=asked.device)
    draw = random.Random(0)
    some = [[draw.randrange(300, 30_000) for _ in range(12)] for _ in range(8)]
    examples = []
    for ids in some:
        other = [*ids[:4], *(draw.randrange(300, 30_000) for _ in ids[4:])]
        words, corrupted = (" ".join(f"t{token}" for token in row) for row in (ids, other))
        examples.append(hw.Example(words, f" t{draw.randrange(300, 30_000)}", (f" t{ids[0]}",), corrupted))
    task = hw.Task("tokens", tuple(examples), "logit_diff")
    edges = hw.edges(model, task, reference="patch", progress=False)
    sample = draw.sample(range(len(edges)), asked.sample)
    loop = HookLoop(model, task)
    gap = np.abs(np.stack([loop.effect(edges.edges[n]) for n in sample]).T - edges.examples[:, sample]).max()
    return {
        "edges": len(edges),
        "sample": len(sample),
        "gap": float(gap),
        "largest": float(np.abs(edges.examples).max()),
    }


def number_tokenizer(count: int) -> Any:
    """One word per token id: edges of random ids need no words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"t{number}": number for number in range(count)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="t0")


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "timing": timing,
    "spans": spans,
    "sparse": sparse,
    "stories": stories,
}


def save(asked: argparse.Namespace, part: str, found: dict[str, Any]) -> None:
    if asked.out is not None:
        before = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        asked.out.write_text(json.dumps({**before, part: found}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--task", action="append", choices=TASKS, help="of the part sparse; by default all")
    parser.add_argument("--heads", type=int, default=40, help="parts spans and sparse take half of them")
    parser.add_argument("-n", type=int, default=32, help="prompts")
    parser.add_argument("--sample", type=int, default=60, help="edges that the loop of hooks runs")
    parser.add_argument("--weights", type=Path, help="archive of the llama2.c checkpoint")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for part in asked.part:
        found, seconds = timed(lambda part=part: PARTS[part](asked), asked.device)
        save(asked, part, found | {"part_seconds": seconds})
        print(json.dumps({part: found}))


if __name__ == "__main__":
    main()
