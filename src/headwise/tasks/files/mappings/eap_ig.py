"""The CSV files of EAP-IG (arXiv 2403.17806): Greater-Than, indirect object identification (IOI), gender, agreement.

All have a prompt (`clean`) and its counterfactual (`corrupted`). Greater-Than gives the last two digits of the start
year; IOI and gender give the answers as token ids of the tokenizer that the file was made with, so they are read from
the prompts where these say them. Facts and hypernymy are in `pairs.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from headwise.errors import quoted
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import (
    NeedsTokenizer,
    Pairs,
    each_pair,
    equally_long,
    examples_of,
    register,
)
from headwise.tasks.files.rows import Row, RowError, Table, kind
from headwise.tasks.registry import ModelText


def _number(value: Any) -> int | None:
    """A whole number, also where it is written as text (CSV) or with a decimal point (pandas)."""
    if isinstance(value, bool) or not re.fullmatch(r"\d+(\.0)?", str(value)):
        return None
    return int(float(str(value)))


# ---- Greater-Than ------------------------------------------------------------------------------------


def _label(row: Row) -> Any:
    return row.get("label" if "label" in row.values else "correct_idx")


def _start_year(row: Row) -> int | None:
    """The last two digits of the start year, where the prompt has a year that ends in them and stops at a century."""
    clean, number = row.get("clean"), _number(_label(row))
    if not isinstance(clean, str) or number is None or not re.search(r"\D\d\d$", clean):
        return None
    return number if number < 100 and re.search(rf"\d\d{number:02d}(?!\d)", clean) else None


@register(
    "greater_than_csv",
    about="{clean, corrupted, label or correct_idx} of EAP-IG's Greater-Than: later years are right, others wrong",
    fields=("clean", "corrupted", "label", "correct_idx"),
    recognises=lambda row: "corrupted" in row.values and _start_year(row) is not None,
    metric=lambda examples: "prob_diff",
)
def greater_than_csv(table: Table) -> Pairs:
    by_digit = False

    def example(row: Row) -> Example | None:
        nonlocal by_digit
        clean, start = row.text("clean"), _start_year(row)
        if start is None:
            raise RowError(
                f"the label is {kind(_label(row))}, expected the last two digits of the year in 'clean'"
            )
        years = [f"{year:02d}" for year in range(100)]
        right, wrong = years[start + 1 :], years[: start + 1]
        encode = table.text.encode if table.text else None
        if encode and len(encode(clean + "42")) != len(encode(clean)) + 1:
            # One digit is one token: the tens digit decides, unless it is that of the start year.
            by_digit, tens = True, start // 10
            digits = [str(digit) for digit in range(10)]
            right, wrong = digits[tens + 1 :], digits[:tens]
        if not right or not wrong:
            return None
        foils, also = tuple(wrong), tuple(right[1:])
        return Example(clean, right[0], foils, counterfactual=row.text("corrupted"), also=also)

    pairs = examples_of(table, example)
    if by_digit:
        table.log.notices.append(
            "the answer is the tens digit of the end year, because this tokenizer has one token per digit"
        )
    if left_out := sum(_start_year(row) is not None for row in table.rows) - len(pairs):
        table.log.notices.append(
            f"left out {left_out} of {len(table.rows)} rows whose start year leaves no right or no wrong answer"
        )
    return pairs


# ---- IOI ---------------------------------------------------------------------------------------------


@register(
    "ioi_csv",
    about="{clean, corrupted, correct_idx, incorrect_idx} of EAP-IG's IOI: the names that the prompts say, else by id",
    fields=("clean", "corrupted", "correct_idx", "incorrect_idx"),
    recognises=lambda row: {"clean", "correct_idx", "incorrect_idx"} <= set(row.values),
)
def ioi_csv(table: Table) -> Pairs:
    by_id = False

    def example(row: Row) -> Example:
        nonlocal by_id
        clean, other = row.text("clean"), row.text("corrupted") if row.get("corrupted") else None
        if names := _names(clean, other or ""):
            return Example(clean, f" {names[0]}", (f" {names[1]}",), counterfactual=other)
        by_id = True
        right, wrong = (
            [_decoded(table.text, token, name, clean) for token in _tokens(row, name)]
            for name in ("correct_idx", "incorrect_idx")
        )
        return Example(clean, right[0], tuple(wrong), counterfactual=other, also=tuple(right[1:]))

    pairs = equally_long(table, examples_of(table, example))
    table.log.refuse_if_bad()
    if by_id and table.text is None:
        raise NeedsTokenizer("answers that are given as token ids ('correct_idx', 'incorrect_idx')")
    return pairs


def _names(clean: str, corrupted: str) -> tuple[str, str] | None:
    """Right and wrong name: another name stands for the second mention of the wrong one in the counterfactual, and the
    first mention is "A and B"."""
    words, others = (re.findall(r"\w+", text) for text in (clean, corrupted))
    changed = {word for word, other in zip(words, others, strict=False) if word != other}
    if len(words) != len(others) or len(changed) != 1:
        return None
    (wrong,) = changed
    found = re.search(rf"\b([A-Z]\w*) and {wrong}\b|\b{wrong} and ([A-Z]\w*)", clean)
    return (found[1] or found[2], wrong) if found else None


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


# ---- gender and agreement ----------------------------------------------------------------------------


@register(
    "gender_csv",
    about="{clean, corrupted, clean_answer_idx, corrupted_answer_idx} of EAP-IG's gender bias: 'she' where the "
    "counterfactual has a man, 'he' where it has a woman",
    fields=("clean", "corrupted", "clean_answer_idx", "corrupted_answer_idx", "label"),
    recognises=lambda row: (
        {"clean", "corrupted", "clean_answer_idx", "corrupted_answer_idx"} <= set(row.values)
    ),
)
@each_pair
def gender_csv(row: Row) -> Example:
    other = row.text("corrupted")
    if not (person := re.search(r"\b(wo)?man\b", other)):
        raise RowError(f"'corrupted' is {kind(other)}, expected a prompt with 'man' or 'woman'")
    right, wrong = (" he", " she") if person[1] else (" she", " he")
    return Example(row.text("clean"), right, (wrong,), other, family={"answer": right.strip()})


_VERBS = ((" is", " was", " has", " does"), (" are", " were", " have", " do"))


@register(
    "agreement_csv",
    about="{clean, corrupted, plural} of EAP-IG's agreement, {sentence, label, source} of the raw data: plural verbs "
    "are right where the number is 1, singular ones where it is 0",
    fields=("clean", "corrupted", "plural", "group", "sentence", "label", "source"),
    recognises=lambda row: (
        {"clean", "plural"} <= set(row.values) or {"sentence", "label", "group", "source"} == set(row.values)
    ),
    metric=lambda examples: "prob_diff",
    question=lambda row: row.get("clean" if "clean" in row.values else "sentence"),
)
@each_pair
def agreement_csv(row: Row) -> Example:
    is_raw = "sentence" in row.values
    number = _number(row.need("label" if is_raw else "plural"))
    if number not in (0, 1):
        raise RowError(f"the number is {kind(number)}, expected 0 (singular) or 1 (plural)")
    right, wrong = _VERBS[number], _VERBS[1 - number]
    family = {"number": ("singular", "plural")[number]}
    if kind_of := row.get("source" if is_raw else "group"):
        family["construction"] = str(kind_of)
    other = None if is_raw else row.text("corrupted")
    prompt = row.text("sentence" if is_raw else "clean")
    return Example(prompt, right[0], wrong, other, also=right[1:], family=family)
