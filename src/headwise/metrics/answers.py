"""Whether a text gives an answer: the same words, or the same mathematical result (math-verify)."""

from __future__ import annotations

import functools
import re
import threading
import unicodedata
from typing import Any

# A number keeps its sign, its decimal point and its digits together; commas between thousands go.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# Scripts written without spaces are cut into characters, so that a word is found inside a sentence.
_WORD = re.compile(
    r"(?<![\w.])-?\d+(?:\.\d+)*|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def words(text: str) -> list[str]:
    """
    >>> words("The answer is: 1,234.50 — “Yes”!")
    ['the', 'answer', 'is', '1234.50', 'yes']
    >>> words("x = -5, not 3-5")
    ['x', '-5', 'not', '3', '5']
    """
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-").casefold()
    return _WORD.findall(_THOUSANDS.sub("", plain))


def same(text: str, gold: str) -> bool:
    """Whether the two are the same words. An answer without words, such as a sign, is compared exactly."""
    expected = words(gold)
    return words(text) == expected if expected else text.strip() == gold.strip()


def contains(text: str, gold: str) -> bool:
    """Whether the answer's words stand in the text, whole and in a row."""
    expected = words(gold)
    if not expected:
        return gold.strip() in text
    if re.fullmatch(r"[A-Za-z]", gold.strip()):
        # A letter that names a choice: in lower case it would be found in every "a".
        return re.search(rf"(?<!\w){gold.strip()}(?!\w)", text) is not None
    written, count = words(text), len(expected)
    return any(written[start : start + count] == expected for start in range(len(written) - count + 1))


# ---- the result that a text states: the boxed one, or else the last number or formula --------------------


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
        return same(text, gold)
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
