"""What a module is, where it lives, and a few tokens on which a model is tried before anything is computed with it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError, hint, quoted, unknown

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def entry_device(hf: nn.Module) -> torch.device:
    """Where a model takes its tokens: what is not there now (offloaded weights are `meta`) does not count."""
    devices = (parameter.device for parameter in hf.parameters() if not parameter.is_meta)
    return next(devices, torch.device("cpu"))


def tokens_at_once(device: torch.device) -> int:
    """Tokens of one forward pass that suit a device: enough to fill it, few enough for its memory."""
    if device.type == "cpu":
        return 8_192
    roomy = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory > 64 * 2**30
    return 131_072 if roomy else 65_536


def stored(hf: nn.Module, name: str, weight: Tensor) -> Tensor:
    """The values of a weight of the state, also where accelerate keeps them elsewhere until they are needed."""
    if not weight.is_meta:
        return weight
    module, _, leaf = name.rpartition(".")
    weights = getattr(getattr(hf.get_submodule(module), "_hf_hook", None), "weights_map", None)
    value = None if weights is None else weights[leaf]
    return value if isinstance(value, Tensor) else weight


SAME = 3
"""Tokens that the two rows of the probe have in common at their beginning."""
_CLEARLY, _FEW = 1 / 2, 1 / 4
"""A logit is clearly off if it moves by this share of the spread of its token's logits; so many may be."""


def probe_input(model: nn.Module) -> Tensor:
    """A few tokens that any vocabulary has, enough to make every layer run: two rows that begin alike and end
    differently, so that one pass shows whether later tokens reach earlier ones."""
    return torch.tensor([[3, 4, 5, 6, 7, 8], [3, 4, 5, 8, 7, 6]], device=entry_device(model))


def probe_logits(model: nn.Module) -> Tensor:
    """The logits `[2, T, vocabulary]` of the probe; half precision is widened."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=probe_input(model), use_cache=False).logits
    return widened(logits)


def widened(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def rounding(model: nn.Module, values: Tensor, noise: float = 0.0) -> float:
    """What rounding alone may do to such values of a model when the same sum is taken in another order.

    noise: the largest difference between two runs of the same.
    """
    step = torch.finfo(weight_dtype(model)).eps
    return 4 * noise + 64 * step * max(1.0, float(values.abs().max()))


def differ_by_rounding(logits: Tensor, expected: Tensor, limit: float) -> bool:
    """Whether no logit is further off than `limit`, and few are clearly off.

    In half precision the limit is of the size of the logits. So most of them must also be near, against how far the
    logits of their token spread: a lost mask or a wrong position moves many of them by that much.
    """
    gap = (logits - expected).abs()
    spread = (expected - expected.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True)
    clearly_off = (gap > spread * _CLEARLY).double().mean()
    return bool(gap.max() <= limit) and float(clearly_off) <= _FEW


def weight_dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def embedded_rows(embedding: Any) -> int | None:
    """The number of rows of a plain embedding table."""
    weight = getattr(embedding, "weight", None)
    return len(weight) if isinstance(weight, Tensor) else None


def context_length(hf: nn.Module) -> int | None:
    """The context length in tokens; None where the configuration has no number, or positions are relative.

    Rotary positions can be computed beyond it, but the model was not trained on them.
    """
    config = hf.config.get_text_config()  # type: ignore[operator, union-attr]
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0 or getattr(config, "alibi", False):
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one per kind of layer
    return max(most, *(_stretched(most, kind) for kind in kinds))


def _stretched(most: int, rope: dict[str, Any]) -> int:
    """The context length after rotary scaling; in some configurations `most` includes the scaling already."""
    factor, before = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not isinstance(factor, int | float):
        return most
    if not isinstance(before, int):
        before = most if rope.get("rope_type", rope.get("type")) in ("linear", "dynamic", "yarn") else 0
    return int(factor * before)


def weights_hash(hf: nn.Module) -> str:
    """Of the configuration and of every weight tensor (its shape, its sum, a sample of its values)."""
    digest = hashlib.sha256()
    config = hf.config.to_dict()  # type: ignore[operator, union-attr]
    for volatile in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(volatile, None)
    digest.update(repr(sorted(config.items(), key=lambda item: item[0])).encode())
    for name, parameter in hf.state_dict().items():
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        flat = stored(hf, name, parameter).detach().flatten()
        if flat.is_meta or not len(flat):
            continue
        sample = flat[:: max(1, len(flat) // 256)].double().cpu().numpy()
        # Sums of whole numbers are exact, so every device and number of threads gives the same one.
        bits = flat.view(_BITS[flat.element_size()])
        # torch widens the numbers one by one; on a CPU numpy is eight times as fast.
        total = bits.numpy().sum(dtype=np.int64) if bits.is_cpu else bits.sum(dtype=torch.int64).item()
        digest.update(sample.tobytes() + np.int64(total).tobytes())
    return digest.hexdigest()[:16]


# ---- the kind of a module, recognised by its attributes and not by its family ----------------------------


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


# ---- where a model runs and in which dtype, by the words of a user or by default -------------------------


DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")}


def accelerated(device: str | None) -> bool:
    """Whether a model that is loaded onto this device (by default an accelerator if there is one) avoids the CPU."""
    return (chosen_device(None).type if device in (None, "auto") else str(device)).partition(":")[0] != "cpu"


def chosen_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise HeadwiseError(f"unknown device {quoted(device)}; use cpu, cuda, cuda:1 or mps") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise HeadwiseError(
            f"this machine (or this build of torch) has no CUDA device; use {hint('device', 'cpu')}"
        )
    return chosen


def chosen_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if isinstance(dtype, torch.dtype):
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise unknown("dtype", str(dtype), DTYPES)
    return DTYPES[dtype]
