"""The study `masking`: does the model fail when its important heads are ablated, and not when random heads are?

Half of each ability's examples give an order of heads; text is generated from the other half, with the first K heads
of the order masked, with as many random ones, and with as many random ones of the same layers. Tables beside the
common ones: `texts` (everything that was written), `samples` (prompt, gold answer and texts side by side),
`orders` (which heads were masked), `cross` (mask one ability's heads, measure another), `interventions` (accuracy
before and after heads are amplified or shifted).

Here are the cells of orders, full models and masked models; `later_stages.py` has those that build on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from headwise.charts.section import Tables
from headwise.errors import hint
from headwise.heads import Scores
from headwise.metrics import text_metric
from headwise.runs import Cell, CellResult
from headwise.scores.registry import method, versions
from headwise.studies.abilities import examples_behind, label_maps
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.masking import later_stages as later
from headwise.studies.masking.cases import Case, all_cases, case_of, cases, full_texts, order_of, write
from headwise.studies.masking.charts import section
from headwise.studies.masking.sets import MaskSet, mask_sets
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import point_tables
from headwise.studies.tables import input_table, score_result
from headwise.tasks import Task

BAR = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


def stages(context: Context[MaskingSettings]) -> Iterator[Sequence[Cell]]:
    for case in list(all_cases(context)):
        text_metric(case.judge.accuracy).ready()
    yield list(_first_cells(context))
    yield list(_mask_cells(context))
    if context.settings.cross:
        yield list(later.cross_cells(context))
    if context.settings.intervene:
        yield list(later.intervention_cells(context))
    yield list(later.sample_cells(context))
    if context.settings.cards:
        yield list(later.card_cells(context))


def stage_names(settings: MaskingSettings) -> list[str]:
    chosen = {"ablation across abilities": settings.cross, "interventions": settings.intervene}
    last = ["sample texts", "cards"] if settings.cards else ["sample texts"]
    return ["orders and texts of the full model", "masks", *filter(chosen.get, chosen), *last]


# ---- orders, and what the full model writes --------------------------------------------------------


def _first_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    s = context.settings
    for case in all_cases(context):
        about = {"seed": s.seed, "metric": s.metric, "options": s.method_options}
        about |= {"dtype": case.about["dtype"]}
        examples = examples_behind(s.method, _find(context, case.name), case.label)
        prints = {"model": case.model.fingerprint, "task": examples.fingerprint}
        prints |= versions(s.method, examples)
        yield context.cell("order", case.name, case.label, f"order by {s.method}", about, prints)
        yield context.cell("full", case.name, case.label, "full", case.about, case.prints)


def _find(context: Context[MaskingSettings], name: str) -> dict[str, Task]:
    return {label: case.find for label, case in context.once(cases, name).items()}


def find_order(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """The scores of one ability."""
    s, case = context.settings, case_of(context, cell)
    if method(s.method).per_label:
        scores = context.once(_label_maps, cell.model)[cell.task]
    else:
        how = {"metric": s.metric, "reference": "zero", "batch_tokens": s.batch_tokens, **s.method_options}
        scores = context.scores(cell.part, case.model, case.find, s.method, **how)
    about = {"model": case.display_name, "task": cell.task}
    scores = replace(scores, model=case.display_name, task=cell.task)
    return score_result(scores, s.seed, inputs=input_table(case.find, about, "scores"))


def _label_maps(context: Context[MaskingSettings], name: str) -> dict[str, Scores]:
    s = context.settings
    return label_maps(context, context.model(name), _find(context, name), s.method, **s.method_options)


def write_full(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """What the full model writes."""
    case = case_of(context, cell)
    texts = write(context, case, "full model")
    columns = case.columns("full", 0)
    tables = point_tables(texts, texts[0], case.test, case.judge, columns)
    about = {"model": case.display_name, "task": case.label}
    return CellResult({**tables, "inputs": input_table(case.test, about, "curves")})


# ---- masked models ---------------------------------------------------------------------------------


def _sets(context: Context[MaskingSettings], case: Case) -> list[MaskSet]:
    """Every point of one ability's curves."""
    s = context.settings
    matched = (case.middle_k,) if s.layer_matched is None else tuple(sorted(set(s.layer_matched)))
    order = context.once(order_of, case.name, case.label)
    return mask_sets(order, case.ks, matched, s.draws, f"{s.seed}/{case.label}")


def _mask_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """A cell for each ability, series and K; all its draws are written in one batch."""
    for case in all_cases(context):
        context.once(full_texts, case.name, case.label)  # which the texts of masked models are compared with
        for point in _sets(context, case):
            heads = [[str(head) for head in draw.heads] for draw in point.draws]
            about = case.about | {"scale": context.settings.scale, "heads": heads}
            yield context.cell("mask", case.name, case.label, point.name, about, case.prints)


def mask(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """What the model writes at one point of a curve."""
    s, case = context.settings, case_of(context, cell)
    point = next(point for point in _sets(context, case) if point.name == cell.part)
    texts = write(context, case, cell.part, gates=point.gates(case.model.shape, s.scale))
    columns = case.columns(point.series, point.k)
    full = context.once(full_texts, cell.model, cell.task)
    tables = point_tables(texts, full, case.test, case.judge, columns)
    orders = [
        {"draw": draw, "place": place, "layer": head.layer, "head": head.head, "moved": drawn.moved}
        for draw, drawn in enumerate(point.draws)
        for place, head in enumerate(drawn.heads)
    ]
    tables["orders"] = pd.DataFrame([columns | row for row in orders])
    return CellResult(tables, {"moved": point.moved})


def notices(context: Context[MaskingSettings], tables: Tables) -> Iterator[str]:
    """What the reader of the curves must know: a low start, and controls that are not quite what they should be."""
    curves, n = tables["curves"], context.settings.n
    for name in context.settings.models:
        display_name = context.display_name(name)
        accuracy = curves[(curves["model"] == display_name) & (curves["metric"] == "accuracy")]
        low = accuracy[(accuracy["k"] == 0) & (accuracy["value"] < BAR)]
        if len(low):
            listed = ", ".join(f"{row.task} {row.value:.0%}" for row in low.itertuples())
            yield (
                f"{display_name} answers few examples correctly with all heads ({listed}), so masking has little to "
                f"remove there; give easier examples, shots ({hint('shots', 3)}) or another accuracy metric"
            )
        for label, case in context.once(cases, name).items():
            if len(case.test) < n:
                yield (
                    f"{label} has {len(case.test) + len(case.find)} examples, so text is generated from "
                    f"{len(case.test)} of them instead of {n}"
                )
            for point in _sets(context, case):
                if point.moved:
                    yield (
                        f"{label}, {display_name}: {point.moved} of {point.k * len(point.draws)} heads of the "
                        f"layer-matched draws at K = {point.k} come from neighbouring layers, because their own "
                        "layers have too few other heads"
                    )


register(
    Study(
        name="masking",
        question="Does the model fail when its important heads are ablated, and not when random heads are?",
        settings=MaskingSettings,
        stages=stages,
        stage_names=stage_names,
        compute={
            "order": find_order,
            "full": write_full,
            "mask": mask,
            "cross": later.cross,
            "intervene": later.strengthen,
            "samples": later.side_by_side,
            "card": later.cards,
        },
        section=section,
        notices=notices,
    )
)
