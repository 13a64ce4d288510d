"""What the cells of the study `masking` share: one model on one ability, its order of heads and its texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.heads import Order, heads_of, ranked
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.runs import Cell
from headwise.studies.abilities import abilities_of, check_labels_of
from headwise.studies.context import Context
from headwise.studies.masking.sets import checked_ks, middle_k
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import Judge, accuracy_metric, prompts
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

ABILITIES = ("Retrieval", "Knowledge Recall", "Math Calculation", "Inference")
"""The default abilities, in the order of the figure."""
EVERY = "all"
QUICK_KS = 2
"""With `quick`, how many K: the second and third of the grid."""


@dataclass(frozen=True)
class Case:
    """One model on one ability."""

    model: Model
    name: str
    """What the settings call the model."""
    display_name: str
    """What the tables call it."""
    label: str
    """The ability."""
    find: Task
    """The examples that give the order."""
    test: Task
    """The examples from which text is generated."""
    judge: Judge
    ks: tuple[int, ...]
    middle_k: int
    """The K of everything that is measured at one K only."""
    about: dict[str, Any]
    """The settings that decide a text and its numbers, beside the model, the prompts and the gates."""

    @property
    def prints(self) -> dict[str, str]:
        return {"model": self.model.fingerprint, "task": self.test.fingerprint}

    def columns(self, series: str, k: int) -> dict[str, object]:
        return {"model": self.display_name, "task": self.label, "series": series, "action": "mask", "k": k}


def cases(context: Context[MaskingSettings], name: str) -> dict[str, Case]:
    """One model's abilities, by label."""
    s, model, display_name = context.settings, context.model(name), context.display_name(name)
    ks = checked_ks(s.k, len(model.heads()), display_name)
    few = s.quick and not s.k
    if few:
        ks = ks[1 : 1 + QUICK_KS] or ks
    middle = ks[-1] if few else middle_k(ks)
    others = (s.cross_k, s.intervene_k, *(s.layer_matched or ()))
    checked_ks([*ks, *(k for k in others if k is not None)], len(model.heads()), display_name)
    by_label = {}
    for label, task in _chosen(s, context.bench, model).items():
        find, test = task.halves()
        judge = Judge(accuracy_metric(s.accuracy, test), s.similarity, s.answer)
        about = {
            "reference": "zero",
            "new_tokens": s.max_new_tokens,
            "positions": s.positions,
            "chat": s.chat,
        }
        about |= {"dtype": context.dtype(name), "seed": s.seed, **vars(judge)}
        by_label[label] = Case(model, name, display_name, label, find, test, judge, ks, middle, about)
    check_labels_of((s.method,), {label: case.find for label, case in by_label.items()}, "abilities")
    return by_label


def _chosen(settings: MaskingSettings, bench: Workbench, model: Model) -> dict[str, Task]:
    """The abilities asked for, with twice the examples: one half finds, the other tests."""
    asked = () if EVERY in settings.abilities else settings.abilities
    tasks = abilities_of(settings.replaced(n=2 * settings.n, abilities=asked), bench, model)
    if not settings.abilities and set(ABILITIES) <= set(tasks):
        asked = ABILITIES
    # The order in which they were asked for is the order of the panels.
    return {label: tasks[label] for label in asked or tasks}


def all_cases(context: Context[MaskingSettings]) -> Iterator[Case]:
    for name in context.settings.models:
        yield from context.once(cases, name).values()


def case_of(context: Context[MaskingSettings], cell: Cell) -> Case:
    return context.once(cases, cell.model)[cell.task]


def write(context: Context[MaskingSettings], case: Case, part: str, **options: Any) -> list[list[str]]:
    """What each variant writes on from the ability's prompts."""
    s = context.settings
    variants = max((len(value) for value in options.values() if isinstance(value, np.ndarray)), default=1)
    with context.progress(f"{part} on {case.label}", variants * len(case.test)) as advance:
        return generate(
            case.model,
            prompts(case.test),
            max_new_tokens=s.max_new_tokens,
            chat=s.chat,
            batch_tokens=s.batch_tokens,
            progress=advance,
            **{"positions": s.positions, **options},
        ).texts


def order_of(context: Context[MaskingSettings], name: str, label: str) -> Order:
    """All heads of a model, the ability's most important ones first; equal scores keep the order of layer and head."""
    rows = context.table("scores", kind="order", model=name, task=label).sort_values(["layer", "head"])
    by = context.settings.order or ("signed" if bool(rows["signed"].iloc[0]) else "absolute")
    return ranked(heads_of(rows), rows["score"].to_numpy(), by)


def full_texts(context: Context[MaskingSettings], name: str, label: str) -> list[str]:
    """Text that the full model has generated from the ability's prompts."""
    rows = context.table("texts", kind="full", model=name, task=label)
    texts: list[str] = rows.sort_values("example")["text"].tolist()
    return texts
