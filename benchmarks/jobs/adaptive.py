"""(c) Exact scores to a given interval width, against running every example: by a loop of hooks, and by ourselves."""

from __future__ import annotations

from typing import Any

import headwise as hw
from adaptive import PRECISION
from bench import Bench
from common import timed
from headwise.heads import single_gates
from jobs.ablation import heads_of, spread

HOOKED = 3
"""Heads that the loop of hooks runs on every example; each costs it the same."""


def adaptive(bench: Bench) -> dict[str, Any]:
    """Every head to ± 0.1 logit. Running everything is timed on some heads, ours also on a share of the examples."""
    sizes, model = bench.arguments, bench.model
    inputs = bench.inputs(sizes.adaptive_examples)
    heads = heads_of(bench, spread(model.shape[0], sizes.exhaustive_layers))
    part = inputs.some(0, sizes.exhaustive_examples)
    engine = bench.engine(part)
    before, _ = timed(lambda: engine.measure(single_gates(heads, model.shape)), bench.device)
    seconds, scores = timed(
        lambda: hw.score(model, inputs.task, "ablation", metric="logit_diff", precision=PRECISION),
        bench.device,
    )
    after, _ = timed(lambda: engine.measure(single_gates(heads, model.shape)), bench.device)
    total = len(model.heads()) * len(inputs.task)
    everything = (before + after) / 2 * total / (len(heads) * len(part.task))
    hooks = bench.peers(inputs, only="hook loop")
    few = heads[:: max(1, len(heads) // HOOKED)][:HOOKED]
    by_hooks = min(
        timed(lambda p=peer: [p.values(inputs, [head]) for head in few], bench.device)[0] for peer in hooks
    ) * (len(model.heads()) / len(few))
    table = scores.table()
    widest = float(((table.hi - table.lo) / 2).max())
    assert widest <= PRECISION + 1e-9, f"an interval is ± {widest}"
    return {
        "work": f"{len(model.heads())} heads to ± {PRECISION}, {len(inputs.task)} prompts of {inputs.tokens} tokens",
        "precision": PRECISION,
        "seconds": seconds,
        "exhaustive_by_hooks_s": by_hooks,
        "exhaustive_by_hooks_share_run": len(few) / len(model.heads()),
        "ratio": by_hooks / seconds,
        "exhaustive_s": everything,
        "exhaustive_share_run": len(heads) * len(part.task) / total,
        "ratio_to_own_exhaustive": everything / seconds,
        "rows": scores.details["rows"],
        "rows_exhaustive": scores.details["rows_exhaustive"],
        "fewer_rows": scores.details["ratio"],
        "widest_half_interval": widest,
    }
