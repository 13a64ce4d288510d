"""Tokens as people read them: a character whose bytes are split over several tokens is shown on the last of these.

Byte-level tokenizers cut `你` or an emoji into tokens of one or two bytes, which mean nothing alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from headwise.display import UNFINISHED

_DAMAGED = "\ufffd"
"""What a tokenizer writes for bytes that are no whole character."""
_MOST_BYTES = 4
"""Of a character in UTF-8."""
_WINDOW = 64
"""Most tokens that are decoded together: characters that each begin in a token and end in the next."""


def readable_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The tokens of one text, in order; `⋯` ends a token whose last character is finished by a later one."""
    shown: list[str] = []
    while len(shown) < len(ids):
        rest = list(ids[len(shown) : len(shown) + _WINDOW])
        shown += _whole_characters(tokenizer.decode, rest) or [readable_token(tokenizer, rest[0])]
    return shown


def _whole_characters(decode: Callable[[list[int]], str], ids: list[int]) -> list[str]:
    """The first tokens, up to one that ends with a whole character; none where their bytes are no characters."""
    shown: list[str] = []
    done, waiting = "", 0
    for end in range(1, len(ids) + 1):
        text = str(decode(ids[:end]))
        whole = text.rstrip(_DAMAGED)
        waiting = waiting + 1 if whole == done else 1
        if _DAMAGED in whole or (whole != text and waiting >= _MOST_BYTES):
            return []
        shown.append(whole[len(done) :] + UNFINISHED * (whole != text))
        done = whole
        if whole == text:
            break
    return shown


def readable_token(tokenizer: Any, token: int) -> str:
    """One token by itself, as in a list of likely ones; bytes that are no whole character as numbers, ⟨E4 BD⟩."""
    text = str(tokenizer.decode([token]))
    if _DAMAGED not in text:
        return text
    raw = str(tokenizer.convert_ids_to_tokens(token))
    if fallback := re.fullmatch("<0x([0-9A-F]{2})>", raw):
        return f"⟨{fallback[1]}⟩"
    if all(character in _bytes() for character in raw):
        return f"⟨{' '.join(f'{_bytes()[character]:02X}' for character in raw)}⟩"
    return text.replace(_DAMAGED, UNFINISHED)


@cache
def _bytes() -> dict[str, int]:
    """The character that stands for each byte in the vocabulary of byte-level tokenizers (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
