"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out. Tables: `contrast` (every held-out pair, side and seed; seed −1 is the ungated
model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import Self

from headwise.errors import HeadwiseError, unknown
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import BACKWARD
from headwise.scores.gates.contrastive import FLOOR, Contrast, contrastive
from headwise.scores.gates.fit import FitSettings
from headwise.scores.gates.gating import check_reference, default_reference, gate_scores
from headwise.settings import Count, Named, Settings, Several, Text
from headwise.studies.abilities import together
from headwise.studies.base import study
from headwise.studies.contrast.section import section
from headwise.studies.run import Run
from headwise.studies.settings.shared import Options, ReferenceName, StudySettings, TaskName
from headwise.tasks import Task

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
    QUICK: ClassVar[dict[str, Any]] = {"n": 8, "seeds": 2}

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


@dataclass(frozen=True, eq=False)
class Case:
    """One model, what it keeps and loses, and the pairs (keep, lose) that the gates are tested on."""

    model: Model
    keep: Task
    lose: Task
    held_out: dict[str, tuple[Task, Task]]
    fit: FitSettings
    seeds: tuple[int, ...]
    floor: float
    reference: str
    batch_tokens: int | None = field(compare=False)

    @property
    def update_rows(self) -> int:
        return len(self.seeds) * sum(min(self.fit.batch, len(task)) for task in (self.keep, self.lose))

    @property
    def test_rows(self) -> int:
        """Forward rows of the test: two metrics of every held-out example, ungated and with each seed's gates."""
        return 2 * (1 + len(self.seeds)) * sum(len(task) for pair in self.held_out.values() for task in pair)


def plan(run: Run, s: ContrastSettings) -> Iterator[Call[Any]]:
    for source in s.models:
        yield fit_contrast(_case(run, s, source))


@study("Which heads carry one behaviour and not another?", ContrastSettings, section, plan)
def contrast(run: Run, s: ContrastSettings) -> None:
    fitted_on = [name for name in s.pairs if name not in s.tested]
    cases = {source: _case(run, s, source) for source in s.models}
    fits = run.all({source: fit_contrast(case) for source, case in cases.items()}, "fits")
    for source, case in cases.items():
        fitted, exists = fits[source], case.model.exists
        columns = {"model": run.display_name(source), "task": " ".join(fitted_on)}
        scores = gate_scores(fitted.gates, exists, case.reference, method="contrastive", **columns)
        run.table("contrast", fitted.table.assign(model=columns["model"]))
        run.table("scores", scores.table(s.seed))
        run.tables(fitted.fit.tables(case.seeds, case.model.heads(), columns | {"fit": "contrast"}))


def _case(run: Run, s: ContrastSettings, source: str) -> Case:
    fitted_on = [name for name in s.pairs if name not in s.tested]
    model, seeds = run.model(source), tuple(range(s.seed, s.seed + s.seeds))
    reference = s.reference or default_reference(model)
    check_reference(model, reference)
    pairs = {
        name: (run.task(pair.keep, model, pair.keep_options), run.task(pair.lose, model, pair.lose_options))
        for name, pair in s.pairs.items()
    }
    keep, lose = (together([pairs[n][i] for n in fitted_on], side) for i, side in enumerate(("keep", "lose")))
    held_out = {name: pairs[name] for name in s.tested}
    return Case(model, keep, lose, held_out, s.fit, seeds, s.floor, reference, s.batch_tokens)


@step(
    cost=lambda case: case.fit.updates * case.update_rows + case.test_rows,
    label="contrastive fit with {case.model.name}",
    unit=BACKWARD,
)
def fit_contrast(job: Job, case: Case) -> Contrast:
    """Gates that keep one behaviour and lose another, and what they do on the held-out pairs."""
    options: dict[str, Any] = {
        "floor": case.floor,
        "reference": case.reference,
        "batch_tokens": case.batch_tokens,
    }
    options["advance"] = lambda updates: job.advance(updates * case.update_rows)
    fitted = contrastive(
        case.model, case.keep, case.lose, case.held_out, seeds=case.seeds, settings=case.fit, **options
    )
    job.advance(case.test_rows)
    return fitted
