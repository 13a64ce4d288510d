"""The CSV files of EAP-IG (arXiv 2403.17806): Greater-Than and indirect object identification (IOI).

Both have a prompt (`clean`) and its counterfactual (`corrupted`). Greater-Than gives the last two digits of the start
year; IOI gives the answers as token ids of the tokenizer that the file was made with.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from headwise.errors import quoted
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import NeedsTokenizer, Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, kind
from headwise.tasks.registry import ModelText


def _number(value: Any) -> int | None:
    """A whole number, also where it is written as text (CSV) or with a decimal point (pandas)."""
    if isinstance(value, bool) or not re.fullmatch(r"\d+(\.0)?", str(value)):
        return None
    return int(float(str(value)))


# ---- Greater-Than ------------------------------------------------------------------------------------


def _start_year(row: Row) -> int | None:
    """The last two digits of the start year, where the prompt has a year that ends in them and stops at a century."""
    clean, number = row.get("clean"), _number(row.get("label"))
    if not isinstance(clean, str) or number is None or not re.search(r"\D\d\d$", clean):
        return None
    return number if number < 100 and re.search(rf"\d\d{number:02d}(?!\d)", clean) else None


@register(
    "greater_than_csv",
    about="{clean, corrupted, label} of EAP-IG's Greater-Than: years after the start year are right, others wrong",
    fields=("clean", "corrupted", "label"),
    recognises=lambda row: "corrupted" in row.values and _start_year(row) is not None,
    metric=lambda examples: "prob_diff",
)
def greater_than_csv(table: Table, log: Log, draw: random.Random) -> Pairs:
    by_digit = False

    def example(row: Row) -> Example | None:
        nonlocal by_digit
        clean, start = row.text("clean"), _start_year(row)
        if start is None:
            raise RowError(
                f"the label is {kind(row.get('label'))}, expected the last two digits of the year in 'clean'"
            )
        years = [f"{year:02d}" for year in range(100)]
        right, wrong = years[start + 1 :], years[: start + 1]
        if table.text is not None and not _single_token(table.text, clean):
            # One digit is one token: the tens digit decides, unless it is that of the start year.
            by_digit, tens = True, start // 10
            right, wrong = (
                [str(digit) for digit in range(tens + 1, 10)],
                [str(digit) for digit in range(tens)],
            )
        if not right or not wrong:
            return None
        foils, also = tuple(wrong), tuple(right[1:])
        return Example(clean, right[0], foils, counterfactual=row.text("corrupted"), also=also)

    pairs = each_row(table, log, example)
    asked = (
        "the tens digit of the end year, because this tokenizer has one token per digit" if by_digit else ""
    )
    if asked:
        log.notices.append(f"the answer is {asked}")
    if left_out := sum(_start_year(row) is not None for row in table.rows) - len(pairs):
        log.notices.append(
            f"left out {left_out} of {len(table.rows)} rows whose start year leaves no right or no wrong answer"
        )
    return pairs


def _single_token(text: ModelText, prompt: str) -> bool:
    """Whether two digits after the prompt are one token."""
    return len(text.encode(prompt + "42")) == len(text.encode(prompt)) + 1


# ---- IOI ---------------------------------------------------------------------------------------------


@register(
    "ioi_csv",
    about="{clean, corrupted, correct_idx, incorrect_idx} of EAP-IG's IOI: token ids of right and wrong answers",
    fields=("clean", "corrupted", "correct_idx", "incorrect_idx"),
    recognises=lambda row: {"clean", "correct_idx", "incorrect_idx"} <= set(row.values),
)
def ioi_csv(table: Table, log: Log, draw: random.Random) -> Pairs:
    def example(row: Row) -> Example:
        clean = row.text("clean")
        right, wrong = (
            [_decoded(table.text, token, name, clean) for token in _tokens(row, name)]
            for name in ("correct_idx", "incorrect_idx")
        )
        other = row.text("corrupted") if row.get("corrupted") else None
        return Example(clean, right[0], tuple(wrong), counterfactual=other, also=tuple(right[1:]))

    pairs = each_row(table, log, example)
    log.refuse_if_bad()
    if table.text is None:
        raise NeedsTokenizer("answers that are given as token ids ('correct_idx', 'incorrect_idx')")
    return pairs


def _tokens(row: Row, name: str) -> list[int]:
    """One token id, or a list of them; in CSV a list is written as JSON."""
    value = row.need(name)
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = [value]
    numbers = [_number(item) for item in (value if isinstance(value, list) else [value])]
    if not numbers or None in numbers:
        raise RowError(f"{name!r} is {kind(row.need(name))}, expected a token id or a list of them")
    return [number for number in numbers if number is not None]


def _decoded(text: ModelText | None, token: int, name: str, prompt: str) -> str:
    """The token as text, refused where it is no word of the prompt: IOI asks for one of its names."""
    if text is None:
        return f" {token}"
    decoded = text.decode([token])
    word = decoded.strip()
    if not word or not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", prompt):
        raise RowError(
            f"{name} {token} is the token {quoted(decoded)} of this model's tokenizer, but it does not occur in the "
            "prompt: the ids were made with another tokenizer. Give the answers as text, in columns 'target' and "
            "'foils', or use the model that the file was made for"
        )
    return decoded
