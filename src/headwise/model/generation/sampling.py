"""From next-token logits to next tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, prompt: int, count: int) -> np.ndarray:
    """The random numbers of one prompt, one per token it may write.

    They depend only on the seed and the prompt's index: a prompt gets the same draws alone and in a batch, and every
    variant of the gates uses the same draws, so that comparisons of variants are paired.
    """
    return np.random.default_rng([seed, prompt]).random(count)


def choose(logits: Tensor, temperature: float, top_p: float, draws: Tensor | None) -> Tensor:
    """One token for each row of `logits[B, vocabulary]`; `draws[B]` in [0, 1) decides unless temperature is 0.

    The tokens lie on [0, 1) in order of falling probability, each as wide as it is probable; with `top_p` the
    smallest leading group that holds at least that probability is stretched over the whole (nucleus sampling,
    Holtzman et al. 2020, arXiv 1904.09751).
    """
    if temperature == 0:
        return logits.argmax(-1)
    assert draws is not None
    # A shift changes no probability, and keeps tiny temperatures from overflowing; float32 has none below 1e-45.
    scaled = (logits.double() - logits.max(-1, keepdim=True).values) / temperature
    probabilities, tokens = scaled.softmax(-1).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(-1)
    in_nucleus = (cumulative - probabilities) < top_p
    total = (probabilities * in_nucleus).sum(-1)
    ranks = (cumulative <= (draws.to(cumulative.dtype) * total)[:, None]).sum(-1)
    ranks = torch.minimum(ranks, in_nucleus.sum(-1) - 1)  # rounding may leave a remainder beyond the last
    return tokens.gather(-1, ranks[:, None])[:, 0]
