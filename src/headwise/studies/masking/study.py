"""The study `masking`: does the model fail when the important heads go, and not when random ones go?

Half of each ability's examples give an order of heads; the other half is written on from, with the first K heads
of the order masked, with as many random ones, and with as many random ones of the same layers. Tables beside the
contract's: `texts` (everything that was written), `samples` (prompt, gold answer and texts side by side),
`orders` (which heads were masked), `cross` (mask one ability's heads, measure another), `interventions` (accuracy
before and after heads are amplified or shifted).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pandas as pd

from headwise.heads import Scores
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.scores import method, score
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.masking.charts import charts
from headwise.studies.masking.cross import cross_cells
from headwise.studies.masking.intervene import intervention_cells
from headwise.studies.masking.plan import Plan
from headwise.studies.masking.samples import sample_cells
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import point_tables
from headwise.studies.score.study import example_table
from headwise.studies.workbench import Workbench

QUICK = {"n": 10, "new_tokens": 8}
"""Most of each with `quick`, which also takes fewer K."""
BAR = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


@register(
    "masking",
    question="Does the model fail when the important heads go, and not when random ones go?",
    settings=MaskingSettings,
)
def carry_out(settings: MaskingSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = settings.at_most(**QUICK)
    plans = [Plan(settings, bench, name) for name in settings.models]
    for plan in plans:
        for judge in plan.judges.values():
            judge.ready()
    first = [cell for plan in plans for cell in plan.first_cells()]
    by_name = {plan.given: plan for plan in plans}
    execute(folder, first, partial(_first, by_name), progress=bench.progress)
    scores, texts = read_table(folder, "scores"), read_table(folder, "texts")
    for plan in plans:
        plan.read(scores, texts)
    masks = [cell for plan in plans for cell in plan.mask_cells()]
    execute(folder, masks, partial(_masked, by_name), progress=bench.progress)
    if settings.cross:
        cross_cells(folder, plans)
    if settings.intervene:
        intervention_cells(folder, plans)
    sample_cells(folder, plans)
    save_figures(folder, charts)
    _tell(folder, plans)


def _first(plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan = plans[cell.model]
    if cell.part == "full":
        texts = plan.write(cell.task, "full model")
        judge, about = plan.judges[cell.task], plan.about(cell.task, "full", 0)
        return CellResult(
            point_tables(texts, texts[0], plan.test[cell.task], judge, about, plan.settings.seed)
        )
    settings, task = plan.settings, plan.find[cell.task]
    if settings.method == "probe":
        return _order_tables(plan, cell, plan.probe()[cell.task])
    with progress(
        cell.part, method(settings.method).steps(plan.model, task), show=plan.bench.progress
    ) as advance:
        found = score(
            plan.model,
            task,
            settings.method,
            metric=settings.metric,
            positions="all",
            seed=settings.seed,
            batch_tokens=settings.batch_tokens,
            advance=advance,
            **settings.method_options,
        )
    return _order_tables(plan, cell, found)


def _order_tables(plan: Plan, cell: Cell, found: Scores) -> CellResult:
    found = replace(found, model=plan.shown, task=cell.task)
    tables = {"scores": found.table(plan.settings.seed), "examples": example_table(found)}
    return CellResult(tables, dict(found.details))


def _masked(plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan = plans[cell.model]
    one = next(one for one in plan.sets(cell.task) if one.name == cell.part)
    texts = plan.write(cell.task, cell.part, gates=one.gates(plan.model.shape, plan.settings.scale))
    about = plan.about(cell.task, one.series, one.k)
    tables = point_tables(
        texts, plan.full[cell.task], plan.test[cell.task], plan.judges[cell.task], about, plan.settings.seed
    )
    tables["orders"] = pd.DataFrame(
        [
            {
                **about,
                "draw": draw,
                "place": place,
                "layer": head.layer,
                "head": head.head,
                "moved": drawn.moved,
            }
            for draw, drawn in enumerate(one.draws)
            for place, head in enumerate(drawn.heads)
        ]
    )
    return CellResult(tables, {"moved": one.moved})


def _tell(folder: RunFolder, plans: list[Plan]) -> None:
    """What the reader of the curves must know: a low start, and controls that are not quite what they should be."""
    curves = read_table(folder, "curves")
    for plan in plans:
        own = curves[(curves["model"] == plan.shown) & (curves["metric"] == "accuracy")]
        low = own[(own["k"] == 0) & (own["value"] < BAR)]
        if len(low):
            listed = ", ".join(f"{row.task} {row.value:.0%}" for row in low.itertuples())
            folder.notice(
                f"{plan.shown} answers few examples rightly with every head in place ({listed}), so masking has little "
                "to take away there; give examples it can do, shots (task_options: {shots: 3}) or another accuracy"
            )
        for label, test in plan.test.items():
            if len(test) < plan.settings.n:
                folder.notice(
                    f"{label} has {len(test) + len(plan.find[label])} examples, so {len(test)} are written on from "
                    f"instead of {plan.settings.n}"
                )
            for one in plan.sets(label):
                if one.moved:
                    folder.notice(
                        f"{label}, {plan.shown}: {one.moved} of {one.k * len(one.draws)} heads of the layer-matched "
                        f"draws at K = {one.k} come from neighbouring layers, because theirs had too few free heads"
                    )
