"""What a task is made of: examples, and a named, fingerprinted list of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from headwise.display import counted, cut_in_the_middle, html_table
from headwise.errors import HeadwiseError, quoted
from headwise.settings import several


@dataclass(frozen=True)
class Example:
    """One prompt and what should follow it."""

    prompt: str
    """What the model reads. May be empty where whole sentences are compared."""
    target: str
    """The right continuation, with its leading space where the language has one."""
    foils: tuple[str, ...] = ()
    """Wrong continuations."""
    counterfactual: str | None = None
    """A prompt of the same length in tokens that should give a foil."""
    label: str | None = None
    """The ability or phenomenon it belongs to."""
    also: tuple[str, ...] = ()
    """Further right continuations, where the target is a set (any year greater than the given one)."""
    group: str | None = None
    """What it has in common with others, such as the fact they ask for: `Task.halves` keeps them together, and
    intervals and tests count a group once."""
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    """Named parts of the prompt: name -> range of characters `[from, to)`, for edges restricted to positions."""
    family: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What it shares with other examples: facet -> level, such as `{"order": "ABB", "length": "short"}`, so that an
    effect can be read for each level (`Task.families`)."""

    def __post_init__(self) -> None:
        for name in ("prompt", "target", "counterfactual", "label", "group"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("prompt", "target")):
                raise HeadwiseError(f"{name} of an example is {quoted(value)}; expected text")
        object.__setattr__(self, "spans", _checked_spans(self.spans, self.prompt))
        object.__setattr__(self, "family", _checked_family(self.family))
        for name in ("foils", "also"):
            texts = tuple(several(getattr(self, name)))  # one text is one foil
            for text in texts:
                if not isinstance(text, str):
                    raise HeadwiseError(f"{name} of an example holds {quoted(text)}; expected texts")
            object.__setattr__(self, name, texts)


def _checked_spans(spans: Any, prompt: str) -> dict[str, tuple[int, int]]:
    if not isinstance(spans, Mapping):
        raise HeadwiseError(f"spans of an example are {quoted(spans)}; expected a mapping of names to ranges")
    checked = {}
    for name, ends in dict(spans).items():
        whole = (
            isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(end, int) for end in ends)
        )
        if not whole or not 0 <= ends[0] < ends[1] <= len(prompt):
            raise HeadwiseError(
                f"the span {quoted(name)} of an example is {quoted(ends)}; expected a range of characters [from, to] "
                f"inside its prompt, which has {len(prompt)}"
            )
        checked[str(name)] = (int(ends[0]), int(ends[1]))
    return checked


def _checked_family(family: Any) -> dict[str, str]:
    if not isinstance(family, Mapping) or not all(
        isinstance(text, str) and text for pair in family.items() for text in pair
    ):
        raise HeadwiseError(
            f"family of an example is {quoted(family)}; expected a mapping of facets to levels, both texts, such as "
            '{"order": "ABB"}'
        )
    return dict(family)


_MOST_SHOWN = 8
"""Examples that a notebook shows."""
_COLUMNS = ("prompt", "target", "also", "foils", "counterfactual", "label", "group", "family")


def _in_quotes(text: str) -> str:
    """An answer with its leading space, which must not become the end of a line."""
    return repr(text).replace(" ", "\u00a0")


def _words(name: str, value: Any) -> str:
    """A field of an example for a table, with its leading space visible."""
    if name == "target":
        return _in_quotes(value)
    if isinstance(value, tuple):
        return ", ".join(_in_quotes(text) for text in value[:4]) + ", …" * (len(value) > 4)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {level}" for name, level in value.items())
    return "" if value is None else cut_in_the_middle(value, 160).replace("\n", "⏎\n")


