"""Text to token numbers, with the beginning-of-sequence token where the model needs one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headwise.errors import HeadwiseError, quoted
from headwise.model.tokens import chat

log = logging.getLogger("headwise")

_CHARACTERS = 64
"""Of one token, on average over a text: far more than any language has."""


class Text:
    """A tokenizer as the engine sees it: what stands before every text, and the text's own tokens."""

    def __init__(self, tokenizer: Any, wants_bos: bool | None = None) -> None:
        """`wants_bos`: whether the model was trained with a beginning token; None leaves it to the tokenizer."""
        self.tokenizer = tokenizer
        self.vocabulary: int | None = None
        """How many token numbers the model knows, where a tokenizer of its own does not belong to it."""
        self.longest: int | None = None
        """How many tokens the model was made for; None where it says no number."""
        self.truncate = False
        """Whether texts that are longer are cut from the left instead of refused."""
        self._told: set[str] = set()
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        # Only what the tokenizer puts in front counts: an end token before the answer would end the text.
        self.prefix: list[int] = full[: _find(full, bare)]
        bos = tokenizer.bos_token_id
        if wants_bos and bos is not None and bos not in self.prefix:
            self.prefix = [bos, *self.prefix]
        if wants_bos is False:
            self.prefix = [token for token in self.prefix if token != bos]

    def encode(self, text: str) -> list[int]:
        """The numbers the model reads for `text`, beginning token included."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Many texts in one call, which is much faster; none longer than the model takes."""
        return self.fitted(self.encode_whole(texts))

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_many`, however long they are: for those who cut prompts and answers together."""
        if not texts:
            return []
        ids = self.tokenizer(self.trimmed(texts, answers=2), add_special_tokens=False)["input_ids"]
        rows = [self.prefix + list(row) for row in ids]
        for text, row in zip(texts, rows, strict=True):
            self._check(text, row)
        return rows

    def encode_rendered(self, text: str) -> list[int]:
        """A text that holds its beginning token already, such as a chat."""
        return list(self.tokenizer(self.trimmed([text]), add_special_tokens=False)["input_ids"][0])

    def fitted(self, rows: Sequence[list[int]], room: int = 0) -> list[list[int]]:
        """The token lists, each short enough that `room` more tokens can follow it: refused or cut where not."""
        new = f" with the {room + 1} that may be written" if room else ""  # the last of them is never read
        over = self.excess((len(row) + room for row in rows), "prompt" if room else "text", new)
        for row, excess in zip(rows, over, strict=True):
            if excess and len(row) - excess <= len(self.prefix):
                raise HeadwiseError(
                    f"{room + 1} new tokens leave no room for a prompt: the model was made for {self.longest} tokens"
                )
        return [self.without(row, excess) for row, excess in zip(rows, over, strict=True)]

    def without(self, row: list[int], excess: int) -> list[int]:
        """A token list without its first `excess` tokens; what stands before every text stays."""
        kept = len(self.prefix) if row[: len(self.prefix)] == self.prefix else 0
        return row[:kept] + row[kept + excess :] if excess else row

    def excess(self, lengths: Iterable[int], what: str, new: str = "") -> list[int]:
        """By how many tokens each length exceeds what the model was made for: all 0, unless texts are to be cut.

        what, new: for the sentence, what the lengths are of, and what they count in.
        """
        given, longest = list(lengths), self.longest
        over = [0 if longest is None else max(0, length - longest) for length in given]
        count = sum(map(bool, over))
        if not count:
            return over
        some = f"{count} of {len(given)} {what}s" if len(given) > 1 else f"the {what}"
        size = f"{'up to ' * (count > 1)}{max(given)} tokens{new}"
        if not self.truncate:
            raise HeadwiseError(
                f"{some} {'have' if count > 1 else 'has'} {size}, and the model was made for {longest}; shorten "
                f"{'them' if count > 1 else 'it'}, or cut from the left with --truncate (truncate=True in Python)"
            )
        notice = f"{some} of {size} cut from the left: the model was made for {longest}"
        if notice not in self._told:  # a study encodes the same examples again and again
            self._told.add(notice)
            log.warning(notice)
        return over

    def trimmed(self, texts: Sequence[str], answers: int = 1) -> list[str]:
        """The texts, where none is so long that tokenising it would take minutes for nothing: refused or cut.

        answers: 2 where texts of the allowed length may have others behind them.
        """
        if self.longest is None:
            return list(texts)
        most = answers * self.longest * _CHARACTERS
        far = [len(text) for text in texts if len(text) > most]
        if far and not self.truncate:
            raise HeadwiseError(
                f"{len(far)} of {len(texts)} texts {'have' if len(far) > 1 else 'has'} up to {max(far)} characters, "
                f"and the model was made for {self.longest} tokens; shorten the text, or cut from the left "
                "with --truncate (truncate=True in Python)"
            )
        return [text[-most:] for text in texts]

    def _check(self, text: str, row: list[int]) -> None:
        largest = max(row, default=0)
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise HeadwiseError(
                f"the tokenizer gives token {largest} for {quoted(text)}, and the model has only {self.vocabulary}; "
                "this tokenizer belongs to another model"
            )

    def start(self) -> list[int]:
        """Something to stand before the first token of a text whose prompt is empty."""
        if self.prefix:
            return self.prefix
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return [token]
        raise HeadwiseError(
            "an empty prompt needs a beginning token, and this tokenizer has neither one nor an end token; "
            "give the examples a prompt"
        )

    @property
    def has_chat(self) -> bool:
        """Whether the tokenizer knows how a chat is written."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a chat up to where the model's answer begins, special tokens and beginning token included."""
        try:
            return chat.render(self.tokenizer, messages, add_generation_prompt)
        except HeadwiseError:
            raise
        except Exception as error:  # a template is a program of its own, and raises what it likes
            roles = ", ".join(str(m.get("role")) for m in messages[:4])
            raise HeadwiseError(
                f"the chat template refuses these messages ({roles}, …): {error}; leave the system prompt out, or use "
                "chat=False"
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def pieces(self, text: str) -> list[str]:
        """The tokens of `text` as readable strings, for people who want to look."""
        return [self.decode([token]) for token in self.encode(text)]


def _find(full: list[int], part: list[int]) -> int:
    for at in range(len(full) - len(part) + 1):
        if full[at : at + len(part)] == part:
            return at
    return 0
