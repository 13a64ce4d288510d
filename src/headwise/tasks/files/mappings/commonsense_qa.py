"""CommonsenseQA (arXiv 1811.00937): a question and five options, one of them right.

Three forms are read: {input, output} with the options as lines "a: …" and a letter; the hub's {question,
choices: {label, text}, answerKey}; and the original {question: {stem, choices}, answerKey}.
"""

from __future__ import annotations

import random
import re
from typing import Any

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind
from headwise.tasks.templates import Template

_OPTION = re.compile(r"^([A-Za-z]): ?(.*)$")


def _recognises(row: Row) -> bool:
    if "answerKey" in row.values and "question" in row.values:
        return True
    asked, answer = row.get("input"), row.get("output")
    if not (isinstance(asked, str) and isinstance(answer, str) and re.fullmatch("[A-Za-z]", answer)):
        return False
    return any(option and option[1] == answer for option in map(_OPTION.match, asked.split("\n")))


@register(
    "commonsense_qa",
    about="{input, output} with options and a letter: the right option's text, the others as foils; `listed` "
    "shows the options in the prompt, `letters` also answers by letter",
    fields=("input", "output", "question", "choices", "answerKey"),
    recognises=_recognises,
    asked=lambda row: _parsed(row)[0],
    letters=(False, True),
    listed=(False, True),
    wording="Q: {question}\nA:",
)
def commonsense_qa(
    table: Table, log: Log, draw: random.Random, letters: bool, listed: bool, wording: str
) -> Pairs:
    template = Template.parse(wording)
    repeated_answers = 0

    def example(row: Row) -> Example:
        nonlocal repeated_answers
        question, options, key = _parsed(row)
        if not question:
            raise RowError("the question is empty, expected text")
        if key not in options:
            raise RowError(f"the answer {key!r} is none of the options {', '.join(map(repr, options))}")
        right = options[key]
        # An option that repeats the right one is right too, so it cannot serve as a foil.
        wrong = {letter: text for letter, text in options.items() if text != right}
        repeated_answers += len(options) - 1 - len(wrong)
        if letters or listed:
            question = "\n".join([question, *(f"{letter}: {text}" for letter, text in options.items())])
        foils = tuple(f" {answer}" for answer in (wrong if letters else dict.fromkeys(wrong.values())))
        return Example(template.fill({"question": question}), f" {key if letters else right}", foils)

    pairs = each_row(table, log, example)
    if repeated_answers:
        log.notices.append(
            f"{repeated_answers} options repeat the right answer word for word; they are not used as foils"
        )
    return pairs


def _parsed(row: Row) -> tuple[str, dict[str, str], str]:
    """Question, options by letter, letter of the right one."""
    return _published(row) if "answerKey" in row.values else _lines(row)


def _lines(row: Row) -> tuple[str, dict[str, str], str]:
    """The same of the form whose options are the last lines of the input."""
    lines = row.text("input").rstrip().split("\n")
    options: dict[str, str] = {}
    while lines and (option := _OPTION.match(lines[-1])):
        if option[1] in options:
            raise RowError(f"the option {option[1]!r} occurs twice, expected each letter once")
        options = {option[1]: option[2].strip(), **options}
        lines.pop()
    if len(options) < 2:
        raise RowError("fewer than two options at the end of 'input', expected lines such as 'a: an option'")
    return "\n".join(lines).strip(), options, row.text("output").strip()


def _published(row: Row) -> tuple[str, dict[str, str], str]:
    """The same of the hub's form and the original one."""
    question = row.need("question")
    fields: Any = question if isinstance(question, dict) else {**row.values, "stem": question}
    choices = fields.get("choices")
    if isinstance(choices, dict):
        choices = [choices.get("label"), choices.get("text")]
        if all(isinstance(part, list) for part in choices) and len(choices[0]) == len(choices[1]):
            choices = [{"label": label, "text": text} for label, text in zip(*choices, strict=True)]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise RowError(f"'choices' is {kind(fields.get('choices'))}, expected labels and as many texts")
    options = {as_text(c.get("label"), "label"): as_text(c.get("text"), "text").strip() for c in choices}
    if len(options) < len(choices):
        raise RowError("two choices have the same label, expected each once")
    key = row.text("answerKey")
    if not key:
        raise RowError("'answerKey' is empty, expected a letter; the published test split has no answers")
    return as_text(fields.get("stem"), "question").strip(), options, key
