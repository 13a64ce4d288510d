"""Which jobs there are: enumerated from what a checkout itself lists, so that nothing can be left out or forgotten.

Every score method × reference × logit metric on a tiny model of every family (in float32 the same methods and
references with two metrics); every study, built-in task, text metric and list of
the command line. What cannot be listed (sweeps, generation, attention, …) is written out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from same_numbers.files import MODELS

REFERENCES = ("zero", "mean", "position_mean", "resample", "patch")
FLOAT32_METRICS = ("logit_diff", "logprob")
"""In float32, of a family that has been through every metric in float64."""
LISTS = ("models", "tasks", "metrics", "methods", "studies", "settings", "families")
BUNDLED = "smollm2"
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "gating": {"updates": 3, "seeds": 2, "batch": 4},
    "nested": {"updates": 20, "seeds": 2},
    "probe": {"label": "animals"},
}
"""What makes a method small enough, or possible at all; a method that is not here runs with its defaults."""
FITS = ("gating",)
"""Methods that fit by gradient: rounding grows with every update."""
VARIATIONS: dict[str, dict[str, Any]] = {
    "positions": {"positions": "last"},
    # Several batches.
    "few tokens": {"batch_tokens": 20},
    "few tokens mean": {"batch_tokens": 20, "reference": "mean"},
    "few tokens patch": {"batch_tokens": 40, "reference": "patch", "metric": "kl"},
    "few tokens keep": {"batch_tokens": 20, "by": "keep", "reference": "resample"},
    "few tokens gradient": {"batch_tokens": 20, "by": "integrated", "steps": 3},
    "precision": {"precision": 0.2, "seed": 3},
    "top": {"top": 3},
    "graddrop": {"by": "attribution", "graddrop": True},
    "steps": {"by": "integrated", "steps": 7},
    "integrated last": {"by": "integrated", "positions": "last", "reference": "mean"},
    "previous": {"by": "pattern", "kind": "previous"},
    "duplicate": {"by": "pattern", "kind": "duplicate", "task": "repeated"},
    "induction": {"by": "pattern", "kind": "induction", "task": "repeated"},
    "retrieval": {"by": "pattern", "kind": "retrieval", "task": "repeated"},
    "reference task": {"reference": "mean", "reference_task": "even"},
}
GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.8, "seed": 3},
    "gates": {"gates": "several"},
    "mean": {"gates": "several", "reference": "mean"},
    "last": {"gates": "several", "positions": "last", "temperature": 0.7},
    "stop": {"stop": ["dog", "the"]},
    "few tokens": {"gates": "several", "batch_tokens": 24},
}
STUDIES: dict[str, dict[str, Any]] = {
    "score": {"data": ["uneven", "even"], "methods": ["ablation", "integrated"], "n": 6, "reference": "mean"},
    "functions": {"data": ["labelled"], "methods": ["attribution", "probe", "ablation"], "n": 8},
    "roles": {
        "data": ["uneven"],
        "seeds": 2,
        "fit.updates": 3,
        "fit.batch": 4,
        "k": [0, 1, 2, 4],
        "random_sets": 6,
        "held_out": 4,
    },
    "circuits": {"data": ["even"], "n": 6, "orders": ["integrated", "ablation"], "points": 6, "draws": 2},
    "masking": {
        "data": ["labelled"],
        "n": 5,
        "k": [1, 2, 4],
        "draws": 2,
        "answer": "text",
        "cross": True,
        "intervene": ["amplify", "shift"],
        "max_new_tokens": 4,
    },
    "prompts": {
        "data": ["questions"],
        "metric": "contains",
        "n": 10,
        "shots": 2,
        "attention_prompts": 3,
        "max_new_tokens": 6,
        "conditions": ["none", "meaningless", "meaningful", "arm"],
    },
    "backups": {"data": ["even"], "n": 8},
    "wiring": {"data": ["even"], "n": 6},
    "certify": {"data": ["even"], "n": 8, "quick": True},
    "diff": {"data": ["even"], "n": 6, "methods": ["ablation", "attribution"], "reference": "mean"},
    "reach": {  # gptj, which calls no attention function, refuses the reference `window`
        "data": ["repeated"],
        "n": 4,
        "methods": ["ablation", "attribution", "pattern"],
        "window": 2,
        "sink": 1,
        "budget": 0.7,
        "points": 4,
        "draws": 1,
        "lengths": [],
        "transfer": [],
        "texts": 0,
    },
    "contrast": {
        "pairs": {f"pair {n}": {s: f"pair-{n}-{s}" for s in ("keep", "lose")} for n in range(3)},
        "seeds": 2,
        "fit.updates": 3,
        "fit.batch": 4,
    },
}
"""Small settings of every study; a study that is listed and not here is a job that fails."""
TEXT_SETTINGS = {"data": ["labelled"], "n": 4, "k": [2], "draws": 1, "layer_matched": [], "max_new_tokens": 3}
"""Of `masking`, the way to every text metric."""
STUDY_MODELS = ("llama-float64", "gptj-float32")
FITTED_STUDIES = ("roles", "contrast")
BUNDLED_JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ablation": ("score", {"task": "recall", "n": 4, "by": "ablation", "reference": "mean"}),
    "attribution": ("score", {"task": "greater_than", "n": 8, "by": "attribution"}),
    "integrated": ("score", {"task": "ioi", "n": 4, "by": "integrated", "reference": "patch", "steps": 5}),
    "gating": (
        "score",
        {"task": "recall", "n": 8, "by": "gating", "updates": 3, "seeds": 1, "batch": 4},
    ),
    "sweep": ("sweep", {"task": "ioi", "n": 4, "k": [0, 1, 4, 16, 64], "draws": 1, "action": "keep"}),
    "generate": ("generate", {"gates": "several", "max_new_tokens": 8}),
    "chat": ("generate", {"chat": True, "max_new_tokens": 8}),
    "attention": ("attention", {"heads": ["L0H0", "L15H4", "L29H8"]}),
}


@dataclass(frozen=True)
class Job:
    """One thing to compute in both checkouts."""

    id: str
    """GROUP/…: what results, messages and `accepted.yaml` call it."""
    kind: str
    """The worker's function."""
    arguments: dict[str, Any] = field(default_factory=dict)
    precision: str = "float64"
    """Which tolerance holds: float64, float32, or fit."""

    @property
    def group(self) -> str:
        """What is computed one after the other and stored together: all of one tiny model, or the first word."""
        first, second, *_ = [*self.id.split("/"), ""]
        return second if first in ("score", "more") else first


