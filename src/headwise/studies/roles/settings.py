"""Settings of the study `roles`, and what `quick` changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.model.model import Model
from headwise.scores.gates.fit import FitSettings
from headwise.settings import Count, Several
from headwise.studies.settings.shared import Options, Positions, ReferenceName, StudySettings, TaskNames
from headwise.tasks import Task

QUICK_FIT = FitSettings(
    updates=14, first_updates=8, batch=12, first_rate=(1.0, 0.2), rate=(1.0, 0.2), stop=None, keep=4
)
"""With `quick`: few large steps, each on new examples, find the heads with the largest effects."""
QUICK_KS = (0, 5, 10, 20, 35, 50)
QUICK_EXAMPLES, QUICK_FEWEST, QUICK_TOKENS = 800, 4, 70
"""With `quick`: at most so many examples of a task; in an update 4, or more if they have no more tokens than this
together, and twice as many in the curves."""

QUICK_PIECE = 448
"""Tokens of one backward pass with `quick`: more memory than needed, and less time."""


class RolesSettings(StudySettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": QUICK_EXAMPLES, "held_out": 2 * QUICK_FIT.batch, "seeds": 2}

    tasks: TaskNames = ("syntax", "commonsense", "math")
    """Built-in names, files, or hub:owner/name."""
    n: Annotated[int, Field(ge=2)] = 4000
    """Maximum number of examples per task: one half fits gates, the other tests them. Few examples lead to
    overfitting; the cost of an update does not depend on their number."""
    held_out: Count = 64
    """Maximum number of test examples for curves, random sets and exact ablation."""
    seeds: Count = 5
    """Number of fits, each with different random initial gates and a different order of examples."""
    fit: FitSettings = FitSettings()
    """How gates are fitted, such as `--set fit.updates=200`."""
    k: Several[NonNegativeInt] = ()
    """Numbers of ablated heads along the curves; 0 to 50 by default."""
    reference: ReferenceName | None = None
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window). By default
    zero, and mean for models with a norm after their heads (Gemma 2 and 3, OLMo 2), where zero is refused."""
    positions: Positions = "all"
    """Token positions that gates act on: `all`, from the `last` prompt token on, numbers, or the names of spans."""
    random_sets: NonNegativeInt = 300
    """Random sets of ten heads that the ten most facilitating heads are compared with; 0 skips this check and the
    comparison with exact ablation."""
    cards: NonNegativeInt = 2
    """Number of heads of each task that get a card (head page) in the report: those with the largest scores. 0 for
    none."""
    task_options: Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns), for all tasks
    or by task: `{math: {length: short}}`."""

    @model_validator(mode="after")
    def _some_heads(self) -> Self:
        if self.k and max(self.k) < 1:
            raise HeadwiseError(f"k is {list(self.k)}; expected numbers of heads, and at least one above 0")
        return self

    def options_of(self, source: str) -> Mapping[str, Any]:
        """Of the task options those for this task: its own, or all where they are not given by task."""
        options: Mapping[str, Any] = self.task_options
        by_task = options and all(key in self.tasks and isinstance(options[key], Mapping) for key in options)
        return options.get(source, {}) if by_task else options

    def sources(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield from ((source, self.options_of(source)) for source in self.tasks)

    def quickened(self) -> Self:
        """Two seeds, few examples and updates, short targets."""
        fit = self.fit if self.fit.updates < FitSettings().updates else QUICK_FIT
        short = {"math": {"length": "short"}} if "math" in self.tasks else {}
        options = self.task_options or short
        few = super().quickened()
        return few.replaced(fit=fit, k=self.k or QUICK_KS, random_sets=0, task_options=options)


def few_tokens(task: Task, model: Model) -> int:
    """How many examples have about `QUICK_TOKENS` together, so that tasks of long and of short ones cost the same."""
    length = np.mean([len(model.tokens(e.prompt + e.target)) for e in task.examples[:50]])
    return max(QUICK_FEWEST, int(QUICK_TOKENS / length))
