"""What a metric is, and the metrics read off the logits, teacher forced. More is always better.

A metric is one function from a batch of scored rows to one number per row, and one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError, quoted, unknown
from headwise.model.backward import token_logprobs
from headwise.model.tokens.encode import Needs, Row, Scored
from headwise.registry import Registry
from headwise.tasks.examples import Example


@dataclass(frozen=True)
class Metric:
    """A number per example, oriented so that more is better."""

    name: str
    about: str
    needs: Needs
    per_row: Callable[[Scored], Tensor]
    differentiable: bool = True
    first_order: bool = True
    """Whether first-order methods may use its gradient at all gates 1; that of `kl` is 0 there."""
    compares: bool = False
    """Whether it needs the full model's logits beside the gated ones."""

    def combine(self, rows: Sequence[Row], values: np.ndarray, examples: int) -> np.ndarray:
        """Values per row `[V, rows]` to values per example `[V, E]`.

        Where an example has several rows they compete (`_competed`).
        """
        if len(rows) == examples:
            return values
        of_example: list[list[int]] = [[] for _ in range(examples)]
        for number, row in enumerate(rows):
            of_example[row.example].append(number)
        competed = [
            self._competed(values[:, some]) if len(some) > 1 else values[:, some[0]] for some in of_example
        ]
        return np.stack(competed, axis=1).astype(float, copy=False)

    def _competed(self, values: np.ndarray) -> np.ndarray:
        """Of several rows of one example `[V, rows]`: 1 if the first, the target, beats all others."""
        return values[:, 0] > values[:, 1:].max(axis=1)


METRICS: Registry[Metric] = Registry("metric", "headwise.metrics.*")


def register(
    name: str, *, needs: Needs, differentiable: bool = True, first_order: bool = True, **fields: Any
) -> Callable[[Callable[[Scored], Tensor]], Callable[[Scored], Tensor]]:
    """Make a function from scored rows to one number per row known under `name`; the other arguments are the fields of
    `Metric`, such as `about`. A metric that is not differentiable is not `first_order` either."""
    if needs not in get_args(Needs):
        raise unknown(f"value of needs for the metric {name!r}:", str(needs), get_args(Needs))
    fields |= {
        "needs": needs,
        "differentiable": differentiable,
        "first_order": first_order and differentiable,
    }
    return METRICS.decorator(
        name, lambda per_row: Metric(name=name, per_row=partial(_one_per_row, name, per_row), **fields)
    )


def _one_per_row(name: str, per_row: Callable[[Scored], Tensor], scored: Scored) -> Tensor:
    """What the metric gives for these rows, if it is one number per row."""
    values = per_row(scored)
    rows = len(scored.logits)
    if not isinstance(values, Tensor) or values.shape != (rows,):
        given = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else quoted(values)
        raise HeadwiseError(
            f"the metric {name!r} returned {given} for {rows} rows; expected one number per row: a tensor of shape "
            f"[{rows}]"
        )
    return values


metrics, metric = METRICS.all, METRICS.get


# ---- the metrics -----------------------------------------------------------------------------------------


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


# ---- who wins ----------------------------------------------------------------------------------------------


class _Winner(Metric):
    """Which answer is most likely: 0 for a right one, 1, 2, … for the foils in their order."""

    def _competed(self, values: np.ndarray) -> np.ndarray:
        return values.argmax(axis=1)


def _winning(scored: Scored) -> Tensor:
    """The winner of a row; a row of a longer continuation gives its log probability, and `combine` compares them."""
    if not scored.rights.shape[1]:
        return logprob(scored)
    right, wrong = (
        torch.where(exists, picked, -torch.inf)
        for picked, exists in (scored.picked(scored.rights), scored.picked(scored.wrongs))
    )
    best, index = wrong.max(1)
    winner = torch.where(best >= right.max(1).values, index + 1, 0).to(scored.logits.dtype)
    return torch.where(scored.whole, winner, logprob(scored))


def winner(examples: Iterable[Example]) -> Metric:
    """A metric that names the most likely answer, for comparing two runs; right answers of a set count as one."""
    needs: Needs = "sets" if any(example.also for example in examples) else "candidates"
    return _Winner("winner", "the most likely of target and foils", needs, _winning, differentiable=False)
