"""Settings of the study `contrast`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import Self

from headwise.errors import HeadwiseError, unknown
from headwise.scores.gates.contrastive import FLOOR
from headwise.scores.gates.fit import FitSettings
from headwise.settings import Count, Named, Settings, Several, Text
from headwise.studies.settings.shared import Options, ReferenceName, StudySettings, TaskName

QUICK_FIT = FitSettings(updates=30, batch=4, rate=(1.0, 0.2), stop=None, keep=5)


class PairSettings(Settings):
    """Two behaviours on the same material."""

    keep: TaskName
    """Task to preserve: a built-in name, a file, or hub:owner/name."""
    lose: TaskName
    """Task to remove."""
    keep_options: Options = Field(default_factory=dict)
    """Options of the task, of its prompts (shots, template) or of its file (columns)."""
    lose_options: Options = Field(default_factory=dict)
    """The same for the task to remove."""


class ContrastSettings(StudySettings):
    """Settings of the study `contrast`."""

    QUICK: ClassVar = {"n": 8, "seeds": 2}

    pairs: Named[PairSettings] = Field(default_factory=dict)
    """Pairs of tasks by name, usually given in a study file."""
    held_out: Several[Text] = ()
    """Names of the held-out pairs, on which gates are not fitted; by default the last pair."""
    n: Annotated[int, Field(ge=2)] = 64
    """Maximum number of examples of each task of a pair."""
    seeds: Count = 5
    """Number of fits, each from different random gates."""
    fit: FitSettings = FitSettings()
    """How gates are fitted, as in the study `roles`."""
    floor: float = FLOOR
    """Log probability per token (nats), relative to the kept behaviour, below which the other counts as lost."""
    reference: ReferenceName | None = None
    """Ablation type, as in the study `roles`: by default zero, and mean for models with a norm after their heads."""

    @property
    def tested(self) -> tuple[str, ...]:
        """The pairs that gates are not fitted on."""
        return self.held_out or tuple(self.pairs)[-1:]

    def sources(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for pair in self.pairs.values():
            yield pair.keep, pair.keep_options
            yield pair.lose, pair.lose_options

    def before_run(self) -> None:
        super().before_run()
        if len(self.pairs) < 2:
            raise HeadwiseError(
                f"the study 'contrast' has {len(self.pairs)} pairs; give at least two in a study file, one to fit on "
                "and one to hold out: pairs: {a: {keep: FILE, lose: FILE}, b: …}"
            )
        for name in self.held_out:
            if name not in self.pairs:
                raise unknown("held-out pair", name, self.pairs)
        if set(self.tested) == set(self.pairs):
            raise HeadwiseError("every pair is held out; leave at least one to fit gates on")

    def quickened(self) -> Self:
        return super().quickened().replaced(fit=self.fit if self.fit != FitSettings() else QUICK_FIT)
