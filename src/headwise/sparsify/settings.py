"""Every number of a sparse-attention training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwise.constraints import Constraints, Number, check_settings


@dataclass(frozen=True, kw_only=True)
class SparsifySettings:
    """What is trained, on what, for how long, and how much the model may lose."""

    CONSTRAINTS: ClassVar[Constraints] = {
        **dict.fromkeys(("steps", "batch", "rank", "check_every", "checkpoint_every"), Number(least=1)),
        **dict.fromkeys(("warmup", "sample", "seed", "multiplier_rate"), Number(least=0)),
        "length": Number(least=8),
        "bias": Number(),
        **dict.fromkeys(("rate", "bound", "multiplier", "temperature", "final_temperature"), Number(above=0)),
        **dict.fromkeys(("text_weight", "anneal", "text_share"), Number(least=0, most=1)),
    }

    steps: int = 4000
    """Updates in all. The learning rate and the noise follow a schedule over them."""
    batch: int = 32
    """Sequences in one update."""
    length: int = 256
    """Tokens in one sequence."""
    rank: int = 24
    """Of the low-rank adapters, on every linear map of the decoder."""
    rate: float = 1e-3
    """Largest learning rate, reached after the warm-up, then falling to a hundredth of it along a cosine."""
    warmup: int = 100
    """Updates over which the learning rate rises."""
    bound: float = 0.02
    """τ: nats per token by which the model may be worse than the dense one."""
    text_weight: float = 0.1
    """How far the goal leans from the dense model's next-token distribution (0) to the given text's own token (1)."""
    bias: float = 4.0
    """b of every head: an edge is open where its score is above −b. At 4 most edges start open."""
    multiplier: float = 10.0
    """λ at the start: how many e-foldings of the share of open edges one nat is worth."""
    multiplier_rate: float = 0.01
    """η: λ grows by this factor's exponential per update while the bound is broken by its own size."""
    temperature: float = 1.0
    """Scale of the noise at first; lower when an annealed training is continued with --start."""
    anneal: float = 0.5
    """The last part of the updates, over which the noise shrinks from `temperature` to `final_temperature`."""
    final_temperature: float = 0.2
    """Scale of the noise at the end; without noise gates are the hard thresholds of the finished model."""
    text_share: float = 0.3
    """Part of every batch that comes from the given texts; the rest was sampled from the model itself."""
    sample: int = 0
    """Sequences sampled from the model itself at temperature 1."""
    dense: bool = False
    """Train the same adapter on the same data in the same order without gates: the control."""
    seed: int = 0
    """Of everything random."""
    check_every: int = 250
    """Updates between two looks at the hard-gated model on a held-back slice of the training text."""
    checkpoint_every: int = 250
    """Updates between two checkpoints."""

    def __post_init__(self) -> None:
        check_settings(self)
