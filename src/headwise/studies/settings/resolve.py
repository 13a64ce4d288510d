"""Study files: YAML, flags and `--set a.b=c`, resolved into one checked settings object.

The YAML's keys are the fields of the study's settings. An unknown key is an error that names the nearest valid one, a
wrong type one that says what was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from headwise.errors import HeadwiseError, hint, quoted
from headwise.settings import LARGEST_NUMBER, build
from headwise.tasks.opening import option_names

MOST_VALUES = 20_000
"""Values that a text may stand for once its aliases are written out."""
DEEPEST = 40
"""Lists and mappings inside one another."""
_TAG = "tag:yaml.org,2002:"
_WORDS = {
    f"{_TAG}bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    f"{_TAG}int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    f"{_TAG}float": re.compile(
        r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
    f"{_TAG}null": re.compile(r"~|null|Null|NULL|"),
    f"{_TAG}merge": re.compile(r"<<"),
}
"""What an unquoted word is; the first that matches counts."""
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader for YAML from other people: plain values, bounded size, every key once, one way of numbers.

    `yaml.safe_load` runs no code, but four things in it are traps: a few lines of aliases can stand for millions of
    values, the second of two equal keys wins without a word, an odd number or date ends in an error of Python's, and by
    YAML 1.1 `010` is 8, `1:30` is 90, `no` is false and `1e-3` is text. Here a number is what JSON calls one: digits
    without leading zeros, a fraction, an exponent; true and false are the only booleans, null and ~ are nothing, and
    all else is text. `010` is refused, because nobody can tell what was meant. PyYAML has no option for any of these.
    """

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - filled by `add_implicit_resolver`

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self.where, self.depth = where, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse what is nested too deeply, circular, or too large once its aliases are written out."""
        event = self.peek_event()
        if self.depth > DEEPEST:
            raise self.fault(event, f"is nested too deeply; expected at most {DEEPEST} levels")
        self.depth += 1
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if not hasattr(node, "size"):
                raise self.fault(event, "has an alias inside what it stands for")
            return node
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        node.size = 1 + sum(part.size for part in parts)
        if node.size > MOST_VALUES:
            fault = f"stands for more than {MOST_VALUES:,} values; a study file is a page of text"
            raise self.fault(node, fault)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        """Refuse a number with leading zeros, a tag that does not fit its word (`!!int 0x10`), too large a number."""
        node = super().compose_scalar_node(anchor)
        word, tag = _short(node.value), node.tag.removeprefix(_TAG)
        if node.style is None and tag == "str" and _LEADING_ZERO.fullmatch(node.value):
            plain = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", word)
            fault = (
                f"has {word}, a number with a leading zero; write {plain}, or put it in quotes if it is text"
            )
            raise self.fault(node, fault)
        if node.tag in _WORDS and not _WORDS[node.tag].fullmatch(node.value):
            raise self.fault(node, f"has {word} tagged as {tag}, which it is not")
        if tag == "int" and not -LARGEST_NUMBER <= int(node.value) < LARGEST_NUMBER:
            bits = int(node.value).bit_length()
            raise self.fault(node, f"has a whole number of {bits} bits; expected at most 64")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse a key that comes twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.tag != f"{_TAG}merge":
                if key.value in seen:
                    raise self.fault(key, f"has the key {_short(key.value)} twice; keep one")
                seen.add(key.value)
        return node

    def construct_float(self, node: Any) -> float:
        """PyYAML's own reads 1:30 as 90."""
        return float(self.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))

    def fault(self, at: Any, words: str) -> HeadwiseError:
        return HeadwiseError(f"{self.where}, line {at.start_mark.line + 1} {words}")


for _tag, _words in _WORDS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_words.pattern})$"), None)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_float)


def parse(text: str, where: str) -> Any:
    """The values of a YAML text; `where` names it in errors, which also name the line."""
    try:
        return _Loader(text, where).get_single_data()
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, IndexError) as error:
        # A number of thousands of digits, a tag on the wrong kind of value.
        raise HeadwiseError(f"{where} holds a value that cannot be read: {_short(error)}") from None


def _not_yaml(error: Any, where: str) -> HeadwiseError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "context", None) or error
    if hasattr(error, "reason"):  # a character that no YAML may hold
        problem = f"{error.reason} (character {error.position + 1})"
    line = f", line {mark.line + 1}" if mark else ""
    return HeadwiseError(f"{where}{line} is not YAML: {_short(problem)}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else text[:119] + "…"


# ---- YAML from other people ------------------------------------------------------------------------------

LARGEST_FILE = 200_000
"""Bytes; a study file is a page of text, and anything larger is not one."""


ABOUT = "about"
"""The key of a study file that says where its settings come from: paper, figure, deviations, cost."""


def about_of(file: str | Path | None) -> dict[str, Any]:
    """What a study file says about itself."""
    setup = read_yaml(file).get(ABOUT, {}) if file is not None else {}
    if not isinstance(setup, dict):
        raise HeadwiseError(
            f"{file}: {ABOUT} is {quoted(setup)}; expected 'key: value' lines, such as paper: …"
        )
    return setup


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
    valid = option_names()
    # A name that is nearly a setting's is a slip: `method` for `methods`.
    unknown = [name for name in values if name not in fields and name in valid]
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
