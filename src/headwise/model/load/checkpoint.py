"""Checks of a model folder before anything is built from it: are the weights safe to open, complete, of the right size?

transformers builds what config.json asks for and reads the weights afterwards. A billion layers would keep it busy for
ever, a missing tensor is filled with random numbers, and pickled weights run code when they are opened.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from headwise.display import counted
from headwise.errors import HeadwiseError, quoted
from headwise.model.sites.probe import stored

# ---- the model that a configuration describes, built without memory and compared with the weights --------
# A few bytes of config.json can ask for a model of any size, and transformers allocates its memory before it compares
# it with the weights. On torch's `meta` device a model has names and shapes but no numbers, so its size costs no
# memory, and building stops as soon as it exceeds the weights.


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


# ---- the files of a folder -------------------------------------------------------------------------------


PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LARGEST_JSON = 100_000_000
"""Bytes; the limit of the safetensors format for its headers."""
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
    """The shapes of the folder's weights, from the headers of the files that transformers would open.

    Raises a `HeadwiseError` where one of these is no safetensors file inside the folder, is damaged, or does not fit
    config.json.
    """
    config = _config(folder)
    if os.path.lexists(folder / "adapter_config.json"):
        raise HeadwiseError(
            f"{label} holds a PEFT adapter (adapter_config.json) beside a model; merge the two (merge_and_unload) and "
            "save the result with save_pretrained, or take the adapter's files out"
        )
    files = _weight_files(folder, label)
    shapes = {name: shape for file in files for name, shape in _shapes(file).items()}
    size = sum(file.stat().st_size for file in files)
    check_numbers(folder / "config.json", _numbers(config), len(shapes), size)
    return Weights(str(folder / "config.json"), shapes, size, packed="quantization_config" in config)


def check_numbers(where: Path, numbers: Iterable[tuple[str, int]], tensors: int, size: int) -> None:
    """Raises a `HeadwiseError` for a number of layers or a width that weights of this size cannot have."""
    for name, value in numbers:
        too_many = _COUNTS.fullmatch(name) and value > min(1000 + 8 * tensors, _MOST_LAYERS)
        if too_many or (_WIDTHS.fullmatch(name) and value > size):
            have = f"{tensors} tensors" if too_many else f"{size} bytes"
            raise HeadwiseError(f"{where} asks for {name} = {value}, but the weights beside it have {have}")


def named_weights(folder: Path) -> str | None:
    """The file with the weights, where config.json names one, which is rare."""
    name = _config(folder).get("transformers_weights")
    return None if name is None else str(name)


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
    index = _in_folder(folder, chosen, folder / "config.json")
    return [_inside(folder, name, index) for name in shard_names(index)]


def shard_names(index: Path) -> list[str]:
    """The files that an index names, whatever they are."""
    files = _json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise HeadwiseError(f"{index} has no weight_map of tensor names to file names")
    return sorted(set(files.values()))


def _inside(folder: Path, name: str, named_in: Path) -> Path:
    """A safetensors file of the folder. A link in it is followed, as the hub's cache consists of them: what it leads
    to is opened as safetensors and nothing else."""
    path = _in_folder(folder, name, named_in)
    if path.suffix != ".safetensors":
        raise HeadwiseError(
            f"{named_in} names {quoted(name)} as weights; only safetensors files are opened, others can run code"
        )
    if not path.is_file():
        raise HeadwiseError(
            f"{named_in} names {quoted(name)} as weights, but there is no such file beside it"
        )
    return path


def leaves_folder(name: str) -> bool:
    """Whether a relative path in a file of somebody else leads out of its folder, on any system."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return not parts or parts[0].startswith("/") or ":" in parts[0] or ".." in parts


def _in_folder(folder: Path, name: str, named_in: Path) -> Path:
    if leaves_folder(name):
        raise HeadwiseError(
            f"{named_in} names {quoted(name)} as weights; expected the name of a file in the same folder"
        )
    return folder / name


