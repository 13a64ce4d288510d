"""Every number of a sparse-attention training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from headwise.settings import Count, Seed, Settings, Share


class SparsifySettings(Settings):
    """What is trained, on what, for how long, and how much the model may lose."""

    steps: Count = 4000
    """Updates in all. The learning rate and the noise follow a schedule over them."""
    batch: Count = 32
    """Sequences in one update."""
    length: Annotated[int, Field(ge=8)] = 256
    """Tokens in one sequence."""
    rank: Count = 24
    """Rank of the low-rank adapters, which are on every linear map of the decoder."""
    rate: PositiveFloat = 1e-3
    """Largest learning rate, reached after the warm-up, then falling to a hundredth of it along a cosine."""
    warmup: NonNegativeInt = 100
    """Updates over which the learning rate rises."""
    bound: PositiveFloat = 0.02
    """τ: nats per token by which the model may be worse than the dense one."""
    text_weight: Share = 0.1
    """How far the goal leans from the dense model's next-token distribution (0) to the given text's own token (1)."""
    bias: float = 4.0
    """b of every head: an edge is open where its score is above −b. At 4 most edges start open."""
    multiplier: PositiveFloat = 10.0
    """λ at the start: how many e-foldings of the share of open edges one nat is worth."""
    multiplier_rate: NonNegativeFloat = 0.01
    """η: λ grows by this factor's exponential per update while the bound is broken by its own size."""
    temperature: PositiveFloat = 1.0
    """Scale of the noise at first; lower when an annealed training is continued with --start."""
    anneal: Share = 0.5
    """The last part of the updates, over which the noise shrinks from `temperature` to `final_temperature`."""
    final_temperature: PositiveFloat = 0.2
    """Scale of the noise at the end; without noise gates are the hard thresholds of the finished model."""
    text_share: Share = 0.3
    """Part of every batch that comes from the given texts; the rest was sampled from the model itself."""
    sample: NonNegativeInt = 0
    """Sequences sampled from the model itself at temperature 1."""
    dense: bool = False
    """Train the same adapter on the same data in the same order without gates: the control."""
    seed: Seed = 0
    """Random seed."""
    check_every: Count = 250
    """Updates between two checks of the hard-gated model on a held-back slice of the training text."""
    checkpoint_every: Count = 250
    """Updates between two checkpoints."""