def all_jobs(listed: dict[str, list[dict[str, str]]], references: list[str]) -> Iterator[Job]:
    """Every job of a checkout. listed: the rows of its lists, by list and by column."""
    methods = [row["method"] for row in listed["methods"]]
    metrics = [row["metric"] for row in listed["metrics"] if row["from"] == "logits"]
    texts = [row["metric"] for row in listed["metrics"] if row["from"] == "text"]
    for name in LISTS:
        yield Job(f"list/{name}", "listing", {"what": name})
    yield from _tasks(listed["tasks"])
    for family, dtype in MODELS:
        model = f"{family}-{dtype}"
        again = dtype == "float32" and (family, "float64") in MODELS
        chosen = [name for name in metrics if name in FLOAT32_METRICS] if again else metrics
        yield from _scores(model, dtype, methods, references, chosen)
        yield from _more(model, dtype, references)
    for family, dtype in MODELS:
        yield Job(f"check/{family}-{dtype}", "check", {"model": f"{family}-{dtype}"}, dtype)
        yield Job(f"export/{family}-{dtype}", "export", {"model": f"{family}-{dtype}"}, dtype)
    yield from _studies([row["study"] for row in listed["studies"]])
    for text in texts:
        arguments = {"study": "masking", "model": STUDY_MODELS[0], "similarity": text, "accuracy": text}
        yield Job(f"text/{text}", "study", {**arguments, **TEXT_SETTINGS})
    for name, (kind, arguments) in BUNDLED_JOBS.items():
        precision = "fit" if name in FITS else "float32"
        yield Job(f"{BUNDLED}/{name}", kind, {"model": BUNDLED, **arguments}, precision)
    yield Job(f"{BUNDLED}/check", "check", {"model": BUNDLED}, "float32")


