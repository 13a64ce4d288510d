"""`hw.compare`: scores, saved scores, or runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.files import user_path
from headwise.heads import Scores
from headwise.report.compared import RunComparison, compare_runs
from headwise.runs import RunFolder
from headwise.runs.reader import RunReader
from headwise.scores.compare import Agreement, agreement
from headwise.settings import several


def compare(results: Sequence[Any], *, k: int | None = None, seed: int = 0) -> Agreement | RunComparison:
    """Compare scores of the same heads, or two runs of one study.

    results: scores of `hw.score` or files that they were saved to; or two runs: what `hw.run` or `hw.open_run` gave,
        or their folders. Scores give how far they agree; runs give the settings in which they differ, then every
        number of both.
    k: of scores, the size of the top sets; by default a tenth of the heads. Scores with the same settings but another
        seed, or on other examples of the same task, count as repetitions of one another.

    >>> found = hw.compare(["runs/seed0", "runs/seed1"])              # doctest: +SKIP
    >>> found.settings, found.largest, found.within(0.05)             # doctest: +SKIP
    """
    opened = [_opened(one) for one in several(results)]
    runs = [one for one in opened if isinstance(one, RunReader)]
    if not runs:
        return agreement(opened, k=k, seed=seed)
    if len(runs) != 2 or len(opened) != 2:
        raise HeadwiseError(
            f"compare is given {len(opened)} results, {len(runs)} of them runs; expected two runs, or only scores"
        )
    return compare_runs(*runs)


def _opened(one: Any) -> Any:
    """A run to read, or scores; anything else as it is."""
    if isinstance(one, RunFolder):
        return RunReader(one.path)
    if not isinstance(one, str | Path):
        return one
    path = user_path(one)
    if path.suffix == ".npz":
        return Scores.load(path)
    run = RunReader(path)
    _ = run.info  # a folder that is no run is refused here
    return run
