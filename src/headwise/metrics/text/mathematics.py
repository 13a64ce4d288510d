"""What a text says the result is: the boxed one, or else the last number or formula (math-verify)."""

from __future__ import annotations

import re
import threading

_BOXED = re.compile(r"\\boxed\s*\{")


def result(text: str) -> str | None:
    """The result that the metric `math` would compare, as text; None where there is none to be found.

    >>> result("so 3 + 4 = 7 apples"), result("I do not know")
    ('7', None)
    """
    from math_verify import parse

    # math-verify's timer is a signal, which only the main thread may set.
    found = parse(text, parsing_timeout=5 if threading.current_thread() is threading.main_thread() else None)
    return str(found[-1]) if found else None


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
