"""A check of the tokenizer that transformers makes of a GGUF file: the file's own words must be encoded to themselves.

What transformers makes of a GGUF's vocabulary depends on its version and on the family. A wrong tokenizer raises
nothing: the model reads other tokens than it was trained on, and every score is wrong. transformers 5.17 makes such a
tokenizer of Gemma 3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.model.load.gguf import describe
from headwise.model.tokens.text import tokenized

WORDS = 200
"""Words that are tried."""
LEAST = 0.9
"""Share of them that must be encoded to themselves: a vocabulary may have tokens that no text is encoded to."""
_SPACE = "Ġ▁"
"""How vocabularies write a leading space: byte-level BPE, SentencePiece."""
_WORD = re.compile(f"[{_SPACE}]?[A-Za-z]{{3,}}")


def check_tokenizer(path: Path, tokenizer: Any) -> None:
    """Refuse a tokenizer that splits words which are single tokens of the file."""
    numbers = {token: number for number, token in enumerate(describe(path).tokens)}
    words = _spread([token for token in numbers if _WORD.fullmatch(token)])
    wrong = [word for word in words if not _is_kept(word, numbers, tokenizer)]
    if len(wrong) > (1 - LEAST) * len(words):
        import transformers

        text = _text(wrong[0])
        pieces = tokenizer.convert_ids_to_tokens(_encoded(text, tokenizer))
        raise HeadwiseError(
            f"the tokenizer that transformers {transformers.__version__} makes of {path.name} is wrong: "
            f"{len(wrong)} of {len(words)} words that are single tokens of the file are not encoded to them "
            f"({text!r} becomes {pieces}); use another version of transformers, or give the model's own tokenizer: "
            "hw.load(…, tokenizer=AutoTokenizer.from_pretrained(…))"
        )


def _spread(words: Sequence[str]) -> Sequence[str]:
    """At most `WORDS` of them, evenly over the vocabulary, whose first words are the frequent ones."""
    return [words[number * len(words) // WORDS] for number in range(WORDS)] if len(words) > WORDS else words


def _text(token: str) -> str:
    return " " + token[1:] if token[0] in _SPACE else token


def _encoded(text: str, tokenizer: Any) -> list[int]:
    ids: list[int] = tokenized(tokenizer, text)["input_ids"]
    return ids


def _is_kept(token: str, numbers: Mapping[str, int], tokenizer: Any) -> bool:
    """Whether the word becomes its token. A tokenizer may put a space before every text; the word then becomes the
    token with the space, or its token after a space alone."""
    ids = _encoded(_text(token), tokenizer)
    accepted = {numbers[token], *(numbers[space + token] for space in _SPACE if space + token in numbers)}
    return bool(ids) and ids[-1] in accepted and not tokenizer.decode(ids[:-1]).strip()
