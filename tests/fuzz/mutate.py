"""Good inputs made bad: bytes, JSON values and YAML texts, changed at random but the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

MAGIC = (
    b"\0",
    b"\xff" * 8,
    b"\xef\xbb\xbf",
    b"\r",
    b"\n\n",
    b'"',
    b"{",
    b"]",
    b"\\u0000",
    b"\xed\xa0\x80",
    b"1e999",
)
WORDS = (
    "",
    " ",
    "\0",
    "\ud800",
    "x" * 3000,
    "../../etc/passwd",
    "/",
    "L0H0",
    "NaN",
    "null",
    "<script>",
    "é",
    "{}",
)


def hostile(draw: random.Random) -> Any:
    """A value of a kind that nobody asked for."""
    return draw.choice(
        (
            lambda: None,
            lambda: draw.choice((True, False)),
            lambda: draw.choice((0, -1, 1, 2, 7, 255, 10**6, 2**31, 2**63, -(2**70), 10**400)),
            lambda: draw.choice((0.0, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))),
            lambda: draw.choice(WORDS),
            lambda: "".join(chr(draw.randrange(1, 0x2FFF)) for _ in range(draw.randrange(12))),
            lambda: [],
            lambda: {},
            lambda: [hostile(draw) for _ in range(draw.randrange(3))],
            lambda: {draw.choice(WORDS): hostile(draw) for _ in range(draw.randrange(3))},
            lambda: _deep(draw.choice((30, 1200))),
        )
    )()


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def bent(value: Any, draw: random.Random, times: int | None = None) -> Any:
    """A JSON value with a few places replaced, dropped or renamed."""
    try:
        value = copy.deepcopy(value)
    except RecursionError:  # bent before, and too deep for that already
        return value
    for _ in range(times or draw.choice((1, 1, 1, 2, 4))):
        value = _bend(value, draw)
    return value


def _bend(value: Any, draw: random.Random) -> Any:
    places = list(_places(value))
    if not places or draw.random() < 0.05:
        return hostile(draw)
    holder, key = draw.choice(places)
    action = draw.random()
    if action < 0.6:
        holder[key] = hostile(draw)
    elif action < 0.8:
        del holder[key]
    elif isinstance(holder, dict):
        holder[f"{key}{draw.choice(('s', '_', 'x'))}"] = holder.pop(key)
    else:
        holder.append(holder[key])
    return value


def _places(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict | list) and depth < 20:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(item, depth + 1)


def dumped(value: Any) -> str:
    """JSON text of anything `bent` gives; what is too deep for the writer is written by hand."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return "[" * 5000 + "1" + "]" * 5000


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """Bytes with a few of them flipped, lost, doubled or put in."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((1, 1, 2, 8, 64, 1024))
        action = draw.randrange(7)
        if action == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif action == 1:
            del data[at : at + length]
        elif action == 2:
            data[at:at] = data[at : at + length]
        elif action == 3:
            data[at:at] = draw.choice(MAGIC)
        elif action == 4:
            del data[at:]
        elif action == 5:
            data[at : at + length] = draw.randbytes(min(length, max(0, len(data) - at)))
        else:
            piece = draw.choice(MAGIC)
            data[at : at + len(piece)] = piece
    return bytes(data)
