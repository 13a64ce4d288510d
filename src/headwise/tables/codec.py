"""Results as plain data: one codec for everything that a run stores and that `save` writes to a file.

    @stored
    @dataclass(frozen=True)
    class Ended: ...

`pack` takes a value apart into JSON and parts (arrays and frames); `unpack` puts it together again, equal in values and
types. `fingerprint` is a hash of the same parts: what the key of a step says of an argument. Nothing is pickled: a file
can name only classes that carry `stored`. `save_result` and `load_result` write and read one result as one `.npz` file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from typing_extensions import Self

from headwise.bounded import check_bytes, decode_arrow, regular
from headwise.errors import HeadwiseError, quoted
from headwise.files import explain_disk_errors, user_path
from headwise.registry import import_modules

Class = TypeVar("Class", bound=type)
_CLASSES: dict[str, type] = {}
_PLAIN = (bool, int, str, type(None))
T = TypeVar("T")
_UNREADABLE: tuple[type[Exception], ...] = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, RecursionError,
    NotImplementedError, SyntaxError, zipfile.BadZipFile, zlib.error, HeadwiseError,
)  # fmt: skip
"""What reading a damaged file can end in."""


class Packed(NamedTuple):
    """A value as plain data."""

    json: Any
    """What holds the parts together; `{"$array": "1"}` stands for the part `1`."""
    parts: dict[str, Any]
    """Arrays and frames by number."""


def stored(kind: Class) -> Class:
    """Class decorator: instances of this dataclass (or named tuple) can be stored; one with a method `parse` as text.

    A field with `compare=False` is stored, but is no part of the fingerprint: rows spent, for example.
    """
    _CLASSES[kind.__name__] = kind
    return kind


def pack(value: Any) -> Packed:
    """Take a value apart: numbers, texts, lists, tuples, mappings, arrays, frames, and classes with `stored`."""
    parts: dict[str, Any] = {}
    names: dict[
        int, str
    ] = {}  # what a value holds twice, as the controls of a curve hold its ends, is one part

    def part(kind: str, content: Any) -> Any:
        name = names.setdefault(id(content), str(len(parts)))
        parts[name] = content
        return {f"${kind}": name}

    return Packed(_walk(value, part, whole=True), parts)


def fingerprint(value: Any) -> Any:
    """What the key of a step says of an argument: itself if it is small, else hashes of what it holds.

    An object may say so itself (`step_key`). Fields with `compare=False` are left out. What cannot be told from
    another by its content (a function, an open file) is refused.
    """

    def part(kind: str, content: Any) -> Any:
        return {f"${kind}": digest(content)}

    return _walk(value, part, whole=False)


def digest(content: Any) -> str:
    """A short hash of an array or a frame: of its type, shape and every value."""
    from headwise.tables.columns import encode, to_arrow

    if isinstance(content, np.ndarray) and content.dtype.kind in "biuf":
        kind, data = f"{content.dtype.str} {content.shape}", np.ascontiguousarray(content).tobytes()
    elif isinstance(content, np.ndarray):
        kind, data = str(content.shape), json.dumps(content.ravel().tolist()).encode()
    else:
        kind, data = "frame", encode(to_arrow("", content))
    return hashlib.sha256(kind.encode() + data).hexdigest()[:16]


def _walk(value: Any, part: Callable[[str, Any], Any], whole: bool) -> Any:
    """`value` as JSON; arrays and frames as `part` says. whole: with every field, and without `step_key`."""

    def walk(item: Any) -> Any:
        return _walk(item, part, whole)

    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, np.ndarray):
        return part("array", value)
    if _is_frame(value):
        return part("frame", value)
    if not whole and hasattr(value, "step_key"):
        return walk(value.step_key)
    if not whole and hasattr(value, "model_dump"):  # settings
        return {"$type": type(value).__name__, "fields": walk(value.model_dump())}
    if (fields := _fields(value, whole)) is not None:
        if whole and _CLASSES.get(type(value).__name__) is not type(value):
            raise HeadwiseError(f"a {type(value).__name__} cannot be stored; put @stored above its class")
        if hasattr(value, "parse"):  # a head, an edge: as people write it
            return {"$type": type(value).__name__, "text": str(value)}
        return {"$type": type(value).__name__, "fields": walk(fields)}
    if isinstance(value, tuple):
        return {"$tuple": [walk(item) for item in value]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: walk(item) for key, item in value.items()}
        return {"$mapping": [[walk(key), walk(item)] for key, item in value.items()]}
    if isinstance(value, Sequence):
        if value and hasattr(value[0], "parse") and len({type(item) for item in value}) == 1:
            return {"$type": walk(value[0])["$type"], "texts": [str(item) for item in value]}
        return [walk(item) for item in value]
    if isinstance(value, Path) and not whole:
        return str(value)
    raise HeadwiseError(
        f"{quoted(value, 60)} is a {type(value).__name__}, which cannot be stored or told from another; expected "
        "numbers, texts, arrays, frames, models, tasks, results, or dataclasses, lists and mappings of these"
    )


def _is_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame" and hasattr(value, "iloc")  # without importing pandas


def _fields(value: Any, whole: bool) -> dict[str, Any] | None:
    """The fields of a dataclass or a named tuple by name; None for any other value."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    chosen = (field.name for field in dataclasses.fields(value) if field.init if whole or field.compare)
    return {name: getattr(value, name) for name in chosen}


