"""What every benchmark shares: results with date, machine and versions; turns; memory; the floor.

L layers, H heads, V variants of the gates, E examples, T tokens.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("headwise", "torch", "transformers", "transformer-lens", "nnsight", "pyvene")
Found = TypeVar("Found")


# ---- results -----------------------------------------------------------------------------------------------


def about(device: str | torch.device, dtype: Any = None) -> dict[str, Any]:
    """Date, machine and versions: the head of every results file."""
    where = torch.device(device)
    chip = torch.cuda.get_device_name(where) if where.type == "cuda" else _processor()
    threads = f"{torch.get_num_threads()} threads"
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": ", ".join([chip, threads, where.type, *([str(dtype)] if dtype else [])]),
        "versions": versions(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Of the packages that matter here, as far as they are there."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "headwise":  # run from a source tree
                from headwise import __version__

                found[name] = __version__
    return found


def write(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path.name}", flush=True)


# ---- time --------------------------------------------------------------------------------------------------


def timed(work: Callable[[], Found], device: str | torch.device = "cpu") -> tuple[float, Found]:
    """Seconds, and what the work returned."""
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    found = work()
    wait()
    return time.perf_counter() - began, found


def in_turns(
    ways: Mapping[str, Sequence[Callable[[], Found]]], device: str | torch.device = "cpu"
) -> tuple[dict[str, float], dict[str, list[Found]]]:
    """Seconds and results of each way's pieces of work, one piece of each in turn: noise meets all alike."""
    seconds = dict.fromkeys(ways, 0.0)
    results: dict[str, list[Found]] = {name: [] for name in ways}
    for turn in range(max(map(len, ways.values()))):
        for name, pieces in ways.items():
            if turn < len(pieces):
                spent, found = timed(pieces[turn], device)
                seconds[name] += spent
                results[name].append(found)
    return seconds, results


# ---- memory ------------------------------------------------------------------------------------------------


def peak_mb(work: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """The most MB of tensors alive at once during the work, above what was alive before."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    from gating import tensor_peak

    return tensor_peak(lambda: (work(), None)[1])


# ---- the floor ---------------------------------------------------------------------------------------------


def matrix_rate(device: str | torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Floating-point operations per second of one large matrix product: the best of many."""
    size = 8192 if torch.device(device).type == "cuda" else 1536
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    best, spent = 0.0, 0.0
    with torch.inference_mode():
        torch.mm(a, b)
        while spent < seconds:
            took, _ = timed(lambda: torch.mm(a, b), device)
            best, spent = max(best, 2 * size**3 / took), spent + took
    return best


class Cost:
    """Floating-point operations of a Llama-shaped decoder, from its configuration."""

    def __init__(self, config: Any) -> None:
        width = config.hidden_size
        size = getattr(config, "head_dim", None) or width // config.num_attention_heads
        queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
        self.hold = 4 * width * keys
        """Per token and layer: keys and values. `ask`: its query. `mixing` is per token and token it sees."""
        self.ask = 2 * width * queries
        self.mixing = 4 * queries
        self.after = 2 * queries * width + 6 * width * config.intermediate_size
        """Per token and layer, after the gates: output projection and feed-forward part."""
        self.unembedding = 2 * width * config.vocab_size
        self.layers = config.num_hidden_layers

    def row(self, tokens: int, read: int = 1) -> float:
        """One row through the whole model, with logits at the last `read` positions."""
        layer = tokens * (self.hold + self.ask + self.after + self.mixing * (tokens + 1) / 2)
        return (self.layers - 1) * layer + self._last(tokens, read) + read * self.unembedding

    def variants(self, gates: np.ndarray, tokens: int) -> float:
        """One example under each of `gates[V, L, H]`: what two variants have alike is computed once.

        A layer's attention is the same for variants with equal gates in all layers before it; what follows its
        gates is the same for those with equal gates up to and including it. Of the last layer the output reads one
        position.
        """
        last = gates.shape[1] - 1
        mixing = tokens * (self.hold + self.ask + self.mixing * (tokens + 1) / 2)
        total = float(len(gates) * self.unembedding + _distinct(gates) * self.after)
        total += _distinct(gates[:, :last]) * (self._last(tokens) - self.after)
        for layer in range(last):
            total += _distinct(gates[:, :layer]) * mixing
            total += _distinct(gates[:, : layer + 1]) * tokens * self.after
        return total

    def _last(self, tokens: int, read: int = 1) -> float:
        """The last layer: keys and values of all tokens, the rest for those that are read."""
        seen = tokens - (read - 1) / 2
        return tokens * self.hold + read * (self.ask + self.mixing * seen + self.after)


def _distinct(gates: np.ndarray) -> int:
    return len(np.unique(gates.reshape(len(gates), -1), axis=0)) if gates.shape[1] else 1
