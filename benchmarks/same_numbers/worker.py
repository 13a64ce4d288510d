"""Run the jobs of one checkout, the one that `import headwise` finds, and write what they give into a folder.

    python -m same_numbers.worker FILES OUT --part 1/2 [--only 'score/llama-*']

Every result is a set of named arrays; a table becomes one array per column. Results of a group go into one `.npz`
(no pickle); `jobs-*.json` says of each job whether it ended or was refused, and how long it took.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import runpy
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import headwise as hw
from same_numbers import catalogue
from same_numbers.arrays import SEPARATOR, Arrays, columns, numbers, texts
from same_numbers.catalogue import BUNDLED, Job

PROMPTS = ["the cat saw", "a dog met the bird then", "he", "one two red blue big small ran sat"]
REAL_PROMPTS = ["The capital of France is", "Two plus two", "Once upon a time there was a small"]
PROSE = ("about", "question", "model", "example", "source", "how, or why not", "default")
"""Columns of the command line's lists that are words for people, or, as defaults, spelt in a way that may change."""


class Worker:
    """Carries out jobs; each method whose name is a job's kind gives its arrays."""

    def __init__(self, files: Path, scratch: Path) -> None:
        self.files, self.scratch = files, scratch
        self._models: dict[str, Any] = {}

    def model(self, name: str) -> Any:
        if name not in self._models:
            if name != BUNDLED:  # one tiny model at a time; the bundled one is worth keeping
                self._models = {key: value for key, value in self._models.items() if key == BUNDLED}
            given = {} if name == BUNDLED else {"dtype": name.rpartition("-")[2]}
            self._models[name] = hw.load(self.place(name), device="cpu", **given)
        return self._models[name]

    def place(self, name: str) -> str:
        return name if name == BUNDLED else str(self.files / name)

    def data(self, name: str) -> str:
        return str(self.files / f"{name}.jsonl")

    def examples(self, name: str, n: int | None, model: Any) -> Any:
        """Examples of ours (a file) or of a built-in task."""
        there = Path(self.data(name))
        return hw.task(str(there) if there.exists() else name, n, model=model)

    # ---- Python --------------------------------------------------------------------------------------------

    def score(
        self,
        model: str,
        task: str,
        by: str,
        n: int | None = None,
        reference_task: str | None = None,
        **options: Any,
    ) -> Arrays:
        loaded = self.model(model)
        if reference_task is not None:
            options["reference_task"] = self.examples(reference_task, None, loaded)
        scores = hw.score(loaded, self.examples(task, n, loaded), by, **options)
        arrays = {
            **columns("table", scores.table()),
            "examples": scores.examples,
            "order": texts(scores.order()),
        }
        objective = scores.details.get("objective")
        if objective is not None:
            arrays["objective"] = np.array(list(numbers(objective)))
        return arrays

    def sweep(self, model: str, task: str, n: int | None = None, **options: Any) -> Arrays:
        loaded = self.model(model)
        examples = self.examples(task, n, loaded)
        scores = hw.score(loaded, examples, "attribution", metric="logprob")
        found = hw.sweep(loaded, examples, scores, **options)
        summary = pd.DataFrame([found.summary()])
        return {
            **columns("table", found.table()),
            **columns("examples", found.example_table()),
            **columns("summary", summary),
            "order": texts(found.order),
            "none": found.none,
            "full": found.full,
        }

    def generate(
        self, model: str, gates: str | None = None, max_new_tokens: int = 10, **options: Any
    ) -> Arrays:
        loaded = self.model(model)
        prompts = REAL_PROMPTS if model == BUNDLED else PROMPTS
        if gates is not None:
            options["gates"] = several_gates(loaded.shape)
        found = hw.generate(loaded, prompts, max_new_tokens=max_new_tokens, **options)
        lengths = [[len(row) for row in variant] for variant in found.tokens]
        arrays = {
            "tokens": np.array([token for variant in found.tokens for row in variant for token in row]),
            "lengths": np.array(lengths),
            "finished": np.asarray(found.finished),
            "texts": texts([text for variant in found.texts for text in variant]),
            "prompts": np.array([token for row in found.prompts for token in row]),
        }
        if not options.get("temperature") and gates is None:
            arrays["margins"] = np.concatenate(
                [margins(loaded, p, t) for p, t in zip(found.prompts, found.tokens[0], strict=True)]
            )
        return arrays

    def attention(self, model: str, heads: list[str] | None = None, **options: Any) -> Arrays:
        prompts = REAL_PROMPTS if model == BUNDLED else PROMPTS
        found = hw.attention(self.model(model), prompts, heads, queries=(-1, 0), keys=(0, -1), **options)
        arrays: Arrays = {}
        for number, one in enumerate(found):
            arrays |= columns(f"{number}/table", one.table())
            arrays |= {f"{number}/rows": one.rows, f"{number}/columns": one.columns}
            if one.maps is not None:
                arrays[f"{number}/maps"] = one.maps
        return arrays

    def agreement(self, model: str, task: str) -> Arrays:
        loaded = self.model(model)
        examples = self.examples(task, None, loaded)
        found = hw.compare([hw.score(loaded, examples, by) for by in ("ablation", "attribution", "random")])
        return {
            f"{name}/{column}": array
            for name, frame in vars(found).items()
            if isinstance(frame, pd.DataFrame)
            for column, array in columns("table", frame).items()
        }

    def task(
        self,
        name: str,
        n: int,
        seed: int = 0,
        model: str | None = None,
        options: dict[str, str] | None = None,
    ) -> Arrays:
        loaded = None if model is None else self.model(model)
        made = hw.task(name, n, seed=seed, model=loaded, **(options or {}))
        fields = {"prompt", "target", "foils", "counterfactual", "label", "also", "group"}
        rows = [{key: getattr(example, key) for key in sorted(fields)} for example in made]
        return {**columns("examples", pd.DataFrame(rows)), "metric": texts([made.metric])}

    # ---- the command line ----------------------------------------------------------------------------------

    def listing(self, what: str) -> Arrays:
        """One array per row, so that a row that is gone is noticed and a new one is not."""
        rows = rows_of(command_line("list", what))
        arrays = {}
        for row in rows:
            name, *rest = [(key, value) for key, value in row.items() if key not in PROSE]
            if what == "settings":
                name = ("setting", f"{row['study']}.{row['setting']}")
            arrays[f"row/{name[1]}"] = texts([f"{key}={value}" for key, value in rest])
        return arrays

    def check(self, model: str) -> Arrays:
        said = command_line("check", self.place(model), "--dtype", _dtype(model), "--device", "cpu")
        # Names of models, layers and heads stay; times and measured rounding are never the same twice.
        lines = [line for line in said.splitlines() if not line.strip().startswith("seconds")]
        numbers = [re.findall(r"(?<![\d.e-])\d+(?![\d.]|e-)", line) for line in lines]
        return {"lines": np.array([len(lines)]), "numbers": texts([" ".join(n) for n in numbers])}

    def export(self, model: str) -> Arrays:
        """The weights of the checkpoint, and its logits by transformers alone."""
        import torch
        from transformers import AutoModelForCausalLM

        out = self.fresh("export")
        heads = ("--heads", str(self.files / "heads.json"), "--dtype", _dtype(model), "--device", "cpu")
        command_line("export", self.place(model), *heads, "--out", str(out))
        plain = AutoModelForCausalLM.from_pretrained(out, dtype=getattr(torch, _dtype(model))).eval()
        with torch.no_grad():
            logits = plain(input_ids=torch.arange(3, 13)[None], use_cache=False).logits
        arrays = {f"weights/{name}": w.numpy() for name, w in plain.state_dict().items()}
        return {"logits": logits.numpy(), **arrays, "dtype": texts([plain.dtype])}

    def study(self, study: str, model: str, data: list[str] | None = None, **settings: Any) -> Arrays:
        """Every table that a study writes."""
        if not settings:
            raise AssertionError(f"the catalogue has no small settings for the study {study!r}; add them")
        out = self.fresh("run")
        where = ["--device", "cpu", "--dtype", _dtype(model), "--out", str(out)]
        files = [self.data(name) for name in data or []]
        if study == "contrast":
            pairs = {name: {s: self.data(f) for s, f in p.items()} for name, p in settings["pairs"].items()}
            (self.scratch / "contrast.yaml").write_text(json.dumps({"pairs": pairs}), encoding="utf-8")
            settings = {key: value for key, value in settings.items() if key != "pairs"}
            where = [str(self.scratch / "contrast.yaml"), *where]
        if study == "diff":  # the same model with weaker heads is the tuned one
            tuned = hw.export(self.model(model), ["L0H1", "L1H0"], self.fresh("tuned"), gate=0.3)
            where += ["--model", str(tuned)]
        where += [part for file in files for part in ("--data", file)]
        where += [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        command_line("run", study, "--model", self.place(model), *where)
        tables = sorted((out / "tables").glob("*.parquet"))
        assert tables, f"{study} wrote no table"
        arrays = {"tables": texts([table.stem for table in tables])}
        for table in tables:
            arrays |= columns(table.stem, pd.read_parquet(table))
        return arrays

    def fresh(self, name: str) -> Path:
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder


# ---- helpers ----------------------------------------------------------------------------------------------------


class Refused(Exception):  # noqa: N818
    """The command line ended with exit code 2: the user's mistake."""


def command_line(*arguments: str) -> str:
    """What `python -m headwise …` prints; run in this process, because importing torch takes longer than most jobs."""
    said, complained = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["headwise", *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            runpy.run_module("headwise", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    if code == 2:
        raise Refused(complained.getvalue().strip().splitlines()[-1])
    if code not in (0, None):
        raise RuntimeError(f"exit {code}: {complained.getvalue()[-500:]}")
    return said.getvalue()


def rows_of(listing: str) -> list[dict[str, str]]:
    """The rows of a list that the command line prints into a pipe."""
    header, *lines = [line.split("\t") for line in listing.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


def several_gates(shape: tuple[int, int]) -> np.ndarray:
    """Four variants: all heads, a masked one, a halved layer, amplified ones."""
    gates = np.ones((4, *shape))
    gates[1, 0, 1] = 0
    gates[2, -1] = 0.5
    gates[3, :, 0] = 2
    return gates


def margins(model: Any, prompt: list[int], written: list[int]) -> np.ndarray:
    """How far the likeliest token is ahead of the next, in logits of transformers itself, at each written token."""
    import torch

    if not written:
        return np.zeros(0)
    with torch.no_grad():
        logits = model.hf(input_ids=torch.tensor([[*prompt, *written]]), use_cache=False).logits[0]
    first, second = logits[len(prompt) - 1 : -1].double().topk(2).values.T
    return (first - second).numpy()


def _dtype(model: str) -> str:
    return "float32" if model == BUNDLED else model.rpartition("-")[2]


# ---- the process ------------------------------------------------------------------------------------------------


def listed_jobs(worker: Worker) -> list[Job]:
    """The jobs of this checkout, in a fixed order."""
    listed = {
        name: rows_of(command_line("list", name)) for name in ("methods", "metrics", "tasks", "studies")
    }
    return list(catalogue.all_jobs(listed, known_references(worker)))


def known_references(worker: Worker) -> list[str]:
    """The references that the refusal of an unknown one names; no list has them."""
    model = worker.model("llama-float64")
    try:
        hw.score(model, worker.examples("even", None, model), "ablation", reference="no such reference")
    except hw.HeadwiseError as error:
        found = re.findall(r"[a-z_]+", str(error).partition("Valid:")[2])
        return [*catalogue.REFERENCES, *sorted(set(found) - set(catalogue.REFERENCES))]
    raise AssertionError("an unknown reference was not refused")


def run_job(worker: Worker, job: Job) -> tuple[dict[str, Any], Arrays]:
    """What became of a job, and its arrays."""
    started = time.process_time()  # of the processor: other processes may share it
    about: dict[str, Any] = {**asdict(job), "group": job.group, "status": "done", "said": ""}
    arrays: Arrays = {}
    try:
        work: Callable[..., Arrays] = getattr(worker, job.kind)
        arrays = work(**job.arguments)
    except (hw.HeadwiseError, Refused) as error:
        about |= {"status": "refused", "said": str(error).removeprefix("headwise: ")}
    except Exception as error:
        about |= {"status": "crashed", "said": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    return {**about, "seconds": time.process_time() - started}, arrays


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tree", type=Path, help="the checkout that must have been imported")
    parser.add_argument("--part", default="1/1", help="which of how many processes share the groups")
    parser.add_argument("--only", action="append", help="jobs whose names match; repeat for several")
    options = parser.parse_args()
    home = Path(str(hw.__file__)).resolve()
    if options.tree is not None and options.tree.resolve() not in home.parents:
        sys.exit(f"headwise comes from {home}, not from {options.tree}")
    options.out.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, options.part.split("/"))
    worker = Worker(options.files, options.out / f"scratch-{part}")
    worker.scratch.mkdir(exist_ok=True)
    groups: dict[str, list[Job]] = {}
    for job in listed_jobs(worker):
        groups.setdefault(job.group, []).append(job)
    done = []
    for group in list(groups)[part - 1 :: parts]:
        stored: Arrays = {}
        for job in groups[group]:
            if options.only and not any(fnmatch(job.id, pattern) for pattern in options.only):
                continue
            about, arrays = run_job(worker, job)
            done.append(about)
            stored |= {f"{job.id}{SEPARATOR}{name}": array for name, array in arrays.items()}
        np.savez(options.out / f"{group.replace('/', ' ')}.npz", **stored)
    shutil.rmtree(worker.scratch)
    (options.out / f"jobs-{part}.json").write_text(json.dumps(done, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
