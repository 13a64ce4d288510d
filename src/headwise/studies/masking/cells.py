"""The cells of the study `masking`: an order and the full model's texts for each ability, then texts of masked models.

`cross.py`, `intervene.py` and `samples.py` have the cells of the stages that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import Order, Scores, heads_of, ranked
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.runs import Cell, CellResult
from headwise.scores import method, score
from headwise.scores.registry import versions
from headwise.studies.abilities import abilities_of, check_labels_of, examples_behind, label_maps
from headwise.studies.context import Context
from headwise.studies.masking.sets import MaskSet, checked_ks, mask_sets, middle_k
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import Judge, accuracy_metric, point_tables, prompts
from headwise.studies.score.tables import example_table
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

ABILITIES = ("Retrieval", "Knowledge Recall", "Math Calculation", "Inference")
"""What is asked about unless said otherwise, in the order of the figure."""
EVERY = "all"
QUICK_KS = 2
"""With `quick`, how many K: the second and third of the grid."""


@dataclass(frozen=True)
class Place:
    """One model on one ability."""

    model: Model
    given: str
    """What the settings call the model."""
    display_name: str
    """What the tables call it."""
    label: str
    """The ability."""
    find: Task
    """The examples that give the order."""
    test: Task
    """The examples that are written on from."""
    judge: Judge
    ks: tuple[int, ...]
    middle_k: int
    """The K of everything that is asked at one K only."""
    writing: dict[str, Any]
    """What decides a text, beside the model, the prompts and the gates."""
    judging: dict[str, Any]
    """What decides a number, beside the texts."""

    @property
    def prints(self) -> dict[str, str]:
        return {"model": self.model.fingerprint, "task": self.test.fingerprint}

    def about(self, series: str, k: int) -> dict[str, object]:
        return {"model": self.display_name, "task": self.label, "series": series, "action": "mask", "k": k}


def places(context: Context[MaskingSettings], given: str) -> dict[str, Place]:
    """One model's abilities, by label."""
    s, model, display_name = context.settings, context.model(given), context.display_name(given)
    ks = checked_ks(s.k, len(model.heads()), display_name)
    few = s.quick and not s.k
    if few:
        ks = ks[1 : 1 + QUICK_KS] or ks
    others = (s.cross_k, s.intervene_k, *(s.layer_matched or ()))
    checked_ks([*ks, *(k for k in others if k is not None)], len(model.heads()), display_name)
    writing: dict[str, Any] = {"new_tokens": s.new_tokens, "positions": s.positions, "chat": s.chat}
    writing["dtype"] = str(model.dtype).removeprefix("torch.")
    found = {}
    for label, task in _chosen(s, context.bench, model).items():
        find, test = task.halves()
        judge = Judge(accuracy_metric(s.accuracy, test), s.similarity, s.answer)
        judging: dict[str, Any] = {
            "accuracy": judge.accuracy,
            "similarity": judge.similarity,
            "answer": judge.answer,
        }
        judging |= {"seed": s.seed}
        middle = ks[-1] if few else middle_k(ks)
        found[label] = Place(
            model, given, display_name, label, find, test, judge, ks, middle, writing, judging
        )
    check_labels_of((s.method,), {label: here.find for label, here in found.items()}, "abilities")
    return found


def _chosen(settings: MaskingSettings, bench: Workbench, model: Model) -> dict[str, Task]:
    """The abilities asked for, with twice the examples: one half finds, the other tests."""
    wanted = settings.abilities
    if wanted and EVERY not in wanted:
        # The order in which they were asked for is the order of the panels.
        found = abilities_of(settings.replaced(n=2 * settings.n), bench, model)
        return {label: found[label] for label in wanted}
    found = abilities_of(settings.replaced(n=2 * settings.n, abilities=()), bench, model)
    if not wanted and set(ABILITIES) <= set(found):
        return {label: found[label] for label in ABILITIES}
    return found


def all_places(context: Context[MaskingSettings]) -> Iterator[Place]:
    for given in context.settings.models:
        yield from context.once(places, given).values()


def place(context: Context[MaskingSettings], cell: Cell) -> Place:
    return context.once(places, cell.model)[cell.task]


def write(context: Context[MaskingSettings], here: Place, part: str, **options: Any) -> list[list[str]]:
    """What each variant writes on from the ability's prompts."""
    s = context.settings
    variants = max((len(value) for value in options.values() if isinstance(value, np.ndarray)), default=1)
    with context.progress(f"{part} on {here.label}", variants * len(here.test)) as advance:
        return generate(
            here.model,
            prompts(here.test),
            max_new_tokens=s.new_tokens,
            chat=s.chat,
            batch_tokens=s.batch_tokens,
            advance=advance,
            **{"positions": s.positions, **options},
        ).texts


