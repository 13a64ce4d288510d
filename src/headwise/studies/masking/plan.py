"""What the study `masking` is to do with one model: its halves of examples, its orders, its points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.heads import Order, Scores, heads_of, ranked
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.progress import progress
from headwise.runs import Cell
from headwise.scores.probe.probe import check_labels, probe
from headwise.scores.registry import versions
from headwise.studies.abilities import abilities_of, together
from headwise.studies.masking.sets import MaskSet, checked_ks, mask_sets, middle_k
from headwise.studies.masking.settings import MaskingSettings
from headwise.studies.masking.texts import Judge, accuracy_metric, prompts
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

ABILITIES = ("Retrieval", "Knowledge Recall", "Math Calculation", "Inference")
"""What is asked about unless said otherwise, in the order of the figure."""
EVERY = "all"
QUICK_KS = 2
"""With `quick`, how many K: the second and third of the grid."""


class Plan:
    """One model's part of the study; filled by `read` once the first cells are there."""

    def __init__(self, settings: MaskingSettings, bench: Workbench, given: str) -> None:
        self.settings, self.bench, self.given = settings, bench, given
        self.model: Model = bench.model(given)
        self.shown = bench.shown(settings.models)[given]
        self.ks = checked_ks(settings.k, len(self.model.heads()), self.shown)
        if settings.quick and not settings.k:
            self.ks = self.ks[1 : 1 + QUICK_KS] or self.ks
        others = (settings.cross_k, settings.intervene_k, *(settings.layer_matched or ()))
        checked_ks([*self.ks, *(k for k in others if k is not None)], len(self.model.heads()), self.shown)
        tasks = _chosen(settings, bench, self.model)
        self.find: dict[str, Task] = {}
        self.test: dict[str, Task] = {}
        for label, task in tasks.items():
            self.find[label], self.test[label] = task.halves()
        self.judges = {
            label: Judge(accuracy_metric(settings.accuracy, task), settings.similarity, settings.answer)
            for label, task in self.test.items()
        }
        if settings.method == "probe":
            check_labels([label for label, task in self.find.items() for _ in task], "abilities")
        self._probed: dict[str, Scores] | None = None
        self.orders: dict[str, Order] = {}
        self.full: dict[str, list[str]] = {}

    @property
    def middle_k(self) -> int:
        return self.ks[-1] if self.settings.quick and not self.settings.k else middle_k(self.ks)

    @property
    def layer_matched(self) -> tuple[int, ...]:
        given = self.settings.layer_matched
        return (self.middle_k,) if given is None else tuple(sorted(set(given)))

    def writing(self) -> dict[str, Any]:
        """What decides a text, beside the model, the prompts and the gates."""
        names = ("new_tokens", "positions", "chat")
        dtype = str(self.model.dtype).removeprefix("torch.")
        return {**{name: getattr(self.settings, name) for name in names}, "dtype": dtype}

    def judging(self, label: str) -> dict[str, Any]:
        """What decides a number, beside the texts."""
        judge = self.judges[label]
        return {
            "accuracy": judge.accuracy,
            "similarity": judge.similarity,
            "answer": judge.answer,
            "seed": self.settings.seed,
        }

    def prints(self, label: str) -> dict[str, str]:
        return {"model": self.model.fingerprint, "task": self.test[label].fingerprint}

    def about(self, label: str, series: str, k: int) -> dict[str, object]:
        return {"model": self.shown, "task": label, "series": series, "action": "mask", "k": k}

    def write(self, label: str, part: str, **options: Any) -> list[list[str]]:
        """What each variant writes on from the ability's prompts."""
        task = self.test[label]
        variants = max((len(value) for value in options.values() if isinstance(value, np.ndarray)), default=1)
        with progress(f"{part} on {label}", variants * len(task), show=self.bench.progress) as advance:
            return generate(
                self.model,
                prompts(task),
                max_new_tokens=self.settings.new_tokens,
                chat=self.settings.chat,
                batch_tokens=self.settings.batch_tokens,
                advance=advance,
                **{"positions": self.settings.positions, **options},
            ).texts

    def first_cells(self) -> list[Cell]:
        """The order of each ability, and what the full model writes."""
        settings, cells = self.settings, []
        for label, task in self.find.items():
            about = {
                "seed": settings.seed,
                "metric": settings.metric,
                "options": settings.method_options,
                "dtype": self.writing()["dtype"],
            }
            # A probe tells abilities apart, so its map of one depends on the examples of all.
            whose = together(self.find) if settings.method == "probe" else task
            prints = {"model": self.model.fingerprint, "task": whose.fingerprint}
            prints |= versions(settings.method, whose)
            cells.append(Cell("masking", self.given, label, f"order by {settings.method}", about, prints))
            whole = self.writing() | self.judging(label)
            cells.append(Cell("masking", self.given, label, "full", whole, self.prints(label)))
        return cells

    def probe(self) -> dict[str, Scores]:
        """The probe's map of each ability; it reads all of them at once, so it runs once."""
        if self._probed is None:
            options = self.settings.method_options
            every = together(self.find)
            with progress("probe of all abilities", len(every), show=self.bench.progress) as advance:
                self._probed = probe(self.model, every, seed=self.settings.seed, advance=advance, **options)
        return self._probed

    def read(self, scores: pd.DataFrame, texts: pd.DataFrame) -> None:
        """Take over what the first cells found."""
        for label in self.test:
            own = scores[(scores["model"] == self.shown) & (scores["task"] == label)]
            self.orders[label] = ordered(own, self.settings.order_by)
            written = texts[(texts["model"] == self.shown) & (texts["task"] == label) & (texts["k"] == 0)]
            self.full[label] = written.sort_values("example")["text"].tolist()

    def sets(self, label: str) -> list[MaskSet]:
        settings = self.settings
        return mask_sets(
            self.orders[label], self.ks, self.layer_matched, settings.draws, f"{settings.seed}/{label}"
        )

    def mask_cells(self) -> list[Cell]:
        """A cell for each ability, series and K; all its draws are written in one batch."""
        cells = []
        for label in self.test:
            for one in self.sets(label):
                about = self.writing() | self.judging(label) | {"scale": self.settings.scale}
                about |= {"heads": [[str(head) for head in draw.heads] for draw in one.draws]}
                cells.append(Cell("masking", self.given, label, one.name, about, self.prints(label)))
        return cells


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


def ordered(scores: pd.DataFrame, by: str | None) -> Order:
    """Every head of one map's rows, most important first; equal scores keep the order of layer and head."""
    by = by or ("signed" if bool(scores["signed"].iloc[0]) else "absolute")
    rows = scores.sort_values(["layer", "head"])
    return ranked(heads_of(rows), rows["score"].to_numpy(), by)
