"""Which tokens of a prompt were inserted, and which token of another prompt each of the others is.

A prompt comes as pieces, each the problem's own or inserted. Tokenizers merge across the border between two
pieces. A token belongs to the side whose non-space characters it holds; where it holds such characters of both,
or of neither, it belongs to the problem: nothing of a problem is ever counted as filler.

T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.model.tokens.text import Text, common_prefix, tokenized

if TYPE_CHECKING:
    from headwise.tasks.conditions import Piece

Key = tuple[int, int, int]
"""What a token of the problem holds: from which to which of the problem's characters, and the how-manieth token
with just these it is (a character may take several tokens)."""


@dataclass(frozen=True)
class Located:
    """A prompt in tokens."""

    ids: list[int]
    inserted: np.ndarray  # T
    """True where a token was inserted."""
    keys: list[Key]
    """`[T]` what each token holds of the problem's own text; inserted tokens hold (-1, -1, …)."""
    straddling: int
    """Tokens that hold characters of both."""

    @property
    def problem_tokens(self) -> dict[Key, int]:
        """The positions of the problem's tokens, by what they hold."""
        return {key: at for at, key in enumerate(self.keys) if not self.inserted[at]}


def locate(text: Text, pieces: Sequence[Piece], *, begin: bool) -> Located:
    """The tokens of the pieces read as one text; `begin`: with what the tokenizer puts before a text."""
    joined = "".join(piece.text for piece in pieces)
    of_problem = np.concatenate([np.full(len(p.text), not p.inserted) for p in pieces] or [np.zeros(0, bool)])
    spaces = np.array([character.isspace() for character in joined], dtype=bool)
    before = np.cumsum(of_problem) - of_problem  # how many characters of the problem come before each one
    ids, offsets = encoded(text.tokenizer, joined)
    start = list(text.prefix) if begin else []
    if not ids and not start:
        start = text.start()
    inserted, spans, straddling = [False] * len(start), [(-1, -1)] * len(start), 0
    for first, last in offsets:
        problem, solid = of_problem[first:last], ~spaces[first:last]
        straddling += bool(problem.any() and (~problem).any())
        filler = not problem.any() or bool((~problem & solid).any() and not (problem & solid).any())
        if not problem.size:  # a token without characters belongs to what stands around it
            filler = 0 < first < len(of_problem) and not of_problem[first - 1] and not of_problem[first]
        inserted.append(filler)
        spans.append((-1, -1) if filler else _held(before[first:last], problem, solid, first, of_problem))
    seen: Counter[tuple[int, int]] = Counter()
    keys = []
    for span in spans:
        keys.append((*span, seen[span]))
        seen[span] += 1
    return Located([*start, *ids], np.array(inserted, dtype=bool), keys, straddling)


def _held(
    before: np.ndarray, problem: np.ndarray, solid: np.ndarray, first: int, of_problem: np.ndarray
) -> tuple[int, int]:
    """The problem's characters in a token: the solid ones if any, so that " Q" and "Q" hold the same.

    A token around a filler ("1e1" for "11") holds what no token without it does.
    """
    indices = np.flatnonzero(problem & solid)
    if indices.size and (~problem & solid)[indices[0] : indices[-1]].any():
        return -2, int(before[indices[0]])
    held = before[indices] if indices.size else before[problem]
    if not held.size:
        at = int(of_problem[:first].sum())
        return at, at
    return int(held[0]), int(held[-1]) + 1


def aligned(prompts: Sequence[Located]) -> np.ndarray:
    """`[prompts, A]`: where each token that all prompts have stands in each of them, in order.

    The prompts ask the same problem. A token that a tokenizer merged differently in one of them is left out.
    """
    positions = [prompt.problem_tokens for prompt in prompts]
    shared = [key for key in positions[0] if all(key in other for other in positions[1:])]
    return np.array([[of[key] for key in shared] for of in positions], dtype=int)


# ---- characters of tokens ---------------------------------------------------------------------------------


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token numbers of a text without special tokens, and which characters `[from, to)` each one holds."""
    if getattr(tokenizer, "is_fast", False):
        encoding = tokenized(tokenizer, text, return_offsets_mapping=True)
        return list(encoding["input_ids"]), [(int(a), int(b)) for a, b in encoding["offset_mapping"]]
    ids = list(tokenized(tokenizer, text)["input_ids"])
    return ids, _grown(tokenizer, text, ids)


def _grown(tokenizer: Any, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Characters of each token where a tokenizer does not say: how far the decoded text grows by it."""
    ends = [0]
    for count in range(1, len(ids) + 1):
        decoded = str(tokenizer.decode(list(ids[:count]), clean_up_tokenization_spaces=False))
        ends.append(max(ends[-1], common_prefix(decoded, text)))
    if ends[-1] != len(text):
        raise HeadwiseError(
            f"{type(tokenizer).__name__} does not say which characters its tokens hold, and what it decodes is not "
            "the text it was given, so inserted tokens cannot be located; use the fast version of the tokenizer"
        )
    spans = []
    for first, last in pairwise(ends):
        if first == last:  # part of a character that a later token completes
            last = min(first + 1, ends[-1])
        spans.append((first, last))
    return spans
