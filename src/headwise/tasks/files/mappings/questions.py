"""{question, answer} and multiple choice {question, choices, answer} (as MMLU has it): "Q: …\\nA:" -> " answer"."""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, kind
from headwise.tasks.templates import Template


@register(
    "questions",
    about="{question, answer}: a question and its answer; `choices`, or a column of wrong answers, gives the foils",
    fields=("question", "answer", "choices"),
    recognises=lambda row: {"question", "answer"} <= set(row.values),
    wording="Q: {question}\nA:",
)
def questions(table: Table, log: Log, draw: random.Random, wording: str) -> Pairs:
    template = Template.parse(wording)

    def example(row: Row) -> Example:
        right, wrong = _answers(row)
        target, *also = (f" {answer}" for answer in right)
        prompt = template.fill({"question": row.filled("question")})
        return Example(prompt, target, tuple(f" {a}" for a in wrong), also=tuple(also))

    return each_row(table, log, example)


def _answers(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Right and wrong answers; with choices the answer may be the index of one, from 0."""
    if isinstance(row.get("choices"), list):
        choices, answer = row.answers("choices"), row.need("answer")
        if isinstance(answer, int) and 0 <= answer < len(choices):
            answer = choices[answer]
        if str(answer).strip() not in choices:
            raise RowError(f"the answer is {kind(answer)}, expected one of the choices or its index, from 0")
        right = str(answer).strip()
        return (right,), tuple(choice for choice in choices if choice != right)
    return row.answers("answer"), ()
