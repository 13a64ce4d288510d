"""Published sets of questions: CogQA, MATH-500, GSM8K, CommonsenseQA, BIG-bench, and word tasks."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Annotated, Any

from pydantic import NonNegativeInt

from headwise.errors import quoted
from headwise.settings import one_of
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import Pairs, each_row, examples_of, one_gap, register
from headwise.tasks.files.rows import Row, RowError, Table, as_text, kind
from headwise.tasks.templates import Template

Answers = Annotated[str, one_of("value of answers", lambda: ("worked", "final"))]

# ---- CogQA (Cognitive Mirrors, arXiv 2512.10978): sub-questions, each with its ability ---------------------

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
    question=lambda step: step.get("subquestion"),
)
def cogqa(table: Table) -> Pairs:
    pairs: Pairs = []
    other_skills: Counter[str] = Counter()
    for row in table.rows:
        with table.log.at(row):
            context = _WRITTEN_LINE_END.sub("\n", row.filled("question"))
            steps = row.need("generated")
            if not isinstance(steps, list):
                raise RowError(f"'generated' is {kind(steps)}, expected a list of sub-questions")
            for number, step in enumerate(steps, 1):
                with table.log.at(row, f"sub-question {number}"):
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
        table.log.notices.append(
            f"left out {other_skills.total()} sub-questions whose cognitive_skill is none of the eight abilities: "
            + listed
        )
    return pairs


# ---- MATH-500, and GSM8K (arXiv 2110.14168), whose answers are worked out and end in "#### 18" -------------


@register(
    "math500",
    about="{problem, solution, answer, subject}: worked solution or final answer, with the subject as label",
    fields=("problem", "solution", "answer", "subject"),
    recognises=lambda row: {"problem", "solution", "answer"} <= set(row.values),
)
@each_row
def math500(
    row: Row,
    answers: Answers = "worked",
    wording: Annotated[str, one_gap("problem")] = "Problem: {problem}\nSolution:",
) -> Example:
    target = row.filled("solution" if answers == "worked" else "answer")
    label = row.text("subject") if row.get("subject") else None
    return Example(
        Template.parse(wording).fill({"problem": row.filled("problem")}), f" {target}", label=label
    )


_CALCULATOR = re.compile(r"<<.*?>>")  # "= <<16-3-4=9>>9": a note to a calculator, not part of the text
_FINAL = re.compile(r"####\s*(\S[^\n]*?)\s*$")


@register(
    "gsm8k",
    about="{question, answer}: the worked solution without its <<…>> marks, or the final number",
    fields=("question", "answer"),
    recognises=lambda row: "question" in row.values and bool(_FINAL.search(str(row.get("answer")))),
)
@each_row
def gsm8k(
    row: Row,
    answers: Answers = "worked",
    wording: Annotated[str, one_gap("question")] = "Question: {question}\nAnswer:",
) -> Example:
    answer = row.text("answer")
    final = _FINAL.search(answer)
    if not final:
        raise RowError(f"the answer {quoted(answer[-40:])} does not end in '#### ' and a number, as expected")
    prompt = Template.parse(wording).fill({"question": row.filled("question")})
    if answers == "worked":
        return Example(prompt, f" {_CALCULATOR.sub('', answer).strip()}")
    plain = final[1].replace(",", "")  # models write 2125 and 2,125 alike
    return Example(prompt, f" {plain}", also=(f" {final[1]}",) if final[1] != plain else ())


# ---- CommonsenseQA (arXiv 1811.00937): a question and five options, one of them right ----------------------
# Three forms are read: {input, output} with the options as lines "a: …" and a letter; the hub's {question,
# choices: {label, text}, answerKey}; and the original {question: {stem, choices}, answerKey}.

_OPTION = re.compile(r"^([A-Za-z]): ?(.*)$")


def _is_commonsense_qa(row: Row) -> bool:
    if "answerKey" in row.values and "question" in row.values:
        return True
    question, answer = row.get("input"), row.get("output")
    if not (isinstance(question, str) and isinstance(answer, str) and re.fullmatch("[A-Za-z]", answer)):
        return False
    return any(option and option[1] == answer for option in map(_OPTION.match, question.split("\n")))


@register(
    "commonsense_qa",
    about="{input, output} with options and a letter: the right option's text, the others as foils; `listed` "
    "shows the options in the prompt, `letters` also answers by letter",
    fields=("input", "output", "question", "choices", "answerKey"),
    recognises=_is_commonsense_qa,
    question=lambda row: _parsed(row)[0],
)
def commonsense_qa(
    table: Table,
    letters: bool = False,
    listed: bool = False,
    wording: Annotated[str, one_gap("question")] = "Q: {question}\nA:",
) -> Pairs:
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
        prompt = Template.parse(wording).fill({"question": question})
        return Example(prompt, f" {key if letters else right}", foils)

    pairs = examples_of(table, example)
    if repeated_answers:
        table.log.notices.append(
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


# ---- BIG-bench JSON tasks (arXiv 2206.04615) and BIG-bench Hard --------------------------------------------
# The prompt is put together as the benchmark does it: task prefix, input prefix, input, choices (where the task shows
# them, in a seeded order, because many files list the right one first), output prefix.

_DEFAULTS = {
    "task_prefix": "",
    "example_input_prefix": "\nQ: ",
    "example_output_prefix": "\nA: ",
    "choice_prefix": "\n  choice: ",
}
_CHOICES = ("as the task says", "listed", "hidden")


@register(
    "bigbench",
    about="{examples: [{input, target | target_scores}]}: the best-scored choice, the worse ones as foils",
    fields=("input", "target", "target_scores", "task_prefix"),
    recognises=lambda row: "input" in row.values and bool({"target", "target_scores"} & set(row.values)),
)
def bigbench(
    table: Table, choices: Annotated[str, one_of("value of choices", lambda: _CHOICES)] = _CHOICES[0]
) -> Pairs:
    header, draw = table.about, random.Random(f"bigbench/{table.seed}")
    shows = choices == "listed" or (
        choices == _CHOICES[0] and header.get("append_choices_to_input", True) is not False
    )

    def example(row: Row) -> Example:
        prefix = {name: as_text(header.get(name, default), name) for name, default in _DEFAULTS.items()}
        if row.get("task_prefix"):
            prefix["task_prefix"] += row.text("task_prefix")
        right, wrong = _scored_answers(row)
        shown = list(right + wrong) if shows and wrong else []
        draw.shuffle(shown)
        listed = "".join(prefix["choice_prefix"] + choice for choice in shown)
        question = prefix["example_input_prefix"] + row.filled("input") + listed
        prompt = (prefix["task_prefix"] + question + prefix["example_output_prefix"]).strip()
        target, *also = (f" {answer}" for answer in right)
        return Example(prompt, target, tuple(f" {answer}" for answer in wrong), also=tuple(also))

    if prefixed := sum(bool(row.get("task_prefix")) for row in table.rows):
        table.log.notices.append(
            f"{prefixed} examples have their own task_prefix; it comes after that of the task"
        )
    return examples_of(table, example)


def _scored_answers(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Right and wrong answers, the target first."""
    scores = row.get("target_scores")
    if scores is None:
        return row.answers("target"), ()
    # A table format gives every row the choices of all rows; those of other questions are null.
    scores = {k: v for k, v in scores.items() if v is not None} if isinstance(scores, dict) else {}
    if not scores or not all(type(score) in (int, float) for score in scores.values()):
        raise RowError(f"'target_scores' is {kind(row.get('target_scores'))}, expected a number per choice")
    best = max(scores.values())
    right = tuple(choice.strip() for choice, score in scores.items() if score == best)
    wrong = tuple(choice.strip() for choice, score in scores.items() if score < best)
    if not wrong and len(right) > 1:
        raise RowError(f"all {len(right)} choices have the score {best}, expected a best one")
    return right, wrong


