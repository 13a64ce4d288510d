"""MATH-500: competition problems with a worked solution and a short answer."""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, Table
from headwise.tasks.templates import Template


@register(
    "math500",
    about="{problem, solution, answer, subject}: worked solution or final answer, with the subject as label",
    fields=("problem", "solution", "answer", "subject"),
    recognises=lambda row: {"problem", "solution", "answer"} <= set(row.values),
    answers=("worked", "final"),
    wording="Problem: {problem}\nSolution:",
)
def math500(table: Table, log: Log, draw: random.Random, answers: str, wording: str) -> Pairs:
    template = Template.parse(wording)

    def example(row: Row) -> Example:
        target = row.filled("solution" if answers == "worked" else "answer")
        label = row.text("subject") if row.get("subject") else None
        return Example(template.fill({"problem": row.filled("problem")}), f" {target}", label=label)

    return each_row(table, log, example)
