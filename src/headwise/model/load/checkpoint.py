"""A model folder, looked at before anything is built from it: are its weights safe to open, whole, and do they fit?

transformers builds what config.json asks for and only then looks at the weights. A billion layers would keep it busy
for ever, a tensor that is missing it fills with random numbers, and pickled weights run code when they are opened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from headwise.errors import HeadwiseError, quoted
from headwise.model.load.shapes import Weights

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format itself."""
_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BF16": 16, "C64": 64} | {
    f"{kind}{bits}": bits for kind in "IUF" for bits in (8, 16, 32, 64)
}
"""Of one number, by the name of its type in a header (up to the underscore where that says the rest, as in F8_E4M3)."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_OF_SEVERAL_PROCESSES = re.compile(r"shard-[0-9]{5}-model-[0-9]{5}-of-[0-9]{5}\.safetensors$")
"""Where a folder has such files, transformers opens them and no others."""
_MOST_LAYERS = 4096
_COUNTS = re.compile(
    r"(\w+_)?(num|n)_(\w+_)?(layers?|experts|blocks|labels)|(\w+_)?(en|de)coder_layers|(\w+\.)?(block|expert)_count"
)
_WIDTHS = re.compile(
    r"(\w+_)?vocab_size|(\w+_)?hidden_size|d_model|n_embd|(\w+_)?intermediate_size|(\w+_)?ffn_dim|n_inner|d_ff|"
    r"(\w+_)?head_dim|(num|n)_(attention_|key_value_|kv_)?heads?|"
    r"(\w+\.)+(vocab_size|embedding_length|feed_forward_length|head_count(_kv)?|key_length|value_length)"
)


def check(folder: Path, label: str) -> Weights:
    """What the folder's weights are, from the headers of the files that transformers would open.

    Raises a `HeadwiseError` where one of these is no safetensors file inside the folder, is damaged, or cannot be what
    config.json says.
    """
    config = _config(folder)
    if (folder / "adapter_config.json").is_file():
        raise HeadwiseError(
            f"{label} holds a PEFT adapter (adapter_config.json) beside a model; merge the two (merge_and_unload) and "
            "save the result with save_pretrained, or take the adapter's files out"
        )
    files = _weight_files(folder, label)
    headers = [_header(file) for file in files]
    tensors = sum(len(header) for header in headers)
    size = sum(file.stat().st_size for file in files)
    check_numbers(folder / "config.json", _numbers(config), tensors, size)
    shapes = {
        name: tuple(int(n) for n in entry["shape"]) for header in headers for name, entry in header.items()
    }
    return Weights(str(folder / "config.json"), shapes, size, packed="quantization_config" in config)


def check_numbers(where: Path, numbers: Iterable[tuple[str, int]], tensors: int, size: int) -> None:
    """Raises a `HeadwiseError` for a number of layers or a width that weights of this size cannot have."""
    for name, value in numbers:
        if _COUNTS.fullmatch(name) and value > min(1000 + 8 * tensors, _MOST_LAYERS):
            raise HeadwiseError(
                f"{where} asks for {name} = {value}, and the weights beside it have {tensors} tensors"
            )
        if _WIDTHS.fullmatch(name) and value > size:
            raise HeadwiseError(
                f"{where} asks for {name} = {value}, and the weights beside it have {size} bytes"
            )


def named_weights(folder: Path) -> str | None:
    """The file with the weights where config.json itself names one, which is rare."""
    named = _config(folder).get("transformers_weights")
    return None if named is None else str(named)


def _weight_files(folder: Path, label: str) -> list[Path]:
    """The files that transformers will open, in its own order of choice."""
    several = [file for file in folder.iterdir() if _OF_SEVERAL_PROCESSES.match(file.name)]
    if several:
        return [_inside(folder, file.name, folder) for file in sorted(several)]
    chosen = named_weights(folder)
    if chosen is None:
        chosen = next((name for name in (WHOLE, INDEX) if (folder / name).is_file()), None)
    if chosen is None:
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in PICKLED)
        if pickled:
            raise pickled_error(label, pickled[0])
        raise HeadwiseError(
            f"the folder {folder} has no weights; expected {WHOLE} (or {INDEX} and the files it names) beside "
            "config.json, as save_pretrained writes it"
        )
    if not chosen.endswith(".index.json"):
        return [_inside(folder, chosen, folder / "config.json")]
    index = _plain_name(folder, chosen, folder / "config.json")
    return [_inside(folder, name, index) for name in shard_names(index)]


def shard_names(index: Path) -> list[str]:
    """The files that an index names, whatever they are."""
    named = _json(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(one, str) for one in named.values()):
        raise HeadwiseError(f"{index} has no weight_map of tensor names to file names")
    return sorted(set(named.values()))


def _inside(folder: Path, name: str, said_by: Path) -> Path:
    """A safetensors file of the folder. A link in it is followed, as the hub's cache consists of them: what it leads
    to is opened as safetensors and nothing else."""
    path = _plain_name(folder, name, said_by)
    if path.suffix != ".safetensors":
        raise HeadwiseError(
            f"{said_by} names {quoted(name)} as weights; only safetensors files are opened, because others can run code"
        )
    if not path.is_file():
        raise HeadwiseError(f"{said_by} names {quoted(name)} as weights, and there is no such file beside it")
    return path


def _plain_name(folder: Path, name: str, said_by: Path) -> Path:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ":" in parts[0] or ".." in parts:
        raise HeadwiseError(
            f"{said_by} names {quoted(name)} as weights; expected the name of a file in the same folder"
        )
    return folder / name


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
    config = _json(path)
    if not isinstance(config.get("model_type", ""), str):
        raise HeadwiseError(f"{path}: model_type is {quoted(config['model_type'])}; expected text")
    return config


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _HEADER:
            raise HeadwiseError(f"{path} has {path.stat().st_size} bytes; expected at most {_HEADER}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwiseError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        said = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise HeadwiseError(f"{path}{line} is not JSON: {said}") from None
    if not isinstance(config, dict):
        raise HeadwiseError(
            f"{path} holds {quoted(config)}; expected an object, as save_pretrained writes it"
        )
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
        places = [entry["data_offsets"] for entry in header.values()]
        # One behind the other, without gaps: nothing is counted twice.
        filled = sum(end - begin for begin, end in places)
        if max((end for _, end in places), default=0) != whole - 8 - length or filled != whole - 8 - length:
            raise ValueError(f"it is cut short or damaged ({whole} bytes)")
        for name, entry in header.items():
            (begin, end), kind = entry["data_offsets"], str(entry["dtype"])
            bits = _BITS.get(kind) or _BITS.get(kind.partition("_")[0], 1)  # of an unknown type: at least one
            if min([begin, end - begin, *entry["shape"]]) < 0 or bits * math.prod(entry["shape"]) > 8 * (
                end - begin
            ):
                raise ValueError(f"{quoted(name)} of shape {quoted(entry['shape'])} has {end - begin} bytes")
    except OSError as error:
        raise HeadwiseError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise HeadwiseError(
            f"{file} is not a safetensors file that can be read: {quoted(str(error), 150)}"
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
