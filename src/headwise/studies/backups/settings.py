"""Settings of the study `backups`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import head_list
from headwise.settings import Count, Several, Share, Text, passes
from headwise.studies.settings import shared

ALL = "all"


def _check_head(name: str) -> None:
    if name != ALL:
        head_list([name])


class BackupsSettings(shared.StudySettings):
    """Settings of the study `backups`."""

    # Counted in forward rows per example of a half: single effects 270 (quick: the same), greedy steps 24 each, backups
    # 2 per candidate, pairs of `first` heads, groups and freezing about `draws` each.
    QUICK: ClassVar = {"n": 24, "first": 12, "curve": 3, "candidates": 24, "draws": 5, "primary_heads": 2}

    tasks: shared.TaskNames = ("ioi",)
    """Built-in names, files, or hub:owner/name."""
    n: Annotated[int, Field(ge=8)] = 64
    """Examples per task: the primary set, orders and groups are found on one half and tested on the other."""
    metric: shared.MetricName | None = None
    """Metric; by default the one of each task."""
    reference: shared.ReferenceName = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window)."""
    primary: Several[Annotated[Text, passes(head_list)]] = ()
    """Heads of the primary set, such as [L23H3]; found by the study if none is given."""
    primary_heads: Count = 4
    """Maximum size of the primary set."""
    candidates: Count | None = None
    """Number of heads tested as backups, chosen on the finding half by the first-order estimate; all by default."""
    least: Share = 0.02
    """Minimum effect size of a backup: its difference as a share of the effect of removing the primary set."""
    first: Annotated[int, Field(ge=3)] = 40
    """Number of heads in the interaction matrix, where `heads` names none."""
    heads: Several[Annotated[Text, passes(_check_head)]] = ()
    """Heads of the interaction matrix, such as [L23H3, L20H0], or [all]; by default the study chooses `first`."""
    curve: Count = 12
    """Largest number of heads removed in the curve of joint removal."""
    draws: Count = 20
    """Random draws: sets of heads of the same layers, and random orders."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""

    @model_validator(mode="after")
    def _primary_set(self) -> Self:
        if ALL in self.heads and len(self.heads) > 1:
            raise HeadwiseError(f"heads is {list(self.heads)}; give {ALL} alone, or name the heads")
        for setting, names in (("primary", self.primary), ("heads", self.heads)):
            if twice := [name for index, name in enumerate(names) if name in names[:index]]:
                raise HeadwiseError(f"{setting} names {twice[0]} twice; give every head once")
        if len(self.heads) == 1 and ALL not in self.heads:
            raise HeadwiseError(f"heads names only {self.heads[0]}; an interaction needs two")
        return self
