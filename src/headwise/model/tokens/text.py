"""Text to token ids, with the beginning-of-sequence token where the model needs one."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from headwise.display import UNFINISHED
from headwise.errors import HeadwiseError, first_line, hint, panics_as_errors, quoted, warn_once
from headwise.model.tokens import chat

log = logging.getLogger("headwise")

_CHARACTERS = 64
"""Upper limit for the mean number of characters per token of a text."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Text:
    """A tokenizer with the prefix that the model needs before every text."""

    def __init__(self, tokenizer: Any, wants_bos: bool | None = None, truncate: bool = False) -> None:
        """`wants_bos`: whether the model was trained with a beginning token; None leaves it to the tokenizer."""
        self.tokenizer = tokenizer
        self.vocabulary: int | None = None
        """Number of tokens that the model has an embedding for; None where unknown."""
        self.longest: int | None = None
        """Context length of the model in tokens; None where unknown."""
        self.truncate = truncate
        """Whether longer texts are cut from the left instead of refused."""
        bare = tokenized(tokenizer, "a")["input_ids"]
        full = tokenized(tokenizer, "a", add_special_tokens=True)["input_ids"]
        # Only what the tokenizer puts in front counts: an end token before the answer would end the text.
        starts = range(len(full) - len(bare) + 1)
        self.prefix: list[int] = full[: next((i for i in starts if full[i : i + len(bare)] == bare), 0)]
        bos = tokenizer.bos_token_id
        if wants_bos and bos is not None and bos not in self.prefix:
            self.prefix = [bos, *self.prefix]
        if wants_bos is False:
            self.prefix = [token for token in self.prefix if token != bos]

    def encode(self, text: str) -> list[int]:
        """The token ids that the model reads for `text`, beginning token included."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Many texts in one call, which is much faster; none longer than the model's context."""
        return self.fitted(self.encode_whole(texts))

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_many`, of any length: for callers that cut prompts and answers together."""
        if not texts:
            return []
        ids = tokenized(self.tokenizer, self.trimmed(texts, answers=2))["input_ids"]
        for text, row in zip(texts, ids, strict=True):
            if self.vocabulary is not None and max(row, default=0) >= self.vocabulary:
                raise HeadwiseError(
                    f"the tokenizer gives token {max(row)} for {quoted(text)}, but the model has only "
                    f"{self.vocabulary}; this tokenizer belongs to another model"
                )
        return [self.prefix + list(row) for row in ids]

    def encode_rendered(self, text: str) -> list[int]:
        """A text that includes its beginning token already, such as a chat."""
        return list(tokenized(self.tokenizer, self.trimmed([text]))["input_ids"][0])

    def fitted(self, rows: Sequence[list[int]], room: int = 0) -> list[list[int]]:
        """The token lists, refused or cut where `room` more tokens would exceed the model's context."""
        new = f" with the {room + 1} new ones" if room else ""  # the last of them is never read
        over = self.excess((len(row) + room for row in rows), "prompt" if room else "text", new)
        for row, excess in zip(rows, over, strict=True):
            if excess and len(row) - excess <= len(self.prefix):
                raise HeadwiseError(
                    f"{room + 1} new tokens leave no room for a prompt: the context length of the model is "
                    f"{self.longest}"
                )
        return [self.without(row, excess) for row, excess in zip(rows, over, strict=True)]

    def without(self, row: list[int], excess: int) -> list[int]:
        """A token list without its first `excess` tokens; the prefix of every text stays."""
        prefix = len(self.prefix) if row[: len(self.prefix)] == self.prefix else 0
        return row[:prefix] + row[prefix + excess :]

    def excess(self, lengths: Iterable[int], what: str, new: str = "") -> list[int]:
        """By how many tokens each length exceeds the model's context; raises if any does and `truncate` is off.

        what, new: words of the error sentence, for the texts and for the new tokens that the lengths include.
        """
        sizes, longest = list(lengths), self.longest
        over = [0 if longest is None else max(0, size - longest) for size in sizes]
        count = sum(map(bool, over))
        if not count:
            return over
        texts = f"{count} of {len(sizes)} {what}s" if len(sizes) > 1 else f"the {what}"
        have, most, them = ("have", "up to ", "them") if count > 1 else ("has", "", "it")
        size = f"{most}{max(sizes)} tokens{new}"
        if not self.truncate:
            raise HeadwiseError(
                f"{texts} {have} {size}, but the context length of the model is {longest}; shorten {them}, or "
                f"truncate from the left with {hint('truncate', True)}"
            )
        # Once: a study encodes the same examples several times.
        warn_once(
            log, f"{texts} of {size} truncated from the left: the context length of the model is {longest}"
        )
        return over

    def trimmed(self, texts: Sequence[str], answers: int = 1) -> list[str]:
        """The texts; those so long that tokenising them would take minutes are refused or cut.

        answers: 2 where another text may follow one of the allowed length.
        """
        for text in texts:
            if not isinstance(text, str):
                raise HeadwiseError(f"the text {quoted(text)} is a {type(text).__name__}; expected a str")
            if half := _SURROGATE.search(text):
                raise HeadwiseError(
                    f"{quoted(text)} has half a character ({half[0]!r}), which no tokenizer can read"
                )
        if self.longest is None:
            return list(texts)
        most = answers * self.longest * _CHARACTERS
        far = [len(text) for text in texts if len(text) > most]
        if far and not self.truncate:
            raise HeadwiseError(
                f"{len(far)} of {len(texts)} texts {'have' if len(far) > 1 else 'has'} up to {max(far)} characters, "
                f"but the context length of the model is {self.longest} tokens; shorten the text, or "
                f"truncate from the left with {hint('truncate', True)}"
            )
        return [text[-most:] for text in texts]

    def start(self) -> list[int]:
        """What the model reads before the first token of a text whose prompt is empty."""
        if self.prefix:
            return self.prefix
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return [token]
        raise HeadwiseError(
            "an empty prompt needs a beginning-of-sequence token, but this tokenizer has neither it nor an end token; "
            "give the examples a prompt"
        )

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a chat up to where the model's answer begins, special tokens and beginning token included."""
        try:
            return chat.render(self.tokenizer, messages, add_generation_prompt)
        except HeadwiseError:
            raise
        except Exception as error:  # a template is a program, and may raise anything
            roles = ", ".join(str(m.get("role")) for m in messages[:4])
            raise HeadwiseError(
                f"the chat template refuses these messages ({roles}, …): {error}; leave the system prompt out, or use "
                "chat=False"
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def pieces(self, text: str) -> list[str]:
        """The tokens of `text` as readable strings."""
        return self.readable(self.encode(text))

    def readable(self, ids: Sequence[int]) -> list[str]:
        """The tokens of one text as readable strings, whole characters each."""
        return readable_tokens(self.tokenizer, ids)

    def readable_token(self, token: int) -> str:
        """A token by itself as a readable string."""
        return readable_token(self.tokenizer, token)


_GROWTH = 1_000
"""How many times longer a tokenizer may make a text before it cuts it into tokens."""


def check_growth(tokenizer: Any, label: str) -> Any:
    """The tokenizer; one whose normalizer makes a few letters into gigabytes, step by step, is refused."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is None:
        return tokenizer
    growth = _growth(json.loads(backend.normalizer.__getstate__()))
    if growth > _GROWTH:
        raise HeadwiseError(
            f"the tokenizer of {label} makes texts up to {growth:.1g} times longer before it reads them; no model "
            "needs that, and a short text would fill the memory"
        )
    return tokenizer


def _growth(normalizer: Mapping[str, Any]) -> float:
    """How many times longer a text may become by replacements, one after the other."""
    if steps := normalizer.get("normalizers"):
        return math.prod(_growth(step) for step in steps)
    replaced = normalizer.get("pattern", {}).get("String", "")
    return max(1.0, len(normalizer.get("content", "")) / max(len(replaced), 1))


def tokenized(tokenizer: Any, texts: str | list[str], **options: Any) -> Any:
    """What the tokenizer makes of one or several texts, by default without special tokens."""
    try:
        with panics_as_errors():
            return tokenizer(texts, **{"add_special_tokens": False, **options})
    except MemoryError:
        raise
    except Exception as error:
        raise HeadwiseError(
            f"the tokenizer cannot read {quoted(texts)}: {first_line(error)}; its files are damaged, or it does not "
            "suit this text"
        ) from error


def common_prefix(*sequences: Sequence[Any]) -> int:
    """How many first items all sequences share.

    >>> common_prefix("abc", "abd", "ab")
    2
    """
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


# ---- tokens as people read them --------------------------------------------------------------------------
# A character whose bytes are split over several tokens is shown on the last of these. Byte-level tokenizers cut 你 or
# an emoji into tokens of one or two bytes, which mean nothing alone.


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
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}
