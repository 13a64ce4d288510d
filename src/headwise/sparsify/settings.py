"""Settings of `headwise sparsify`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from headwise.settings import Count, Seed, Settings, Share


class SparsifySettings(Settings):
    """Settings of a sparse-attention training."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    steps: Count = 4000
    """Number of updates. The learning rate and the noise follow a schedule over them."""
    batch: Count = 32
    """Sequences per update."""
    length: Annotated[int, Field(ge=8)] = 256
    """Tokens per sequence."""
    rank: Count = 24
    """Rank of the low-rank adapters, which are on every linear map of the decoder."""
    rate: PositiveFloat = 1e-3
    """Peak learning rate, after the warm-up; it then falls to a hundredth along a cosine."""
    warmup: NonNegativeInt = 100
    """Updates over which the learning rate rises."""
    bound: PositiveFloat = 0.02
    """τ: maximum excess loss over the dense model, in nats per token."""
    text_weight: Share = 0.1
    """Weight of the text's own next token in the training target; the rest is the dense model's distribution."""
    bias: float = 4.0
    """b of every head: an edge is open if its score is above −b. At 4 most edges are open at the start."""
    multiplier: PositiveFloat = 10.0
    """Initial λ: weight of the excess loss (nats) against the logarithm of the share of open edges."""
    multiplier_rate: NonNegativeFloat = 0.01
    """η: each update multiplies λ by exp(η · violation); the violation is (excess − τ) / τ, within ±1."""
    temperature: PositiveFloat = 1.0
    """Initial scale of the noise; use a lower one to continue an annealed training with --start."""
    anneal: Share = 0.5
    """Share of the updates, at the end, over which the noise falls from `temperature` to `final_temperature`."""
    final_temperature: PositiveFloat = 0.2
    """Final scale of the noise; without noise, gates are the hard thresholds of the trained model."""
    text_share: Share = 0.3
    """Share of every batch that comes from the given texts; the rest is sampled from the model itself."""
    sample: NonNegativeInt = 0
    """Number of training sequences sampled from the model itself at temperature 1."""
    dense: bool = False
    """Train the dense control: the same adapter, data and order, without gates."""
    seed: Seed = 0
    """Random seed."""
    check_every: Count = 250
    """Updates between two checks of the hard-gated model on a held-back slice of the training text."""
    checkpoint_every: Count = 250
    """Updates between two checkpoints."""