# ---- orders, and what the full model writes --------------------------------------------------------


def first_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    s = context.settings
    for here in all_places(context):
        about = {"seed": s.seed, "metric": s.metric, "options": s.method_options}
        about |= {"dtype": here.writing["dtype"]}
        examples = examples_behind(s.method, _find(context, here.given), here.label)
        prints = {"model": here.model.fingerprint, "task": examples.fingerprint}
        prints |= versions(s.method, examples)
        yield context.cell("order", here.given, here.label, f"order by {s.method}", about, prints)
        yield context.cell("full", here.given, here.label, "full", here.writing | here.judging, here.prints)


def _find(context: Context[MaskingSettings], given: str) -> dict[str, Task]:
    return {label: here.find for label, here in context.once(places, given).items()}


def find_order(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """The scores of one ability."""
    s, here = context.settings, place(context, cell)
    if method(s.method).per_label:
        found = context.once(_label_maps, cell.model)[cell.task]
    else:
        with context.progress(cell.part, method(s.method).steps(here.model, here.find)) as advance:
            found = score(
                here.model,
                here.find,
                s.method,
                metric=s.metric,
                positions="all",
                seed=s.seed,
                batch_tokens=s.batch_tokens,
                advance=advance,
                **s.method_options,
            )
    found = replace(found, model=here.display_name, task=cell.task)
    tables = {"scores": found.table(s.seed), "examples": example_table(found)}
    return CellResult(tables, dict(found.details))


def _label_maps(context: Context[MaskingSettings], given: str) -> dict[str, Scores]:
    s = context.settings
    return label_maps(context, context.model(given), _find(context, given), s.method, **s.method_options)


def write_full(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """What the full model writes."""
    here = place(context, cell)
    texts = write(context, here, "full model")
    about = here.about("full", 0)
    return CellResult(point_tables(texts, texts[0], here.test, here.judge, about, context.settings.seed))


# ---- what they found -------------------------------------------------------------------------------


def order_of(context: Context[MaskingSettings], given: str, label: str) -> Order:
    """All heads of a model, the ability's most important ones first."""
    rows = context.table("scores", kind="order", model=given, task=label)
    return ordered(rows, context.settings.order_by)


def full_texts(context: Context[MaskingSettings], given: str, label: str) -> list[str]:
    """What the full model has written on from the ability's prompts."""
    rows = context.table("texts", kind="full", model=given, task=label)
    found: list[str] = rows.sort_values("example")["text"].tolist()
    return found


def ordered(scores: pd.DataFrame, by: str | None) -> Order:
    """Every head of one map's rows, most important first; equal scores keep the order of layer and head."""
    by = by or ("signed" if bool(scores["signed"].iloc[0]) else "absolute")
    rows = scores.sort_values(["layer", "head"])
    return ranked(heads_of(rows), rows["score"].to_numpy(), by)


# ---- masked models ---------------------------------------------------------------------------------


def sets_of(context: Context[MaskingSettings], here: Place) -> list[MaskSet]:
    """Every point of one ability's curves."""
    s = context.settings
    matched = (here.middle_k,) if s.layer_matched is None else tuple(sorted(set(s.layer_matched)))
    order = context.once(order_of, here.given, here.label)
    return mask_sets(order, here.ks, matched, s.draws, f"{s.seed}/{here.label}")


def mask_cells(context: Context[MaskingSettings]) -> Iterator[Cell]:
    """A cell for each ability, series and K; all its draws are written in one batch."""
    for here in all_places(context):
        context.once(full_texts, here.given, here.label)  # which the texts of masked models are compared with
        for one in sets_of(context, here):
            about = here.writing | here.judging | {"scale": context.settings.scale}
            about |= {"heads": [[str(head) for head in draw.heads] for draw in one.draws]}
            yield context.cell("mask", here.given, here.label, one.name, about, here.prints)


def mask(context: Context[MaskingSettings], cell: Cell) -> CellResult:
    """What the model writes at one point of a curve."""
    s, here = context.settings, place(context, cell)
    one = next(one for one in sets_of(context, here) if one.name == cell.part)
    texts = write(context, here, cell.part, gates=one.gates(here.model.shape, s.scale))
    about = here.about(one.series, one.k)
    full = context.once(full_texts, cell.model, cell.task)
    tables = point_tables(texts, full, here.test, here.judge, about, s.seed)
    tables["orders"] = pd.DataFrame(
        [
            {
                **about,
                "draw": draw,
                "place": number,
                "layer": head.layer,
                "head": head.head,
                "moved": drawn.moved,
            }
            for draw, drawn in enumerate(one.draws)
            for number, head in enumerate(drawn.heads)
        ]
    )
    return CellResult(tables, {"moved": one.moved})
