"""The one exception for the user's mistakes, and helpers for its sentences: the probable name, the option to give."""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

_FLAGS = set("reference metric dtype device base truncate trust_remote_code fresh top batch_tokens".split())
"""Settings that have an option of their own on the command line; --set gives all others."""
_COMMAND_LINE: ContextVar[bool] = ContextVar("command line", default=False)


class HeadwiseError(Exception):
    """Something the caller can put right. The message says what was given, what was expected, what to do.

    The command line shows it as one sentence, without a traceback, and exits with 2.
    """


def quoted(value: object, longest: int = 80) -> str:
    """A value as a sentence may quote it: one line, cut where it is long.

    >>> quoted("a"), quoted("x" * 100, 10)
    ("'a'", "'xxxxxxxx…")
    """
    try:
        text = repr(value)
        text = text if "\n" not in text else " ".join(text.split())  # arrays are written over many lines
    except (ValueError, RecursionError):  # a number of thousands of digits, a list that holds itself
        text = f"a {type(value).__name__}"
    if " at 0x" in text and text.startswith("<"):  # where in memory it lies tells nobody anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def visible(text: str) -> str:
    """Text for a terminal: control characters, which could clear it or move its cursor, are written out.

    >>> print(visible(chr(27) + "[2Jgone"))
    \\x1b[2Jgone
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)


def first_line(error: BaseException, longest: int = 300) -> str:
    """What another library's error says first, for a sentence of ours.

    >>> first_line(ValueError("\\n  no such thing\\nat line 3")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    sentence = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "above report" in sentence:  # transformers refers to a table that it logs, and that nobody sees
        sentence = "its tensors are not those that its config.json describes"
    return sentence if len(sentence) <= longest else sentence[: longest - 1] + "…"


def out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the machine itself had no room left; needs no torch, which may be what had none."""
    words = r"allocate memory|bad_alloc|failed to map segment|can't start new thread"
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_memory_error or re.search(words, str(error)) is not None


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """A panic of a library that is written in Rust, which is no `Exception`, becomes a `RuntimeError`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(first_line(error)) from error


@cache
def warn_once(log: logging.Logger, sentence: str) -> None:
    """Log a sentence that a program needs to read once, however often it is true."""
    log.warning(sentence)


@contextmanager
def noticing() -> Iterator[list[str]]:
    """Collect what headwise warns of, each sentence once; what was said before is said again."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: record.getMessage() not in messages)
    warn_once.cache_clear()
    logging.getLogger("headwise").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("headwise").removeHandler(handler)


@contextmanager
def naming_packages() -> Iterator[None]:
    """A package that is not installed is a mistake that the caller can put right."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "headwise").partition(".")[0]
        if name == "headwise":
            raise
        raise HeadwiseError(
            f"headwise needs the package {name}, which this Python ({sys.executable}) does not have; install it: "
            f"{sys.executable} -m pip install {name}"
        ) from error


def unknown(kind: str, given: object, valid: Iterable[str]) -> HeadwiseError:
    """The error for a name that is not in `valid`, with the nearest one.

    >>> str(unknown("method", "ablate", ["ablation", "random"]))
    "unknown method 'ablate'; did you mean 'ablation'? Valid: ablation, random"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return HeadwiseError(f"unknown {kind} {quoted(given)}; {hint}Valid: {', '.join(names)}")


@contextmanager
def command_line() -> Iterator[None]:
    """Write the hints of errors raised inside as the command line takes them."""
    with switched_on(_COMMAND_LINE):
        yield


@contextmanager
def switched_on(variable: ContextVar[bool]) -> Iterator[None]:
    """Inside this context the variable is true."""
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


def hint(option: str, value: Any) -> str:
    """An option with its value, in the syntax of the place where the user is: Python or the command line.

    >>> hint("columns", {"prompt": "clean"})
    "columns={'prompt': 'clean'}"
    >>> with command_line():
    ...     print(hint("columns", {"prompt": "clean", "target": " {answer}"}))
    --set columns.prompt=clean --set 'columns.target=" {answer}"'
    """
    if not _COMMAND_LINE.get():
        return f"{option}={value!r}"
    if isinstance(value, Mapping):
        return " ".join(hint(f"{option}.{name}", inner) for name, inner in value.items())
    if option in _FLAGS:
        return flag(option) if value is True else f"{flag(option)} {value}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--set {option}={text}" if re.fullmatch(r"[\w./-]+", text) else f"--set '{option}=\"{text}\"'"


def flag(option: str) -> str:
    """The name of an option in the place where the user is.

    >>> flag("batch_tokens")
    'batch_tokens='
    >>> with command_line():
    ...     print(flag("batch_tokens"), hint("dtype", "float32"))
    --batch-tokens --dtype float32
    """
    return f"--{option.replace('_', '-')}" if _COMMAND_LINE.get() else f"{option}="


def model_hint() -> str:
    """How a model is given, in the syntax of the place where the user is."""
    return "--model NAME" if _COMMAND_LINE.get() else "model=model"
