"""CommonsenseQA (arXiv 1811.00937): a question and five options, one of them right.

Three forms are read: {input, output} with the options as lines "a: …" and a letter; the hub's {question,
choices: {label, text}, answerKey}; and the original {question: {stem, choices}, answerKey}.
"""

from __future__ import annotations

import random
import re
from typing import Any

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind
from headwise.tasks.templates import Template

_OPTION = re.compile(r"^([A-Za-z]): ?(.*)$")


def _recognises(row: Row) -> bool:
    if "answerKey" in row.values and "question" in row.values:
        return True
    asked, answer = row.get("input"), row.get("output")
    if not (isinstance(asked, str) and isinstance(answer, str) and re.fullmatch("[A-Za-z]", answer)):
        return False
    return any(found and found[1] == answer for found in map(_OPTION.match, asked.split("\n")))


@register(
    "commonsense_qa",
    about="{input, output} with options and a letter: the right option's text, the others as foils; `listed` "
    "shows the options in the prompt, `letters` also answers by letter",
    fields=("input", "output"),
    recognises=_recognises,
    letters=(False, True),
    listed=(False, True),
    wording="Q: {question}\nA:",
)
def commonsense_qa(
    table: Table,
    log: Log,
    draw: random.Random,
    letters: bool = False,
    listed: bool = False,
    wording: str = "Q: {question}\nA:",
) -> Pairs:
    pairs: Pairs = []
    asked = Template.parse(wording)
    twins = 0
    for row in table.rows:
        with log.at(row):
            question, options, key = _published(row) if "answerKey" in row.values else _lines(row)
            if not question:
                raise RowError("the question is empty, expected text")
            if key not in options:
                raise RowError(f"the answer {key!r} is none of the options {', '.join(map(repr, options))}")
            right = options[key]
            # An option that repeats the right one is right too, so it cannot serve as a foil.
            wrong = {letter: text for letter, text in options.items() if text != right}
            twins += len(options) - 1 - len(wrong)
            if letters or listed:
                question = "\n".join([question, *(f"{letter}: {text}" for letter, text in options.items())])
            answers = wrong if letters else dict.fromkeys(wrong.values())
            foils = tuple(f" {answer}" for answer in answers)
            pairs.append(
                (row, Example(asked.fill({"question": question}), f" {key if letters else right}", foils))
            )
    if twins:
        log.notices.append(
            f"{twins} options repeat the right answer word for word; they are not used as foils"
        )
    return pairs


def _lines(row: Row) -> tuple[str, dict[str, str], str]:
    """Question, options by letter, letter of the right one; the options are the last lines of the input."""
    lines = row.text("input").rstrip().split("\n")
    options: dict[str, str] = {}
    while lines and (found := _OPTION.match(lines[-1])):
        if found[1] in options:
            raise RowError(f"the option {found[1]!r} is there twice, expected each letter once")
        options[found[1]] = found[2].strip()
        lines.pop()
    if len(options) < 2:
        raise RowError(
            "fewer than two options at the end of 'input', expected lines such as 'a: a first option'"
        )
    question = "\n".join(lines).strip()
    return question, dict(reversed(options.items())), row.text("output").strip()


def _published(row: Row) -> tuple[str, dict[str, str], str]:
    question = row.need("question")
    holder: Any = question if isinstance(question, dict) else row.values
    stem = as_text(holder.get("stem") if isinstance(question, dict) else question, "question")
    choices = holder.get("choices")
    if isinstance(choices, dict):
        labels, texts = choices.get("label"), choices.get("text")
        choices = None
        if isinstance(labels, list) and isinstance(texts, list) and len(labels) == len(texts):
            choices = [{"label": a, "text": b} for a, b in zip(labels, texts, strict=True)]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise RowError(f"'choices' is {kind(holder.get('choices'))}, expected labels and as many texts")
    options = {as_text(c.get("label"), "label"): as_text(c.get("text"), "text").strip() for c in choices}
    if len(options) < len(choices):
        raise RowError("two choices have the same label, expected each once")
    key = row.text("answerKey")
    if not key:
        raise RowError("'answerKey' is empty, expected a letter; the published test split has no answers")
    return stem.strip(), options, key
