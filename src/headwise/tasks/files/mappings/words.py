"""{input, output} word tasks (as in Function Vectors, arXiv 2310.15213): "Q: hot\\nA:" -> " cold"."""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, register
from headwise.tasks.files.rows import Log, Row, Table
from headwise.tasks.templates import Template


@register(
    "words",
    about="{input, output}: one word for another; foils are other outputs of the same file",
    fields=("input", "output"),
    recognises=lambda row: {"input", "output"} <= set(row.values),
    foils=4,
    wording="Q: {input}\nA:",
)
def words(table: Table, log: Log, draw: random.Random, foils: int, wording: str) -> Pairs:
    template = Template.parse(wording)
    asked: list[tuple[Row, str, tuple[str, ...]]] = []
    right: dict[str, set[str]] = {}  # every answer that some row gives for this input
    for row in table.rows:
        with log.at(row):
            word, answers = row.filled("input", or_number=True), row.answers("output")
            asked.append((row, word, answers))
            right.setdefault(word.casefold(), set()).update(answer.casefold() for answer in answers)
    outputs = sorted({answer for _, _, answers in asked for answer in answers} - {""})
    pairs: Pairs = []
    for row, word, answers in asked:
        wrong = _draw_others(outputs, right[word.casefold()], foils, draw)
        target, *also = (f" {answer}" for answer in answers)
        prompt = template.fill({"input": word})
        pairs.append((row, Example(prompt, target, tuple(f" {foil}" for foil in wrong), also=tuple(also))))
    if short := sum(len(example.foils) < foils for _, example in pairs):
        log.notices.append(
            f"{short} examples have fewer than {foils} foils; the file has too few other outputs"
        )
    return pairs


def _draw_others(outputs: list[str], right: set[str], count: int, draw: random.Random) -> list[str]:
    """`count` distinct outputs that are no answer to this input, or all there are."""
    # Drawing a few more than needed and sifting keeps this linear: right answers are few among thousands.
    some = draw.sample(outputs, min(len(outputs), count + len(right) + 8))
    wrong = [output for output in some if output.casefold() not in right]
    if len(wrong) < count and len(some) < len(outputs):
        wrong = [output for output in draw.sample(outputs, len(outputs)) if output.casefold() not in right]
    return wrong[:count]
