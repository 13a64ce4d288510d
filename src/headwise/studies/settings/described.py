"""What a study can be told, in words: each setting with its default and the line under it in the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, NamedTuple


class Described(NamedTuple):
    """One setting."""

    name: str
    """As `--set` takes it: `n`, or `fit.updates` for a setting of a setting."""
    default: str
    about: str


def described(settings: type, prefix: str = "") -> list[Described]:
    """Every setting of a settings dataclass, a study's own before those that all studies share."""
    parents = [base for base in settings.__mro__[1:] if dataclasses.is_dataclass(base)]
    shared = {field.name for base in parents for field in dataclasses.fields(base)}
    said = _said(settings)
    rows: list[Described] = []
    for field in sorted(dataclasses.fields(settings), key=lambda field: field.name in shared):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(default):
            rows += described(type(default), f"{prefix}{field.name}.")
        else:
            rows.append(Described(prefix + field.name, _shown(default), said.get(field.name, "")))
    return rows


def _said(kind: type) -> dict[str, str]:
    """The text under each field; where a subclass gives a field anew, its own text."""
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # typed at a prompt, say
            continue
        (body,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(body, ast.ClassDef)
        for field, under in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(under):
                said[field.target.id] = " ".join(under.value.value.split())  # type: ignore[union-attr]
    return said


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _shown(value: Any) -> str:
    """A default as it would be typed; a line where there is none."""
    if value is None or value is dataclasses.MISSING or value in ((), {}, ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        inside = [_shown(item) for item in value]
        return inside[0] if len(inside) == 1 else f"[{', '.join(inside)}]"
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
