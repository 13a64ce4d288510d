"""Settings: pydantic models whose one definition gives the checks, the help texts, `run.json` and the study files.

A class of settings derives from `Settings`; the text under a field is its help. What is wrong with a value is said in
one sentence of ours (`sentence`), whether it comes from a file, a flag or Python. Types that several classes share are
here where they need no other room, else in `headwise.studies.settings.shared`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from typing_extensions import Self

from headwise.errors import HeadwiseError, quoted, unknown

LARGEST_NUMBER = 2**63
Item = TypeVar("Item")


class Settings(BaseModel):
    """Named values, each checked, none ever changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise sentence(type(self), error) from None

    # Settings inside settings are then made by pydantic itself, so that a sentence names the whole way: fit.updates.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {str(name): _plain(value, str(name)) for name, value in values.items()}

    def replaced(self, **changes: Any) -> Self:
        """The same with other values for some, all checked again."""
        return type(self)(**{**dict(self), **changes})


class _Options(Settings):
    """Options whose types are those of a function's parameters."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


def settings_of(name: str, function: Callable[..., Any]) -> type[Settings]:
    """The options that are parameters of a function, after its first one."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in parameters
    }
    return create_model(name, __base__=_Options, **fields)


def build(kind: type[Settings] | Any, values: Mapping[Any, Any]) -> Any:
    """Settings from the plain values of a file or of flags."""
    return kind(**{str(name): value for name, value in values.items()})


def field_texts(kind: type[Settings]) -> dict[str, str]:
    """The text below each field in the source of settings, by name.

    Pydantic would read the source of every class when it is imported, for seconds where torch has been before.
    """
    texts: dict[str, str] = {}
    for owner in reversed([one for one in kind.__mro__ if issubclass(one, Settings)]):
        try:
            source = inspect.getsource(owner)
        except (OSError, TypeError):  # typed at a prompt
            continue
        (found,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(found, ast.ClassDef)
        for field, below in zip(found.body, found.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(field.target)] = ast.literal_eval(below.value)
    return texts


# --- types of fields ----------------------------------------------------------------------------------------


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else value


Text = Annotated[str, BeforeValidator(_as_text)]
"""A whole number is text too, as a label may be; 1e5 and 100000.0 are one number and two texts."""
Count = Annotated[int, Field(ge=1)]
Seed = NonNegativeInt
Share = Annotated[float, Field(ge=0, le=1)]
Several = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
"""One item needs no brackets."""


def several(given: Any) -> list[Any]:
    """What may be given as one text (or path) or as several; one is one, and not its letters.

    >>> several("ioi"), several(["ioi", "docstring"])
    (['ioi'], ['ioi', 'docstring'])
    """
    if isinstance(given, str | Path):
        return [given]
    if not isinstance(given, Iterable):
        raise HeadwiseError(f"{quoted(given)} was given; expected a text or a list of them")
    return list(given)


Named = Annotated[dict[str, Item], BeforeValidator(_text_keys)]
"""Values by name."""


def one_of(what: str, names: Callable[[], Iterable[str]]) -> AfterValidator:
    """A name among those that there are; `names` is asked when a value is checked, so that plug-ins count."""

    def check(value: str) -> str:
        valid = list(names())
        if value not in valid:
            raise unknown(what, value, valid)
        return value

    return AfterValidator(check)


def not_empty(what: str) -> AfterValidator:
    """A list with at least one item."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if not len(value):
            raise HeadwiseError(f"{info.field_name} is empty; expected at least one {what}")
        return value

    return AfterValidator(check)


def passes(function: Callable[[Any], Any]) -> AfterValidator:
    """What a function accepts: it raises where a value is wrong."""

    def check(value: Any) -> Any:
        function(value)
        return value

    return AfterValidator(check)


def _plain(value: Any, name: str) -> Any:
    """Lists as tuples, because settings do not change; numpy's numbers as numbers.

    A whole number has at most 64 bits, as everything that reads it later has.
    """
    if isinstance(value, list | tuple):
        return tuple(_plain(item, name) for item in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, int) and not -LARGEST_NUMBER <= value < LARGEST_NUMBER:
        raise HeadwiseError(
            f"setting {name!r} has {value.bit_length()} bits; expected a whole number of at most 64"
        )
    return value


# --- what is wrong, in a sentence ---------------------------------------------------------------------------

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of settings",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def sentence(kind: type[BaseModel], error: ValidationError) -> HeadwiseError:
    """The first problem that pydantic names, an unknown key before all others: it may be why a key is missing."""
    errors = error.errors(include_url=False)
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    path = [str(part) for part in first["loc"] if not isinstance(part, int)]
    where, value, problem = ".".join(path), first["input"], first["type"]
    if not path:  # of the settings as a whole
        return HeadwiseError(str(first["msg"]))
    owner, field = _field(kind, path)
    if problem == "extra_forbidden":
        parent = where.rpartition(".")[0]
        return unknown(f"setting of {parent!r}" if parent else "setting", path[-1], owner.model_fields)
    if problem == "missing":
        return HeadwiseError(f"setting {where!r} is missing; {first['msg']}")
    if problem.startswith(("greater_than", "less_than")):
        return HeadwiseError(f"{where} is {quoted(value)}; expected {' and '.join(_bounds(owner, field))}")
    expected = _EXPECTED.get(problem, first["msg"])
    if problem == "string_type" and isinstance(value, float):
        expected = "text; put it in quotes"
    return HeadwiseError(f"setting {quoted(where)} is {quoted(value)}; expected {expected}")


def _field(kind: type[BaseModel], path: list[str]) -> tuple[type[BaseModel], str]:
    """The class of settings that a path leads into, and the last field on the way."""
    field = path[-1]
    for name in path:
        if name in kind.model_fields:
            field = name
            kind = next(_models(kind.model_fields[name].annotation), kind)
    return kind, field


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)


def _bounds(kind: type[BaseModel], field: str) -> list[str]:
    """All bounds of a number in words, where pydantic names the one that is broken."""
    schema = TypeAdapter(kind.model_fields[field].rebuild_annotation()).json_schema()

    def bounds(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (f"{word} {part[key]:g}" for key, word in _BOUNDS.items() if key in part)
            part = list(part.values())
        for item in part if isinstance(part, list) else []:
            yield from bounds(item)

    return list(bounds(schema))
