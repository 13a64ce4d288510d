"""{input, output} word tasks (as in Function Vectors, arXiv 2310.15213): "Q: hot\\nA:" -> " cold"."""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, text_or_number
from headwise.tasks.templates import Template


@register(
    "words",
    about="{input, output}: one word for another; foils are other outputs of the same file",
    fields=("input", "output"),
    recognises=lambda row: {"input", "output"} <= set(row.values),
    foils=4,
    wording="Q: {input}\nA:",
)
def words(
    table: Table, log: Log, draw: random.Random, foils: int = 4, wording: str = "Q: {input}\nA:"
) -> Pairs:
    read: list[tuple[Row, str, tuple[str, ...]]] = []
    right: dict[str, set[str]] = {}  # every answer that some row gives for this input
    for row in table.rows:
        with log.at(row):
            given = text_or_number(row.need("input"), "input").strip()
            if not given:
                raise RowError("the field 'input' is empty, expected text")
            answers = _answers(row)
            read.append((row, given, answers))
            right.setdefault(given.casefold(), set()).update(answer.casefold() for answer in answers)
    outputs = sorted({answer for _, _, answers in read for answer in answers})
    asked = Template.parse(wording)
    pairs: Pairs = []
    short = 0
    for row, given, (target, *also) in read:
        wrong = _draw_others(outputs, right[given.casefold()], foils, draw)
        short += len(wrong) < foils
        example = Example(
            asked.fill({"input": given}),
            f" {target}",
            tuple(f" {foil}" for foil in wrong),
            also=tuple(f" {answer}" for answer in also),
        )
        pairs.append((row, example))
    if short:
        log.notices.append(
            f"{short} examples have fewer than {foils} foils; the file has too few other outputs"
        )
    return pairs


def _answers(row: Row) -> tuple[str, ...]:
    output = row.need("output")
    listed = output if isinstance(output, list) else [output]
    if not listed:
        raise RowError("'output' is an empty list, expected at least one answer")
    return tuple(dict.fromkeys(text_or_number(answer, "output").strip() for answer in listed))


def _draw_others(outputs: list[str], right: set[str], count: int, draw: random.Random) -> list[str]:
    """`count` distinct outputs that are no answer to this input, or all there are."""
    # Drawing a few more than needed and sifting keeps this linear: right answers are few among thousands.
    some = draw.sample(outputs, min(len(outputs), count + len(right) + 8))
    found = [output for output in some if output and output.casefold() not in right]
    if len(found) < count and len(some) < len(outputs):
        found = [output for output in draw.sample(outputs, len(outputs)) if output.casefold() not in right]
    return found[:count]
