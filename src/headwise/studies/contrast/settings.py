"""What the study `contrast` can be told."""

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
    """A task that should stay as it is: a built-in name, a file, or hub:owner/name."""
    lose: TaskName
    """A task that should be lost."""
    keep_options: Options = Field(default_factory=dict)
    """Options of the task, of its prompts (shots, template) or of its file (columns)."""
    lose_options: Options = Field(default_factory=dict)
    """The same for the other side."""


class ContrastSettings(StudySettings):
    """Settings of the study `contrast`."""

    QUICK: ClassVar = {"n": 8, "seeds": 2}

    pairs: Named[PairSettings] = Field(default_factory=dict)
    """Pairs of tasks by name; best in a study file."""
    held_out: Several[Text] = ()
    """Names of the pairs that gates are not fitted on; the last one by default."""
    n: Annotated[int, Field(ge=2)] = 64
    """Examples of each side of each pair, at most."""
    seeds: Count = 5
    """Fits that begin from other random gates."""
    fit: FitSettings = FitSettings()
    """How gates are fitted, as in the study `roles`."""
    floor: float = FLOOR
    """Nats per token: how much less likely than what is kept is lost enough."""
    reference: ReferenceName = "zero"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch)."""

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
