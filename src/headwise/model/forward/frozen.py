"""Frozen weights: nothing asks for their gradients, and on a CPU they are multiplied by the faster library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from headwise.model.forward.onednn import faster_products


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """While this holds, no weight needs a gradient; afterwards those that did need one again."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with faster_products(model):
            yield
    finally:
        for parameter in asking:
            if not parameter.is_inference():  # offloaded weights are made anew for each pass
                parameter.requires_grad_(True)
