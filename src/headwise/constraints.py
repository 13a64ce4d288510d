"""What a setting may be: tables of constraints by field, and one function that checks them.

A class of settings names its constraints in `CONSTRAINTS`; those of the classes it derives from hold too, and a table
may replace one. Every field is checked, whether a study then uses it or not. `None` means "not given" and is never
refused here. A constraint on a list or a mapping holds for each of its items.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, shown, unknown

LARGEST_NUMBER = 2**63


class Constraint(typing.Protocol):
    """One condition on a value."""

    def check(self, name: str, value: Any) -> None:
        """Raise a sentence that says what was given and what was expected."""


@dataclasses.dataclass(frozen=True)
class Number:
    """A number within bounds; one that is not finite lies in none."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any) -> None:
        for one in _items(value):
            number = isinstance(one, int | float) and not isinstance(one, bool)
            if not number or not self._holds(one):
                raise HeadwiseError(f"{name} is {shown(value)}; expected {self}")

    def _holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        parts = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        said = " and ".join(f"{word} {bound:g}" for word, bound in parts.items() if bound is not None)
        return said or "a finite number"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """A name among those that there are; `names` is asked when a value is checked, so that plug-ins count."""

    what: str
    names: Callable[[], Iterable[str]]

    def check(self, name: str, value: Any) -> None:
        known = list(self.names())
        for one in _items(value):
            if one not in known:
                raise unknown(self.what, str(one), known)


@dataclasses.dataclass(frozen=True)
class Written:
    """A text of a certain form."""

    pattern: str
    expected: str

    def check(self, name: str, value: Any) -> None:
        for one in _items(value):
            if not isinstance(one, str) or not re.fullmatch(self.pattern, one):
                raise HeadwiseError(f"{name} is {shown(one)}; expected {self.expected}")


@dataclasses.dataclass(frozen=True)
class Passes:
    """What a function accepts: it raises where a value is wrong."""

    function: Callable[[Any], Any]

    def check(self, name: str, value: Any) -> None:
        for one in _items(value):
            self.function(one)


@dataclasses.dataclass(frozen=True)
class NotEmpty:
    """A list with at least one item."""

    what: str

    def check(self, name: str, value: Any) -> None:
        if not len(value):
            raise HeadwiseError(f"{name} is empty; expected at least one {self.what}")


def several(given: Any) -> list[Any]:
    """What may be given as one text (or path) or as several; one is one, and not its letters.

    >>> several("ioi"), several(["ioi", "docstring"])
    (['ioi'], ['ioi', 'docstring'])
    """
    return [given] if isinstance(given, str | Path) else list(given)


Constraints = Mapping[str, Constraint | tuple[Constraint, ...]]
"""By field."""


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [item for each in value.values() for item in _items(each)]
    return list(value) if isinstance(value, list | tuple) else [value]


def check_values(values: Mapping[str, Any], constraints: Constraints) -> None:
    """Check each value that has constraints."""
    for name, wanted in constraints.items():
        if values.get(name) is not None:
            for one in wanted if isinstance(wanted, tuple) else (wanted,):
                one.check(name, values[name])


def check_settings(settings: Any) -> None:
    """Check every field of a settings object against the `CONSTRAINTS` of its class and of those it derives from."""
    table: dict[str, Constraint | tuple[Constraint, ...]] = {}
    for kind in reversed(type(settings).__mro__):
        table |= vars(kind).get("CONSTRAINTS", {})
    values = {one.name: getattr(settings, one.name) for one in dataclasses.fields(settings)}
    check_values(values, table)


# --- types --------------------------------------------------------------------------------------------------


def fitted(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that a field is annotated with, or an error that names the setting."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()  # numpy's numbers are numbers too
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        problems = []
        for option in arguments:
            if option is not type(None):
                try:
                    return fitted(value, option, where)
                except HeadwiseError as error:
                    problems.append(error)
        raise problems[0]
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]  # one item needs no brackets
        return tuple(fitted(item, arguments[0], where) for item in items)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "a mapping of names to values")
        return {str(k): fitted(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "a mapping of settings")
        return build(hint, value, f"{where}.")  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if hint is str and isinstance(value, float):
        # 1e5 and 100000.0 are one number and two texts: which one was written is not known any more.
        raise _wrong(where, value, "text; put it in quotes")
    if isinstance(value, int) and hint is int and not -LARGEST_NUMBER <= value < LARGEST_NUMBER:
        raise HeadwiseError(
            f"setting {where!r} has {value.bit_length()} bits; expected a whole number of at most 64"
        )
    if isinstance(value, float) and hint is float and not math.isfinite(value):
        raise _wrong(where, value, "a finite number")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise _wrong(where, value, names.get(hint, str(hint)))
    return value


Settings = typing.TypeVar("Settings")


def build(kind: type[Settings], values: Mapping[str, Any], where: str = "") -> Settings:
    """A settings dataclass from plain values, every key and type checked."""
    hints = typing.get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown(f"setting of {where.rstrip('.')!r}" if where else "setting", str(key), fields)
        given[key] = fitted(value, hints[key], f"{where}{key}")
    try:
        return kind(**given)
    except TypeError as error:
        raise HeadwiseError(f"settings are incomplete: {error}") from None


def _wrong(where: str, value: Any, expected: str) -> HeadwiseError:
    return HeadwiseError(f"setting {shown(where)} is {shown(value)}; expected {expected}")
