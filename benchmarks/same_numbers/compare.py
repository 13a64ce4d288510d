"""Two folders of results, job by job: identical, within tolerance, different or missing.

Columns, row counts, types and the places of NaN must be the same. Numbers may differ by a share of their column's
largest value that depends on the job's precision; texts must be equal, except that greedy generation may go another way
where two tokens are equally likely within rounding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from same_numbers.arrays import SEPARATOR

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "fit": 1e-3}
TIE = {"float64": 1e-6, "float32": 1e-3, "fit": 1e-3}
"""Logits by which the likeliest token must lead before another one is a difference."""
P_VALUES = ("p", "q")
P_TOLERANCE = 0.05
"""p-values count resamples, so rounding moves them in steps; this holds only where scores were rounded otherwise."""
GROWING = ("list/",)
"""Jobs whose new entries are no difference."""
SAME_WORDS = 0.25
"""Share of words that two refusals must have in common to be about the same thing."""
FAILURES = ("DIFFERS", "missing")


@dataclass(frozen=True)
class Verdict:
    """What became of one job."""

    job: str
    status: str
    """identical, within tolerance, accepted, new, DIFFERS, missing."""
    said: str = ""
    gap: float = 0.0
    """Largest difference as a share of the column's largest value."""

    @property
    def fails(self) -> bool:
        return self.status in FAILURES


@dataclass(frozen=True)
class Results:
    """What one checkout computed."""

    jobs: dict[str, dict[str, Any]]
    arrays: dict[str, dict[str, np.ndarray]]


def read_results(folder: Path) -> Results:
    """What the workers of one checkout wrote."""
    jobs: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("jobs-*.json")):
        jobs |= {job["id"]: job for job in json.loads(file.read_text(encoding="utf-8"))}
    arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in jobs}
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            for key in stored.files:
                job, _, name = key.partition(SEPARATOR)
                arrays[job][name] = stored[key]
    return Results(jobs, arrays)


def compare(old: Path, new: Path, accepted: list[dict[str, str]] | None = None) -> list[Verdict]:
    """A verdict on every job of either folder. accepted: what `accepted.yaml` holds."""
    before, after = read_results(old), read_results(new)
    if not before.jobs:
        raise SystemExit(f"there are no results in {old}")
    verdicts = [_job(name, before, after, accepted or []) for name in before.jobs]
    return verdicts + [Verdict(name, "new") for name in after.jobs if name not in before.jobs]


def _job(name: str, before: Results, after: Results, accepted: list[dict[str, str]]) -> Verdict:
    mine = [entry for entry in accepted if fnmatch(name, entry["jobs"])]
    whole = next((entry for entry in mine if "arrays" not in entry), None)
    if name not in after.jobs:
        found = Verdict(name, "missing", "the new checkout has no such job")
    elif (ended := _ended(before.jobs[name], after.jobs[name])) is not None:
        found = Verdict(name, *ended)
    else:
        found = _arrays(name, before, after, [entry["arrays"] for entry in mine if "arrays" in entry])
    return Verdict(name, "accepted", whole["reason"], found.gap) if found.fails and whole else found


def _ended(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str] | None:
    """A verdict where one of them gave no numbers; None where both did."""
    if new["status"] == "crashed":
        return "DIFFERS", f"crashed: {new['said']}"
    if old["status"] == new["status"] == "done":
        return None
    if old["status"] != new["status"]:
        return "DIFFERS", f"was {old['status']} ({old['said']}), now {new['status']} ({new['said']})"
    if old["said"] == new["said"]:
        return "identical", "refused"
    a, b = (set(re.findall(r"\w+", one["said"].lower())) for one in (old, new))
    if len(a & b) / max(1, min(len(a), len(b))) < SAME_WORDS:
        return "DIFFERS", f"refused with {new['said']!r} instead of {old['said']!r}"
    return "within tolerance", f"refused in other words: {new['said']}"


def _arrays(name: str, before: Results, after: Results, excepted: list[str]) -> Verdict:
    old, new = before.arrays[name], after.arrays[name]
    precision = before.jobs[name]["precision"]
    if "margins" in old:  # without a tie this leaves the arrays as they are
        old, new = _until_ties(old, new, TIE[precision])
    problems: list[str] = []
    waived = 0
    gaps: dict[str, float] = {}
    for key in [*old, *(key for key in new if key not in old and not name.startswith(GROWING))]:
        gap, problem = _array(old.get(key), new.get(key))
        gaps[key] = gap
        limit = _limit(key, old, precision, gaps)
        if problem is None and gap > limit:
            problem = f"differs by {gap:.1e} of the largest value, allowed {limit:.0e}"
        if problem is not None and any(fnmatch(key, pattern) for pattern in excepted):
            waived += 1
        elif problem is not None:
            problems.append(f"{key}: {problem}")
    largest = max(gaps.values(), default=0.0)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Verdict(name, "DIFFERS", problems[0] + more, largest)
    if waived:
        return Verdict(name, "accepted", f"{waived} arrays differ as declared", largest)
    return Verdict(name, "within tolerance" if largest else "identical", "", largest)


