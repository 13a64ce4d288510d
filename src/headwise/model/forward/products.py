"""Products with frozen weights on a CPU, by the library that is faster at them.

On x86 torch multiplies float32 matrices with MKL, which packs the whole weight anew for every product. oneDNN, which
is part of torch as well, does not: for the tens to hundreds of tokens of a piece it is 1.2 to 2 times as fast on
the processors tried. Only the slope by the input is computed, and nothing but the weight is remembered for it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SOURCE = "_headwise_source"
"""Name under which a tensor carries its `Source`."""


def whole_rows(count: int) -> int:
    """The number of rows at which `count` rows are multiplied.

    oneDNN writes a program of half a megabyte for every number of rows that it meets, so these had better be few.

    >>> whole_rows(51), whole_rows(333)
    (56, 336)
    """
    step = 8 if count <= 128 else 16
    return -(-count // step) * step


class _Product(torch.autograd.Function):
    """input · weightᵀ + bias, for a weight that asks for no gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, source: Source | None
    ) -> Tensor:
        ctx.save_for_backward(weight, bias)
        # A result that is larger than what it is made of need not be kept.
        ctx.source = source if len(weight) > weight.shape[1] else None
        ctx.result = None
        return _by_onednn(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.source = ctx.result = None  # the steps that wanted the result came before
        return _by_onednn(slopes[0], ctx.saved_tensors[0].t(), None), None, None, None


class Source:
    """The result of a norm, which can be had again from what the norm has kept."""

    def __init__(self, norm: nn.Module, read: Tensor) -> None:
        self.norm, self.read = norm, read.detach()

    @functools.cached_property
    def value(self) -> Tensor:
        value: Tensor = self.norm.forward(self.read)
        return value


def can_come_again(step: Any) -> bool:
    """Whether the result of an autograd step is a product that `come_again` gives."""
    return step.name() == "_ProductBackward" and step.source is not None


def come_again(step: Any) -> Tensor:
    """The result of a product, multiplied anew; kept until the product's own turn."""
    if step.result is None:
        step.result = _by_onednn(step.source.value, *step.saved_tensors)
    result: Tensor = step.result
    return result


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
    except (AttributeError, RuntimeError):  # a torch built without it
        return False
    expected = functional.linear(hidden, weight, bias), slope @ weight
    return all(torch.allclose(*pair, atol=1e-5) for pair in zip(products, expected, strict=True))


@contextmanager
def faster_products(model: nn.Module) -> Iterator[None]:
    """While this holds, the frozen float32 linear layers of `model` multiply by oneDNN.

    Exactly `nn.Linear`: adapters and quantised layers derive from it and multiply otherwise.
    """
    layers = (module for module in model.modules() if type(module) is nn.Linear)
    changed = [layer for layer in layers if _can(layer)] if onednn_works() else []
    for layer in changed:
        layer.forward = _forward(layer)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


def _can(layer: nn.Linear) -> bool:
    if "forward" in vars(layer):  # somebody else's
        return False
    return all(_fits(part) for part in (layer.weight, layer.bias) if part is not None)


def _fits(part: Tensor) -> bool:
    here = part.dtype == torch.float32 and part.device.type == "cpu" and part.is_contiguous()
    return here and not part.requires_grad


def _forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight, bias = layer.weight, layer.bias

    def forward(hidden: Tensor) -> Tensor:
        if hidden.dtype != torch.float32 or not hidden.numel():
            return functional.linear(hidden, weight, bias)
        product: Tensor = _Product.apply(hidden, weight, bias, getattr(hidden, SOURCE, None))
        return product

    return forward
