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
from headwise.tables.codec import Packed, pack, unpack

T = TypeVar("T")
_UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
    NotImplementedError, SyntaxError, zipfile.BadZipFile, zlib.error, HeadwiseError,
)  # fmt: skip
"""What reading a damaged file can end in."""


def save_result(path: str | Path, result: Any) -> None:
    """Write a result to one `.npz` file: its arrays, its frames as Arrow bytes, and the rest as JSON."""
    from headwise.tables.columns import encode, to_arrow

    packed, place = pack(result), user_path(path)
    arrays = {
        f"array_{name}" if isinstance(part, np.ndarray) else f"frame_{name}": part
        if isinstance(part, np.ndarray)
        else np.frombuffer(encode(to_arrow("", part)), dtype=np.uint8)
        for name, part in packed.parts.items()
    }
    with explain_disk_errors(place), place.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(packed.json)), **arrays)  # type: ignore[arg-type]


def load_result(path: str | Path, kind: type[T]) -> T:
    """Read what `save_result` wrote; anything but a result of this class is refused."""
    from headwise.tables.columns import to_pandas

    try:
        place = regular(Path(path))
        with zipfile.ZipFile(place) as members:
            check_bytes(path, sum(member.file_size for member in members.infolist()))
        with np.load(place, allow_pickle=False) as file:
            parts: dict[str, Any] = {}
            for name in file.files:
                how, _, number = name.partition("_")
                if how == "array":
                    parts[number] = file[name]
                elif how == "frame":
                    parts[number] = to_pandas(decode_arrow(file[name].tobytes(), str(path)))
            loaded = unpack(Packed(json.loads(str(file["about"])), parts))
        if not isinstance(loaded, kind):
            raise ValueError(f"it has a {type(loaded).__name__}")
        return loaded
    except FileNotFoundError:
        raise HeadwiseError(f"no {kind.__name__.lower()} at {path}") from None
    except _UNREADABLE as error:
        said = str(error) or type(error).__name__
        raise HeadwiseError(f"{path} is not a file written by {kind.__name__}.save: {said}") from None
