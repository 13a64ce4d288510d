"""The result that a text states: the boxed one, or else the last number or formula (math-verify)."""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

from headwise.metrics.text import normal

_BOXED = re.compile(r"\\boxed\s*\{")


def result(text: str) -> str | None:
    """The result that the metric `math` would compare, as text; None where the text states none.

    >>> result("so 3 + 4 = 7 apples"), result("I do not know")
    ('7', None)
    """
    parsed = _parsed(text)
    return str(parsed[-1]) if parsed else None


def same_result(text: str, gold: str) -> bool:
    """Whether the text states the gold result; a gold answer without mathematics is compared word for word."""
    from math_verify import verify

    expected = _parsed_gold(gold)
    if not expected:
        return normal.same(text, gold)
    parsed = _parsed(text)
    return bool(parsed) and bool(verify(expected, parsed, timeout_seconds=_seconds()))


def _seconds() -> int | None:
    # math-verify's timer is a signal, which only the main thread may set.
    return 5 if threading.current_thread() is threading.main_thread() else None


def _parsed(text: str) -> Any:
    from math_verify import parse

    return parse(text, parsing_timeout=_seconds())


@functools.lru_cache(maxsize=4096)
def _parsed_gold(gold: str) -> Any:
    return _parsed(gold if "\\boxed" in gold or "$" in gold else f"\\boxed{{{gold.strip()}}}")


def boxed(text: str) -> bool:
    r"""Whether a whole \\boxed{…} stands in the text, which is a result even where the text was cut off.

    >>> boxed(r"so \boxed{7} and"), boxed(r"so \boxed{7")
    (True, False)
    """
    for begin in _BOXED.finditer(text):
        depth = 1
        for character in text[begin.end() :]:
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return True
    return False
