"""Few-shot prompts for any task: solved examples before each question, never one that is itself scored."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.examples import Example, Task
from headwise.tasks.templates import Template

_LINE_START = re.compile(r"^\s*", re.MULTILINE)
_COMPARED = 400  # characters of a line kept for sorting; a match is compared in full

AS_IS = "{prompt}{target}"
"""The template that changes nothing."""


def few_shot(
    task: Task,
    k: int,
    *,
    template: str = AS_IS,
    separator: str = "\n\n",
    seed: int = 0,
    pool: Task | None = None,
    same: bool = True,
) -> Task:
    """The task with `k` solved examples before every prompt.

    Each shot is the template filled with a prompt and its target; the question is the template cut right
    before `{target}`, so a task's own prompts and targets (with their leading spaces) fit the default. The
    counterfactual gets the same shots as its prompt, so both stay equally long.

    Shots come from `pool`, less everything that the task itself asks; without a pool they are held out from
    the task and no longer scored: `k` of them where all examples share the `same` shots, otherwise a quarter
    of the task (at least `k`) from which each example draws its own.

        few_shot(task("ioi"), 5)
        few_shot(quiz, 2, template="Question: {prompt}\\nAnswer:{target}")
    """
    parsed = _parse(template)
    if not isinstance(k, int) or isinstance(k, bool) or k < 0:
        raise HeadwiseError(f"k={k!r} is not a number of shots; expected 0 or more")
    if not isinstance(separator, str):
        raise HeadwiseError(f"separator={separator!r} is not text; expected what stands between two shots")
    head = parsed.before("target")
    _check_spaces(task, head, template)
    draw = random.Random(f"shots/{task.name}/{seed}")
    if pool is None:
        shots, scored = _held_out(task, k, same, draw)
    else:
        shots, scored = _from_pool(task, pool, k, same, draw)

    made = []
    for number, example in enumerate(scored):
        mine = shots if same else random.Random(f"shots/{task.name}/{seed}/{number}").sample(list(shots), k)
        before = "".join(_solved(parsed, shot) + separator for shot in mine)
        made.append(_asked(head, before, example))
    about = {
        "k": k,
        "template": template,
        "separator": separator,
        "seed": seed,
        "same": same,
        "pool": None if pool is None else pool.name,
        "pool_size": len(shots),
        "not_scored": len(task) - len(scored),
    }
    return Task(task.name, tuple(made), task.metric, {**task.settings, "shots": about})


def chosen_shots(
    task: Task, k: int, *, seed: int = 0, pool: Task | None = None
) -> tuple[list[Example], list[Example]]:
    """The `k` solved examples that all of a task's prompts may share, and the examples left to be scored."""
    draw = random.Random(f"shots/{task.name}/{seed}")
    return _held_out(task, k, True, draw) if pool is None else _from_pool(task, pool, k, True, draw)


def _parse(template: str) -> Template:
    expected = "expected {prompt} and then {target}, each once, as in 'Q: {prompt}\\nA:{target}'"
    if not isinstance(template, str):
        raise HeadwiseError(f"template={template!r} is not text; {expected}")
    parsed = Template.parse(template)
    for name in parsed.names:
        if name not in ("prompt", "target"):
            raise unknown(f"gap in template {template!r}:", name, ("prompt", "target"))
    if parsed.names != ("prompt", "target"):
        raise HeadwiseError(f"template {template!r} does not fit; {expected}")
    return parsed


def _check_spaces(task: Task, head: Template, template: str) -> None:
    # Two spaces are other tokens than one, and the answer would be scored after a prompt no text contains.
    if head.pieces[-1][0][-1:] == " " and not head.pieces[-1][1] and all(e.target[:1] == " " for e in task):
        raise HeadwiseError(
            f"template {template!r} puts a space before {{target}}, but the targets of task {task.name!r} "
            "bring their own; take the space out"
        )


