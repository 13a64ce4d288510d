"""The same interventions on heads as users of four ways would write them.

Each way loads its own copy of the weights from one folder, in one dtype, frozen, and answers two questions:

    logits(ids, off, narrow)     next-token logits `[B, vocabulary]` at the last token with the heads `off` at zero
    gated(ids, gates, narrow)    the same with every head times its gate `[B, L, H]`, for autograd

`narrow` asks the model for the last token's logits alone (`logits_to_keep=1`). A way that cannot do the second has
`gradients = False`.
"""

from __future__ import annotations

import importlib
from typing import Protocol

import torch
from torch import Tensor

from headwise.heads import Head

FILES = {
    "hook loop": "hooks",
    "TransformerLens": "lens",
    "nnsight": "nnsight",
    "pyvene": "pyvene",
}
PACKAGES = {"TransformerLens": "transformer-lens", "nnsight": "nnsight", "pyvene": "pyvene"}


class Way(Protocol):
    """One library, or none: how heads are gated with it."""

    gradients: bool

    def logits(self, ids: Tensor, off: list[Head], narrow: bool) -> Tensor: ...

    def gated(self, ids: Tensor, gates: Tensor, narrow: bool) -> Tensor: ...


def load_way(name: str, folder: str, device: str, dtype: torch.dtype) -> Way:
    """Raises ImportError where its package is missing."""
    way: Way = importlib.import_module(f"ways.{FILES[name]}").load(folder, device, dtype)
    return way


def plain_model(folder: str, device: str, dtype: torch.dtype) -> torch.nn.Module:
    """The folder as transformers loads it, weights frozen."""
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    hf.requires_grad_(False)
    return hf


def by_layer(heads: list[Head]) -> dict[int, list[int]]:
    """Layer -> its heads among `heads`."""
    found: dict[int, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found
