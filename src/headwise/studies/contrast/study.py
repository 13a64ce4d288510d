"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out. Tables: `contrast` (every held-out pair, side and seed; seed −1 is the ungated
model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import BACKWARD
from headwise.scores.gates.contrastive import Contrast, contrastive
from headwise.scores.gates.fit import FitSettings
from headwise.scores.gates.gating import check_reference, default_reference, gate_scores
from headwise.studies.abilities import together
from headwise.studies.base import study
from headwise.studies.contrast.charts import section
from headwise.studies.contrast.settings import ContrastSettings
from headwise.studies.run import Run
from headwise.tasks import Task


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
        """Forward rows of one update."""
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
