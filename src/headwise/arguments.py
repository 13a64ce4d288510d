"""Checks of the arguments of `hw.load`, `hw.score` and the other calls: a name has the same values in all of them.

`headwise/__init__.py` puts `checked` around every public function. An argument that is None by default may be None.
`window` and `sink` beside the reference `window` (or beside `streaming`) become part of its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from headwise.errors import HeadwiseError, quoted
from headwise.files import user_path
from headwise.names import WINDOW, reference_name
from headwise.settings import Count, Seed, Settings, passes


def _expected(what: str, fits: Callable[[Any], bool]) -> AfterValidator:
    """Any value for which `fits` is true."""

    def check(value: Any) -> None:
        if not fits(value):
            raise HeadwiseError(f"{quoted(value)} was given; expected {what}")

    return passes(check)


def _plain_items(value: Any) -> Any:
    """One number as several; numpy's numbers as numbers."""
    several = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return tuple(item.item() if hasattr(item, "item") else item for item in several)


_Model = Annotated[
    Any, _expected("a loaded model: model = hw.load('smollm2')", lambda value: hasattr(value, "tokens"))
]
_Task = Annotated[Any, _expected("a task: hw.task('ioi', 64)", lambda value: hasattr(value, "examples"))]
_Progress = Annotated[
    Any, _expected("True, False or a function", lambda value: isinstance(value, bool) or callable(value))
]
_Encode = Annotated[Any, _expected("a function from a text to token ids", callable)]
_Path = Annotated[Any, passes(user_path)]
_Positions = Annotated[tuple[int, ...], BeforeValidator(_plain_items)]


_KINDS: list[tuple[Any, str]] = [
    (_Model, "model"),
    (_Task, "reference_task"),
    (_Path, "path out file run"),
    (str, "name revision metric by action reference command"),
    (bool, "trust_remote_code bos compile truncate check_every_layer fresh chat maps estimate"),
    (Seed, "seed"),
    (Count, "batch_tokens max_new_tokens draws points control_points examples"),
    (Annotated[int, Field(ge=0, le=65535)], "port"),
    (float, "threshold"),
    (Annotated[float, Field(ge=0)], "temperature"),
    (Annotated[float, Field(gt=0)], "precision"),
    (Annotated[float, Field(gt=0, le=1)], "top_p"),
    (_Positions, "queries keys"),
    (_Progress, "progress"),
    (_Encode, "tokens"),
]
"""What the arguments of these names may be; those that are missing here are checked where they are used."""
_FIELDS: dict[str, Any] = {name: (kind, None) for kind, names in _KINDS for name in names.split()}
Arguments = create_model("Arguments", __base__=Settings, **_FIELDS)


@functools.cache
def checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, whose arguments are checked first."""
    signature = inspect.signature(call)
    parameters = signature.parameters

    @functools.wraps(call)
    def with_checks(*args: Any, **options: Any) -> Any:
        reference = options.get("reference") or (WINDOW if "streaming" in options else "")
        sizes = {"window", "sink"} & options.keys()
        if sizes and isinstance(reference, str) and reference.startswith(WINDOW):
            options["reference"] = reference_name(reference, **{name: options.pop(name) for name in sizes})
        try:
            bound = signature.bind(*args, **options)
        except TypeError:  # Python says what is wrong
            return call(*args, **options)
        arguments = {
            name: value
            for name, value in bound.arguments.items()
            if name in Arguments.model_fields and (value is not None or parameters[name].default is not None)
        }
        plain = Arguments(**arguments)
        bound.arguments.update({name: getattr(plain, name) for name in arguments})
        return call(*bound.args, **bound.kwargs)

    return with_checks
