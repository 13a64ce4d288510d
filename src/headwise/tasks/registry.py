"""The tasks that are built in: a task is one generator function and one registration.

    @register("capitals", metric="logit_diff", about="Paris is the capital of -> France")
    def capitals(draw: random.Random) -> Example:
        ...

The generator makes one candidate example per call from the given source of randomness, so the same seed
gives the same examples on every platform. What it returns is checked against the tokenizer in use; a
candidate that does not fit (a counterfactual of another length, a foil that equals the target) is drawn
again.

A fixed list of examples is one function that returns it and one registration (`register_list`); asking for n
of them deals them out evenly over their labels.

A generator whose very question depends on the tokenizer (is a year one token, or four?) names a parameter
`tokens`, and is given the encode function, or None where there is none.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from headwise.errors import HeadwiseError, quoted, unknown
from headwise.files import user_path
from headwise.registry import Registry
from headwise.tasks.examples import Example, Task

MOST = 1_000_000
"""The largest number of examples of one task: a larger one is a typing error."""


Lengths = Callable[[str], list[int]]
"""What most tasks need to know of a tokenizer: its encode function, from a text to token ids."""


@runtime_checkable
class ModelText(Protocol):
    """A model's tokenizer (`model.text`), as far as data files need it: token ids and chats become text."""

    prefix: list[int]
    """Token ids before every text."""

    @property
    def has_chat(self) -> bool: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str: ...


class TooFewExamples(HeadwiseError):  # noqa: N818 - named for what is wrong
    """A task cannot give as many examples as it was asked for."""

    def __init__(self, count: int, message: str) -> None:
        super().__init__(message)
        self.count = count
        """How many there are."""


@dataclass(frozen=True)
class Values:
    """What an option takes that is no choice between a few names."""

    default: Any
    takes: Callable[[Any], bool]
    described: str

    def __contains__(self, value: object) -> bool:
        return self.takes(value)

    def __str__(self) -> str:
        return self.described


def whole_number(default: int, least: int, most: int) -> Values:
    """A whole number between two ends."""
    described = f"{default} (from {least:,} to {most:,})"
    return Values(default, lambda value: type(value) is int and least <= value <= most, described)


def text_file(default: str) -> Values:
    """This word, or the path of a text file."""

    def takes(value: Any) -> bool:
        return value == default or (isinstance(value, str) and os.path.isfile(user_path(value)))

    return Values(default, takes, f"{default}, or a text file")


Options = Mapping[str, tuple[Any, ...] | Values]
"""By name the valid values, the default first, or what else an option takes."""


