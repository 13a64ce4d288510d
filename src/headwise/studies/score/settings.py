"""Settings of the study `score`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.scores.registry import check_methods
from headwise.settings import Count
from headwise.studies.settings import shared


class ScoreSettings(shared.StudySettings):
    """Settings of the study `score`."""

    QUICK: ClassVar = {"n": 16}

    tasks: shared.TaskNames = ("ioi",)
    """Built-in names, files, or hub:owner/name."""
    methods: shared.MethodNames = ("ablation",)
    """Score methods (headwise list methods)."""
    n: Count = 64
    """Examples per task."""
    metric: shared.MetricName | None = None
    """Metric; by default the one of each task."""
    reference: shared.ReferenceName = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch)."""
    positions: shared.Positions = "all"
    """Token positions that gates act on: `all`, or from the `last` prompt token on."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the task (pattern: ABB), of its prompts (shots, template, separator) or of its file (columns)."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the method."""
    cards: NonNegativeInt = 6
    """Number of heads of each model, task and method that get a card (head page) in the report: those with the
    largest scores. 0 for none."""

    @model_validator(mode="after")
    def _methods_fit(self) -> Self:
        check_methods(self.methods, self.method_options, self.metric)
        return self
