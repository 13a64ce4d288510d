"""The settings of a study as text: each setting with its default and its description."""

from __future__ import annotations

from typing import Any, NamedTuple

from headwise.settings import Settings
from headwise.studies.settings.shared import StudySettings


class Described(NamedTuple):
    """One setting."""

    name: str
    """As `--set` takes it: `n`, or `fit.updates` for a setting of a setting."""
    default: str
    about: str


def described(settings: type[Settings], prefix: str = "") -> list[Described]:
    """Every setting of a class, a study's own before those that all studies share."""
    rows: list[Described] = []
    for name in sorted(settings.model_fields, key=StudySettings.model_fields.__contains__):
        field = settings.model_fields[name]
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            rows += described(type(default), f"{prefix}{name}.")
        else:
            about = " ".join((field.description or "").split())
            rows.append(Described(prefix + name, _shown(default), about))
    return rows


def _shown(value: Any) -> str:
    """A default as it would be typed; a line where there is none."""
    if value is None or value in ((), {}, ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        inside = [_shown(item) for item in value]
        return inside[0] if len(inside) == 1 else f"[{', '.join(inside)}]"
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
