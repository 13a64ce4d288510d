"""A sparse model as a small folder: a low-rank adapter in peft's format, and the gates beside it.

    adapter_model.safetensors, adapter_config.json     what peft writes, and can open without us
    edge_gates.json                                    the base model, its fingerprint, b of every head

The adapter is added to the base model's weights when the folder is loaded, so the result is a plain model with
another attention function. A control has no gates: its b is null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.files import user_path

GATES, WEIGHTS, CONFIG = "edge_gates.json", "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class EdgeGates:
    """The gates that make a sparse model of a base model and an adapter."""

    base: str
    """Alias, hub id or folder of the model that was trained further."""
    fingerprint: str
    """Of its weights: an adapter fits no other."""
    bias: np.ndarray | None  # L, H
    """b of every head; None for a dense control."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings and outcome of the training, for the record."""


def is_adapter(folder: Path) -> bool:
    return (folder / GATES).is_file()


def is_lora(folder: Path) -> bool:
    """Whether the folder is a plain adapter of peft: no gates, and no model beside it."""
    return (folder / CONFIG).is_file() and not (is_adapter(folder) or (folder / "config.json").is_file())


def lora_base(folder: Path) -> str:
    """Hub id, folder or alias of the model that a plain adapter of peft was trained on."""
    base = _config(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise HeadwiseError(
            f"{folder / CONFIG} names no base model; write its hub id or folder there, as base_model_name_or_path"
        )
    return base


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} holds a {type(config).__name__}")
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"the adapter in {folder} cannot be read: {error}") from error
    return config


def weights_fingerprint(hf: nn.Module) -> str:
    """A hash of a sample of every weight in float32: the same wherever and however the sums are taken."""
    digest = hashlib.sha256()
    for name, parameter in sorted(hf.state_dict().items()):
        flat = parameter.detach().flatten()
        sample = flat[:: max(1, len(flat) // 256)].float().cpu().numpy()
        digest.update(f"{name}{tuple(parameter.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()[:16]


def write_gates(folder: Path, gates: EdgeGates) -> None:
    content = {
        "format": 1,
        "base": gates.base,
        "fingerprint": gates.fingerprint,
        "bias": None if gates.bias is None else [[round(float(b), 6) for b in row] for row in gates.bias],
        "training": dict(gates.training),
    }
    (folder / GATES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def named_base(folder: Path) -> str:
    """The base model that an adapter names. A relative folder that is not here is looked for where the adapter is."""
    name = read_gates(folder).base if is_adapter(folder) else lora_base(folder)
    if user_path(name).exists():
        return name
    beside = (place / name for place in (folder.parent, folder))
    return next((str(path) for path in beside if (path / "config.json").is_file()), name)


def read_gates(folder: Path) -> EdgeGates:
    path = folder / GATES
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        bias = None if content["bias"] is None else np.array(content["bias"], dtype=np.float64)
        gates = EdgeGates(
            str(content["base"]), str(content["fingerprint"]), bias, content.get("training", {})
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadwiseError(f"{path} cannot be read ({error}); train or copy the folder again") from error
    if content.get("format") != 1 or (bias is not None and bias.ndim != 2):
        raise HeadwiseError(f"{path} has a format that this version of headwise cannot read; update headwise")
    return gates


def merge(hf: nn.Module, folder: Path) -> None:
    """Add the folder's adapter to the weights of its base model: W + (α/r)·B·A, in float32."""
    from safetensors.torch import load_file

    config = _config(folder)
    try:
        weights = load_file(folder / WEIGHTS)
    except Exception as error:
        raise HeadwiseError(f"the adapter in {folder} cannot be read: {error}") from error
    variants = ("use_dora", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern")
    used = [name for name in variants if config.get(name)]
    if config.get("peft_type") != "LORA" or used:
        used = used or ["peft_type"]
        raise HeadwiseError(f"the adapter in {folder} is not plain low-rank ({CONFIG}: {', '.join(used)})")
    scale = config["lora_alpha"] / config["r"]
    modules = dict(hf.named_modules())
    firsts = [name for name in weights if name.endswith(".lora_A.weight")]
    if not firsts:
        raise HeadwiseError(f"{folder / WEIGHTS} holds no low-rank adapter")
    others = [name for name in weights if not name.endswith((".lora_A.weight", ".lora_B.weight"))]
    if others:
        raise HeadwiseError(
            f"the adapter in {folder} changes more than low-rank products ({others[0]}); merge it with peft "
            "(merge_and_unload, save_pretrained) and give the merged folder"
        )
    for name in firsts:
        target = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        first, second = weights[name].float(), weights[name.replace("lora_A", "lora_B")].float()
        weight = getattr(modules.get(target), "weight", None)
        if not isinstance(weight, Tensor) or weight.numel() != second.shape[0] * first.shape[1]:
            raise HeadwiseError(
                f"the adapter in {folder} changes {target}, which its base model does not have"
            )
        change = scale * (second @ first)
        with torch.no_grad():
            # GPT-2's Conv1D stores its weight as [in, out].
            weight += (change if weight.shape == change.shape else change.T).to(weight)
