"""The model that a configuration describes, built without memory and compared with the weights.

A few bytes of config.json can ask for a model of any size, and transformers allocates its memory before it compares
it with the weights. On torch's `meta` device a model has names and shapes but no numbers, so its size costs no memory,
and building stops as soon as it exceeds the weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from headwise.errors import HeadwiseError

_SLACK = 2**20
"""Numbers that a model may have beyond its weights: some families fill small tensors by themselves."""
_BUFFERS = 2**28
"""Bytes of tables (positions, masks) that any model may have; a large one as much as its weights weigh."""


@dataclass(frozen=True)
class Weights:
    """What the headers of a checkpoint's files say, checked against the size of the files."""

    described_in: str
    """The file that describes the model, for messages."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of each tensor, by its name in the files."""
    size: int
    """Bytes of the files."""
    packed: bool = False
    """Whether a tensor may hold several numbers of the model in one of its own (quantised weights)."""

    @property
    def most_numbers(self) -> int:
        """How many numbers a model made of them can have: packed ones take at least a bit each."""
        if self.packed:
            return 8 * self.size
        return sum(math.prod(shape) for shape in self.shapes.values())


def check_fits(weights: Weights, build: Callable[[], Any]) -> None:
    """Raises a `HeadwiseError` where the model that `build` makes is larger than its weights, or has a tensor of
    another size than they have under its name."""
    with torch.device("meta"), _stopped_beyond(weights):
        model = build()
    model.tie_weights()
    numbers = sum(parameter.numel() for parameter in model.parameters())  # a tied one counts once
    if numbers > 1.01 * weights.most_numbers + _SLACK:
        raise _too_large(weights, numbers)
    tables = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if tables > weights.size + _BUFFERS:
        raise HeadwiseError(
            f"{weights.described_in} describes a model with tables of {tables:.1e} bytes beside its weights, which "
            f"have {weights.size} bytes; a number such as max_position_embeddings in it is too large"
        )
    if weights.packed:
        return
    for name, tensor in model.state_dict().items():
        held = weights.shapes.get(name)
        # Only the number of elements: transformers may turn a tensor around while it loads it.
        if held is not None and math.prod(held) != tensor.numel():
            raise HeadwiseError(
                f"{weights.described_in} asks for {name} of shape {list(tensor.shape)}, but the weights hold "
                f"{list(held)}"
            )


@contextmanager
def _stopped_beyond(weights: Weights) -> Iterator[None]:
    """While this holds, a model of far more tensors or numbers than the weights have cannot be built."""
    # Tied tensors are made before they are tied; experts may be one tensor in the file and many in the model.
    most_numbers, most_tensors = 2 * weights.most_numbers + _SLACK, 8 * len(weights.shapes) + 1000
    builder, numbers, tensors = threading.get_ident(), 0, 0
    counted: dict[int, nn.Parameter] = {}  # tying registers a parameter a second time

    def count(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        nonlocal numbers, tensors
        if parameter is None or threading.get_ident() != builder or id(parameter) in counted:
            return
        counted[id(parameter)] = parameter
        numbers, tensors = numbers + parameter.numel(), tensors + 1
        if numbers > most_numbers:
            raise _too_large(weights, numbers)
        if tensors > most_tensors:
            raise HeadwiseError(
                f"{weights.described_in} describes a model of more than {tensors} tensors, but the weights have "
                f"{len(weights.shapes)}"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _too_large(weights: Weights, numbers: int) -> HeadwiseError:
    return HeadwiseError(
        f"{weights.described_in} describes a model of more than {numbers:.1e} numbers, but the weights hold at most "
        f"{weights.most_numbers:.1e}"
    )
