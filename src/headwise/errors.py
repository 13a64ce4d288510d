"""The one exception for the user's mistakes, and the helper that names what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadwiseError(Exception):
    """Something the caller can put right. The message says what was given, what was expected, what to do.

    The command line shows it as one sentence, without a traceback, and exits with 2.
    """


def unknown(kind: str, given: str, valid: Iterable[str]) -> HeadwiseError:
    """The error for a name that is not in `valid`, with the nearest one.

    >>> str(unknown("method", "ablate", ["ablation", "random"]))
    "unknown method 'ablate'; did you mean 'ablation'? Valid: ablation, random"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return HeadwiseError(f"unknown {kind} {given!r}; {hint}Valid: {', '.join(names)}")