def unpack(packed: Packed) -> Any:
    """Put together what `pack` took apart. Raises `ValueError` where it is nothing of the kind."""
    parse = cache(
        lambda name, text: _class(name).parse(text)
    )  # an order and its controls name each head many times

    def build(item: Any) -> Any:
        if isinstance(item, list):
            return [build(one) for one in item]
        if not isinstance(item, dict):
            return item
        match item:
            case {"$float": str(text)}:
                return float(text)
            case {"$array": str(name)} | {"$frame": str(name)}:
                return packed.parts[name]
            case {"$tuple": list(items)}:
                return tuple(build(one) for one in items)
            case {"$mapping": list(pairs)}:
                return {build(key): build(one) for key, one in pairs}
            case {"$type": str(name), "text": str(text)}:
                return parse(name, text)
            case {"$type": str(name), "texts": list(texts)}:
                return [parse(name, text) for text in texts]
            case {"$type": str(name), "fields": dict(fields)}:
                result = _class(name)(**{key: build(one) for key, one in fields.items()})
                check = getattr(result, "_checked", None)
                return result if check is None else check()
        return {key: build(one) for key, one in item.items()}

    try:
        return build(packed.json)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a stored result ({type(error).__name__}: {error})") from None


def _class(name: str) -> Any:
    if name not in _CLASSES:
        import_modules("headwise.studies.*.study")  # whose results a run that was opened to read may hold
    if name not in _CLASSES:
        raise ValueError(f"{quoted(name)} is not a result that headwise stores")
    return _CLASSES[name]


# ---- parts as Arrow tables ---------------------------------------------------------------------------


def encode_parts(packed: Packed) -> tuple[Any, dict[str, bytes]]:
    """JSON that also says the shapes of arrays, and each part as the bytes of an Arrow table."""
    import pandas as pd

    from headwise.tables.columns import encode, to_arrow

    shapes, blobs = {}, {}
    for name, content in packed.parts.items():
        if isinstance(content, np.ndarray):
            # The order in memory is kept too: it decides in which order numpy adds, and so the last bits of a mean.
            order: Any = "F" if content.flags.f_contiguous and not content.flags.c_contiguous else "C"
            kind = content.dtype.str if content.dtype.kind in "biuf" else "O"
            shapes[name] = [kind, order, *content.shape]
            content = pd.DataFrame({"value": content.ravel(order)})
        blobs[name] = encode(to_arrow("", content))
    return {"value": packed.json, "shapes": shapes}, blobs


def decode_parts(json_: Mapping[str, Any], tables: Mapping[str, Any]) -> Packed:
    """What `encode_parts` made, from the decoded Arrow tables."""
    from headwise.tables.columns import to_pandas

    parts: dict[str, Any] = {}
    for name, table in tables.items():
        if name in json_["shapes"]:
            kind, order, *shape = json_["shapes"][name]
            values = (
                table["value"].to_numpy()
                if kind != "O"
                else np.array(table["value"].to_pylist(), dtype=object)
            )
            parts[name] = values.astype(kind).reshape(shape, order=order)
        else:
            parts[name] = to_pandas(table)
    return Packed(json_["value"], parts)


# ---- one result in one file ---------------------------------------------------------------------------


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
            arrays = {name: file[f"array_{name}"] for form, _, name in named if form == "array"}
            tables = {
                name: decode_arrow(file[f"arrow_{name}"].tobytes(), str(path))
                for form, _, name in named
                if form == "arrow"
            }
            packed = decode_parts(json.loads(str(file["about"])), tables)
        loaded = unpack(Packed(packed.json, {**packed.parts, **arrays}))
        if not isinstance(loaded, kind):
            raise ValueError(f"it has a {type(loaded).__name__}")
        return loaded
    except FileNotFoundError:
        raise HeadwiseError(f"no {kind.__name__.lower()} at {path}") from None
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise HeadwiseError(f"{path} is not a file written by {kind.__name__}.save: {reason}") from None


class Saved:
    """A result that `save` writes to a file and `load` reads back."""

    def save(self, path: str | Path) -> None:
        """Write to one `.npz` file (plain arrays and a JSON string; no pickle)."""
        save_result(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        return load_result(path, cls)
