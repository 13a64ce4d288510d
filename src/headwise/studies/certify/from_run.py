"""The settings of a certificate that a run gives: its model, its task, its ablation type; its heads are the set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.runs import read_info
from headwise.settings import build
from headwise.studies.base import study_named

RANKING = ("score", "circuits")
"""Studies whose runs rank heads."""


def study_of(path: str | Path) -> str | None:
    """The study of a run folder; None for anything else."""
    # Names of many heads are too long for a path.
    return str(read_info(Path(path))["study"]) if os.path.isfile(Path(path) / "run.json") else None


def settings_of(run: str | Path) -> Any:
    """The settings that a run of `score` or `circuits` was carried out with."""
    info, study = read_info(Path(run)), study_of(run)
    if study not in RANKING:
        raise HeadwiseError(
            f"{run} is a run of the study {study}; give one of {' or '.join(RANKING)}, which rank heads, or "
            "name the heads: headwise certify MODEL TASK --heads L23H3,L20H0"
        )
    settings = build(study_named(study).settings, info["settings"])
    return settings.quickened() if settings.quick else settings


def from_run(run: str | Path, task: str | None = None) -> dict[str, Any]:
    """Settings of `certify` for the heads of a run. task: which, where the run has several."""
    found = settings_of(run)
    tasks = [task] if task else list(found.tasks)
    for what, names in (("models", list(found.models)), ("tasks", tasks)):
        if len(names) > 1:
            raise HeadwiseError(
                f"the run {run} has {len(names)} {what} ({', '.join(names)}), and a certificate is about one; name it: "
                "headwise certify MODEL TASK --heads RUN"
            )
    references = getattr(found, "references", ()) or (getattr(found, "reference", "mean"),)
    settings = {"models": list(found.models), "tasks": tasks, "heads": str(run), "reference": references[0]}
    return settings | {"metric": found.metric, "task_options": dict(found.task_options)}
