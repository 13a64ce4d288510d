"""A GGUF file is converted once: its weights in one dtype, and its tokenizer, are kept in the user's cache.

The folders are found by the hash of the file's content, the dtype, and the versions of transformers and gguf, which
decide what is made of a file. A kept folder has exactly what transformers makes of the file in this dtype. A process
hashes it at first use, and its weights are mapped into memory when they are loaded.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from headwise.errors import first_line
from headwise.model.load import checkpoint, gguf
from headwise.model.load.cache import Entry, cache_folder, kept, sha256_once

log = logging.getLogger("headwise")

SWITCH = "HEADWISE_GGUF_CACHE"
"""The environment variable that is 0 where nothing is to be kept."""
RECIPE = 1
"""Raised when the conversion changes, so that folders of an older recipe are made again."""
_OF_A_TOKENIZER = 100_000_000
"""Bytes of disk that the tokenizer of a large vocabulary may need."""


class _NotTheSame(Exception):  # noqa: N818 - what was made is used without the cache
    """What was saved does not load as what it was."""


def weights_folder(file: Path, dtype: torch.dtype, convert: Callable[[], Any]) -> Path | None:
    """The folder with the weights of a GGUF file in this dtype; None where they cannot be kept.

    convert: makes the transformers model, at first use.
    """
    name = str(dtype).removeprefix("torch.")
    if not _is_on():
        return None
    numbers = sum(math.prod(shape) for shape in gguf.describe(file).shapes.values())
    entry = _entry(file, name, int(1.05 * numbers * dtype.itemsize))

    def build(work: Path) -> Path:
        log.info(
            "converting %s to %s, once, into %s; this needs about %.0f MB of disk space (set HEADWISE_CACHE to use "
            "another folder, or %s=0 to convert at every load)",
            file.name,
            name,
            cache_folder(),
            entry.space / 1e6,
            SWITCH,
        )
        checkpoint.save_plain(convert(), work / "ready")
        # A GGUF file names no class of transformers; without it the configuration, and so the model's fingerprint, is
        # that of the file.
        config = json.loads((work / "ready/config.json").read_text(encoding="utf-8"))
        config.pop("architectures", None)
        (work / "ready/config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return work / "ready"

    return _kept(entry, build)


def tokenizer(file: Path, make: Callable[[], Any]) -> Any:
    """The tokenizer of a GGUF file: the kept one, else what `make` makes.

    A kept one is read as it was written. The families' own classes would change it: Qwen2's adds a normaliser.
    """
    from transformers import PreTrainedTokenizerFast

    if not _is_on():
        return make()
    converted: list[Any] = []

    def build(work: Path) -> Path:
        converted.append(make())
        _save_tokenizer(converted[0], work / "ready")
        if _signature(PreTrainedTokenizerFast.from_pretrained(work / "ready")) != _signature(converted[0]):
            raise _NotTheSame
        return work / "ready"

    try:
        folder = _kept(_entry(file, "tokenizer", _OF_A_TOKENIZER), build)
    except _NotTheSame:
        folder = None
    if folder is None:
        return converted[0] if converted else make()
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer with the sides that its class has by default, which transformers leaves out (Gemma: left)."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    sides = {name: getattr(tokenizer, name) for name in ("padding_side", "truncation_side")}
    config = json.loads(path.read_text(encoding="utf-8")) | sides
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _is_on() -> bool:
    return os.environ.get(SWITCH, "1") != "0"


def _entry(file: Path, part: str, space: int) -> Entry:
    digest = sha256_once(file)
    versions = {package: version(package) for package in ("transformers", "gguf")}
    words = "-".join(f"{package}{number}" for package, number in versions.items())
    return Entry(
        name=f"gguf-{digest[:12]}-{part}-{words}",
        title=f"{file.stem} ({part})",
        doing="converting",
        lock=f"gguf-{digest[:12]}-{part}",
        space=space,
        made_from={"gguf_sha256": digest, "part": part, "recipe": RECIPE, **versions},
        details={"title": file.stem},
    )


def _kept(entry: Entry, build: Callable[[Path], Path]) -> Path | None:
    """The entry's folder; None, with a warning, where the disk does not take it."""
    try:
        return kept(entry, build)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise  # not the system's word on a file: transformers raises bare OSErrors too
        log.warning(
            "%s cannot be kept in %s (%s) and is converted at every load; set HEADWISE_CACHE to a folder on a disk "
            "with %.0f MB of free space",
            entry.title,
            cache_folder(),
            getattr(error, "strerror", None) or first_line(error),
            entry.space / 1e6,
        )
        return None


def _signature(tokenizer: Any) -> tuple[Any, ...]:
    """What makes two tokenizers encode and decode alike."""
    settings = ("special_tokens_map", "model_max_length", "padding_side", "truncation_side", "chat_template")
    return (tokenizer.backend_tokenizer.to_str(), *(getattr(tokenizer, name) for name in settings))