def _limit(key: str, old: Mapping[str, np.ndarray], precision: str, gaps: Mapping[str, float]) -> float:
    table, _, column = key.rpartition("/")
    rounded = any(
        gap > 0 for other, gap in gaps.items() if other.rpartition("/")[0] == table and other != key
    )
    if column in P_VALUES and rounded:
        return P_TOLERANCE
    array = old.get(key)
    kept = 8 * np.finfo(array.dtype).eps if array is not None and array.dtype.kind == "f" else 0.0
    return max(TOLERANCE[precision], float(kept))


def _array(old: np.ndarray | None, new: np.ndarray | None) -> tuple[float, str | None]:
    """How far two arrays are apart, as a share of the largest value, or what cannot be compared."""
    if old is None or new is None:
        return 0.0, "is new" if old is None else "is missing"
    if old.shape != new.shape:
        return 0.0, f"has the shape {new.shape} instead of {old.shape}"
    # Whole numbers and fractions may be stored either way; a text is no number.
    if (old.dtype.kind in "US") != (new.dtype.kind in "US"):
        return 0.0, f"holds {new.dtype} instead of {old.dtype}"
    if old.dtype.kind in "US" or old.dtype.kind == "b" == new.dtype.kind:
        unequal = np.flatnonzero((old != new).ravel())
        if not len(unequal):
            return 0.0, None
        a, b = old.ravel()[unequal[0]], new.ravel()[unequal[0]]
        return 0.0, f"{len(unequal)} of {old.size} differ; entry {unequal[0]} is {b!r} instead of {a!r}"
    x, y = old.astype(np.float64), new.astype(np.float64)
    if (np.isnan(x) != np.isnan(y)).any():
        return (
            0.0,
            f"NaN in {int(np.isnan(y).sum())} places instead of {int(np.isnan(x).sum())}, or elsewhere",
        )
    apart = ~np.isnan(x) & (x != y)
    if not apart.any():
        return 0.0, None
    if not np.isfinite(x[apart]).all() or not np.isfinite(y[apart]).all():
        return 0.0, "an infinite number is another one now"
    size = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) or 1.0
    return float(np.abs(x[apart] - y[apart]).max() / size), None


def _until_ties(
    old: dict[str, np.ndarray], new: dict[str, np.ndarray], tie: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Both without the rows of greedy text that part where the old model had two equally likely tokens."""
    parted = []
    for row, (a, b, margins) in enumerate(_rows(old, new)):
        step = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if step is not None and margins[step] < tie:
            parted.append(row)
    if not parted:
        return old, new
    return _without(old, parted), _without(new, parted)


def _rows(
    old: dict[str, np.ndarray], new: dict[str, np.ndarray]
) -> Iterator[tuple[list[int], list[int], list[float]]]:
    of_old, of_new = (_split(one["tokens"], one["lengths"]) for one in (old, new))
    return zip(of_old, of_new, _split(old["margins"], old["lengths"]), strict=False)


def _split(flat: np.ndarray, lengths: np.ndarray) -> list[list[Any]]:
    ends = np.cumsum(lengths.ravel())
    return [part.tolist() for part in np.split(flat, ends[:-1])]


def _without(arrays: dict[str, np.ndarray], rows: list[int]) -> dict[str, np.ndarray]:
    kept = [row for row in range(arrays["lengths"].size) if row not in rows]
    tokens, margins = (_split(arrays[name], arrays["lengths"]) for name in ("tokens", "margins"))
    return {
        **arrays,
        "tokens": np.array([token for row in kept for token in tokens[row]]),
        "margins": np.array([margin for row in kept for margin in margins[row]]),
        **{name: arrays[name].ravel()[kept] for name in ("lengths", "finished", "texts")},
    }


def summary(verdicts: list[Verdict]) -> str:
    """How many of each, in one line."""
    order = ("identical", "within tolerance", "accepted", "new", *FAILURES)
    counts = {status: sum(one.status == status for one in verdicts) for status in order}
    return f"{len(verdicts)} jobs: " + ", ".join(
        f"{count} {status}" for status, count in counts.items() if count
    )
