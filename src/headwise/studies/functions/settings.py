"""What the study `functions` can be told."""

from __future__ import annotations

from pydantic import Field
from typing_extensions import Self

from headwise.settings import Count, Several, Text
from headwise.studies.abilities import check_limit
from headwise.studies.settings.shared import (
    MethodNames,
    MetricName,
    Options,
    ReferenceName,
    StudySettings,
    TaskName,
)

QUICK = 12
"""Most examples per ability with `quick`."""


class FunctionsSettings(StudySettings):
    """Settings of the study `functions`."""

    tasks: Several[TaskName] = ()
    """Built-in names, files (CogQA, or your own with labels), or hub:owner/name; `abilities` by default. An
    example without a label counts as of the ability named like its task."""
    data: TaskName | None = None
    """A task file, beside `tasks` or instead."""
    task_options: Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    limit: Count | None = None
    """Most examples taken from a file, over all abilities."""
    abilities: Several[Text] = ()
    """Only these labels; all by default."""
    methods: MethodNames = ("attribution", "probe")
    """Score methods (headwise list methods); each gives every ability a map."""
    n: Count | None = None
    """Most examples per ability; by default 40 of a built-in task, and all of a file."""
    metric: MetricName | None = None
    """Of the causal methods; by default each task's own."""
    reference: ReferenceName = "zero"
    """Ablation type of the causal methods: what replaces an ablated head (zero, mean, resample, patch, …)."""
    answer_tokens: Count | None = None
    """The probe averages over that many tokens of the answer, the least probable ones; all by default."""

    def before_run(self) -> None:
        super().before_run()
        check_limit(self)

    def quickened(self) -> Self:
        return self.at_most(n=QUICK)
