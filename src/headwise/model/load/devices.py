"""Where a model runs and in which dtype, by the words of a user or by default."""

from __future__ import annotations

import torch

from headwise.errors import HeadwiseError, hint, quoted, unknown

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
