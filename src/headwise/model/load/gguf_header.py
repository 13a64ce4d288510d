"""The header of a GGUF file: metadata and the shapes of its tensors, without its weights.

The reader of the package gguf makes several Python objects of every token and merge, which takes ten seconds for a
vocabulary of 150,000. Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value -> its format in `struct`."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8


class Header(NamedTuple):
    """What stands before the weights."""

    values: dict[str, Any]
    """Metadata of one value each."""
    arrays: dict[str, list[Any]]
    """Metadata of many values: those that were asked for, of the others nothing."""
    shapes: dict[str, tuple[int, ...]]
    """Of every tensor, the dimension whose numbers are adjacent first."""


def read_header(path: Path, arrays: tuple[str, ...] = ()) -> Header:
    """Read the header of a file; raises a `ValueError` where it is not a whole GGUF file."""
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError("it is shorter than a GGUF header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header(arrays)
            except struct.error:
                raise ValueError("it ends in the middle of its header") from None


class _Reader:
    """A place in the bytes of a file that moves on with every value."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order = data, 0, "<"

    def header(self, wanted: tuple[str, ...]) -> Header:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        self.at = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # written by a machine of the other byte order
            self.order, self.at = ">", 4
            version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, and versions 2 and 3 can be read")
        tensors, entries = self.number("Q"), self.number("Q")
        values: dict[str, Any] = {}
        arrays: dict[str, list[Any]] = {}
        for _ in range(entries):
            key, kind = self.text(), self.number("I")
            if kind != _ARRAY:
                values[key] = self.value(kind)
                continue
            found = self.array(key in wanted)
            if key in wanted:
                arrays[key] = found
            elif len(found) == 1:
                values[key] = found[0]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        return Header(values, arrays, self.tensors(tensors, alignment))

    def tensors(self, count: int, alignment: int) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, whose weights must lie inside the file, each in bytes of its own."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        shapes: dict[str, tuple[int, ...]] = {}
        places = []
        for _ in range(count):
            name, dimensions = self.text(), self.number("I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
            if name in shapes:
                raise ValueError(f"it has two tensors of the name {name!r}")
            shapes[name] = tuple(self.number("Q") for _ in range(dimensions))
            kind, offset = self.number("I"), self.number("Q")
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            places.append((offset, offset + math.prod(shapes[name]) // block * size, name))
        end = 0
        for first, last, name in sorted(places):
            if first < end:
                raise ValueError(f"the weights of {name!r} overlap with those of another tensor")
            end = max(end, last)
        start = -(-self.at // alignment) * alignment
        if count and start + end > len(self.data):
            raise ValueError(f"its weights end at byte {start + end}, and it has {len(self.data)} bytes")
        return shapes

    def number(self, kind: str) -> Any:
        (found,) = struct.unpack_from(self.order + kind, self.data, self.at)
        self.at += struct.calcsize(self.order + kind)
        return found

    def text(self) -> str:
        start = self.at + 8
        self.at = start + self.number("Q")
        if self.at > len(self.data):
            raise ValueError("it ends in the middle of its header")
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind not in _SCALARS:
            raise ValueError(f"its metadata has a value of the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def array(self, wanted: bool) -> list[Any]:
        """The values of an array; of one that is not wanted only a single value."""
        kind, count = self.number("I"), self.number("Q")
        if count > len(self.data):
            raise ValueError(
                f"its metadata has an array of {count} values, and it has {len(self.data)} bytes"
            )
        if kind in _SCALARS and not (wanted or count == 1):
            self.at += count * struct.calcsize(self.order + _SCALARS[kind])
            return []
        if kind == _ARRAY:
            raise ValueError("its metadata has an array of arrays")
        found = []
        for _ in range(count):
            value = self.value(kind)
            if wanted or count == 1:
                found.append(value)
        return found
