"""The kind of a module, recognised by its attributes and not by its family."""

from __future__ import annotations

from torch import Tensor, nn


def is_projection(module: nn.Module) -> bool:
    """Linear maps of every kind: plain, transposed (GPT-2's Conv1D), quantised. Not norms, not embeddings."""
    if isinstance(module, nn.Embedding | nn.LayerNorm) or "norm" in type(module).__name__.lower():
        return False
    weight = getattr(module, "weight", getattr(module, "qweight", None))
    return hasattr(module, "in_features") or (isinstance(weight, Tensor) and weight.dim() == 2)


def input_width(projection: nn.Module) -> int:
    """How many columns a linear map reads."""
    if hasattr(projection, "in_features"):
        return int(projection.in_features)  # type: ignore[arg-type]
    weight = projection.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0 if is_transposed(projection) else 1])


def is_transposed(projection: nn.Module) -> bool:
    """GPT-2's Conv1D stores its weight as `[in, out]`."""
    return type(projection).__name__ == "Conv1D"


def is_norm(part: nn.Module) -> bool:
    """A norm by its name, with nothing but a scale and a shift."""
    alone = not list(part.children())
    return alone and "norm" in type(part).__name__.lower() and all(p.dim() == 1 for p in part.parameters())


def is_feed_forward(part: nn.Module) -> bool:
    """A plain feed-forward part: linear maps and activations, which no router chooses among."""
    children = list(part.children())
    linear = [child for child in children if type(child) is nn.Linear]
    activations = [child for child in children if not list(child.parameters())]
    return (
        type(part) not in (nn.Sequential, nn.ModuleList)
        and "attention" not in type(part).__name__.lower()
        and len(linear) >= 2
        and len(activations) >= 1
        and len(linear) + len(activations) == len(children)
    )
