"""One result in one `.npz` file, without pickle: what `save` writes and `load` reads, whatever the class."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headwise.bounded import check_bytes, decode_arrow, regular
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, user_path
from headwise.tables.codec import Packed, decode_parts, encode_parts, pack, unpack

T = TypeVar("T")
_UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
    NotImplementedError, SyntaxError, zipfile.BadZipFile, zlib.error, HeadwiseError,
)  # fmt: skip
"""What reading a damaged file can end in."""


def save_result(path: str | Path, result: Any) -> None:
    """Write a result to one `.npz` file: arrays of numbers as they are, frames and texts as Arrow bytes, the rest as
    JSON."""
    packed, place = pack(result), user_path(path)
    plain = {
        name: part for name, part in packed.parts.items() if getattr(part, "dtype", np.dtype("O")) != "O"
    }
    content, blobs = encode_parts(
        Packed(packed.json, {n: p for n, p in packed.parts.items() if n not in plain})
    )
    arrays = {f"array_{name}": part for name, part in plain.items()}
    arrays |= {f"arrow_{name}": np.array(bytearray(data), dtype=np.uint8) for name, data in blobs.items()}
    with explain_disk_errors(place), place.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(content)), **arrays)


def load_result(path: str | Path, kind: type[T]) -> T:
    """Read what `save_result` wrote; anything but a result of this class is refused."""
    try:
        place = regular(Path(path))
        with zipfile.ZipFile(place) as members:
            check_bytes(path, sum(member.file_size for member in members.infolist()))
        with np.load(place, allow_pickle=False) as file:
            named = [name.partition("_") for name in file.files if name != "about"]
            arrays = {name: file[f"array_{name}"] for how, _, name in named if how == "array"}
            tables = {
                name: decode_arrow(file[f"arrow_{name}"].tobytes(), str(path))
                for how, _, name in named
                if how == "arrow"
            }
            packed = decode_parts(json.loads(str(file["about"])), tables)
        loaded = unpack(Packed(packed.json, {**packed.parts, **arrays}))
        if not isinstance(loaded, kind):
            raise ValueError(f"it has a {type(loaded).__name__}")
        return loaded
    except FileNotFoundError:
        raise HeadwiseError(f"no {kind.__name__.lower()} at {path}") from None
    except _UNREADABLE as error:
        said = str(error) or type(error).__name__
        raise HeadwiseError(f"{path} is not a file written by {kind.__name__}.save: {said}") from None