def _tasks(rows: list[dict[str, str]]) -> Iterator[Job]:
    """Every built-in task with every value of every option of its own, without a tokenizer and with the bundled one."""
    for row in rows:
        name = row["task"]
        yield Job(f"tasks/{name}", "task", {"name": name, "n": 40})
        yield Job(f"tasks/{name}/{BUNDLED}", "task", {"name": name, "n": 20, "seed": 1, "model": BUNDLED})
        for option in filter(None, row["options"].split("; ")):
            key, values = option.split(": ", 1)
            for value in values.split(", "):
                arguments = {"name": name, "n": 12, "options": {key: value}}
                yield Job(f"tasks/{name}/{key}={value}", "task", arguments)


def _scores(
    model: str, dtype: str, methods: list[str], references: list[str], metrics: list[str]
) -> Iterator[Job]:
    for method in methods:
        for reference in references:
            # Lengths differ, so that padding would show; a mean per position needs equal ones.
            tasks = ("uneven", "even") if reference == "position_mean" else ("uneven",)
            for task in tasks if method != "probe" else ("labelled",):
                for metric in metrics:
                    arguments = {"model": model, "task": task, "by": method, "reference": reference}
                    arguments |= {"metric": metric, **METHOD_OPTIONS.get(method, {})}
                    where = f"score/{model}/{method}/{reference}/{metric}"
                    precision = "fit" if method in FITS else dtype
                    yield Job(where if task != "even" else f"{where}/even", "score", arguments, precision)


def _more(model: str, dtype: str, references: list[str]) -> Iterator[Job]:
    """What else a model is asked for in Python: options of methods, sweeps, generation, attention."""
    for name, options in VARIATIONS.items():
        arguments = {"model": model, "task": "uneven", "by": "ablation", **options}
        yield Job(f"more/{model}/score {name}", "score", arguments, dtype)
    for action in ("keep", "mask"):
        for reference in references:
            task = "even" if reference == "position_mean" else "uneven"
            arguments = {"model": model, "task": task, "action": action, "reference": reference}
            yield Job(f"more/{model}/sweep {action} {reference}", "sweep", arguments, dtype)
        arguments = {"model": model, "task": "uneven", "action": action, "k": [0, 1, 3, 5], "draws": 1}
        yield Job(f"more/{model}/sweep {action} k", "sweep", {**arguments, "positions": "last"}, dtype)
        yield Job(
            f"more/{model}/sweep {action} few tokens", "sweep", {**arguments, "batch_tokens": 20}, dtype
        )
    for name, options in GENERATIONS.items():
        yield Job(f"more/{model}/generate {name}", "generate", {"model": model, **options}, dtype)
    yield Job(f"more/{model}/attention", "attention", {"model": model, "maps": True}, dtype)
    yield Job(f"more/{model}/attention few tokens", "attention", {"model": model, "batch_tokens": 8}, dtype)
    yield Job(f"more/{model}/compare", "agreement", {"model": model, "task": "uneven"}, dtype)


def _studies(studies: list[str]) -> Iterator[Job]:
    for study in studies:
        for model in STUDY_MODELS:
            settings = STUDIES.get(study, {})
            dtype = "fit" if study in FITTED_STUDIES else model.rpartition("-")[2]
            yield Job(f"study/{study}/{model}", "study", {"study": study, "model": model, **settings}, dtype)
