"""The cells of `masking` that build on orders and texts: the cross table, interventions, texts side by side, cards.

In the cross table the heads of one ability are masked, and every ability is measured. An ability's own heads should
hurt it more than another ability's do; where every column falls alike, the heads serve the writing of text rather than
the ability.

S strengths, R sets of heads, E examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order
from headwise.heads.controls import random_heads
from headwise.model.generation.generate import generate
from headwise.runs import Cell, CellResult
from headwise.studies.context import Context
from headwise.studies.head_cards import card_cell, make_cards, strongest
from headwise.studies.masking.cases import Case, all_cases, case_of, cases, full_texts, order_of, write
from headwise.studies.masking.intervene import STRENGTHS, intervention_rows, variants
from headwise.studies.masking.sets import scaled_gates
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import ACCURACY, gold_text, point_tables
from headwise.studies.tables import fingerprint

# ---- the cross table -------------------------------------------------------------------------------


def cross_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """A cell for each ability that is measured, with all abilities' heads in one batch."""
    for case in all_cases(context):
        tops = {label: [str(head) for head in top] for label, top in _tops(context, case).items()}
        about = case.about | {"scale": context.settings.scale, "heads": tops}
        part = f"cross k={_cross_k(context, case)}"
        yield context.cell("cross", case.name, case.label, part, about, case.prints)


def _cross_k(context: Context[MaskingSettings], case: Case) -> int:
    return context.settings.cross_k or case.middle_k


def _tops(context: Context[MaskingSettings], case: Case) -> dict[str, Order]:
    """The first heads of every ability."""
    labels, k = context.once(cases, case.name), _cross_k(context, case)
    return {label: context.once(order_of, case.name, label)[:k] for label in labels}


def cross(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    s, case = context.settings, case_of(context, cell)
    k, tops = _cross_k(context, case), _tops(context, case)
    masks = [scaled_gates(top, case.model.shape, s.scale) for top in tops.values()]
    texts = write(context, case, cell.part, gates=np.stack(masks))
    full = context.once(full_texts, cell.model, cell.task)
    before = case.judge.values(full, full, case.test)
    how: dict[str, Any] = {"groups": case.test.shared_groups()}
    rows, written = [], []
    for label, variant in zip(tops, texts, strict=True):
        columns = {**case.columns(f"heads of {label}", k), "heads_of": label}
        written.append(point_tables([variant], full, case.test, case.judge, columns)["texts"])
        for metric, values in case.judge.values(variant, full, case.test).items():
            lo, hi = stats.metric_interval(values[:, None], **how)
            less, more = stats.difference_interval(values[:, None], before[metric][:, None], **how)
            change = values.mean() - before[metric].mean()
            row = {
                "model": case.display_name,
                "heads_of": label,
                "task": case.label,
                "k": k,
                "metric": metric,
            }
            row |= {"value": values.mean(), "lo": lo[0], "hi": hi[0], "full": before[metric].mean()}
            row |= {"change": change, "change_lo": less[0], "change_hi": more[0], "n": len(values)}
            rows.append(row)
    return CellResult({"cross": pd.DataFrame(rows), "cross_texts": pd.concat(written, ignore_index=True)})


# ---- interventions ---------------------------------------------------------------------------------


def intervention_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """A cell for each ability and kind: the order's first heads, and random draws as a control, in one batch."""
    for case in all_cases(context):
        for kind in context.settings.intervene:
            heads = [[str(head) for head in chosen] for chosen in _strengthened(context, case)]
            about = case.about | {"heads": heads, "strengths": list(_strengths(context.settings, kind))}
            prints = case.prints | {"find": case.find.fingerprint}
            yield context.cell("intervene", case.name, case.label, kind, about, prints)


def _strengths(settings: MaskingSettings, kind: str) -> tuple[float, ...]:
    return tuple(settings.strengths.get(kind, STRENGTHS[kind]))


def _strengthened(context: Context[MaskingSettings], case: Case) -> list[list[Head]]:
    s, order = context.settings, context.once(order_of, case.name, case.label)
    first = order[: s.intervene_k or case.ks[0]]
    seeds = [f"intervene/{s.seed}/{case.label}/{draw}" for draw in range(s.draws)]
    return [list(first), *(random_heads(order, first, seed).heads for seed in seeds)]


def strengthen(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """Accuracy before and after, of the order's first heads and of random ones."""
    s, case, kind = context.settings, case_of(context, cell), cell.part
    sets, strengths = _strengthened(context, case), _strengths(s, kind)

    def answer(texts: list[str]) -> list[str]:
        return generate(
            case.model, texts, max_new_tokens=s.max_new_tokens, chat=s.chat, progress=False
        ).texts[0]

    options = variants(case.model, case.find, sets, kind, strengths, case.judge, answer)
    after = write(context, case, kind, **options)
    full = context.once(full_texts, cell.model, cell.task)
    values = np.stack([case.judge.right(texts, case.test, full) for texts in after])
    values = values.reshape(len(strengths), len(sets), len(case.test))  # S, R, E
    before, groups = case.judge.right(full, case.test, full), case.test.shared_groups()
    tables = []
    for series, part in (("top", values[:, :1]), ("random", values[:, 1:])):
        rows = intervention_rows(kind, strengths, before, part, groups)
        about = {"model": case.display_name, "task": cell.task, "series": series, "k": len(sets[0])}
        tables.append(pd.DataFrame(about, index=rows.index).join(rows).assign(metric=ACCURACY))
    return CellResult({"interventions": pd.concat(tables, ignore_index=True)})


# ---- texts side by side ----------------------------------------------------------------------------


def sample_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """The table `samples`, put together from the texts of one K and the first random draw."""
    for case in all_cases(context):
        texts = context.once(_texts, case.name, case.label)
        prints = {"task": case.test.fingerprint, "texts": fingerprint(texts.to_csv(index=False))}
        yield context.cell("samples", case.name, case.label, "samples", {"k": case.middle_k}, prints)


def _texts(context: Context[MaskingSettings], name: str, label: str) -> pd.DataFrame:
    """The full model's texts, and at the middle K those of the order and of the first draw."""
    texts = context.table("texts", model=name, task=label)
    chosen = texts["k"].isin((0, context.once(cases, name)[label].middle_k)) & (texts["draw"] == 0)
    return texts[chosen & texts["series"].isin(("full", "top", "random"))]


def side_by_side(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """For people who want to read: prompt, gold answer, and what three models wrote."""
    case, texts = case_of(context, cell), context.once(_texts, cell.model, cell.task)
    written = texts.pivot(index="example", columns="series", values="text").sort_index()
    columns = {
        "model": case.display_name,
        "task": cell.task,
        "example": range(len(case.test)),
        "prompt": [example.prompt for example in case.test],
        "gold": [gold_text(example) for example in case.test],
        "full": written["full"].to_numpy(),
        "top_masked": written["top"].to_numpy(),
        "random_masked": written["random"].to_numpy(),
        "k": case.middle_k,
    }
    return CellResult({"samples": pd.DataFrame(columns)})


# ---- cards -----------------------------------------------------------------------------------------


def card_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """Cards of the heads with the largest scores of each ability."""
    for case in all_cases(context):
        scores = context.table("scores", model=case.name, task=case.label, kind="order")
        heads = strongest(scores, context.settings.cards)
        if cell := card_cell(context, case.name, case.label, case.find, heads, {"reference": "zero"}):
            yield cell


def cards(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    return make_cards(context, cell, case_of(context, cell).find, reference=cell.settings["reference"])
