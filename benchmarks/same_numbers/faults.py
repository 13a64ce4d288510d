"""Ten planted faults: each is one small edit of a copy of this tree, and the comparison must notice it.

    PYTHONPATH=benchmarks python -m same_numbers.faults

An edit is found by a pattern in the source, wherever the file stands; a pattern that is not there exactly once ends
the run, so that no fault is ever skipped. Ends with 1 where a fault goes unnoticed.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from same_numbers.__main__ import KEPT, REPOSITORY, prepared_files, run_worker
from same_numbers.compare import Verdict, compare

MODEL = "llama-float64"
JOBS = (f"score/{MODEL}/ablation/*", f"score/{MODEL}/integrated/*/logprob", f"more/{MODEL}/*")
"""What is run under each fault: enough for all ten, in seconds."""


@dataclass(frozen=True)
class Fault:
    """An edit that makes the numbers wrong."""

    name: str
    pattern: str
    """Matches once in all of src; `^` and `$` are ends of lines."""
    replacement: str


FAULTS = (
    Fault(
        "the sign of a score",
        r"setup\.per_head\(engine\.measure\(gates, \*\*more\)\.effects\)$",
        "setup.per_head(-engine.measure(gates, **more).effects)",
    ),
    Fault("a gate off by one head", r"variant\[head\.cell\] = 0$", "variant[head.layer, head.head - 1] = 0"),
    Fault("padding counted in the mean", r"kept = z\.double\(\) \* real\.to.*$", "kept = z.double()"),
    Fault(
        "a wrong position scored",
        r'"positions": pad_right\(\[row\.positions for row in rows\]\)',
        '"positions": pad_right([[max(p - 1, 0) for p in row.positions] for row in rows])',
    ),
    Fault(
        "prefixes shared a block too far",
        r"prefixes\[block\] = first, group",
        "prefixes[block + 1] = first, group",
    ),
    Fault("target and foil swapped", r"\(right - wrong\) \* exists", "(wrong - right) * exists"),
    Fault(
        "another seed of the bootstrap",
        r"(def resample_counts\((?:.*\n)+?.*default_rng\()seed\)",
        r"\1seed + 1)",
    ),
    Fault("two columns swapped", r'tests = \{"lo": lo, "hi": hi,', 'tests = {"lo": hi, "hi": lo,'),
    Fault(
        "the last example dropped",
        r"return cls\(examples\.mean\(axis=0\)",
        "return cls(examples[:-1].mean(axis=0)",
    ),
    Fault(
        "a sweep off by one head",
        r"\[ranked_heads\[:k\] for k in first\]",
        "[ranked_heads[: k + 1] for k in first]",
    ),
)


def plant(fault: Fault, source: Path) -> Path:
    """Make the edit in a copy of the source; the file that was edited."""
    pattern = re.compile(fault.pattern, re.MULTILINE)
    texts = {file: file.read_text(encoding="utf-8") for file in sorted(source.rglob("*.py"))}
    found = [(file, len(pattern.findall(text))) for file, text in texts.items() if pattern.search(text)]
    if [count for _, count in found] != [1]:
        places = ", ".join(f"{file.relative_to(source)} ({count}×)" for file, count in found) or "nowhere"
        raise SystemExit(
            f"{fault.name}: the pattern {fault.pattern!r} must match once and matches {places}; the code has moved on, "
            "so write the fault anew in benchmarks/same_numbers/faults.py"
        )
    file = found[0][0]
    file.write_text(pattern.sub(fault.replacement, texts[file]), encoding="utf-8")
    return file.relative_to(source)


def try_fault(number: int, fault: Fault, files: Path, right: Path) -> tuple[Path, list[Verdict]]:
    """Where a fault was planted, and the jobs that noticed it."""
    place = KEPT / f"fault-{number}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(
        REPOSITORY / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    edited = plant(fault, place / "src")
    run_worker(place, files, place / "results", only=JOBS)
    noticed = [one for one in compare(right, place / "results") if one.fails]
    shutil.rmtree(place)
    return edited, noticed


def main() -> None:
    started = time.perf_counter()
    files, right = prepared_files(), KEPT / "fault-free"
    shutil.rmtree(right, ignore_errors=True)
    run_worker(REPOSITORY, files, right, only=JOBS)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda pair: try_fault(*pair, files, right), enumerate(FAULTS, 1)))
    for fault, (edited, noticed) in zip(FAULTS, results, strict=True):
        kinds = Counter(" ".join(one.job.split("/")[2].split(" ")[:1]) for one in noticed)
        where = ", ".join(f"{name} {count}" for name, count in kinds.most_common())
        print(f"{'noticed' if noticed else 'UNNOTICED':<10} {fault.name} ({edited}): {where}")
        if noticed:
            print(f"{'':<10} {noticed[0].job}: {noticed[0].said}")
    caught = sum(bool(noticed) for _, noticed in results)
    print(f"{caught} of {len(FAULTS)} faults noticed; {time.perf_counter() - started:.0f} s")
    sys.exit(int(caught < len(FAULTS)))


if __name__ == "__main__":
    main()
