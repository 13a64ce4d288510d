"""Direct logit attribution: what a head, an MLP or the embeddings write towards the answer, past all later layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.model.measure.references import check_stored
from headwise.model.outputs.readout import Readout, rounding
from headwise.model.tokens.encode import Row
from headwise.scores.registry import Setup, register


@register(
    "direct",
    ablates=False,
    about="direct logit attribution: the head's direct contribution to the logit of target − foils",
    components=True,
)
def direct(setup: Setup) -> np.ndarray:
    """The part of the logit difference that the head writes itself, per example, in logits; positive helps.

    z − r through the head's columns of the output projection (and the norm after it, where a family has one),
    the final norm with its scale frozen, and the unembedding of target − mean of foils, at the position where
    they first differ. An exact share: with `zero`, the default, all heads plus the rest (its mean is kept as `rest`)
    sum to the logit difference. With another reference r, the share of what differs from r. `components` takes MLPs
    (with the biases inside them) and the embeddings out of the rest; with all of them, and `zero`, what is left there
    are embeddings of positions and the biases of output projections, norms and the unembedding, so 0 in a Llama.
    Cost: one forward pass. Known failure: blind to everything that later layers do with a head's output, so a head
    that only feeds others (a previous-token head) scores 0, and one whose writing a later layer erases
    scores high (nostalgebraist 2020, the logit lens; Elhage et al. 2021; Wang et al. 2022, arXiv 2211.00593).
    """
    if setup.metric.name != "logit_diff":
        raise HeadwiseError(
            f"the method 'direct' decomposes a logit difference, but the metric is {setup.metric.name!r}; "
            "use the metric logit_diff and examples with foils"
        )
    check_stored(setup.reference, "direct contributions")
    readout = Readout(setup.model, setup.layout.modules)
    engine = setup.engine()
    groups = engine.table.groups
    examples = np.full((len(setup.task), *setup.layout.shape), np.nan)
    rest = np.zeros(len(setup.task))
    for numbers, block in engine.blocks():
        positions = block.tensors["positions"]
        reading = readout.read(block.tensors["ids"], positions)
        direction, constant = _answers(readout, block.rows, positions.shape[1])
        metric = setup.metric.per_row(block.scored(reading.logits)).double()
        _check(readout, reading.logits, metric, readout.linear(reading, direction).sum(1) + constant)
        rows = [engine.rows[n].example for n in numbers]
        for of, vector in readout.towards(reading, direction):
            away = reading.modules[of][:, :, None] if isinstance(of, Head) else reading.z[of].double()
            if block.references is not None:
                assert isinstance(block.references, dict)
                away = away - _at(block.references[of], positions).double()
            if block.mask is not None:
                away = away * block.mask.gather(1, positions)[:, :, None, None]
            shares = (away * vector.reshape(away.shape)).sum((1, 3))  # S, H
            layer, columns = of, slice(shares.shape[1])
            if isinstance(of, Head):
                layer, columns = of.layer, slice(of.head, of.head + 1 or None)
            elif groups is not None:  # of a key/value head, the sum over its query heads
                columns = slice(None)
                sums = shares.new_zeros(len(shares), setup.layout.shape[1])
                shares = sums.index_add(1, groups[of, : shares.shape[1]].to(shares.device), shares)
            examples[rows, layer, columns] = shares.cpu().numpy()
        given = np.where(setup.layout.exists, examples[rows], 0.0).sum((1, 2))
        rest[rows] = metric.cpu().numpy() - given
        if setup.advance:
            setup.advance(len(numbers))
    reference = None if setup.reference == "zero" else setup.reference
    setup.details |= {"rest": float(rest.mean()), "reference": reference}
    return examples


def _answers(readout: Readout, rows: list[Row], width: int) -> tuple[Tensor, Tensor]:
    """The direction before the unembedding that reads target − foils `[S, P, W]`, and the biases' part `[S]`."""
    weight = readout.weight.detach()
    bias = getattr(readout.unembedding, "bias", None)
    direction = torch.zeros(len(rows), width, weight.shape[1], dtype=torch.float64, device=weight.device)
    constant = torch.zeros(len(rows), dtype=torch.float64, device=weight.device)
    for s, row in enumerate(rows):
        for sign, answers in ((1, row.rights), (-1, row.wrongs)):
            for slot, token in answers:
                share = sign * readout.factor / len(answers)
                direction[s, slot] += share * weight[token].double()
                if bias is not None:
                    constant[s] += share * bias[token].detach().double()
    return direction, constant


def _at(reference: Tensor, positions: Tensor) -> Tensor:
    """A reference `[S, T, H, D]`, `[T, H, D]` or `[H, D]` at `positions[S, P]`."""
    if reference.dim() == 2:
        return reference
    if reference.dim() == 3:
        return reference[positions]
    return reference[torch.arange(len(positions), device=positions.device)[:, None], positions]


def _check(readout: Readout, logits: Tensor, metric: Tensor, linear: Tensor) -> None:
    """The frozen path must give the model's own logit difference, or its parts are parts of something else."""
    gap = float((metric - linear).abs().max())
    if gap > 4 * rounding(readout.model.dtype) * max(1.0, float(logits.abs().max())):
        raise HeadwiseError(
            f"direct logit attribution is not exact for {readout.model.name}: the final norm and unembedding, taken "
            f"as a linear map, miss the model's own logit difference by {gap:.2g}; use 'ablation' or 'attribution'"
        )
