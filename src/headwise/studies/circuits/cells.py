"""The pieces of the study `circuits`: an order per model, task and method, a curve per order, a comparison per pair."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Order, Scores
from headwise.model.attention.attention import attention
from headwise.progress import progress
from headwise.runs import Cell, CellResult
from headwise.scores import method, score
from headwise.scores.registry import versions
from headwise.studies.circuits.settings import ROLES, CircuitsSettings
from headwise.studies.circuits.tables import (
    attention_rows,
    curve_fingerprint,
    order_fingerprint,
    ratio_row,
    scores_of,
)
from headwise.studies.score.study import example_table
from headwise.studies.workbench import Workbench
from headwise.sweeps.curve import renamed
from headwise.sweeps.sweep import CONTROL_POINTS, default_reference, most_rows, ranking, sweep
from headwise.tasks import Task

QUICK_CONTROL_POINTS = 5
"""Numbers of heads at which controls are measured with `quick`."""


class Work:
    """What the cells of the study are, and how each is computed."""

    def __init__(self, settings: CircuitsSettings, bench: Workbench) -> None:
        self.settings, self.bench = settings, bench
        self._control_points = QUICK_CONTROL_POINTS if settings.quick else CONTROL_POINTS
        self.shown = bench.shown(settings.models)
        for name in settings.models:
            total = len(bench.model(name).heads())
            if max(settings.k, default=0) > total or min(settings.k, default=0) < 0:
                raise HeadwiseError(
                    f"k is {', '.join(map(str, settings.k))}; {name} has {total} heads, so k runs from 0 to {total}"
                )
        whole = {(model, task): self._task(model, task) for model, task in settings.curves()}
        self.tasks = {place: task.halves() for place, task in whole.items()}
        self.numbers = {place: tuple(map(np.array, task.sides())) for place, task in whole.items()}
        """Of the examples in both halves."""

    def _task(self, model: str, task: str) -> Task:
        s = self.settings
        return self.bench.task(task, self.bench.model(model), s.n, s.seed, s.task_options)

    def _reference(self, model: str, task: str) -> str:
        found, tested = self.tasks[model, task]
        references = {self.settings.reference or default_reference(half) for half in (found, tested)}
        return references.pop() if len(references) == 1 else "mean"

    def _about(self, model: str, task: str) -> dict[str, Any]:
        return {
            "n": self.settings.n,
            "seed": self.settings.seed,
            "metric": self.settings.metric or self.tasks[model, task][0].metric,
            "reference": self._reference(model, task),
            "dtype": str(self.bench.model(model).dtype).removeprefix("torch."),
        }

    def cost(self) -> str:
        """How much is to be done, in the unit that time is made of."""
        s = self.settings
        rows = tokens = 0
        for (model, _), (found, tested) in self.tasks.items():
            lengths = [len(self.bench.model(model).tokens(example.prompt)) for example in found]
            points = len(s.k) or s.points
            per_curve = most_rows(points, len(s.controls), s.draws, self._control_points)
            per_curve *= len(s.orders) * len(s.by)
            rows += per_curve * len(tested)
            tokens += int(per_curve * len(tested) * np.mean(lengths))
        return (
            f"circuits: heads are ranked by {', '.join(s.orders)} on {s.n - s.n // 2} examples of each task and model; "
            f"the curves are then up to {rows:,} forward rows, about {tokens:,} tokens"
        )

    # ---- orders ----------------------------------------------------------------------------------------

    def order_cells(self) -> list[Cell]:
        cells = []
        for (model, task), (found, _) in self.tasks.items():
            prints = {"model": self.bench.model(model).fingerprint, "task": found.fingerprint}
            for name in self.settings.orders:
                about = self._about(model, task) | {"options": self._options(name)}
                cells.append(Cell("circuits", model, task, name, about, prints | versions(name, found)))
        return cells

    def _options(self, name: str) -> dict[str, Any]:
        known = method(name).options
        return {option: value for option, value in self.settings.method_options.items() if option in known}

    def rank(self, cell: Cell) -> CellResult:
        """Scores of all heads on the first half of the examples."""
        model, (found, _) = self.bench.model(cell.model), self.tasks[cell.model, cell.task]
        with progress(cell.label, method(cell.part).steps(model, found), show=self.bench.progress) as advance:
            scores = score(
                model,
                found,
                cell.part,
                metric=self.settings.metric,
                reference=self._reference(cell.model, cell.task),
                seed=self.settings.seed,
                advance=advance,
                **self._options(cell.part),
            )
        numbers = _row_numbers(scores, self.numbers[cell.model, cell.task][0])
        without = int(np.isnan(scores.values[model.exists]).sum())
        if without:  # an order needs a place for every head
            odd = np.flatnonzero(~np.isfinite(scores.examples[:, model.exists]).all(axis=1))
            named = f" (examples {', '.join(map(str, numbers[odd[:8]]))} are not finite)" if len(odd) else ""
            raise HeadwiseError(
                f"{cell.part} gave no finite score for {without} heads of {cell.model} on {cell.task}{named}; use "
                "another metric or reference, or a wider dtype"
            )
        scores = replace(scores, model=self.shown[cell.model], task=cell.task)
        examples = example_table(scores)
        examples["example"] = numbers[examples["example"]]
        return CellResult(
            {"scores": scores.table(self.settings.seed), "examples": examples}, dict(scores.details)
        )

    # ---- curves ----------------------------------------------------------------------------------------

    def curve_cells(self, scores: pd.DataFrame) -> list[Cell]:
        s = self.settings
        cells = {}
        for (model, task), (_, tested) in self.tasks.items():
            for name in s.orders:
                ranked = scores_of(self._rows(scores, model, task, name))
                for by in s.by:
                    # An unsigned score gives one order, however many rankings are asked for.
                    by, series = ranking(name, ranked.signed, by)
                    order = ranked.order(by if by != "unsigned" else "signed")
                    prints = {"model": self.bench.model(model).fingerprint, "task": tested.fingerprint}
                    prints |= {"order": order_fingerprint(order)}
                    about = self._about(model, task) | {"order": name, "by": by, "threshold": s.threshold}
                    about |= {"action": s.action, "k": s.k, "points": s.points, "draws": s.draws}
                    about |= {"controls": s.controls, "control_points": self._control_points}
                    cells[model, task, series] = Cell(
                        "circuits", model, task, f"curve {series}", about, prints
                    )
                    if s.maps:
                        part = f"attention {series}"
                        about = {"order": name, "by": by, "maps": s.maps}
                        cells[model, task, part] = Cell("circuits", model, task, part, about, prints)
        return list(cells.values())

    def _rows(self, scores: pd.DataFrame, model: str, task: str, name: str) -> pd.DataFrame:
        own = (scores["model"] == self.shown[model]) & (scores["task"] == task) & (scores["method"] == name)
        return scores[own]

    def measure(self, scores: pd.DataFrame, cell: Cell) -> CellResult:
        """One curve with its controls on the second half of the examples, or where its order's first heads look."""
        name, by = cell.settings["order"], cell.settings["by"]
        ranked = scores_of(self._rows(scores, cell.model, cell.task, name))
        by = by if by != "unsigned" else "signed"
        if cell.part.startswith("attention "):
            return self._attend(cell, ranked.order(by)[: self.settings.maps])
        return self._sweep(cell, ranked, by)

    def _sweep(self, cell: Cell, ranked: Scores, by: str) -> CellResult:
        s, model = self.settings, self.bench.model(cell.model)
        tested = self.tasks[cell.model, cell.task][1]
        rows = most_rows(len(s.k) or s.points, len(s.controls), s.draws, self._control_points) * len(tested)
        with progress(cell.label, rows, show=self.bench.progress) as advance:
            found = sweep(
                model,
                tested,
                ranked,
                s.action,
                reference=cell.settings["reference"],
                metric=s.metric,
                # The ends are always there: they are known, and the ratio is read between them.
                k=[0, *s.k, len(model.heads())] if s.k else None,
                controls=s.controls,
                draws=s.draws,
                control_points=self._control_points,
                by=by,
                threshold=s.threshold,
                points=s.points,
                seed=s.seed,
                advance=advance,
            )
        found = renamed(found, model=self.shown[cell.model], task=cell.task)
        examples = found.example_table()
        examples["example"] = self.numbers[cell.model, cell.task][1][examples["example"]]
        summary = pd.DataFrame([{**found.summary(s.threshold), "examples": tested.fingerprint}])
        return CellResult({"curves": found.table(), "examples": examples, "circuits": summary}, found.details)

    def _attend(self, cell: Cell, heads: Order) -> CellResult:
        prompt = self.tasks[cell.model, cell.task][1].examples[0].prompt
        seen = attention(self.bench.model(cell.model), prompt, heads, maps=True)
        series = cell.part.removeprefix("attention ")
        about = {"model": self.shown[cell.model], "task": cell.task, "series": series}
        return CellResult({"attention": attention_rows(seen, about)})

    # ---- pairs -----------------------------------------------------------------------------------------

    def pair_cells(self, examples: pd.DataFrame, summary: pd.DataFrame) -> list[Cell]:
        cells = []
        for number, pair, task in self.settings.panels():
            about = {"pair": number, "members": pair.members, "threshold": self.settings.threshold}
            about |= {"seed": self.settings.seed}
            prints = {
                f"{role}/{series}": curve_fingerprint(_curve_rows(examples, self.shown[name], task, series))
                for role, name in pair.members.items()
                for series in dict.fromkeys(summary["series"])
            }
            cells.append(Cell("circuits", pair.dense, task, f"pair {number}", about, prints))
        return cells

    def compare(self, examples: pd.DataFrame, summary: pd.DataFrame, cell: Cell) -> CellResult:
        """Which models are shown together, and how many times more heads one needs than another."""
        members = {
            role: self.shown[cell.settings["members"][role]]
            for role in ROLES
            if role in cell.settings["members"]
        }
        pair = {"pair": cell.settings["pair"], "task": cell.task}
        rows = [{**pair, "role": role, "model": model} for role, model in members.items()]
        tables = {"members": pd.DataFrame(rows)}
        ratios = []
        of_task = summary[summary["task"] == cell.task].set_index(["series", "model"])
        for series in dict.fromkeys(summary["series"]):
            for (role, model), (other_role, other) in combinations(_from_dense(members), 2):
                first, second = of_task.loc[(series, model)], of_task.loc[(series, other)]
                found = ratio_row(
                    _curve_rows(examples, model, cell.task, series),
                    _curve_rows(examples, other, cell.task, series),
                    threshold=self.settings.threshold,
                    defined=bool(first["defined"] and second["defined"]),
                    paired=first["examples"] == second["examples"],
                    groups=self._groups(cell, role),
                    other_groups=self._groups(cell, other_role),
                    seed=self.settings.seed,
                )
                about = {"series": series, "by": first["by"], "compared": f"{role}/{other_role}"}
                ratios.append({**pair, **about, "model": model, "other": other, **found})
        if ratios:
            tables["ratios"] = pd.DataFrame(ratios).assign(threshold=self.settings.threshold)
        return CellResult(tables)

    def _groups(self, cell: Cell, role: str) -> tuple[str | None, ...] | None:
        """Of the examples behind a curve of the pair."""
        return self.tasks[cell.settings["members"][role], cell.task][1].shared_groups()


def _row_numbers(scores: Scores, numbers: np.ndarray) -> np.ndarray:
    """Which examples of the task are behind the rows of a score, found on those of these `numbers`.

    A probe has rows for what it held out. Where rows are no examples (gates have one per seed) they are counted.
    """
    if scores.details.get("replicates") == "seeds":
        return np.arange(scores.n)
    own: np.ndarray = numbers[scores.details.get("held_out", slice(None))]
    return own


def _from_dense(members: dict[str, str]) -> list[tuple[str, str]]:
    """(role, model) such that every pair of them is read "the first over the second": dense, control, sparse."""
    return [(role, members[role]) for role in ("dense", "control", "sparse") if role in members]


def _curve_rows(examples: pd.DataFrame, model: str, task: str, series: str) -> pd.DataFrame:
    own = (examples["model"] == model) & (examples["task"] == task) & (examples["series"] == series)
    return examples[own]
