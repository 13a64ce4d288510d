"""CogQA (Cognitive Mirrors, arXiv 2512.10978): questions cut into sub-questions, each with its ability."""

from __future__ import annotations

import random
import re
from collections import Counter

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, kind

ABILITIES = (
    "Knowledge Recall",
    "Retrieval",
    "Logical Reasoning",
    "Decision-making",
    "Semantic Understanding",
    "Syntactic Understanding",
    "Inference",
    "Math Calculation",
)

# Most questions hold a backslash and an n where a line end was meant; "\neq" of LaTeX is left alone.
_WRITTEN_LINE_END = re.compile(r"\\n(?![a-z])")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


_BY_PLAIN_NAME = {_plain(ability): ability for ability in ABILITIES}


def ability(written: str) -> str | None:
    """The ability that is meant, whatever its case, spaces and hyphens; None for any other word.

    >>> ability("decision making")
    'Decision-making'
    """
    return _BY_PLAIN_NAME.get(_plain(written))


@register(
    "cogqa",
    about="{question, generated: [{subquestion, answer, cognitive_skill}]}: one example per sub-question, "
    "after the question and the earlier sub-questions with their answers; the label is the ability",
    fields=("question", "generated", "subquestion", "answer", "cognitive_skill"),
    recognises=lambda row: "question" in row.values and isinstance(row.get("generated"), list),
    asked=lambda step: step.get("subquestion"),
)
def cogqa(table: Table, log: Log, draw: random.Random) -> Pairs:
    pairs: Pairs = []
    other_skills: Counter[str] = Counter()
    for row in table.rows:
        with log.at(row):
            context = _WRITTEN_LINE_END.sub("\n", row.filled("question"))
            steps = row.need("generated")
            if not isinstance(steps, list):
                raise RowError(f"'generated' is {kind(steps)}, expected a list of sub-questions")
            for number, step in enumerate(steps, 1):
                with log.at(row, f"sub-question {number}"):
                    if not isinstance(step, dict):
                        raise RowError(
                            f"{kind(step)}, expected an object with subquestion, answer and cognitive_skill"
                        )
                    # Sub-questions share the group of their question; all else belongs to one of them.
                    inner = Row(row.number, row.unit, {"group": row.get("group"), **step})
                    answer, skill = inner.filled("answer", or_number=True), inner.text("cognitive_skill")
                    prompt = f"{context}\nQ: {inner.filled('subquestion')}\nA:"
                    context = f"{prompt} {answer}"  # a later step builds on this one, whatever its label
                    if label := ability(skill):
                        pairs.append((inner, Example(prompt, f" {answer}", label=label)))
                    else:
                        other_skills[skill] += 1
    if other_skills:
        listed = ", ".join(f"{skill} ({count})" for skill, count in sorted(other_skills.items()))
        log.notices.append(
            f"left out {other_skills.total()} sub-questions whose cognitive_skill is none of the eight abilities: "
            + listed
        )
    return pairs
