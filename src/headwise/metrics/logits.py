"""Metrics read off the logits, teacher forced. More is always better.

Each is one function from a batch of scored rows to one number per row, and one registration.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.metrics.registry import register
from headwise.metrics.token_logprobs import token_logprobs
from headwise.model.tokens.encode import Scored


def _token_logprobs(scored: Scored) -> Tensor:
    """log p of each target token `[B, P]`, 0 at padding."""
    return token_logprobs(scored.logits, scored.tokens) * scored.mask


@register("logprob", needs="target", about="log probability of the target, summed over its tokens (nats)")
def logprob(scored: Scored) -> Tensor:
    return _token_logprobs(scored).sum(1)


@register("mean_logprob", needs="target", about="log probability per target token (nats)")
def mean_logprob(scored: Scored) -> Tensor:
    return _token_logprobs(scored).sum(1) / scored.mask.sum(1)


@register("prob", needs="target", about="probability of the whole target")
def prob(scored: Scored) -> Tensor:
    return logprob(scored).exp()


@register(
    "logit_diff",
    needs="pairs",
    about="logit of the target minus mean logit of the foils, at the first token where they differ",
)
def logit_diff(scored: Scored) -> Tensor:
    right, exists = scored.picked(scored.rights)
    wrong, _ = scored.picked(scored.wrongs)
    return ((right - wrong) * exists).sum(1) / exists.sum(1)


@register(
    "prob_diff",
    needs="sets",
    about="probability of the correct answers minus that of the wrong ones, next token",
)
def prob_diff(scored: Scored) -> Tensor:
    probabilities = scored.logits.softmax(-1)
    right, right_exists = scored.picked(scored.rights, probabilities)
    wrong, wrong_exists = scored.picked(scored.wrongs, probabilities)
    return (right * right_exists).sum(1) - (wrong * wrong_exists).sum(1)


@register(
    "accuracy",
    needs="candidates",
    differentiable=False,
    about="1 if the target is more likely than every foil; without foils, if greedy decoding generates it",
)
def accuracy(scored: Scored) -> Tensor:
    """Continuations of one token compete by their logits, longer ones by their summed log probability.

    A row of a longer continuation returns that sum; `Metric.combine` lets the rows of an example compete.
    """
    greedy = ((scored.logits.argmax(-1) == scored.tokens) | ~scored.mask).all(1)
    if not scored.rights.shape[1]:
        return torch.where(scored.whole, greedy.to(scored.logits.dtype), logprob(scored))
    right, exists = scored.picked(scored.rights)
    wrong, _ = scored.picked(scored.wrongs)
    beats = ((right > wrong) | ~exists).all(1)
    decided = torch.where(exists.any(1), beats, greedy).to(scored.logits.dtype)
    return torch.where(scored.whole, decided, logprob(scored))


@register(
    "kl",
    needs="target",
    compares=True,
    first_order=False,
    about="negative KL divergence from the full model's next-token distribution, mean over target tokens (nats)",
)
def kl(scored: Scored) -> Tensor:
    """0 at best. Its gradient at all gates 1 is 0, so first-order methods refuse it."""
    assert scored.full is not None
    full, gated = scored.full.log_softmax(-1), scored.logits.log_softmax(-1)
    divergence = (full.exp() * (full - gated)).sum(-1)
    return -(divergence * scored.mask).sum(1) / scored.mask.sum(1)
