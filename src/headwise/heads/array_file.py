"""Arrays and a JSON description in one `.npz` file, without pickle: what `Scores.save` and `Edges.save` write."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headwise.bounded import check_bytes, regular
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, user_path

_UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
    NotImplementedError, SyntaxError, zipfile.BadZipFile, zlib.error, HeadwiseError,
)  # fmt: skip
"""What reading a damaged file can end in."""


def write_arrays(path: str | Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays, and `about` as JSON."""
    place = user_path(path)
    with explain_disk_errors(place), place.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


@contextmanager
def reading_arrays(path: str | Path, kind: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """What `write_arrays` wrote: `about` and the arrays by name.

    kind: the class that wrote the file. Whatever goes wrong inside the block is then the fault of the file.
    """
    try:
        place = regular(Path(path))
        with zipfile.ZipFile(place) as packed:
            check_bytes(path, sum(member.file_size for member in packed.infolist()))
        with np.load(place, allow_pickle=False) as file:
            yield json.loads(str(file["about"])), file
    except FileNotFoundError:
        raise HeadwiseError(f"no {kind.lower()} at {path}") from None
    except _UNREADABLE as error:
        said = str(error) or type(error).__name__
        raise HeadwiseError(f"{path} is not a file written by {kind}.save: {said}") from None


def with_prefix(file: Any, prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}
