"""Devices: models on several of them, or partly in main memory or on disk until needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
