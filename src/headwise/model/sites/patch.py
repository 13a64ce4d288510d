"""The only file that changes a loaded model: hooks, replaced `forward` methods, the name of its attention, and
whether its weights need gradients.

Each change is a context manager that leaves the model as it was. What a forward pass puts in place, and in which
order, is in `forward/run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[..., Any]
Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
"""From a module and its arguments to other arguments, or None to leave them."""
After = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]
"""From a module, its arguments and its output to another output, or None to leave it."""

_NAME = "_attn_implementation_internal"
"""Where a configuration names its attention. The public setter would also overwrite sub-configurations."""


@contextmanager
def hooked(
    modules: Iterable[nn.Module], *, before: Before | None = None, after: After | None = None
) -> Iterator[None]:
    """While this holds, `before` sees or changes what the modules read, `after` what they give out."""
    with ExitStack() as undo:
        for module in modules:
            if before is not None:
                undo.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            if after is not None:
                undo.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        yield


def first_of(output: Any) -> Any:
    """What a module gives out; of a tuple or list, the first."""
    return output[0] if isinstance(output, tuple | list) and output else output


def edit_first(output: Any, edit: Callable[[Tensor], Tensor | None]) -> Any:
    """A module's output, of which the first is edited; None leaves it."""
    new = edit(first_of(output))
    if new is None:
        return output
    return new if isinstance(output, Tensor) else type(output)([new, *output[1:]])


@contextmanager
def replaced(modules: Iterable[nn.Module], make: Callable[[nn.Module], Forward]) -> Iterator[None]:
    """While this holds, the modules run what `make(module)` gives instead of their own `forward`."""
    with ExitStack() as undo:
        for module in modules:
            # An instance attribute shadows the method; one that others have set (accelerate) is put back.
            undo.enter_context(attribute(module, "forward", make(module)))
        yield


@contextmanager
def attention_named(model: nn.Module, rename: Callable[[str], str | None]) -> Iterator[None]:
    """While this holds, the model's configurations name another attention implementation (see `name_attention`)."""
    before = name_attention(model, rename)
    try:
        yield
    finally:
        for config, name in before:
            setattr(config, _NAME, name)


def name_attention(model: nn.Module, rename: Callable[[str], str | None]) -> list[tuple[Any, str]]:
    """Let the model's configurations name another attention implementation from now on.

    rename: from the present name to the new one; None leaves it. Returns each changed configuration and its old name.
    """
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    changed: list[tuple[Any, str]] = []
    for config in configs.values():
        old: str | None = getattr(config, _NAME, None)
        new = rename(old) if old is not None else None
        if old is not None and new is not None:
            setattr(config, _NAME, new)
            changed.append((config, old))
    return changed


def attention_names(model: nn.Module) -> set[str]:
    """The attention implementations that the model's configurations name."""
    names = (getattr(module.config, _NAME, None) for module in model.modules() if hasattr(module, "config"))
    return {name for name in names if name}


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """While this holds, no weight needs a gradient; afterwards those that did need one again.

    A backward pass then computes no gradient of a weight, and a linear layer does not store its input for one.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            if not parameter.is_inference():  # offloaded weights are made anew for each pass
                parameter.requires_grad_(True)


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While this holds, an attribute has another value; one that was not there is gone afterwards."""
    existed = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if existed:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def without_cudnn_sdpa() -> Iterator[None]:
    """While this holds, attention on a GPU is not computed by cuDNN, which plans anew for every shape that it meets.

    Equal rows are computed once, so every layer of a pass may have another number of rows; planning would then take
    several times as long as computing.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
