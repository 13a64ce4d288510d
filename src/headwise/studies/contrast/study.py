"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out. Tables: `contrast` (every held-out pair, side and seed; seed −1 is the ungated
model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from headwise.constraints import Constraints, Number, check_settings
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Scores
from headwise.model.model import Model
from headwise.progress import progress
from headwise.runs import Cell, CellResult, RunFolder, execute, read_table
from headwise.scores.gates.contrastive import FLOOR, contrastive
from headwise.scores.gates.fit import FitSettings
from headwise.scores.gates.gating import UNIT
from headwise.studies.base import register
from headwise.studies.contrast.charts import charts
from headwise.studies.contrast.findings import kept_and_lost
from headwise.studies.figures import save_figures
from headwise.studies.roles.tables import gate_rows, objective_rows
from headwise.studies.settings.resolve import REFERENCE, TASKS, StudySettings, plain
from headwise.studies.workbench import Workbench
from headwise.tasks import Task


@dataclass(frozen=True, kw_only=True)
class PairSettings:
    """Two behaviours on the same material."""

    CONSTRAINTS: ClassVar[Constraints] = {"keep": TASKS, "lose": TASKS}

    keep: str
    """A task that should stay as it is: a built-in name, a file, or hub:owner/name."""
    lose: str
    """A task that should be lost."""
    keep_options: dict[str, Any] = field(default_factory=dict)
    """Options of the task, of its prompts (shots, template) or of its file (columns)."""
    lose_options: dict[str, Any] = field(default_factory=dict)
    """The same for the other side."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class ContrastSettings(StudySettings):
    """Settings of the study `contrast`."""

    CONSTRAINTS: ClassVar[Constraints] = {
        "n": Number(least=2),
        "seeds": Number(least=1),
        "floor": Number(),
        "reference": REFERENCE,
    }

    pairs: dict[str, PairSettings] = field(default_factory=dict)
    """Pairs of tasks by name; best in a study file."""
    held_out: tuple[str, ...] = ()
    """Names of the pairs that gates are not fitted on; the last one by default."""
    n: int = 64
    """Examples of each side of each pair, at most."""
    seeds: int = 5
    """Fits that begin from other random gates."""
    fit: FitSettings = field(default_factory=FitSettings)
    """How gates are fitted, as in the study `roles`."""
    floor: float = FLOOR
    """Nats per token: how much less likely than what is kept is lost enough."""
    reference: str = "zero"
    """What a gated-out head is replaced by."""


QUICK_FIT = FitSettings(updates=30, batch=4, rate=(1.0, 0.2), stop=None, keep=5)


@register(
    "contrast",
    question="Which heads carry one behaviour and not another?",
    settings=ContrastSettings,
)
def carry_out(settings: ContrastSettings, bench: Workbench, folder: RunFolder) -> None:
    if len(settings.pairs) < 2:
        raise HeadwiseError(
            f"the study 'contrast' has {len(settings.pairs)} pairs; give at least two in a study file, one to fit on "
            "and one to hold out: pairs: {a: {keep: FILE, lose: FILE}, b: …}"
        )
    for name in settings.held_out:
        if name not in settings.pairs:
            raise unknown("held-out pair", name, settings.pairs)
    if settings.quick:
        fit = settings.fit if settings.fit != FitSettings() else QUICK_FIT
        settings = replace(settings, n=min(settings.n, 8), seeds=min(settings.seeds, 2), fit=fit)
    held_out = settings.held_out or (list(settings.pairs)[-1],)
    if set(held_out) == set(settings.pairs):
        raise HeadwiseError("every pair is held out; leave at least one to fit gates on")
    made = {name: _made(settings, bench, bench.model(name)) for name in settings.models}
    cells = []
    for name, pairs in made.items():
        model = bench.model(name)
        about = {"seed": settings.seed, "seeds": settings.seeds, "fit": plain(settings.fit)}
        about |= {"floor": settings.floor, "reference": settings.reference, "held_out": sorted(held_out)}
        about |= {"dtype": str(model.dtype).removeprefix("torch.")}
        prints = {f"{pair}/{side}": t.fingerprint for pair, p in pairs.items() for side, t in p.items()}
        fitted = " ".join(pair for pair in pairs if pair not in held_out)
        cells.append(
            Cell("contrast", name, fitted, "contrast", about, {"model": model.fingerprint, **prints})
        )
    execute(folder, cells, partial(_compute, settings, bench, made, tuple(held_out)), progress=bench.progress)
    for shown, part in read_table(folder, "contrast").groupby("model", sort=False):
        folder.notice(f"{shown}: {kept_and_lost(part)}")
    save_figures(folder, charts)


def _made(settings: ContrastSettings, bench: Workbench, model: Model) -> dict[str, dict[str, Task]]:
    return {
        name: {
            "keep": bench.task(pair.keep, model, settings.n, settings.seed, pair.keep_options),
            "lose": bench.task(pair.lose, model, settings.n, settings.seed, pair.lose_options),
        }
        for name, pair in settings.pairs.items()
    }


def _compute(
    settings: ContrastSettings,
    bench: Workbench,
    made: dict[str, dict[str, dict[str, Task]]],
    held_out: tuple[str, ...],
    cell: Cell,
) -> CellResult:
    model, pairs = bench.model(cell.model), made[cell.model]
    seeds = list(range(settings.seed, settings.seed + settings.seeds))
    fitted = [pair for name, pair in pairs.items() if name not in held_out]
    keep, lose = (_together(side, [pair[side] for pair in fitted]) for side in ("keep", "lose"))
    with progress("contrastive fit", settings.fit.updates, show=bench.progress) as advance:
        found = contrastive(
            model,
            keep,
            lose,
            {name: (pairs[name]["keep"], pairs[name]["lose"]) for name in held_out},
            seeds=seeds,
            settings=settings.fit,
            floor=settings.floor,
            reference=settings.reference,
            batch_tokens=settings.batch_tokens,
            advance=advance,
        )
    shown = bench.shown(settings.models)[cell.model]
    names = {"model": shown, "task": cell.task}
    scores = Scores.from_examples(
        np.where(model.exists, found.gates, np.nan), **names, method="contrastive", signed=False, metric=UNIT
    )
    about = {**names, "fit": "contrast"}
    return CellResult(
        {
            "contrast": found.table.assign(model=shown),
            "scores": scores.table(settings.seed),
            "gates": gate_rows(found.fit, seeds, model.heads(), about),
            "objective": objective_rows(found.fit, seeds, about),
        },
        {"updates": found.fit.updates.tolist()},
    )


def _together(name: str, tasks: Sequence[Task]) -> Task:
    return Task(name, tuple(example for task in tasks for example in task), tasks[0].metric)
