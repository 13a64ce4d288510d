"""BIG-bench JSON tasks (arXiv 2206.04615) and BIG-bench Hard: {examples: [{input, target | target_scores}]}.

The prompt is put together as the benchmark does it: task prefix, input prefix, input, choices (where the task
shows them, in a seeded order, because many files list the right one first), output prefix.
"""

from __future__ import annotations

import random

from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, register
from headwise.tasks.files.rows import Log, Row, RowError, Table, as_text, kind

_DEFAULTS = {
    "task_prefix": "",
    "example_input_prefix": "\nQ: ",
    "example_output_prefix": "\nA: ",
    "choice_prefix": "\n  choice: ",
}


@register(
    "bigbench",
    about="{examples: [{input, target | target_scores}]}: the best-scored choice, the worse ones as foils",
    fields=("input", "target", "target_scores", "task_prefix"),
    recognises=lambda row: "input" in row.values and bool({"target", "target_scores"} & set(row.values)),
    choices=("as the task says", "listed", "hidden"),
)
def bigbench(table: Table, log: Log, draw: random.Random, choices: str) -> Pairs:
    about = table.about
    shows = choices == "listed" or (
        choices == "as the task says" and about.get("append_choices_to_input", True) is not False
    )

    def example(row: Row) -> Example:
        prefix = {name: as_text(about.get(name, default), name) for name, default in _DEFAULTS.items()}
        if row.get("task_prefix"):
            prefix["task_prefix"] += row.text("task_prefix")
        right, wrong = _answers(row)
        shown = list(right + wrong) if shows and wrong else []
        draw.shuffle(shown)
        listed = "".join(prefix["choice_prefix"] + choice for choice in shown)
        question = prefix["example_input_prefix"] + row.filled("input") + listed
        prompt = (prefix["task_prefix"] + question + prefix["example_output_prefix"]).strip()
        target, *also = (f" {answer}" for answer in right)
        return Example(prompt, target, tuple(f" {answer}" for answer in wrong), also=tuple(also))

    if prefixed := sum(bool(row.get("task_prefix")) for row in table.rows):
        log.notices.append(f"{prefixed} examples have their own task_prefix; it comes after that of the task")
    return each_row(table, log, example)


def _answers(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Right and wrong answers, the target first."""
    scores = row.get("target_scores")
    if scores is not None:
        # A table format gives every row the choices of all rows; those of other questions are null.
        scores = {k: v for k, v in scores.items() if v is not None} if isinstance(scores, dict) else {}
        if not scores or not all(type(score) in (int, float) for score in scores.values()):
            raise RowError(
                f"'target_scores' is {kind(row.get('target_scores'))}, expected a number per choice"
            )
        best = max(scores.values())
        right = tuple(choice.strip() for choice, score in scores.items() if score == best)
        wrong = tuple(choice.strip() for choice, score in scores.items() if score < best)
        if not wrong and len(right) > 1:
            raise RowError(f"all {len(right)} choices have the score {best}, expected a best one")
        return right, wrong
    return row.answers("target"), ()
