"""Text to token numbers, with the beginning-of-sequence token where the model needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.errors import HeadwiseError, shown
from headwise.model import chat


class Text:
    """A tokenizer as the engine sees it: what stands before every text, and the text's own tokens."""

    def __init__(self, tokenizer: Any, wants_bos: bool | None = None) -> None:
        """`wants_bos`: whether the model was trained with a beginning token; None leaves it to the tokenizer."""
        self.tokenizer = tokenizer
        self.vocabulary: int | None = None
        """How many token numbers the model knows, where a tokenizer of its own does not belong to it."""
        self.longest: int | None = None
        """How many tokens the model has positions for; None where it can count on."""
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
        """Many texts in one call, which is much faster."""
        if not texts:
            return []
        ids = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        rows = [self.prefix + list(row) for row in ids]
        for text, row in zip(texts, rows, strict=True):
            self._check(text, row)
        return rows

    def _check(self, text: str, row: list[int]) -> None:
        largest = max(row, default=0)
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise HeadwiseError(
                f"the tokenizer gives token {largest} for {shown(text)}, and the model has only {self.vocabulary}; "
                "this tokenizer belongs to another model"
            )
        if self.longest is not None and len(row) > self.longest:
            raise HeadwiseError(
                f"{shown(text)} has {len(row)} tokens, and the model has positions for {self.longest}; shorten it"
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
