"""A study killed at random moments, again and again, against the same study left alone.

    python benchmarks/survival.py [--kills 50] [--abilities 6] [--examples 6] [--seed 0]

A tiny model and a file of examples are made on the spot; `headwise run masking` then runs as a process of its own,
forked from one that has imported the libraries and computed nothing, so that its time goes into the run. It is
killed (SIGKILL) at random moments: while it starts, while steps are computed and stored, while tables, figures and
the report are written. After the last kill it is left to end. Its tables must be byte for byte those of a run that
nobody disturbed. Before and after each session the finished steps are read from the store, and the process notes each
step that it begins: one that was finished before must never begin again, and of those begun in a session all but the
one in flight must be finished after it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WORDS = "the a cat dog bird saw met liked then and one two red blue big small ran sat he she it . ,".split()
OPENED = "opened"
"""What the process under test notes first; then come the keys of the steps that it begins."""


# --- the process under test -----------------------------------------------------------------------------


def child(arguments: list[str], notes: Path, said: Path) -> None:
    """The command line itself; only, each step that is begun is noted in a file. Never returns."""
    from headwise.cli.app import main
    from headwise.runs import Call, Job, RunFolder

    out = os.open(said, os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    noting = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    compute, begin_run = Call.compute, RunFolder.begin

    def noted(self: Call[Any], job: Job) -> Any:
        os.write(noting, f"{self.key}\n".encode())
        return compute(self, job)

    def opened(self: RunFolder, **how: Any) -> None:
        begin_run(self, **how)
        os.write(noting, f"{OPENED}\n".encode())

    Call.compute = noted  # type: ignore[method-assign]
    RunFolder.begin = opened  # type: ignore[method-assign]
    sys.argv = ["headwise", *arguments]
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os._exit(status)


def in_a_child(work: Callable[[], object]) -> None:
    """Do something in a forked process: what starts threads must not happen in the one that forks."""
    number = os.fork()
    if not number:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(number, 0)[1]:
        raise SystemExit("the model could not be made")


# --- what it works on -----------------------------------------------------------------------------------


def make_model(place: Path) -> Path:
    """A random Llama of 4 layers × 4 heads with one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from headwise.model.verify.tiny import tiny_model

    vocabulary = {word: number for number, word in enumerate(["<unk>", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token=".")
    tiny_model("llama", vocab_size=len(vocabulary)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def make_task(path: Path, abilities: int, examples: int, draw: random.Random) -> Path:
    """Sentences without sense, no two alike, under some labels."""
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < abilities * examples:
        prompt = " ".join(draw.choices(WORDS, k=draw.randint(5, 9)))
        label = f"ability {len(rows) % abilities}"
        rows.setdefault(prompt, {"prompt": prompt, "target": f" {draw.choice(WORDS)}", "label": label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    return path


# --- sessions -------------------------------------------------------------------------------------------


@dataclass
class Session:
    """One start of the process and its end."""

    moment: str
    """What it was doing when it ended: `start`, `steps`, `tables and figures`, or `done` when nobody killed it."""
    before: set[str]
    after: set[str]
    begun: list[str]

    @property
    def in_flight(self) -> list[str]:
        """Begun, and not finished."""
        return [key for key in self.begun if key not in self.after]

    @property
    def faults(self) -> list[str]:
        """What must not happen."""
        found = []
        if again := [key for key in self.begun if key in self.before]:
            found.append(f"{len(again)} finished steps were computed again")
        if lost := self.before - self.after:
            found.append(f"{len(lost)} finished steps were lost")
        if len(self.in_flight) > 1:
            found.append(f"{len(self.in_flight)} steps were in flight where one at a time is computed")
        if len(set(self.begun)) < len(self.begun):
            found.append("a step was begun twice in one session")
        return found


class Forked:
    """A forked process, as far as it is needed here."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.status: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.status is None:
            ended, status = os.waitpid(self.number, os.WNOHANG)
            if ended:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.number, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


@dataclass
class Trial:
    """The same command, started again and again."""

    arguments: list[str]
    out: Path
    notes: Path
    draw: random.Random
    cells: int = 0
    """How many the study has, as far as is known."""
    sessions: list[Session] = field(default_factory=list)

    @property
    def said(self) -> Path:
        """What the process said last."""
        return self.notes.with_suffix(".said")

    def session(self, kills_left: int | None) -> Session:
        """Start it once, and kill it at a random moment; with None leave it alone.

        The moment is drawn by progress, not by the clock, so that a busy machine makes no difference: after so many
        cells that about all of them are used up by the last kill, and then a moment more. One time in eight it comes
        at any moment of the first second instead.
        """
        before = finished(self.out)
        self.notes.unlink(missing_ok=True)
        began = time.monotonic()
        number = os.fork()
        if not number:
            child([*self.arguments, "--out", str(self.out)], self.notes, self.said)
        process = Forked(number)
        if kills_left is None:
            while process.poll() is None:
                time.sleep(0.05)
            if process.status:
                raise SystemExit(f"the study ended with status {process.status}:\n{self.said.read_text()}")
        else:
            if self.draw.random() < 1 / 8:
                self._wait(process, lambda: True, self.draw.random())
            else:
                left = self.cells - len(before)
                wanted = min(left, self.draw.randint(0, round(2 * left / kills_left)))
                more = self.draw.random() * (0.3 if wanted < left or not left else 3.0)
                self._wait(process, lambda: len(self._noted()) > wanted, more)
            process.kill()
            if process.status not in (0, -signal.SIGKILL):
                raise SystemExit(
                    f"the study ended by itself with status {process.status}:\n{self.said.read_text()}"
                )
        noted = self._noted()
        begun = [key for key in noted if key != OPENED]
        session = Session("", before, finished(self.out), begun)
        if process.status == 0:
            session.moment = "done"
        elif not noted:
            session.moment = "start"
        else:
            left = session.in_flight or len(session.after) < self.cells
            session.moment = "cells" if left else "tables and figures"
        self.sessions.append(session)
        took = time.monotonic() - began
        print(
            f"{len(self.sessions):4} {session.moment:<19} {len(before):4} → {len(session.after):4} cells "
            f"{took:6.1f} s  {'; '.join(session.faults)}",
            flush=True,
        )
        return session

    def _noted(self) -> list[str]:
        """That the run was opened, then the cells begun."""
        return self.notes.read_text(encoding="utf-8").split() if self.notes.exists() else []

    def _wait(self, process: Forked, ready: Callable[[], bool], more: float) -> None:
        """Let it go on until `ready`, and for `more` seconds after that."""
        last = time.monotonic() + 60  # where fewer cells are left than thought
        while process.poll() is None and not ready() and time.monotonic() < last:
            time.sleep(0.002)
        until = time.monotonic() + more
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)


def finished(out: Path) -> set[str]:
    """The keys of the cells that are in the store, each read back with its checksums."""
    from headwise.runs import Store

    if not (out / "cells.sqlite").exists():
        return set()
    with Store(out / "cells.sqlite") as store:
        keys = store.keys()
        for key in keys:
            store.get(key)
    return keys


def contents(out: Path, *patterns: str) -> dict[str, bytes]:
    return {
        str(file.relative_to(out)): file.read_bytes()
        for pattern in patterns
        for file in sorted(out.glob(pattern))
    }


def survive(place: Path, kills: int, abilities: int, examples: int, seed: int) -> dict[str, Any]:
    """Kill one study `kills` times, leave another alone, and compare."""
    draw = random.Random(seed)
    model = place / "model"
    in_a_child(lambda: make_model(model))
    data = make_task(place / "words.jsonl", abilities, 2 * examples, draw)
    arguments = ["run", "masking", "--device", "cpu", "--model", str(model), "--data", str(data)]
    for setting in ("abilities=all", f"n={examples}", "k=[1,2,3,4,6]", "max_new_tokens=3", "draws=2"):
        arguments += ["--set", setting]
    whole = Trial(arguments, place / "whole", place / "whole.notes", draw)
    began = time.monotonic()
    whole.session(None)
    alone = time.monotonic() - began
    trial = Trial(arguments, place / "killed", place / "killed.notes", draw, len(whole.sessions[-1].after))
    while (left := kills - sum(session.moment != "done" for session in trial.sessions)) > 0:
        trial.session(left)
    trial.session(None)
    return report(whole, trial, alone)


def report(whole: Trial, trial: Trial, alone: float) -> dict[str, Any]:
    cells = whole.sessions[-1].after
    begun = Counter(key for session in trial.sessions for key in session.begun)
    in_flight = Counter(key for session in trial.sessions for key in session.in_flight)
    tables, again = (contents(t.out, "tables/*.parquet") for t in (whole, trial))
    figures, redrawn = (contents(t.out, "figures/*") for t in (whole, trial))
    return {
        "cells": len(cells),
        "seconds_undisturbed": round(alone, 1),
        "kills": sum(session.moment != "done" for session in trial.sessions),
        "killed_during": dict(Counter(s.moment for s in trial.sessions if s.moment != "done")),
        "cells_begun": sum(begun.values()),
        "cells_begun_more_than_once": sum(count > 1 for count in begun.values()),
        "cells_lost_in_flight": sum(in_flight.values()),
        "computed_beyond_those_in_flight": sum(begun.values()) - len(cells) - sum(in_flight.values()),
        "faults": [fault for session in trial.sessions for fault in session.faults],
        "tables": sorted(tables),
        "tables_identical": bool(tables) and tables == again,
        "figures_identical": bool(figures) and figures == redrawn,
        "same_steps": cells == trial.sessions[-1].after == set(begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--abilities", type=int, default=6)
    parser.add_argument("--examples", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - so that no session has to

    import headwise.cli.app
    import headwise.studies.base

    headwise.studies.base.studies()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as place:
        found = survive(Path(place), given.kills, given.abilities, given.examples, given.seed)
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "settings": vars(given),
        **found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "survival.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    good = found["tables_identical"] and found["same_steps"] and not found["faults"]
    good = good and not found["computed_beyond_those_in_flight"]
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
