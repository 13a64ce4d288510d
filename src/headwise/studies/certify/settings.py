"""Settings of the study `certify`, and those that a run gives: model, task, ablation type; its heads are the set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.certificates.certify import DRAWS, SUBSETS
from headwise.certificates.checks import Thresholds
from headwise.certificates.refits import ALTERNATIVE_FITS, BESIDE_METHODS, REPELLED, STABLE_FITS
from headwise.errors import HeadwiseError
from headwise.model.sites.probe import accelerated
from headwise.runs import read_info
from headwise.scores.registry import check_methods
from headwise.settings import Count, Several, Text, build
from headwise.studies.base import study_named
from headwise.studies.settings import shared
from headwise.sweeps.plan import usual_options


class CertifySettings(shared.TaskSettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 24, "draws": 40, "stable": 0, "alternatives": 0}

    heads: Text | None = None
    """The set: names (L23H3,L20H0), a heads file, a run folder (of `score` with `top`, of `circuits`), or a scores
    table with `top`. By default the study finds one by itself, on other examples than it is tested on."""
    top: Count | None = None
    """How many of the first heads form the set; by default all of a list, or the smallest number that passes checks 1
    to 3 on the examples that find it."""
    method: shared.MethodName = "nested"
    """Score method that ranks the heads, where none are given."""
    n: Annotated[int, Field(ge=4)] = 80
    """Examples that test the set; as many more find it, where none is given."""
    reference: shared.ReferenceName = "mean"
    """Ablation type: what replaces the heads outside the set (zero, mean, position_mean, resample, patch, window)."""
    thresholds: Thresholds = Field(default_factory=Thresholds)
    """What the checks ask for: sufficient, family, r2, agreement, necessary, p, complete."""
    draws: Count = DRAWS
    """Layer-matched random sets of check 4."""
    subsets: Count = SUBSETS
    """Parts of the set that check 5 ablates in model and circuit."""
    negatives: shared.TaskName | None = None
    """Prompts of the same form without the behaviour, for check 7."""
    others: Several[shared.TaskName] = ()
    """Other behaviours, for check 7."""
    stable: NonNegativeInt = STABLE_FITS
    """Half-samples on which check 8 ranks the heads again, where the study finds the set; 0 leaves it out."""
    alternatives: NonNegativeInt = ALTERNATIVE_FITS
    """Fits of check 10, which pay for every head of the set, where the study finds the set; 0 leaves it out."""
    beside: Several[shared.MethodName] = BESIDE_METHODS
    """Score methods whose first heads stand beside the set in check 11, where the study finds the set."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the methods; by default what this machine computes in minutes."""

    @model_validator(mode="after")
    def _usual_options(self) -> Self:
        options: dict[str, Any] = {}  # none, as the run folder of an accelerator has it
        if self.method_options or "method_options" not in self.model_fields_set:
            fast = accelerated(self.device)
            options = usual_options(self._methods, self.method_options, fast=fast, quick=self.quick)
        self.__dict__.update(method_options=options)
        return self

    @property
    def _methods(self) -> tuple[str, ...]:
        """All that rank heads."""
        return tuple(dict.fromkeys((self.method, *self.beside, *[REPELLED] * bool(self.alternatives))))

    def before_run(self) -> None:
        super().before_run()
        check_methods(self._methods, self.method_options, self.metric)

    def options(self) -> dict[str, Any]:
        """Of `hw.certify`."""
        names = ("metric", "reference", "draws", "subsets", "seed", "quick")
        return {name: getattr(self, name) for name in names} | {"thresholds": dict(self.thresholds)}


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
