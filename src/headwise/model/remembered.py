"""A backward pass that remembers less: what is cheap to compute again is not kept.

Gated feed-forward layers multiply act(a) by b, and autograd keeps a, act(a) and b, together more than all else that
it keeps of a layer. act(a) is one pass over a.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_AGAIN: dict[str, Callable[[Any], Tensor]] = {
    "SiluBackward0": lambda step: functional.silu(step._saved_self),
    "GeluBackward0": lambda step: functional.gelu(step._saved_self, approximate=step._saved_approximate),
}
"""The steps whose result is computed again from what the step itself has kept, by autograd's name for it."""


def remembering_less() -> AbstractContextManager[None]:
    """While this holds, autograd keeps the input of an activation function, and not its result beside it.

    The result is wanted by steps that come after the activation, so backwards before it: its own input is still there.
    """
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)


def _pack(kept: Tensor) -> Any:
    step = kept.grad_fn
    # Detached, because a step that keeps its own result would otherwise keep itself alive.
    return step if step is not None and step.name() in _AGAIN else kept.detach()


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    with torch.no_grad():
        return _AGAIN[packed.name()](packed)