def pickled_error(label: str, file: str) -> HeadwiseError:
    """Why a pickled checkpoint is not opened, and the way to convert it."""
    return HeadwiseError(
        f"{label} has only pickled weights ({file}), which can run code when opened; convert them once with "
        "transformers' save_pretrained(safe_serialization=True) on a machine you trust"
    )


def complete(label: str, report: Mapping[str, Any]) -> list[str]:
    """Check transformers' report on the weights it has loaded: raises for missing ones, returns the unused ones."""
    missing = sorted(map(str, report.get("missing_keys", ())))
    if missing:
        raise HeadwiseError(
            f"the weights of {label} lack {counted(len(missing), 'tensor')} that its config.json asks for, such "
            f"as {missing[0]}; transformers would initialise them with random numbers"
        )
    return sorted(map(str, report.get("unexpected_keys", ())))


@torch.no_grad()
def check_finite(hf: nn.Module, label: str) -> None:
    """A NaN in a weight reaches only some tokens or some heads, so the proof would not always meet it."""
    bad = []
    for name, parameter in hf.named_parameters():
        values = stored(hf, name, parameter)
        if values.is_meta or not values.numel() or not values.is_floating_point() or values.itemsize < 2:
            continue  # on another device, or packed
        if not torch.isfinite(torch.stack(torch.aminmax(values))).all():  # a NaN is both minimum and maximum
            bad.append((name, int((~torch.isfinite(values)).sum()), values.numel(), values.dtype))
    if bad:
        name, count, total, dtype = bad[0]
        others = f" ({len(bad) - 1} more tensors have some too)" if len(bad) > 1 else ""
        raise HeadwiseError(
            f"the weights of {label} are damaged: {count} of {total} values of {name} are NaN or infinite in "
            f"{str(dtype).removeprefix('torch.')}{others}; fetch them again, or use a wider dtype than float16"
        )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = _json(path)
    if not isinstance(config.get("model_type", ""), str):
        raise HeadwiseError(f"{path}: model_type is {quoted(config['model_type'])}; expected text")
    return config


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise HeadwiseError(f"{path} has {path.stat().st_size} bytes; expected at most {_LARGEST_JSON}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwiseError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise HeadwiseError(f"{path}{line} is not JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(config, dict):
        raise HeadwiseError(
            f"{path} holds {quoted(config)}; expected an object, as save_pretrained writes it"
        )
    return config


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's tensors; safetensors checks them against its size when it opens the file."""
    try:
        with safe_open(file, "pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise HeadwiseError(f"{file} cannot be read: {error}") from None
    except SafetensorError as error:
        reason = quoted(str(error).rpartition("header: ")[2], 150)
        raise HeadwiseError(
            f"{file} is not a safetensors file that can be read: {reason}; it is damaged or cut short, fetch it again"
        ) from None


def plain_config(model: Any) -> Any:
    """A copy of a model's configuration, without a word on how its weights were packed."""
    config = copy.deepcopy(model.config)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    return config


def save_plain(model: Any, folder: Path) -> None:
    """`save_pretrained`; of a model that came from a GGUF file, which refuses that, a copy that did not is saved."""
    config = plain_config(model)
    if getattr(model.config, "quantization_config", None) is not None:
        with torch.device("meta"):  # names and shapes only
            plain = type(model)(config)
        plain.load_state_dict(model.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = model.generation_config
        model = plain
    model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # safetensors writes for its owner alone; a cache may be shared, and a server may be another user.
        file.chmod((folder / "config.json").stat().st_mode)


def _numbers(config: Any) -> Iterator[tuple[str, int]]:
    """Every whole number of a configuration and of those inside it, by name."""
    if isinstance(config, dict):
        for name, value in config.items():
            if isinstance(value, int) and not isinstance(value, bool):
                yield str(name), value
            elif isinstance(value, dict):
                yield from _numbers(value)
