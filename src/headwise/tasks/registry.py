"""The tasks that are built in: a task is one generator function and one registration.

    @register("capitals", metric="logit_diff", about="Paris is the capital of -> France")
    def capitals(draw: random.Random) -> Example:
        ...

The generator makes one candidate example per call from the given source of randomness, so the same seed
gives the same examples on every platform. What it returns is checked against the tokenizer in use; a
candidate that does not fit (a counterfactual of another length, a foil that the target begins with) is drawn
again.

A generator whose very question depends on the tokenizer (is a year one token, or four?) names a parameter
`tokens`, and is given the encode function, or None where there is none.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.examples import Example, Task


class Lengths(Protocol):
    """What a task needs to know of a tokenizer: text in, token numbers out."""

    def __call__(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class TaskFamily:
    """A registered generator and what `headwise list tasks` says of it."""

    name: str
    metric: str
    about: str
    draw: Callable[..., Example]
    options: dict[str, tuple[str, ...]]
    """Options of the generator and their valid values, the default first."""

    @property
    def wants_tokens(self) -> bool:
        """Whether the generator asks for the tokenizer's encode function."""
        return "tokens" in inspect.signature(self.draw).parameters


_FAMILIES: dict[str, TaskFamily] = {}


def register(
    name: str, *, metric: str, about: str, **options: tuple[str, ...]
) -> Callable[[Callable[..., Example]], Callable[..., Example]]:
    """Make a generator known under `name`."""

    def add(draw: Callable[..., Example]) -> Callable[..., Example]:
        _FAMILIES[name] = TaskFamily(name, metric, about, draw, options)
        return draw

    return add


def families() -> dict[str, TaskFamily]:
    """Every registered task, by name. Importing this package's modules is what registers them."""
    import headwise.tasks as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"headwise.tasks.{module.name}")
    return dict(sorted(_FAMILIES.items()))


def task(name: str, n: int = 64, *, seed: int = 0, tokens: Lengths | None = None, **options: Any) -> Task:
    """`n` distinct examples of a built-in task.

    `tokens` is the tokenizer's encode function (`model.tokens`); with it, counterfactuals are guaranteed to
    be of equal length in tokens. Without it they are of equal length in words.
    """
    known = families()
    if name not in known:
        raise unknown("task", name, known)
    if n < 1:
        raise HeadwiseError(f"a task needs at least one example, not {n}")
    family = known[name]
    for option, value in options.items():
        if option not in family.options:
            raise unknown(f"option of task {name!r}", option, family.options)
        if value not in family.options[option]:
            raise unknown(f"{option} of task {name!r}", str(value), family.options[option])
    chosen = {option: values[0] for option, values in family.options.items()} | options

    draw = random.Random(f"{name}/{sorted(chosen.items())}/{seed}")
    extra = {"tokens": tokens} if family.wants_tokens else {}
    # A dict keeps the order of drawing. Two examples that differ in their foils alone are one observation,
    # not two: they would count twice in every standard error and leak from one half to the other.
    found: dict[tuple[str, str], Example] = {}
    tries = 0
    while len(found) < n:
        tries += 1
        if tries > 200 * n + 2000:
            raise HeadwiseError(
                f"task {name!r} gave only {len(found)} of {n} distinct examples that fit this tokenizer; "
                f"ask for at most {max(len(found), 1)}"
            )
        candidate = family.draw(draw, **chosen, **extra)
        if _fits(candidate, tokens or str.split):
            found.setdefault((candidate.prompt, candidate.target), candidate)
    return Task(name, tuple(found.values()), family.metric, {"n": n, "seed": seed, **chosen})


def _fits(example: Example, pieces: Callable[[str], list[Any]]) -> bool:
    """Whether right and wrong can be told apart, and the counterfactual is as long as the prompt."""
    answers = (*example.also, *example.foils)
    wrong = set(example.foils) & {example.target, *example.also}
    clash = any(_begins(example.prompt, example.target, other, pieces) for other in answers)
    other = example.counterfactual
    same_length = other is None or (
        other != example.prompt and len(pieces(other)) == len(pieces(example.prompt))
    )
    return not wrong and not clash and same_length


def _begins(prompt: str, one: str, other: str, pieces: Callable[[str], list[Any]]) -> bool:
    """Whether one answer is the beginning of the other in tokens, so that no token tells them apart.

    " 1" and " 12" differ as words, yet where each digit is a token the second only goes on longer.
    """
    shorter, longer = sorted((one, other), key=len)
    if not longer.startswith(shorter):  # spares a tokenizer's work: what differs in text differs in tokens
        return False
    few, many = pieces(prompt + shorter), pieces(prompt + longer)
    return many[: len(few)] == few
