"""Settings of the study `score`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.scores.registry import check_method_positions, check_methods, method, own_options
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
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window)."""
    positions: shared.PositionsOrEach = "all"
    """Token positions that gates act on: `all`, from the `last` prompt token on, numbers (3, or [3, -1]: negative ones
    count from the end), the name of a span (S2), or `each` for a score of every head at every position."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the task (pattern: ABB), of its prompts (shots, template, separator) or of its file (columns)."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the method."""
    cards: NonNegativeInt = 6
    """Number of heads of each model, task and method that get a card (head page) in the report: those with the
    largest scores. 0 for none; with positions `each` there are none."""

    @property
    def ablation(self) -> dict[str, Any]:
        """How heads are ablated, for the steps."""
        return {name: getattr(self, name) for name in ("metric", "reference", "positions", "seed")}

    @model_validator(mode="after")
    def _methods_fit(self) -> Self:
        check_methods(self.methods, self.method_options, self.metric)
        for name in self.methods:
            check_method_positions(method(name), self.positions, own_options(name, self.method_options))
        return self
