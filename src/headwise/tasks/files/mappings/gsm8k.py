"""GSM8K (arXiv 2110.14168): school problems whose answers are worked out and end in "#### 18"."""

from __future__ import annotations

import random
import re

from headwise.errors import quoted
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table
from headwise.tasks.templates import Template

_CALCULATOR = re.compile(r"<<.*?>>")  # "= <<16-3-4=9>>9": a note to a calculator, not part of the text
_FINAL = re.compile(r"####\s*(\S[^\n]*?)\s*$")


def _recognises(row: Row) -> bool:
    answer = row.get("answer")
    return "question" in row.values and isinstance(answer, str) and _FINAL.search(answer) is not None


@register(
    "gsm8k",
    about="{question, answer}: the worked solution without its <<…>> marks, or the final number",
    fields=("question", "answer"),
    recognises=_recognises,
    answers=("worked", "final"),
    wording="Question: {question}\nAnswer:",
)
def gsm8k(table: Table, log: Log, draw: random.Random, answers: str, wording: str) -> Pairs:
    template = Template.parse(wording)

    def example(row: Row) -> Example:
        answer = row.text("answer")
        final = _FINAL.search(answer)
        if not final:
            raise RowError(
                f"the answer {quoted(answer[-40:])} does not end in '#### ' and a number, as expected"
            )
        prompt = template.fill({"question": row.filled("question")})
        if answers == "worked":
            return Example(prompt, f" {_CALCULATOR.sub('', answer).strip()}")
        plain = final[1].replace(",", "")  # models write 2125 and 2,125 alike
        return Example(prompt, f" {plain}", also=(f" {final[1]}",) if final[1] != plain else ())

    return each_row(table, log, example)
