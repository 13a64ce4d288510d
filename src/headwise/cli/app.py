"""The command line: `main`, its exit codes, and all commands.

Nothing is decided here: each command hands over to the room that knows. Heavy imports are inside the commands, so that
`headwise --help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import sys
import traceback
import warnings
from contextlib import suppress

from headwise.cli.output import echo
from headwise.cli.root import app
from headwise.errors import (
    HeadwiseError,
    command_line,
    first_line,
    naming_packages,
    out_of_memory,
    visible,
)
from headwise.registry import import_modules

import_modules("headwise.cli.*")  # every module registers its commands
app.registered_commands.sort(key=lambda one: one.name or one.callback.__name__)  # type: ignore[union-attr]


class _Stderr(logging.StreamHandler):  # Python 3.10 cannot subscript it
    """Writes to what the standard error is at the moment: a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def main() -> None:
    """Exit 0 done; 2 the user's mistake, one sentence; 1 anything else."""
    from headwise.runs.stopping import one_interrupt

    gc.set_threshold(50_000, 10, 10)  # torch and transformers make a million objects that stay

    # Our own progress bars say what matters; a user who wants transformers' back sets these.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    _fill_closed_streams()
    _write_every_character()
    logging.basicConfig(format="%(message)s", handlers=[_Stderr()])
    logging.getLogger("headwise").setLevel(logging.INFO)
    warnings.formatwarning = lambda message, *_, **__: f"note: {visible(str(message))}\n"
    with one_interrupt(), command_line():
        code = _exit_code()
        sys.exit(_flushed() or code)


def _exit_code() -> int | str | None:
    """Carry out the command; what goes wrong ends in a sentence of ours."""
    try:
        with naming_packages():
            app()
    except SystemExit as ended:
        return ended.code
    except HeadwiseError as error:
        if logging.getLogger("headwise").isEnabledFor(logging.DEBUG):  # --verbose
            traceback.print_exc()
        _say(str(error))
        return 2
    except Exception as error:
        # Where the output is what failed, one more line of it fails too.
        if isinstance(error, OSError) and (unwritten := _flushed("\n")):
            return unwritten
        if out_of_memory(error):
            _say(
                "out of memory; what is finished is kept, so run the same command again with a smaller "
                "--batch-tokens (for example 1024), a smaller --dtype or on another --device"
            )
            return 1
        traceback.print_exc()
        _say(
            f"stopped by an unexpected error ({type(error).__name__}: {first_line(error)}); what was finished is kept. "
            "Please report it with the lines above"
        )
        return 1
    return 0


def _say(sentence: str) -> None:
    """One line on the standard error: messages of other libraries inside a sentence may have several."""
    with suppress(OSError):  # nobody is left to be told
        echo(f"headwise: {visible(' '.join(sentence.split()))}", err=True)


def _fill_closed_streams() -> None:
    """Streams that were closed before we began (`>&-`) lead nowhere, instead of into the next file that is opened."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _write_every_character() -> None:
    """A character that the output's encoding lacks is written as its number: pipes of Windows have the encoding of the
    language of the system, which has no arrows and few letters of other languages."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _flushed(further: str = "") -> int:
    """0 where everything that was said, and `further`, has been written; else the exit code, after a sentence."""
    try:
        sys.stdout.write(further)
        sys.stdout.flush()
        return 0
    except OSError as error:
        # Python tries again when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno in (
            errno.EPIPE,
            errno.EINVAL,
        ):  # `| head`, on Windows too: the reader has what it wanted
            return 1
        _say(f"the output cannot be written: {error.strerror}; what was computed is kept")
        return 2


if __name__ == "__main__":
    main()
