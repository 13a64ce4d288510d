"""How large a head's output is beside that of the other heads of its layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.model.outputs.answers import head_outputs
from headwise.model.tokens.encode import encode_rows
from headwise.scores.registry import Setup, register


@register(
    "norm",
    ablates=False,
    signed=False,
    about="mean norm of the head's output, relative to the mean of its layer: small in a dormant head",
)
def norm(setup: Setup) -> np.ndarray:
    """The head's mean output norm over the tokens of an example, divided by the mean over the heads of its layer.

    1 is the mean of the layer, and a head that writes nothing has 0; unsigned. A head far below 1 is called dormant
    (Sandoval-Segura et al. 2025, arXiv 2504.03889). The output is that before the output projection; the first token
    does not count, where there are others. Metric and reference play no part. Cost: one forward pass. Known failure: it
    shows how much a head writes, not whether anything reads it; and if the output hardly changes from prompt to prompt,
    a large one matters no more than a small one.
    """
    rows = [row.ids for row in encode_rows(setup.model.text, setup.task.examples, "target")]

    def mean_norm(numbers: Sequence[int]) -> Callable[[Tensor], Tensor]:
        lengths = torch.tensor([len(rows[n]) for n in numbers])[:, None]
        at = torch.arange(int(lengths.max()))
        counted = (at < lengths) & ((at > 0) | (lengths == 1))  # B, T
        weights = counted / counted.sum(1, keepdim=True)
        return lambda z: (z.double().norm(dim=-1, keepdim=True) * weights.to(z.device)[:, :, None, None]).sum(
            1
        )

    budget = setup.batch_tokens or setup.model.batch_tokens
    sizes = head_outputs(setup.model, rows, mean_norm, budget, np.float64, setup.advance)[..., 0]  # E, L, H
    sizes[:, ~setup.exists] = np.nan
    setup.unit = "output norm, × the layer's mean"
    return sizes / np.nanmean(sizes, axis=2, keepdims=True)
