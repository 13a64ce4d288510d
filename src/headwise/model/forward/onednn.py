"""Frozen weights: nothing asks for their gradients, and on a CPU oneDNN multiplies them, which is faster than MKL.

On x86 torch multiplies float32 matrices with MKL, which packs the whole weight again for every product. oneDNN, which
is part of torch as well, does not: for the tens to hundreds of tokens of one pass it is 1.2 to 2 times as fast on the
processors tried. Only the gradient by the input is computed, and only the weight is kept for it.

torch offers oneDNN's product under a private name; `onednn_works` tries it, and where it is missing or wrong torch's
own choice is used, with a warning.
"""

from __future__ import annotations

import functools
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.errors import first_line
from headwise.model.sites.patch import replaced

log = logging.getLogger("headwise")


def whole_rows(count: int) -> int:
    """The number of rows at which `count` rows are multiplied.

    oneDNN writes a program of half a megabyte for every number of rows that it meets, so these had better be few.

    >>> whole_rows(51), whole_rows(333)
    (56, 336)
    """
    step = 8 if count <= 128 else 16
    return -(-count // step) * step


class _Product(torch.autograd.Function):
    """input · weightᵀ + bias, for a weight that needs no gradient: nothing but the weight is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _by_onednn(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _by_onednn(gradients[0], ctx.saved_tensors[0].t(), None), None, None


def product(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input · weightᵀ + bias by the faster library, for one that is not differentiated."""
    if onednn_works() and _fits(weight if weight.is_contiguous() else weight.t()):
        return _by_onednn(hidden, weight, bias)
    return functional.linear(hidden, weight, bias)


def _by_onednn(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    count = len(rows)
    if count != whole_rows(count):
        whole = rows.new_empty(whole_rows(count), rows.shape[1])
        whole[:count], whole[count:] = rows, 0
        rows = whole
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product[:count].unflatten(0, hidden.shape[:-1])


@functools.cache
def onednn_works() -> bool:
    """Whether this torch has the product, and it is right; elsewhere torch's own choice stands.

    Off x86 that choice is oneDNN or the vendor's library already.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(2, 3, 16, generator=draw), torch.randn(5, 16, generator=draw))
    bias, slope = torch.randn(5, generator=draw), torch.randn(2, 3, 5, generator=draw)
    try:
        products = _by_onednn(hidden, weight, bias), _by_onednn(slope, weight.t(), None)
    except (AttributeError, RuntimeError) as error:  # a torch built without it
        log.warning(
            "torch %s has no oneDNN product (%s); passes are slower", torch.__version__, first_line(error)
        )
        return False
    expected = functional.linear(hidden, weight, bias), slope @ weight
    right = all(torch.allclose(*pair, atol=1e-5) for pair in zip(products, expected, strict=True))
    if not right:
        log.warning("torch %s gives a wrong oneDNN product; passes are slower", torch.__version__)
    return right


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """While this holds, no weight needs a gradient; afterwards those that did need one again."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        with faster_products(model):
            yield
    finally:
        for parameter in trainable:
            if not parameter.is_inference():  # offloaded weights are made anew for each pass
                parameter.requires_grad_(True)


def faster_products(model: nn.Module) -> AbstractContextManager[None]:
    """While this holds, the frozen float32 linear layers of `model` multiply by oneDNN.

    Exactly `nn.Linear`: adapters and quantised layers derive from it and multiply otherwise.
    """
    layers = (module for module in model.modules() if type(module) is nn.Linear)
    return replaced([layer for layer in layers if _can(layer)] if onednn_works() else [], _forward)


def _can(layer: nn.Linear) -> bool:
    if "forward" in vars(layer):  # somebody else's
        return False
    return all(_fits(part) for part in (layer.weight, layer.bias) if part is not None)


def _fits(part: Tensor) -> bool:
    here = part.dtype == torch.float32 and part.device.type == "cpu" and part.is_contiguous()
    return here and not part.requires_grad


def _forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    weight: Any = layer.weight
    bias: Any = layer.bias

    def forward(hidden: Tensor) -> Tensor:
        if hidden.dtype != torch.float32 or not hidden.numel():
            return functional.linear(hidden, weight, bias)
        product: Tensor = _Product.apply(hidden, weight, bias)
        return product

    return forward
