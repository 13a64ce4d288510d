"""Few-shot prompts for any task: solved examples before each question, never one that is itself scored."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.examples import Example, Task
from headwise.tasks.templates import Template


def few_shot(
    task: Task,
    k: int,
    *,
    template: str = "{prompt}{target}",
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
    """(shot, example) wherever the shot asks what the example asks, or its text holds the example's answer.

    The second happens where prompts build on each other: a later step's prompt repeats the earlier steps.
    """
    by_key: dict[str, list[int]] = {}
    for number, shot in enumerate(shots):
        by_key.setdefault(_key(shot), []).append(number)
    starts: list[int] = []
    end = 0
    for shot in shots:
        starts.append(end)
        end += len(shot.prompt) + len(shot.target) + 1
    shown = "\0".join(shot.prompt + shot.target for shot in shots)
    for number, example in enumerate(scored):
        for asked in {_key(example), (example.counterfactual or "").strip()} - {""}:
            for shot_number in by_key.get(asked, []):
                yield shot_number, number
        solved = (example.prompt + example.target).strip()
        at = shown.find(solved)
        while at >= 0:
            if _stands_apart(shown, at, at + len(solved)):
                yield bisect_right(starts, at) - 1, number
            at = shown.find(solved, at + 1)


def _stands_apart(text: str, start: int, end: int) -> bool:
    """Whether a piece is not cut out of longer words: "0 + 1 = 1" is no part of "10 + 1 = 11"."""
    joined_before = (text[start - 1 : start] if start else "").isalnum() and text[start].isalnum()
    joined_after = text[end : end + 1].isalnum() and text[end - 1].isalnum()
    return not joined_before and not joined_after


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
    return Example(
        prompt=before + head.fill({"prompt": example.prompt}),
        target=example.target,
        foils=example.foils,
        counterfactual=None if other is None else before + head.fill({"prompt": other}),
        label=example.label,
        also=example.also,
    )
