"""What the study `functions` can be told."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headwise.settings import Count, Several, Text
from headwise.studies.abilities import check_limit
from headwise.studies.settings import shared


class FunctionsSettings(shared.StudySettings):
    """Settings of the study `functions`."""

    QUICK: ClassVar = {"n": 12}

    tasks: Several[shared.TaskName] = ()
    """Built-in names, files, or hub:owner/name; `abilities` by default. The label of an example is its ability;
    examples without a label are one ability, named like their task or file."""
    data: shared.TaskName | None = None
    """A task file, beside `tasks` or instead."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    limit: Count | None = None
    """Most examples taken from a file, over all abilities."""
    abilities: Several[Text] = ()
    """Only these labels; all by default."""
    methods: shared.MethodNames = ("attribution", "probe")
    """Score methods (headwise list methods); each gives every ability a map."""
    n: Count | None = None
    """Most examples per ability; by default 40 of a built-in task, and all of a file."""
    metric: shared.MetricName | None = None
    """Of the causal methods; by default each task's own."""
    reference: shared.ReferenceName = "zero"
    """Ablation type of the causal methods: what replaces an ablated head (zero, mean, resample, patch, …)."""
    answer_tokens: Count | None = None
    """The probe averages over that many tokens of the answer, the least probable ones; all by default."""

    def before_run(self) -> None:
        super().before_run()
        check_limit(self)
