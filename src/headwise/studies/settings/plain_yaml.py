"""YAML from other people: plain values only, of bounded size, every key once, numbers read in one way.

`yaml.safe_load` runs no code, but four things in it are traps: a few lines of aliases can stand for millions of
values, the second of two equal keys wins without a word, an odd number or date ends in an error of Python's, and by
YAML 1.1 `010` is 8, `1:30` is 90, `no` is false and `1e-3` is text. Here a number is what JSON calls one: digits
without leading zeros, a fraction, an exponent; true and false are the only booleans, null and ~ are nothing, and all
else is text. `010` is refused, because nobody can tell what was meant.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from headwise.errors import HeadwiseError
from headwise.settings import LARGEST_NUMBER

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


def parse(text: str, where: str) -> Any:
    """The values of a YAML text; `where` names it in errors, which also name the line."""
    import yaml

    try:
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check(node, where)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise HeadwiseError(f"{_place(error, where)} is not YAML: {_problem(error)}") from None
    except RecursionError:
        raise HeadwiseError(f"{where} is nested too deeply; expected at most {DEEPEST} levels") from None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, IndexError) as error:
        # A date such as 2020-99-99, a number of thousands of digits, a tag on the wrong kind of value.
        raise HeadwiseError(f"{where} holds a value that cannot be read: {_short(error)}") from None
    _check_numbers(value, where)
    return value


@cache
def _loader() -> Any:
    """PyYAML's safe loader with these words in place of those of YAML 1.1."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_yaml_float(self, node: Any) -> float:
            text = self.construct_scalar(node).lower()
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))

    Loader.yaml_implicit_resolvers = {}
    for tag, words in _WORDS.items():
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{words.pattern})$"), None)
    Loader.add_constructor(f"{_TAG}float", Loader.construct_yaml_float)
    return Loader


def _check_word(node: Any, where: str) -> None:
    """A number with leading zeros is refused; so is a tag on a word that it does not fit (`!!int 0x10`)."""
    if node.style is None and node.tag == f"{_TAG}str" and _LEADING_ZERO.fullmatch(node.value):
        plain = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", node.value)
        raise _at(
            node,
            where,
            f"has {_short(node.value)}, a number with a leading zero; write {_short(plain)}, or put it in quotes if "
            "it is text",
        )
    words = _WORDS.get(node.tag)
    if words is not None and not words.fullmatch(node.value):
        raise _at(
            node, where, f"has {_short(node.value)} tagged as {node.tag.removeprefix(_TAG)}, which it is not"
        )


def _check(root: Any, where: str) -> None:
    """Size with every alias written out, depth, circles and keys that are there twice."""
    import yaml

    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if depth > DEEPEST:
            raise _at(node, where, f"is nested too deeply; expected at most {DEEPEST} levels")
        if id(node) in under_way:
            raise _at(node, where, "has an alias inside what it stands for")
        if id(node) in sizes:
            return sizes[id(node)]
        under_way.add(id(node))
        total = 1
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, where)
            total += sum(size(part, depth + 1) for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(part, depth + 1) for part in node.value)
        else:
            _check_word(node, where)
        under_way.discard(id(node))
        if total > MOST_VALUES:
            raise _at(
                node, where, f"stands for more than {MOST_VALUES:,} values; a study file is a page of text"
            )
        sizes[id(node)] = total
        return total

    size(root, 0)


def _check_keys(mapping: Any, where: str) -> None:
    import yaml

    seen: set[str] = set()
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                raise _at(key, where, f"has the key {_short(key.value)} twice; keep one")
            seen.add(key.value)


def _check_numbers(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(key, where)
            _check_numbers(item, where)
    elif isinstance(value, list | tuple | set):
        for item in value:
            _check_numbers(item, where)
    elif isinstance(value, int) and not -LARGEST_NUMBER <= value < LARGEST_NUMBER:
        raise HeadwiseError(f"{where} holds a whole number of {value.bit_length()} bits; expected at most 64")


def _at(node: Any, where: str, what: str) -> HeadwiseError:
    return HeadwiseError(f"{where}, line {node.start_mark.line + 1} {what}")


def _place(error: Any, where: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f"{where}, line {mark.line + 1}" if mark else where


def _problem(error: Any) -> str:
    said = getattr(error, "problem", None) or getattr(error, "context", None)
    if said is None and hasattr(error, "reason"):  # a character that no YAML may hold
        said = f"{error.reason} (character {error.position + 1})"
    return _short(said or error)


def _short(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else str(value)).split())
    return text if len(text) <= 120 else text[:119] + "…"
