"""YAML from other people: plain values only, of bounded size, every key once, numbers read in one way.

`yaml.safe_load` runs no code, but four things in it are traps: a few lines of aliases can stand for millions of
values, the second of two equal keys wins without a word, an odd number or date ends in an error of Python's, and by
YAML 1.1 `010` is 8, `1:30` is 90, `no` is false and `1e-3` is text. Here a number is what JSON calls one: digits
without leading zeros, a fraction, an exponent; true and false are the only booleans, null and ~ are nothing, and all
else is text. `010` is refused, because nobody can tell what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        root = loader.get_single_node()
        if root is None:
            return None
        _check(root, where)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from None
    except RecursionError:
        raise HeadwiseError(f"{where} is nested too deeply; expected at most {DEEPEST} levels") from None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, IndexError) as error:
        # A date such as 2020-99-99, a number of thousands of digits, a tag on the wrong kind of value.
        raise HeadwiseError(f"{where} holds a value that cannot be read: {_short(error)}") from None


@cache
def _loader() -> Any:
    """PyYAML's safe loader with these words in place of those of YAML 1.1."""
    import yaml

    def construct_float(loader: Any, node: Any) -> float:
        return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))

    loader: Any = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    for tag, words in _WORDS.items():
        loader.add_implicit_resolver(tag, re.compile(f"^(?:{words.pattern})$"), None)
    loader.add_constructor(f"{_TAG}float", construct_float)
    return loader


def _check(root: Any, where: str) -> None:
    """Refuse texts that are too large with every alias written out, too deep, circular, or have a wrong word or key."""
    import yaml

    sizes: dict[int, int] = {}
    """By node; 0 while its parts are being counted."""

    def size(node: Any, depth: int) -> int:
        if depth > DEEPEST:
            raise _at(node, where, f"is nested too deeply; expected at most {DEEPEST} levels")
        if sizes.get(id(node)) == 0:
            raise _at(node, where, "has an alias inside what it stands for")
        if id(node) not in sizes:
            sizes[id(node)] = 0
            parts = node.value
            if isinstance(node, yaml.ScalarNode):
                _check_word(node, where)
                parts = []
            elif isinstance(node, yaml.MappingNode):
                _check_keys([key for key, _ in node.value], where)
                parts = [part for pair in node.value for part in pair]
            sizes[id(node)] = 1 + sum(size(part, depth + 1) for part in parts)
        if sizes[id(node)] > MOST_VALUES:
            raise _at(
                node, where, f"stands for more than {MOST_VALUES:,} values; a study file is a page of text"
            )
        return sizes[id(node)]

    size(root, 0)


def _check_word(node: Any, where: str) -> None:
    """Refuse a number with leading zeros, a tag that does not fit its word (`!!int 0x10`), and too large a number."""
    word, tag = _short(node.value), node.tag.removeprefix(_TAG)
    if node.style is None and tag == "str" and _LEADING_ZERO.fullmatch(node.value):
        plain = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", word)
        fault = f"has {word}, a number with a leading zero; write {plain}, or put it in quotes if it is text"
        raise _at(node, where, fault)
    if node.tag in _WORDS and not _WORDS[node.tag].fullmatch(node.value):
        raise _at(node, where, f"has {word} tagged as {tag}, which it is not")
    if tag == "int" and not -LARGEST_NUMBER <= int(node.value) < LARGEST_NUMBER:
        bits = int(node.value).bit_length()
        raise _at(node, where, f"has a whole number of {bits} bits; expected at most 64")


def _check_keys(keys: Sequence[Any], where: str) -> None:
    seen: set[str] = set()
    for key in keys:
        if isinstance(key.value, str) and key.tag != f"{_TAG}merge":
            if key.value in seen:
                raise _at(key, where, f"has the key {_short(key.value)} twice; keep one")
            seen.add(key.value)


def _at(node: Any, where: str, fault: str) -> HeadwiseError:
    return HeadwiseError(f"{where}, line {node.start_mark.line + 1} {fault}")


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
