"""Study files: YAML, flags and `--set a.b=c`, resolved into one checked settings object.

The YAML's keys are the fields of the study's settings. An unknown key is an error that names the nearest valid one, a
wrong type one that says what was expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError, hint, quoted
from headwise.settings import build
from headwise.studies.settings.plain_yaml import parse
from headwise.tasks.opening import option_names

LARGEST_FILE = 200_000
"""Bytes; a study file is a page of text, and anything larger is not one."""


ABOUT = "about"
"""The key of a study file that says where its settings come from: paper, figure, deviations, cost."""


def about_of(file: str | Path | None) -> dict[str, Any]:
    """What a study file says about itself."""
    about = read_yaml(file).get(ABOUT, {}) if file is not None else {}
    if not isinstance(about, dict):
        raise HeadwiseError(
            f"{file}: {ABOUT} is {quoted(about)}; expected 'key: value' lines, such as paper: …"
        )
    return about


def resolve(kind: Any, file: str | Path | None, *overrides: Mapping[str, Any]) -> Any:
    """The settings of a study: its defaults, then the file, then each of `overrides` in turn."""
    values = read_yaml(file) if file is not None else {}
    values.pop(ABOUT, None)  # words for people: `about_of`
    if values.get("trust_remote_code"):
        raise HeadwiseError(
            f"{file} asks to run code from a model's repository; a file may not. If you trust it, remove the line "
            f"and give {hint('trust_remote_code', True)}"
        )
    for layer in overrides:
        for name, replaced in getattr(kind, "REPLACES", {}).items():
            if name in layer:
                values.pop(replaced, None)
        merge(values, layer)
    return build(kind, _with_task_options(kind, values))


def _with_task_options(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values with options of tasks (columns, mapping, shots, …) under `task_options`, where a study has that."""
    fields = getattr(kind, "model_fields", {})
    if "task_options" not in fields or not isinstance(values.get("task_options", {}), dict):
        return values
    known = option_names()
    # A name that is nearly a setting's is a slip: `method` for `methods`.
    unknown = [name for name in values if name not in fields and name in known]
    names = [name for name in unknown if not difflib.get_close_matches(name, fields, n=1, cutoff=0.8)]
    options = {**values.get("task_options", {})}
    merge(options, {name: values[name] for name in names})
    others = {name: value for name, value in values.items() if name not in names}
    return others | {"task_options": options} if names else values


def read_yaml(file: str | Path) -> dict[str, Any]:
    """A study file as plain values."""
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise HeadwiseError(f"{file} is not a file; a study file is a page of YAML")
        if path.stat().st_size > LARGEST_FILE:
            raise HeadwiseError(
                f"{file} is larger than {LARGEST_FILE // 1000} kB; a study file is a page of YAML"
            )
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HeadwiseError(f"there is no study file {file}") from None
    except (OSError, ValueError) as error:
        raise HeadwiseError(f"the study file {str(file)!r} cannot be read: {error}") from None
    values = parse(text, str(file))
    if values is None:
        raise HeadwiseError(
            f"the study file {file} is empty; give at least one setting, or leave the file out"
        )
    if not isinstance(values, dict):
        raise HeadwiseError(f"{file} holds a {type(values).__name__}; a study file is 'key: value' lines")
    return values


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """`["a.b=3"]` as nested values; the right side is read as YAML, so numbers, lists and true work."""
    nested: dict[str, Any] = {}
    for pair in pairs:
        path, sign, text = pair.partition("=")
        if not sign or not path.strip():
            raise HeadwiseError(f"--set takes key=value, such as --set n=128, not {quoted(pair)}")
        try:
            value = parse(text, f"--set {quoted(path)}")
        except HeadwiseError as error:
            if "is not YAML" not in str(error):
                raise
            value = text  # a template with braces, a path with a colon: plain text
        *parents, last = path.strip().split(".")
        values = nested
        for parent in parents:
            values = values.setdefault(parent, {})
            if not isinstance(values, dict):
                raise HeadwiseError(
                    f"--set {quoted(path)} goes through {quoted(parent)}, which was set to a value before"
                )
        values[last] = value
    return nested


def merge(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put the values of `layer` over those that are there; mappings are merged key by key."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value
