"""Running generated cases: each must work or be refused in one sentence, within its time.

A case is made from its kind, a seed and its number alone, so any one of them can be made again:

    HEADWISE_FUZZ_ONLY=heads/0/17 pytest tests/fuzz
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from headwise.errors import HeadwiseError

CPU_SECONDS, SECONDS = 10.0, 180.0
"""What one case may take: of this process's own time, and on the clock, which on a busy machine says little."""


class HangError(BaseException):
    """A case took too long. No `except Exception` on its way can swallow it."""


Case = Callable[[random.Random, Path], str]
"""Makes one input in a folder of its own, uses it, and returns what came of it in a word or two."""


@dataclass
class Tally:
    """What came of the cases of one kind."""

    kind: str
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        message = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common(6))
        return f"{self.kind:<14} {self.cases:6} cases, {len(self.findings)} findings ({message})"


def run(kind: str, case: Case, numbers: Iterator[int] | range, seed: int, place: Path) -> Tally:
    """Try the cases of these numbers. Findings are tracebacks, hangs, and refusals that are no sentence."""
    tally = Tally(kind)
    for number in numbers:
        folder = place / f"{number}"
        folder.mkdir()
        draw = random.Random(f"{kind}/{seed}/{number}")
        tally.cases += 1
        try:
            with limited(), quiet():
                outcome = case(draw, folder)
            shutil.rmtree(folder, ignore_errors=True)
        except HeadwiseError as error:
            outcome = "refused"
            if fault := _fault(str(error)):
                tally.findings.append(f"{kind}/{seed}/{number}: {fault}: {str(error)[:500]!r}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
        except (Exception, HangError) as error:
            outcome = type(error).__name__
            where = "".join(traceback.format_exception(error)[-6:])
            tally.findings.append(f"{kind}/{seed}/{number} in {folder}:\n{where}")
        tally.outcomes[outcome] += 1
    return tally


def _fault(sentence: str) -> str | None:
    if not sentence.strip():
        return "an empty sentence"
    if "\n" in sentence.strip():
        return "several lines"
    if "Traceback" in sentence or " object at 0x" in sentence:
        return "not for people"
    return "longer than anybody reads" if len(sentence) > 2500 else None


@contextmanager
def limited() -> Iterator[None]:
    """Raise `HangError` when the block takes too long."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"still running after {CPU_SECONDS:.0f} s of work or {SECONDS:.0f} s on the clock")

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of libraries, which are many and are not what is tested."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def wanted(shares: dict[str, int], total: int) -> dict[str, int]:
    """How many cases of each kind make up `total`."""
    whole = sum(shares.values())
    return {kind: max(1, -(-total * share // whole)) for kind, share in shares.items()}


def asked() -> tuple[int, int, tuple[str, int, int] | None]:
    """(cases in all, seed, the one case to make again), from the environment."""
    only = os.environ.get("HEADWISE_FUZZ_ONLY")
    one = None
    if only:
        kind, seed, number = only.split("/")
        one = (kind, int(seed), int(number))
    return int(os.environ.get("HEADWISE_FUZZ", "300")), int(os.environ.get("HEADWISE_FUZZ_SEED", "0")), one
