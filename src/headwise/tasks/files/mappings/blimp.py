"""BLiMP (arXiv 1912.00582): pairs of sentences that differ in one point of grammar.

Where the paradigm allows the one-prefix method, its files give the words before the point and the two words
that may follow. Otherwise whole sentences are compared, from an empty prompt. Under `method="two_prefix"` the
word is the same and the words before it differ, so the ungrammatical beginning is the counterfactual.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headwise.errors import hint
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, contrast_metric, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table


def _metric(examples: Sequence[Example]) -> str:
    # logit_diff looks at one token; only accuracy weighs the whole of a sentence against the other.
    return contrast_metric(examples) if all(example.prompt for example in examples) else "accuracy"


@register(
    "blimp",
    about="{sentence_good, sentence_bad, …}: the shared beginning and the two words, where given, else the "
    "two sentences; the label is the phenomenon",
    fields=(
        *("sentence_good", "sentence_bad", "linguistics_term"),
        *("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"),
        *("two_prefix_prefix_good", "two_prefix_prefix_bad", "two_prefix_word"),
    ),
    recognises=lambda row: {"sentence_good", "sentence_bad"} <= set(row.values),
    metric=_metric,
    method=("auto", "sentence", "two_prefix"),
)
def blimp(table: Table, log: Log, draw: random.Random, method: str) -> Pairs:
    return each_row(table, log, lambda row: _pair(row, method))


def _pair(row: Row, method: str) -> Example:
    label = row.text("linguistics_term") if row.get("linguistics_term") else None
    if method == "two_prefix":
        if row.get("two_prefix_word") is None:
            raise RowError(
                f"no field 'two_prefix_word', expected for the method 'two_prefix'; use {hint('method', 'auto')}"
            )
        good, bad = row.filled("two_prefix_prefix_good"), row.filled("two_prefix_prefix_bad")
        return Example(good, f" {row.filled('two_prefix_word')}", counterfactual=bad, label=label)
    if method == "auto" and row.get("one_prefix_prefix") is not None:
        right, wrong = row.filled("one_prefix_word_good"), row.filled("one_prefix_word_bad")
        return Example(row.filled("one_prefix_prefix"), f" {right}", (f" {wrong}",), label=label)
    return Example("", row.filled("sentence_good"), (row.filled("sentence_bad"),), label=label)