@dataclass(frozen=True, repr=False)
class Task:
    """A named list of examples with the metric that suits it."""

    name: str
    examples: tuple[Example, ...]
    metric: str = "logprob"
    settings: dict[str, Any] = field(default_factory=dict)
    """How the examples were made: seed, size, variant, shots."""
    numbers: tuple[int, ...] = field(default=(), compare=False)
    """Of the examples, in the task that they were taken from; by default counted from 0. Results carry them."""
    beside: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What `negatives` and `transfer` open, where the task's maker named it: a task, a name or a file."""
    opener: Callable[[Task, str, int | None, Any], Task | None] | None = field(default=None, compare=False)
    """What opens them; `hw.task` gives it to every task."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(several(self.examples)))
        for example in self.examples:
            if not isinstance(example, Example):
                raise HeadwiseError(
                    f"task {self.name!r} has {quoted(example)}; expected examples: hw.Example(…)"
                )
        if not self.examples:
            raise HeadwiseError(f"task {self.name!r} is empty; a task needs at least one example")
        if len(self.numbers) != len(self.examples):
            object.__setattr__(self, "numbers", tuple(range(len(self.examples))))

    def __repr__(self) -> str:
        first = self.examples[0]
        foils = f", not {quoted(first.foils[0], 30)}" if first.foils else ""
        return (
            f"Task({self.name!r}, {counted(len(self), 'example')}, metric {self.metric}; first: "
            f"{cut_in_the_middle(first.prompt, 70)!r} → {quoted(first.target, 30)}{foils})"
        )

    def _repr_html_(self) -> str:
        """In a notebook, the first examples."""
        shown = self.examples[:_MOST_SHOWN]
        fields = [name for name in _COLUMNS if any(getattr(example, name) for example in shown)]
        rows = ([_words(name, getattr(example, name)) for name in fields] for example in shown)
        of = f"{'' if len(shown) == len(self) else f'the first {len(shown)} of '}{len(self)} examples"
        return html_table(f"Task {self.name}, metric {self.metric}: {of}", fields, rows)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @property
    def step_key(self) -> tuple[Any, ...]:
        """What the key of a step says of a task: its name and example numbers (results carry them), and its content,
        spans and families included."""
        spans = [sorted(example.spans.items()) for example in self.examples if example.spans]
        families = self.families()
        return self.name, self.fingerprint, self.numbers, spans, *([families] if families else [])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every field of every example, in order, and of the metric; spans and families aside, which change
        no prompt."""
        fields = [asdict(example) for example in self.examples]
        for example_fields in fields:
            del example_fields["spans"], example_fields["family"]
            if example_fields["group"] is None:
                del example_fields["group"]
        text = json.dumps([self.metric, fields], ensure_ascii=True, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def take(self, indices: Sequence[int]) -> Task:
        """The same task with only the examples at these indices, each once."""
        wrong = [i for i in indices if not 0 <= i < len(self)]
        if wrong or len(set(indices)) < len(indices):
            raise HeadwiseError(
                f"examples are taken by their numbers from 0 to {len(self) - 1}, each at most once"
                + (f"; {wrong[0]} is none of them" if wrong else ", because a copy is no further evidence")
            )
        return replace(
            self,
            examples=tuple(self.examples[i] for i in indices),
            numbers=tuple(self.numbers[i] for i in indices),
        )

    def halves(self) -> tuple[Task, Task]:
        """Two disjoint halves, one to find an order and one to test it: even and odd examples.

        Examples of one group all go where the first of them goes, so halves with groups are about equal in size.
        """
        first, second = self.sides()
        return self.take(first), self.take(second)

    def groups(self) -> list[str | int]:
        """The group of every example; one that has none is a group by itself, named by its index."""
        return [i if e.group is None else e.group for i, e in enumerate(self.examples)]

    def families(self) -> dict[str, dict[str, list[int]]]:
        """Facet -> level -> the indices of the examples with that level; empty where no example has a family.

        >>> Task("t", (Example("a", " b", family={"length": "short"}), Example("a a", " b"))).families()
        {'length': {'short': [0]}}
        """
        found: dict[str, dict[str, list[int]]] = {}
        for index, example in enumerate(self.examples):
            for facet, level in example.family.items():
                found.setdefault(facet, {}).setdefault(level, []).append(index)
        return found

    def negatives(self, n: int | None = None, *, model: Any = None) -> Task | None:
        """Prompts of the same form without the behaviour, by default as many as this task has examples.

        What `hw.task(…, negatives=…)` named, else the built-in task NAME_negative; None where there is neither. model:
        counterfactuals are as long as their prompts under its tokenizer.
        """
        return None if self.opener is None else self.opener(self, "negatives", n, model)

    def transfer(self, n: int | None = None, *, model: Any = None) -> Task | None:
        """The same behaviour in other words: what `hw.task(…, transfer=…)` named, else the built-in task NAME_rewrite.

        None where there is neither; otherwise as `negatives`.
        """
        return None if self.opener is None else self.opener(self, "transfer", n, model)

    def shared_groups(self) -> tuple[str | None, ...] | None:
        """The group of every example for intervals and tests, or None where no two examples share one."""
        groups = self.groups()
        return tuple(example.group for example in self.examples) if len(set(groups)) < len(groups) else None

    def sides(self) -> tuple[list[int], list[int]]:
        """The indices of the examples in each of the halves."""
        sides: tuple[list[int], list[int]] = [], []
        side_of: dict[str | int, list[int]] = {}
        for index, group in enumerate(self.groups()):
            side_of.setdefault(group, min(sides, key=len)).append(index)
        if not sides[1]:
            what = "one example" if len(self) == 1 else "examples of one group only"
            raise HeadwiseError(f"task {self.name!r} has {what}; two halves need at least two")
        return sides
