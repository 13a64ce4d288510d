"""Compare the numbers of an old commit with those of this tree.

    PYTHONPATH=benchmarks python -m same_numbers --old COMMIT [--only 'score/llama-*'] [--verbose]

The old commit is checked out into a worktree of its own, or is a folder that holds it already (`--old FOLDER`); its
results are kept in `build/same_numbers`, by commit and by the source of the jobs. The workers have one thread each.
Ends with 1 where a number differs that `accepted.yaml` does not explain.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import yaml

from same_numbers.compare import Verdict, compare, read_results, summary
from same_numbers.files import write_files

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
KEPT = REPOSITORY / "build" / "same_numbers"


def prepared_files() -> Path:
    """The models and examples, written once for this version of their source."""
    folder = KEPT / f"files-{_digest(['files.py'])}"
    write_files(folder)
    return folder


def _digest(sources: Sequence[str]) -> str:
    """Changes with the jobs and with the libraries that compute them."""
    seed = [(HERE / name).read_text(encoding="utf-8") for name in sources]
    seed += [f"{library}={version(library)}" for library in ("torch", "transformers", "numpy", "pandas")]
    return hashlib.sha256("\n".join(seed).encode()).hexdigest()[:10]


def worker_command(tree: Path, files: Path, out: Path, part: str, only: Sequence[str]) -> list[str]:
    chosen = [word for pattern in only for word in ("--only", pattern)]
    script = ["-m", "same_numbers.worker", str(files), str(out), "--tree", str(tree), "--part", part]
    return [sys.executable, *script, *chosen]


def run_worker(tree: Path, files: Path, out: Path, part: str = "1/1", only: Sequence[str] = ()) -> None:
    """One worker process on one thread; what it prints goes to a log beside its results."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    path = os.pathsep.join([str(tree / "src"), str(HERE.parent)])
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"log-{part.partition('/')[0]}.txt"
    with log.open("w") as said:
        ended = subprocess.run(
            worker_command(tree, files, out, part, only),
            env={**os.environ, **quiet, **threads, "PYTHONPATH": path},
            cwd=out,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        raise RuntimeError(f"a worker ended with {ended.returncode}: {log.read_text()[-2000:]}")


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A checkout of the commit that is removed afterwards; a folder is used as it is."""
    if Path(commit).is_dir():
        yield Path(commit).resolve()
        return
    place = KEPT / f"tree-{commit[:12]}"
    if place.exists():  # of a run that was killed
        _git("worktree", "remove", "--force", str(place))
    _git("worktree", "add", "--quiet", "--detach", str(place), commit)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def compute(old: str, only: Sequence[str], processes: int) -> tuple[Path, Path]:
    """The folders of both checkouts' results, computed where they are not kept."""
    commit = old if Path(old).is_dir() else _git("rev-parse", "--verify", f"{old}^{{commit}}")
    files = prepared_files()
    key = _digest(["files.py", "catalogue.py", "worker.py", "arrays.py"])
    before, after = KEPT / f"old-{Path(commit).name[:12]}-{key}-{processes}", KEPT / "new"
    if only:
        before = KEPT / "old-chosen"
        shutil.rmtree(before, ignore_errors=True)
    shutil.rmtree(after, ignore_errors=True)
    parts = [f"{part}/{processes}" for part in range(1, processes + 1)]
    with ExitStack() as stack:
        waiting = [(REPOSITORY, files, after, part, only) for part in parts]
        if not all((before / f"jobs-{part}.json").exists() for part in range(1, processes + 1)):
            shutil.rmtree(before, ignore_errors=True)
            tree = stack.enter_context(worktree(commit))
            waiting = [(tree, files, before, part, only) for part in parts] + waiting
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        for running in [pool.submit(run_worker, *one) for one in waiting]:
            running.result()
    return before, after


def show(verdicts: Sequence[Verdict], verbose: bool) -> None:
    """Every job that is not identical; with verbose, all."""
    for one in verdicts:
        if verbose or one.status not in ("identical", "within tolerance"):
            gap = f"  {one.gap:.1e}" if one.gap else ""
            print(f"{one.status:<17} {one.job}{gap}  {one.said}".rstrip())


def show_times(folder: Path) -> None:
    """Seconds of each kind of job, by the first word of its name."""
    seconds: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for job in read_results(folder).jobs.values():
        group = job["id"].partition("/")[0]
        seconds[group] += job["seconds"]
        count[group] += 1
    print("seconds, one thread: " + ", ".join(f"{g} {seconds[g]:.0f} ({count[g]} jobs)" for g in seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--old", required=True, help="the commit to compare with")
    parser.add_argument("--only", action="append", default=[], help="jobs whose names match; repeatable")
    parser.add_argument("--processes", type=int, default=2, help="worker processes at a time, a thread each")
    parser.add_argument("--verbose", action="store_true", help="show every job")
    options = parser.parse_args()
    started = time.perf_counter()
    old, new = compute(options.old, options.only, options.processes)
    accepted = yaml.safe_load((HERE / "accepted.yaml").read_text(encoding="utf-8"))
    verdicts = compare(old, new, accepted)
    show(verdicts, options.verbose)
    show_times(new)
    print(f"{summary(verdicts)}; {time.perf_counter() - started:.0f} s")
    sys.exit(int(any(one.fails for one in verdicts)))


if __name__ == "__main__":
    main()
