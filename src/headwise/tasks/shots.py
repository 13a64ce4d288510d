"""Few-shot prompts for any task: solved examples before each question, never one that is itself scored."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headwise.errors import HeadwiseError, quoted
from headwise.tasks.examples import Example, Task
from headwise.tasks.registry import MOST
from headwise.tasks.templates import Template, shot_template

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
) -> Task:
    """The task with the same `k` solved examples before every prompt.

    Each shot is the template filled with a prompt and its target; the question is the template cut right
    before `{target}`, so a task's own prompts and targets (with their leading spaces) fit the default. The
    counterfactual gets the same shots as its prompt, so both stay equally long.

    Shots come from `pool`, less everything that the task itself asks; without a pool they are held out from
    the task and no longer scored.

        few_shot(task("ioi"), 5)
        few_shot(quiz, 2, template="Question: {prompt}\\nAnswer:{target}")
    """
    solved = check_shots(k, template, separator)
    question = solved.before("target")
    text, is_gap = question.pieces[-1]
    # Two spaces are other tokens than one, and the answer would be scored after a prompt no text contains.
    if not is_gap and text.endswith(" ") and all(e.target.startswith(" ") for e in task):
        raise HeadwiseError(
            f"template {template!r} puts a space before {{target}}, but the targets of task {task.name!r} "
            "begin with a space already; remove the space from the template"
        )
    shots, scored = chosen_shots(task, k, seed=seed, pool=pool)
    before = "".join(solved.fill({"prompt": e.prompt, "target": e.target}) + separator for e in shots)
    examples = []
    for example in scored:
        prompt, other = before + question.fill({"prompt": example.prompt}), example.counterfactual
        other = None if other is None else before + question.fill({"prompt": other})
        moved = prompt.rfind(example.prompt)
        spans = {name: (a + moved, b + moved) for name, (a, b) in example.spans.items()}
        examples.append(replace(example, prompt=prompt, counterfactual=other, spans=spans))
    shown = {
        "k": k,
        "template": template,
        "separator": separator,
        "seed": seed,
        "pool": None if pool is None else pool.name,
        "pool_size": len(shots),
        "not_scored": len(task) - len(scored),
    }
    return Task(task.name, tuple(examples), task.metric, {**task.settings, "shots": shown})


def check_shots(k: int, template: str, separator: str) -> Template:
    """The template of a solved example, with the number of shots and the separator checked."""
    if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k <= MOST:
        raise HeadwiseError(f"{quoted(k)} is not a number of shots; expected 0 to {MOST:,}")
    if not isinstance(separator, str):
        raise HeadwiseError(
            f"separator={quoted(separator)} is not text; expected what stands between two shots"
        )
    return shot_template(template)


def chosen_shots(
    task: Task, k: int, *, seed: int = 0, pool: Task | None = None
) -> tuple[list[Example], list[Example]]:
    """The `k` solved examples that all prompts share, and the examples to score."""
    draw = random.Random(f"shots/{task.name}/{seed}")
    return _held_out(task, k, draw) if pool is None else _from_pool(task, pool, k, draw)


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
        (text[start.end() : start.end() + _COMPARED], number, start.end())
        for number, text in enumerate(texts)
        for start in _LINE_START.finditer(text)
    )
    beginnings = [line[0] for line in lines]
    for number, example in enumerate(scored):
        for stem in {_key(example), (example.counterfactual or "").strip()} - {""}:
            for shot_number in by_key.get(stem, []):
                yield shot_number, number
        solved = (example.prompt + example.target).strip()
        at = bisect_left(beginnings, solved[:_COMPARED])
        while at < len(lines) and beginnings[at].startswith(solved[:_COMPARED]):
            _, shot_number, start = lines[at]
            after = texts[shot_number][start + len(solved) : start + len(solved) + 1]
            ends_a_word = not (
                solved[-1:].isalnum() and after.isalnum()
            )  # "10 + 1 = 1" is no part of "10 + 1 = 11"
            if ends_a_word and texts[shot_number].startswith(solved, start):
                yield shot_number, number
            at += 1


def _from_pool(task: Task, pool: Task, k: int, draw: random.Random) -> tuple[list[Example], list[Example]]:
    candidates = _distinct(pool.examples)
    taken = {shot for shot, _ in _overlaps(candidates, task.examples)}
    free = [example for number, example in enumerate(candidates) if number not in taken]
    if len(free) < k:
        raise HeadwiseError(
            f"the pool {pool.name!r} has {len(free)} different examples that task {task.name!r} does not ask "
            f"itself ({len(taken)} it does), expected {k} or more for {k} shots; give a larger pool or "
            "fewer shots"
        )
    return draw.sample(free, k), list(task.examples)


def _held_out(task: Task, k: int, draw: random.Random) -> tuple[list[Example], list[Example]]:
    candidates = _distinct(task.examples)
    if len(candidates) <= k:
        raise HeadwiseError(
            f"task {task.name!r} has {len(candidates)} different prompts, expected more than {k}: {k} "
            "shots are held out and one example at least must be left; give more examples, fewer shots or a "
            "pool"
        )
    shots = draw.sample(candidates, k)
    shown = {number for _, number in _overlaps(shots, task.examples)}
    scored = [example for number, example in enumerate(task.examples) if number not in shown]
    if not scored:
        raise HeadwiseError(f"the {k} shots show every example of task {task.name!r}; give a pool")
    return shots, scored