# ---- word tasks, as in Function Vectors (arXiv 2310.15213): "Q: hot\nA:" -> " cold" -------------------------


@register(
    "words",
    about="{input, output}: one word for another; foils are other outputs of the same file",
    fields=("input", "output"),
    recognises=lambda row: {"input", "output"} <= set(row.values),
)
def words(
    table: Table,
    foils: NonNegativeInt = 4,
    wording: Annotated[str, one_gap("input")] = "Q: {input}\nA:",
) -> Pairs:
    template, draw = Template.parse(wording), random.Random(f"words/{table.seed}")
    read: list[tuple[Row, str, tuple[str, ...]]] = []
    right: dict[str, set[str]] = {}  # every answer that some row gives for this input
    for row in table.rows:
        with table.log.at(row):
            word, answers = row.filled("input", or_number=True), row.answers("output")
            read.append((row, word, answers))
            right.setdefault(word.casefold(), set()).update(answer.casefold() for answer in answers)
    outputs = sorted({answer for _, _, answers in read for answer in answers} - {""})
    pairs: Pairs = []
    for row, word, answers in read:
        wrong = _draw_others(outputs, right[word.casefold()], foils, draw)
        target, *also = (f" {answer}" for answer in answers)
        prompt = template.fill({"input": word})
        pairs.append((row, Example(prompt, target, tuple(f" {foil}" for foil in wrong), also=tuple(also))))
    if short := sum(len(example.foils) < foils for _, example in pairs):
        table.log.notices.append(
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
