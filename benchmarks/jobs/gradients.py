"""(b) Attribution and integrated gradients: gradients of every gate, at 1 and averaged over levels from 0 to 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import Bench, summary
from common import in_turns, peak_mb


def gradients(bench: Bench) -> dict[str, Any]:
    """One backward pass at full gates is the first turn; one at the middle of each step, averaged, the second."""
    inputs = bench.inputs(bench.arguments.examples)
    engine, shape = bench.engine(inputs), bench.model.shape
    steps = bench.arguments.steps
    levels = (np.arange(steps) + 0.5) / steps
    peers = bench.peers(inputs, gradients=True)

    def ours() -> np.ndarray:
        return engine.gradients()[1]

    ours()  # warm
    ways = {"headwise": [ours, lambda: engine.mean_gradients(levels)]}
    ways |= {
        peer.label: [
            lambda p=peer: p.gradients(inputs, 1.0, shape),
            lambda p=peer: sum(p.gradients(inputs, level, shape) for level in levels) / steps,
        ]
        for peer in peers
    }
    seconds, results = in_turns(ways, bench.device)
    found = summary(
        seconds,
        dict.fromkeys(seconds, 1.0),
        work=f"gradients of {len(bench.model.heads())} gates, at 1 and averaged over {steps} levels, "
        f"{len(inputs.ids)} prompts of {inputs.tokens} tokens",
        # A backward pass to the gates alone costs as much as the forward one: weights ask for nothing.
        floor_s=2 * (1 + steps) * len(inputs.ids) * bench.cost.row(inputs.tokens) / bench.rate,
    )
    for peer in peers:
        found["ways"][peer.label] |= {
            "rows_per_pass": peer.batch,
            "largest_difference": _gap(results["headwise"], results[peer.label]),
            "peak_mb": peak_mb(lambda p=peer: p.gradients(inputs, 1.0, shape), bench.device),
        }
    found["ways"]["headwise"]["peak_mb"] = peak_mb(ours, bench.device)
    found["largest_difference"] = max(
        (way["largest_difference"] for way in found["ways"].values() if "largest_difference" in way),
        default=0.0,
    )
    return found


def _gap(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Largest difference, as a share of the largest gradient of the same turn."""
    gap = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(ours, theirs, strict=True))
    assert gap < 1e-3, f"gradients differ by {gap} of the largest"
    return gap
