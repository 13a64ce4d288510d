"""Known attention patterns of every head, on the task's prompts and on random tokens that come twice.

The random sequences are the usual test for induction heads (Olsson et al. 2022, arXiv 2209.11895): a task's prompts may
have no repeated token, and what repeats there may be attended to for other reasons.

K kinds of pattern.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.model.model import Model
from headwise.model.tokens.encode import Row, encode_rows
from headwise.scores.pattern import KINDS, attention_shares, counted_pairs
from headwise.tasks.examples import Task

RANDOM = "random tokens"
_SEQUENCES, _HALF = 8, 25
"""Random sequences, and the tokens in each half of one."""


def pattern_table(model: Model, task: Task, seed: int = 0, batch_tokens: int | None = None) -> pd.DataFrame:
    """One row per head, pattern and kind of prompts: mean attention, rank among all heads, number of prompts.

    A pattern that no prompt has (retrieval of an answer that is not in the prompt) has no rows.
    """
    rows = encode_rows(model.text, task.examples, "target")
    without_answer = [kind for kind in KINDS if kind != "retrieval"]
    return pd.concat(
        [
            _ranked(model, rows, list(KINDS), task.name, batch_tokens),
            _ranked(model, _repeated(model, seed), without_answer, RANDOM, batch_tokens),
        ],
        ignore_index=True,
    )


def _ranked(
    model: Model, rows: list[Row], kinds: list[str], prompts: str, batch_tokens: int | None
) -> pd.DataFrame:
    # An answer of several tokens makes the row longer than its prompt.
    sizes = [len(row.ids) for row in rows]
    masks = [np.zeros((len(kinds), size, size), dtype=bool) for size in sizes]
    for row, mask in zip(rows, masks, strict=True):
        for kind, of_kind in zip(kinds, mask, strict=True):
            pairs = counted_pairs(kind, row)
            of_kind[: len(pairs), : len(pairs)] = pairs
    shares = attention_shares(model, rows, masks, batch_tokens)  # rows, K, heads
    heads = model.heads()
    parts = []
    for number, kind in enumerate(kinds):
        counted = shares[:, number][~np.isnan(shares[:, number, 0])]
        if len(counted):
            mean = counted.mean(0)
            about = {"prompts": prompts, "pattern": kind, "n": len(counted), "heads": len(heads)}
            of_head = {"layer": [h.layer for h in heads], "head": [h.head for h in heads], "attention": mean}
            rank = pd.Series(mean).rank(ascending=False, method="min").astype(int)
            parts.append(pd.DataFrame({**about, **of_head, "rank": rank}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _repeated(model: Model, seed: int) -> list[Row]:
    """Sequences of random tokens, each half the same."""
    text = model.text
    special = set(getattr(text.tokenizer, "all_special_ids", ()))
    known = min(model.embedded_tokens or model.vocabulary, len(text.tokenizer))
    tokens = np.array([token for token in range(known) if token not in special])
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(_SEQUENCES):
        half = rng.choice(tokens, min(_HALF, len(tokens)), replace=False).tolist()
        ids = [*text.prefix, *half, *half]
        rows.append(Row(number, ids, len(ids), [], []))
    return rows
