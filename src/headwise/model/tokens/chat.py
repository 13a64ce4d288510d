"""Chat templates, rendered in a process of their own that can be stopped.

A template is a program from the model's folder. jinja's sandbox keeps it from files and from Python, but not from
loops inside loops nor from a text of gigabytes, and a thread cannot be stopped. So one small process per session
renders all templates, with transformers' own renderer and without torch: it starts within two seconds, a chat then
takes less than a millisecond, and it is ended where a template exceeds its time or memory.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError

SECONDS = 10.0
"""Time for one chat."""
CHARACTERS = 10_000_000
"""Length of one rendered chat."""
MEMORY = 4 * 2**30
"""Address space of the process, in bytes, most of which libraries reserve and never use; not on Windows."""
_START = 120.0
"""Seconds for the process to start."""

_lock = threading.Lock()
_started: dict[int, subprocess.Popen[bytes]] = {}
"""The process that renders, by the process that started it: a fork must not share its parent's."""


def render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    """What the tokenizer's `apply_chat_template` gives; a `HeadwiseError` where the template exceeds its limits, a
    `ValueError` with the template's own words where it refuses the messages."""
    from transformers import PreTrainedTokenizerBase

    chat = [dict(message) for message in messages]
    render_chat = tokenizer.apply_chat_template
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        # The tokenizer has code instead of a template.
        return str(render_chat(chat, add_generation_prompt=add_generation_prompt, tokenize=False))
    request = {
        **tokenizer.special_tokens_map,
        "conversations": [chat],
        "chat_template": tokenizer.get_chat_template(),
        "add_generation_prompt": add_generation_prompt,
    }
    with _lock:
        answer = _answer(json.dumps(request, default=str).encode() + b"\n")
    if answer is None:
        raise _exceeded(
            f"was stopped: it takes more than {SECONDS:.0f} seconds or too much memory for one chat"
        )
    if "refused" in answer:
        raise ValueError(answer["refused"])
    if answer["text"] is None:
        raise _exceeded(f"makes more than {CHARACTERS} characters of one chat")
    return str(answer["text"])


def _exceeded(limit: str) -> HeadwiseError:
    return HeadwiseError(
        f"the chat template of this model {limit}; use chat=False, or give the tokenizer another chat_template"
    )


def _answer(line: bytes) -> dict[str, Any] | None:
    """The process's answer; None where it had to be stopped, or ended by itself."""
    process = _started.get(os.getpid())
    if process is None or process.poll() is not None:
        process = _started[os.getpid()] = _start()
    answer = b""
    try:
        with contextlib.suppress(OSError):  # it ended while it was asked
            answer = _asked(process, line, SECONDS)
        return json.loads(answer) if answer else None
    finally:  # also on Ctrl-C: an answer that nobody read must not be the answer to the next chat
        if not answer:
            process.kill()
            _end()


def _start() -> subprocess.Popen[bytes]:
    # This process's search path without the working folder: a module there must not be taken for a library.
    paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
    program = "import sys; sys.path[:] = sys.argv[1:]; from headwise.model.tokens.chat import serve; serve()"
    process = subprocess.Popen(  # noqa: S603 - no shell, and every word is ours
        [sys.executable, "-c", program, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    if _asked(process, b"", _START) != b"ready\n":
        process.kill()
        process.wait()
        raise HeadwiseError(
            "the process that renders chat templates could not be started; use chat=False, or run python -c "
            "'import transformers.utils.chat_template_utils' to see why"
        )
    return process


def _asked(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
    """One line for one line; nothing where the process was killed or has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(seconds, process.kill)
    late.daemon = True
    late.start()
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    finally:
        late.cancel()


@atexit.register
def _end() -> None:
    """Close the pipes of the process, which ends it, and wait."""
    process = _started.pop(os.getpid(), None)
    if process is not None:
        with contextlib.suppress(OSError), process:
            pass


def serve() -> None:
    """What the process does: one line of JSON in, one line of JSON out, until nothing more comes in."""
    for heavy in ("torch", "PIL"):
        sys.modules[heavy] = None  # type: ignore[assignment]  # not needed for text, and slow to import
    from transformers.utils.chat_template_utils import render_jinja_template

    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can limit memory
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = sys.stdout.buffer
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        answer: dict[str, str | None]
        try:
            (text,), _ = render_jinja_template(**json.loads(line))
            answer = {"text": text if len(text) <= CHARACTERS else None}
        except MemoryError:
            return
        except Exception as error:  # a template is a program, and may raise anything
            answer = {"refused": str(error)[:1000]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