@dataclass(frozen=True)
class TaskFamily:
    """A registered generator or list, and what `headwise list tasks` says of it."""

    name: str
    metric: str
    about: str
    options: Options
    """Of the generator or list."""
    draw: Callable[..., Example] | None = None
    """Makes one candidate example from a source of randomness; None for a list."""
    items: Callable[..., Sequence[Example]] | None = None
    """Gives every example of a list; None for a generator."""

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every option: what is given, or its default."""
        defaults = {o: v.default if isinstance(v, Values) else v[0] for o, v in self.options.items()}
        return {option: options.get(option, default) for option, default in defaults.items()}

    @property
    def size(self) -> int | None:
        """How many examples a list has; None where a generator makes as many as are asked for."""
        return len(self.items()) if self.items is not None else None


FAMILIES: Registry[TaskFamily] = Registry("task", "headwise.tasks.builtin.*")
families = FAMILIES.all


def register(
    name: str, *, metric: str, about: str, **options: tuple[Any, ...] | Values
) -> Callable[[Callable[..., Example]], Callable[..., Example]]:
    """Make a generator known under `name`."""
    return FAMILIES.decorator(name, lambda draw: TaskFamily(name, metric, about, options, draw=draw))


def register_list(
    name: str, *, metric: str, about: str, **options: tuple[Any, ...] | Values
) -> Callable[[Callable[..., Sequence[Example]]], Callable[..., Sequence[Example]]]:
    """Make a fixed list of examples known under `name`."""
    return FAMILIES.decorator(name, lambda items: TaskFamily(name, metric, about, options, items=items))


def register_variants(
    metric: str,
    variants: Mapping[str, tuple[str, Mapping[str, Any]]],
    **options: tuple[Any, ...] | Values,
) -> Callable[[Callable[..., Example]], Callable[..., Example]]:
    """Make one generator known under several names: name -> what it is about, and arguments that it always gets."""

    def add(draw: Callable[..., Example]) -> Callable[..., Example]:
        for name, (about, given) in variants.items():
            register(name, metric=metric, about=about, **options)(partial(draw, **given))
        return draw

    return add


def task(name: str, n: int = 64, *, seed: int = 0, tokens: Lengths | None = None, **options: Any) -> Task:
    """`n` distinct examples of a built-in task.

    `tokens` is the tokenizer's encode function (`model.tokens`); with it, counterfactuals are guaranteed to
    be of equal length in tokens. Without it they are of equal length in words.
    """
    family = FAMILIES.get(name)
    if not 1 <= n <= MOST:
        raise HeadwiseError(f"a task has from 1 to {MOST:,} examples, not {quoted(n)}")
    check_family_options(family, options)
    chosen = family.chosen(options)
    pieces = tokens or str.split
    draw = random.Random(f"{name}/{sorted(chosen.items())}/{seed}")
    if family.items is not None:
        examples = _dealt([e for e in family.items(**chosen) if _fits(e, pieces)], draw)[:n]
    else:
        assert family.draw is not None, "a family is a generator or a list"
        extra = {"tokens": tokens} if "tokens" in inspect.signature(family.draw).parameters else {}
        examples = _drawn(partial(family.draw, draw, **chosen, **extra), pieces, n)
    if (count := len(examples)) < n:
        raise TooFewExamples(
            count,
            f"task {name!r} gave only {count} of {n} distinct examples that fit this tokenizer; "
            f"ask for at most {max(count, 1)}",
        )
    return Task(name, tuple(examples), family.metric, {"n": n, "seed": seed, **chosen})


def check_family_options(family: TaskFamily, options: Mapping[str, Any]) -> None:
    """Refuse options that a built-in task does not have, and values that an option does not take."""
    for option, value in options.items():
        if option not in family.options:
            raise unknown(f"option of task {family.name!r}", option, family.options)
        if value in (valid := family.options[option]):
            continue
        if isinstance(valid, Values):
            raise HeadwiseError(f"{option} of task {family.name!r} is {quoted(value)}; expected {valid}")
        raise unknown(f"{option} of task {family.name!r}", str(value), valid)


def available(name: str, *, tokens: Lengths | None = None, **options: Any) -> int | None:
    """How many examples of a built-in list fit this tokenizer; None for a generator, which makes as many as asked."""
    family = families()[name]
    if family.items is None:
        return None
    return len({e for e in family.items(**family.chosen(options)) if _fits(e, tokens or str.split)})


def _drawn(draw: Callable[[], Example], pieces: Callable[[str], list[Any]], n: int) -> list[Example]:
    """The first `n` distinct candidates that fit; fewer where they do not turn up in a fair number of draws."""
    # A dict keeps the order of drawing. Two examples that differ in their foils alone are one observation,
    # not two: they would count twice in every standard error and leak from one half to the other.
    examples: dict[tuple[str, str], Example] = {}
    fruitless = 0
    for _ in range(200 * n + 2000):
        candidate, before = draw(), len(examples)
        if _fits(candidate, pieces):
            examples.setdefault((candidate.prompt, candidate.target), candidate)
        fruitless = 0 if len(examples) > before else fruitless + 1
        if len(examples) == n or fruitless > 50_000:
            break
    return list(examples.values())


def _dealt(examples: Sequence[Example], draw: random.Random) -> list[Example]:
    """All examples, shuffled, so that every beginning of the list is balanced over the labels.

    One example of each label is dealt per round, and every other round goes through the labels backwards:
    that way each label is also spread evenly over the even and the odd places, which `Task.halves` splits by.
    """
    shuffled = list(dict.fromkeys(examples))
    draw.shuffle(shuffled)
    piles: dict[str | None, list[Example]] = {}
    for example in shuffled:
        piles.setdefault(example.label, []).append(example)
    dealt: list[Example] = []
    order = list(piles.values())
    while len(dealt) < len(shuffled):
        dealt += [pile.pop() for pile in order if pile]
        order.reverse()
    return dealt


def _fits(example: Example, pieces: Callable[[str], list[Any]]) -> bool:
    """Whether right and wrong can be told apart, and the counterfactual is as long as the prompt."""
    prompt, target, other = example.prompt, example.target, example.counterfactual
    if set(example.foils) & {target, *example.also}:
        return False
    if any(_begins(prompt, target, answer, pieces) for answer in (*example.also, *example.foils)):
        return False
    return other is None or (other != prompt and len(pieces(other)) == len(pieces(prompt)))


def _begins(prompt: str, answer: str, other: str, pieces: Callable[[str], list[Any]]) -> bool:
    """Whether one answer is the beginning of the other in tokens, so that no token tells them apart.

    " 1" and " 12" differ as words, yet where each digit is a token the second only goes on longer.
    """
    shorter, longer = sorted((answer, other), key=len)
    if not longer.startswith(shorter):  # spares a tokenizer's work: what differs in text differs in tokens
        return False
    few, many = pieces(prompt + shorter), pieces(prompt + longer)
    return many[: len(few)] == few
