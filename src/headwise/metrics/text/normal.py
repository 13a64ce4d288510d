"""Words of a text as answers are compared: case, punctuation and typography left out."""

from __future__ import annotations

import re
import unicodedata

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
