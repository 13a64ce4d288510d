"""A model folder, looked at before anything is built from it: are its weights safe to open, whole, and do they fit?

transformers builds what config.json asks for and only then looks at the weights. A billion layers would keep it busy
for ever, a tensor that is missing it fills with random numbers, and pickled weights run code when they are opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, shown

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format itself."""
_COUNTS = re.compile(
    r"(num|n)_(hidden_|decoder_)?layers?|(num|n)_(local_|routed_|moe_)?experts|moe_num_experts|num_blocks"
)
_WIDTHS = re.compile(
    r"(\w+_)?vocab_size|(\w+_)?hidden_size|d_model|n_embd|(\w+_)?intermediate_size|(\w+_)?ffn_dim|n_inner|d_ff|"
    r"(\w+_)?head_dim|(num|n)_(attention_|key_value_|kv_)?heads?"
)


def check(folder: Path, label: str) -> None:
    """Raises a `HeadwiseError` for a folder whose weights cannot be what its config.json says."""
    config = _config(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in PICKLED)
        if pickled:
            raise pickled_error(label, pickled[0])
        raise HeadwiseError(
            f"the folder {folder} has no weights; expected model.safetensors beside config.json, as save_pretrained "
            "writes it"
        )
    headers = [_header(file) for file in files]
    tensors = sum(len(header) for header in headers)
    size = sum(file.stat().st_size for file in files)
    for name, value in _numbers(config):
        if _COUNTS.fullmatch(name) and value > 1000 + 8 * tensors:
            raise HeadwiseError(
                f"{folder / 'config.json'} asks for {name} = {value}, and the weights beside it have {tensors} tensors"
            )
        if _WIDTHS.fullmatch(name) and value > size:
            raise HeadwiseError(
                f"{folder / 'config.json'} asks for {name} = {value}, and the weights beside it have {size} bytes"
            )
    widest = _product(config)
    if widest > 64 * size:
        raise HeadwiseError(
            f"{folder / 'config.json'} describes a model of more than {widest:.1e} numbers, and the weights beside it "
            f"have {size} bytes"
        )


def pickled_error(label: str, file: str) -> HeadwiseError:
    """Why a pickled checkpoint is not opened, and the way to convert it."""
    return HeadwiseError(
        f"{label} has only pickled weights ({file}), which can run code when opened; convert them once with "
        "transformers' save_pretrained(safe_serialization=True) on a machine you trust"
    )


def complete(label: str, report: Mapping[str, Any]) -> list[str]:
    """What transformers says of the weights it has loaded: raises where some are missing, names those left over."""
    missing = sorted(map(str, report.get("missing_keys", ())))
    if missing:
        raise HeadwiseError(
            f"the weights of {label} lack {len(missing)} tensor{'s' * (len(missing) != 1)} that its config.json asks "
            f"for, {missing[0]} for one; transformers would put random numbers there"
        )
    return sorted(map(str, report.get("unexpected_keys", ())))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwiseError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        said = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise HeadwiseError(f"{path}{line} is not JSON: {said}") from None
    if not isinstance(config, dict):
        raise HeadwiseError(f"{path} holds {shown(config)}; expected an object, as save_pretrained writes it")
    if not isinstance(config.get("model_type", ""), str):
        raise HeadwiseError(f"{path}: model_type is {shown(config['model_type'])}; expected text")
    return config


def _header(file: Path) -> dict[str, Any]:
    """The names, types and places of a file's tensors, checked against its size."""
    try:
        whole = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if whole < 8 or length > min(_HEADER, whole - 8):
                raise ValueError(f"it is cut short ({whole} bytes)")
            header = json.loads(opened.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
        if max(ends, default=0) != whole - 8 - length:
            raise ValueError(f"it is cut short or damaged ({whole} bytes)")
    except OSError as error:
        raise HeadwiseError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise HeadwiseError(
            f"{file} is not a safetensors file that can be read: {shown(str(error), 150)}"
        ) from None
    return header


def _numbers(config: Any) -> Iterator[tuple[str, int]]:
    """Every whole number of a configuration and of those inside it, by name."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(value, int) and not isinstance(value, bool):
                yield str(name), value
            elif isinstance(value, dict):
                yield from _numbers(value)


def _product(config: Mapping[str, Any]) -> float:
    """A lower bound of the numbers that the described model has: its embeddings, or one width for every layer."""
    most = 0.0
    for part in [config, *(value for value in config.values() if isinstance(value, dict))]:
        found = {name: value for name, value in _numbers(part) if name in part and value > 0}

        def first(*names: str, found: dict[str, int] = found) -> float:
            return float(min(next((found[n] for n in names if n in found), 1), 10**18))

        width = first("hidden_size", "n_embd", "d_model")
        layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        inner = first("intermediate_size", "n_inner", "ffn_dim", "d_ff")
        most = max(most, width * first("vocab_size"), width * inner * layers)
    return most