def _key(example: Example) -> str:
    """What an example asks; where the prompt is empty, the sentence itself."""
    return example.prompt.strip() or example.target.strip()


def _distinct(examples: Sequence[Example]) -> list[Example]:
    """Each prompt once, the first of its examples."""
    return list({_key(example): example for example in reversed(examples)}.values())[::-1]


def _overlaps(shots: Sequence[Example], scored: Sequence[Example]) -> Iterator[tuple[int, int]]:
    """(shot, example) wherever the shot asks what the example asks, or shows it solved on lines of its own.

    The second happens where prompts build on each other: a later step's prompt repeats the earlier steps.
    """
    by_key: dict[str, list[int]] = {}
    for number, shot in enumerate(shots):
        by_key.setdefault(_key(shot), []).append(number)
    # Every line of every shot in alphabetical order: what starts with a text stands together.
    texts = [shot.prompt + shot.target for shot in shots]
    lines = sorted(
        (text[found.end() : found.end() + _COMPARED], number, found.end())
        for number, text in enumerate(texts)
        for found in _LINE_START.finditer(text)
    )
    beginnings = [line[0] for line in lines]
    for number, example in enumerate(scored):
        for asked in {_key(example), (example.counterfactual or "").strip()} - {""}:
            for shot_number in by_key.get(asked, []):
                yield shot_number, number
        solved = (example.prompt + example.target).strip()
        at = bisect_left(beginnings, solved[:_COMPARED])
        while at < len(lines) and beginnings[at].startswith(solved[:_COMPARED]):
            _, shot_number, start = lines[at]
            if _begins_with(texts[shot_number], start, solved):
                yield shot_number, number
            at += 1


def _begins_with(text: str, start: int, piece: str) -> bool:
    """Whether the piece stands there and ends with a word: "10 + 1 = 1" is no part of "10 + 1 = 11"."""
    after = text[start + len(piece) : start + len(piece) + 1]
    return text.startswith(piece, start) and not (piece[-1:].isalnum() and after.isalnum())


def _from_pool(
    task: Task, pool: Task, k: int, same: bool, draw: random.Random
) -> tuple[list[Example], list[Example]]:
    candidates = _distinct(pool.examples)
    taken = {shot for shot, _ in _overlaps(candidates, task.examples)}
    free = [example for number, example in enumerate(candidates) if number not in taken]
    if len(free) < k:
        raise HeadwiseError(
            f"the pool {pool.name!r} has {len(free)} different examples that task {task.name!r} does not ask "
            f"itself ({len(taken)} it does), expected {k} or more for {k} shots; give a larger pool or "
            "fewer shots"
        )
    return (draw.sample(free, k) if same else free), list(task.examples)


def _held_out(task: Task, k: int, same: bool, draw: random.Random) -> tuple[list[Example], list[Example]]:
    candidates = _distinct(task.examples)
    count = k if same or k == 0 else max(k, len(candidates) // 4)
    if len(candidates) <= count:
        raise HeadwiseError(
            f"task {task.name!r} has {len(candidates)} different prompts, expected more than {count}: {k} "
            "shots are held out and one example at least must be left; give more examples, fewer shots or a "
            "pool"
        )
    shots = draw.sample(candidates, count)
    told = {number for _, number in _overlaps(shots, task.examples)}
    scored = [example for number, example in enumerate(task.examples) if number not in told]
    if not scored:
        raise HeadwiseError(
            f"every example of task {task.name!r} is told by one of the {count} shots; give a pool"
        )
    return shots, scored


def _solved(template: Template, shot: Example) -> str:
    return template.fill({"prompt": shot.prompt, "target": shot.target})


def _asked(head: Template, before: str, example: Example) -> Example:
    other = example.counterfactual
    return replace(
        example,
        prompt=before + head.fill({"prompt": example.prompt}),
        counterfactual=None if other is None else before + head.fill({"prompt": other}),
    )
