"""Plain text, one passage per line (WikiText): the log-probability of the passage, from an empty prompt."""

from __future__ import annotations

import random
import re

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Table

_WORD = re.compile(r"\w+")  # "= = Title = =" has one


@register(
    "text",
    about="{text}: each line from an empty prompt; lines (headings) of fewer than `least_words` are left out",
    fields=("text",),
    recognises=lambda row: set(row.values) == {"text"},
    metric=lambda examples: "mean_logprob",
    least_words=10,
)
def text(table: Table, log: Log, draw: random.Random, least_words: int) -> Pairs:
    pairs = each_row(table, log, lambda row: Example("", row.text("text").strip()))
    long = [(row, example) for row, example in pairs if len(_WORD.findall(example.target)) >= least_words]
    if short := len(pairs) - len(long):
        log.notices.append(f"left out {short} of {len(table.rows)} lines of fewer than {least_words} words")
    return long
