"""(a) Exact ablation of every head; and that its memory is that of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench import AGREE, Bench, Inputs, Peer, summary
from common import in_turns, peak_mb
from headwise.heads import Head, single_gates

TURNS = 3


def ablation(bench: Bench) -> dict[str, Any]:
    """Layers are spread evenly over the depth; peers take fewer of them, since each head costs them the same."""
    sizes, model = bench.arguments, bench.model
    inputs = bench.inputs(sizes.examples)
    engine = bench.engine(inputs)
    ours_layers, peer_layers = spread(model.shape[0], sizes.layers), spread(model.shape[0], sizes.peer_layers)
    peers = bench.peers(inputs)
    engine.measure(single_gates([Head(model.shape[0] - 1, 0)], model.shape))  # warm

    def ours(turn: int) -> Callable[[], dict[Head, np.ndarray]]:
        heads = heads_of(bench, ours_layers[turn::TURNS])
        return lambda: dict(zip(heads, engine.measure(single_gates(heads, model.shape)).values, strict=True))

    def theirs(peer: Peer, turn: int) -> Callable[[], dict[Head, np.ndarray]]:
        heads = heads_of(bench, peer_layers[turn::TURNS])
        return lambda: {head: peer.values(inputs, [head]) for head in heads}

    ways = {"headwise": [ours(turn) for turn in range(TURNS)]}
    ways |= {peer.label: [theirs(peer, turn) for turn in range(TURNS)] for peer in peers}
    seconds, results = in_turns(ways, bench.device)
    values = {name: merged(parts) for name, parts in results.items()}
    total = len(model.heads())
    # A head costs a peer the same wherever it is. For us a late one is cheaper, and every turn has a run of its own
    # with all heads, which the whole work has once; so operations are counted.
    everything = bench.cost.variants(beside_all(bench, model.heads()), inputs.tokens)
    run = sum(
        bench.cost.variants(beside_all(bench, list(part)), inputs.tokens) for part in results["headwise"]
    )
    found = summary(
        seconds,
        {name: len(some) / total for name, some in values.items()} | {"headwise": run / everything},
        work=f"{total} heads × {len(inputs.ids)} prompts of {inputs.tokens} tokens",
        floor_s=len(inputs.ids) * everything / bench.rate,
    )
    compared = _compared(bench, inputs, values, peers)
    for peer in peers:
        found["ways"][peer.label] |= {
            "rows_per_pass": peer.batch,
            "largest_difference": compared[peer.label],
            "peak_mb": peak_mb(lambda p=peer: p.values(inputs, [Head(0, 0)]), bench.device),
        }
    last = heads_of(bench, ours_layers[-1:])
    found["ways"]["headwise"]["peak_mb"] = peak_mb(
        lambda: engine.measure(single_gates(last, model.shape)), bench.device
    )
    found["largest_difference"] = max(compared.values(), default=0.0)
    found["memory"] = memory(bench, inputs)
    return found


def _compared(
    bench: Bench, inputs: Inputs, values: dict[str, dict[Head, np.ndarray]], peers: list[Peer]
) -> dict[str, float]:
    """The largest difference of each peer's values from ours; heads that we did not run are run now."""
    ours = values["headwise"]
    absent = [head for peer in peers for head in values[peer.label] if head not in ours]
    if absent:
        heads = sorted(set(absent))
        measured = bench.engine(inputs).measure(single_gates(heads, bench.model.shape)).values
        ours = ours | dict(zip(heads, measured, strict=True))
    gaps = {
        peer.label: max(float(np.abs(some - ours[head]).max()) for head, some in values[peer.label].items())
        for peer in peers
    }
    for name, gap in gaps.items():
        assert gap < AGREE, f"{name}: values differ by {gap}"
    return gaps


def memory(bench: Bench, inputs: Inputs) -> dict[str, Any]:
    """Peak of scoring few and many heads beside one plain forward pass of as many rows as the budget holds."""
    budget = bench.arguments.memory_tokens
    heads = bench.model.heads()
    few, many = heads_of(bench, spread(bench.model.shape[0], bench.model.shape[0] // 2)), heads
    rows = max(1, budget // inputs.tokens)
    ids = inputs.ids.repeat(-(-rows // len(inputs.ids)), 1)[:rows]

    def forward() -> object:
        with torch.inference_mode():
            return bench.model.hf(input_ids=ids, use_cache=False, logits_to_keep=1).logits

    def scoring(chosen: list[Head]) -> Callable[[], object]:
        engine = bench.engine(inputs, batch_tokens=budget)
        return lambda: engine.measure(single_gates(chosen, bench.model.shape))

    forward()
    one = peak_mb(forward, bench.device)
    peaks = {str(len(chosen)): peak_mb(scoring(chosen), bench.device) for chosen in (few, many)}
    found = {
        "tokens_per_pass": budget,
        "one_forward_pass_mb": one,
        "scoring_mb_by_heads": peaks,
        "times_one_pass": max(peaks.values()) / one,
        "growth_with_heads": peaks[str(len(many))] / peaks[str(len(few))],
    }
    print(
        f"  at {budget} tokens per pass: one forward pass {one:.0f} MB, scoring "
        + ", ".join(f"{count} heads {mb:.0f} MB" for count, mb in peaks.items()),
        flush=True,
    )
    return found


def spread(layers: int, count: int) -> list[int]:
    """`count` layers, evenly over the depth.

    >>> spread(30, 3)
    [5, 15, 25]
    """
    count = min(count, layers)
    return [int((2 * i + 1) * layers / (2 * count)) for i in range(count)]


def beside_all(bench: Bench, heads: list[Head]) -> np.ndarray:
    """Gates of each of these heads alone at 0, and of the run with all heads that they are compared with."""
    return with_baseline(single_gates(heads, bench.model.shape))


def with_baseline(gates: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones_like(gates[:1]), gates])


def heads_of(bench: Bench, layers: list[int]) -> list[Head]:
    return [head for head in bench.model.heads() if head.layer in layers]


def merged(parts: list[dict[Head, np.ndarray]]) -> dict[Head, np.ndarray]:
    return {head: values for part in parts for head, values in part.items()}
