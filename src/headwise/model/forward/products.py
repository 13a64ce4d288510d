"""Products of float32 matrices on a CPU: by oneDNN where MKL, torch's own choice, leaves half of the processor unused.

MKL uses AVX-512 on Intel's processors only. On others that have it oneDNN, which is part of torch as well, multiplies
up to twice as fast; on Intel's it is slower than MKL (docs/benchmarks.md). The sums are taken in another order. torch
offers the product under a private name, so it is tried before it is used.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.model.sites.patch import replaced

FEWEST = 8
"""Rows of a product for which oneDNN is used: for fewer, such as those of one step of decoding, MKL is as fast."""


class _Product(torch.autograd.Function):
    """input · weightᵀ + bias, for a weight that needs no gradient: nothing but the weight is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.save_for_forward(weight)
        return _by_onednn(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _by_onednn(gradients[0], ctx.saved_tensors[0].t(), None), None, None

    @staticmethod
    def jvp(ctx: Any, *slopes: Any) -> Tensor:
        return _by_onednn(slopes[0], ctx.saved_tensors[0], None)


def _whole_rows(count: int) -> int:
    """The number of rows at which `count` rows are multiplied: oneDNN keeps a program of most of a megabyte for every
    number of rows that it meets, so there are at most 16 of them between a number and its double.

    >>> _whole_rows(51), _whole_rows(333), _whole_rows(512)
    (56, 336, 512)
    """
    step = max(8, 2 ** (count.bit_length() - 1) // 16)
    return -(-count // step) * step


def _by_onednn(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = hidden.reshape(-1, hidden.shape[-1])
    count, whole = len(rows), _whole_rows(len(rows))
    if count != whole:
        padded = rows.new_zeros(whole, rows.shape[1])
        padded[:count] = rows
        rows = padded
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), weight, bias, "none", [], "")
    return found[:count].unflatten(0, hidden.shape[:-1])


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 and is not Intel's, and this torch has the product, which is right."""
    info = Path("/proc/cpuinfo")
    maker = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else platform.processor()
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in maker and onednn_is_right()
    )


def onednn_is_right() -> bool:
    """Whether this torch has oneDNN's product, and it gives what torch's own gives."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(2, 5, 16, generator=draw), torch.randn(5, 16, generator=draw)
    bias, slope = torch.randn(5, generator=draw), torch.randn(2, 5, 5, generator=draw)
    try:
        found = _by_onednn(hidden, weight, bias), _by_onednn(slope, weight.t(), None)
    except (AttributeError, RuntimeError):  # a torch without it
        return False
    expected = functional.linear(hidden, weight, bias), slope @ weight
    return all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))


def product(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input · weightᵀ + bias by the faster library."""
    parts = [part for part in (hidden, weight, bias) if part is not None]
    suited = all(map(_suited, parts))
    enough = hidden.shape[-1] and hidden.numel() >= FEWEST * hidden.shape[-1]
    if not (suited and enough and onednn_is_faster()):
        return functional.linear(hidden, weight, bias)
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts[1:]):
        return functional.linear(hidden, weight, bias)
    found: Tensor = _Product.apply(hidden, weight, bias)
    return found


def _suited(part: Tensor) -> bool:
    return part.dtype == torch.float32 and part.device.type == "cpu"


def faster_products(model: nn.Module) -> AbstractContextManager[None]:
    """While this holds, the linear layers of a model multiply by the faster library.

    Exactly `nn.Linear`: adapters and quantised layers derive from it and multiply otherwise.
    """
    linear = [m for m in model.modules() if type(m) is nn.Linear] if onednn_is_faster() else []
    layers = [layer for layer in linear if _suited(layer.weight) and "forward" not in vars(layer)]
    return replaced(layers, _forward)


def _forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    parts: Any = layer
    return lambda input: product(input, parts.weight, parts.bias)
