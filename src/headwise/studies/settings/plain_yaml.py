"""YAML from other people: plain values only, of bounded size, every key once, numbers read in one way.

`yaml.safe_load` runs no code, but four things in it are traps: a few lines of aliases can stand for millions of
values, the second of two equal keys wins without a word, an odd number or date ends in an error of Python's, and by
YAML 1.1 `010` is 8, `1:30` is 90, `no` is false and `1e-3` is text. Here a number is what JSON calls one: digits
without leading zeros, a fraction, an exponent; true and false are the only booleans, null and ~ are nothing, and all
else is text. `010` is refused, because nobody can tell what was meant. PyYAML has no option for any of these.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

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


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the words above in place of those of YAML 1.1; it checks while it reads."""

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
