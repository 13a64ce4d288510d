"""What the stages and the cells of one run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.model.model import Model
from headwise.progress import Advance, progress
from headwise.runs import Cell, RunFolder, read_cells
from headwise.scores.nested.partial import kept_in
from headwise.scores.registry import method as method_named
from headwise.scores.run import score
from headwise.studies.settings.shared import StudySettings
from headwise.studies.workbench import Workbench
from headwise.tasks import Task

S = TypeVar("S", bound=StudySettings)
T = TypeVar("T")
P = ParamSpec("P")


class Context(Generic[S]):
    """Settings, models, tasks, and the tables of finished cells.

    Where cells are computed in other processes each has a copy without the store: it holds what `once` has built before
    the cells were given out.
    """

    def __init__(self, study: str, settings: S, bench: Workbench, folder: RunFolder | None) -> None:
        self.study, self.settings, self.bench = study, settings, bench
        self.cells: list[Cell] = []
        """Of the stages that are finished."""
        self.stage = ""
        """The stage under way, for progress bars: `stage 2 of 4`."""
        self._folder = folder
        self._built: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_folder": None, "cells": []}

    def model(self, name: str) -> Model:
        return self.bench.model(name)

    def display_name(self, model: str) -> str:
        """What a model is called in the tables."""
        return self.bench.display_names(self.settings.models)[model]

    def dtype(self, model: str) -> str:
        """The dtype of a model, as the cells say it: `float32`."""
        return self.model(model).dtype_name

    def cell(
        self,
        kind: str,
        model: str,
        task: str,
        part: str,
        settings: Mapping[str, Any],
        fingerprints: Mapping[str, str],
    ) -> Cell:
        """A cell of this study."""
        return Cell(self.study, model, task, part, settings, fingerprints, kind)

    def once(self, build: Callable[Concatenate[Context[S], P], T], *args: P.args, **options: P.kwargs) -> T:
        """`build(context, *args)`, computed once in a run and kept for its cells."""
        key = (build.__module__, build.__qualname__, *args, *options.items())
        if key not in self._built:
            self._built[key] = build(self, *args, **options)
        built: T = self._built[key]
        return built

    def table(self, name: str, **which: str) -> pd.DataFrame:
        """A table of the cells of finished stages, read from the run's store.

        which: fields of the cells, such as `model="smollm2", kind="order"`; all cells by default.
        """
        if self._folder is None:
            raise HeadwiseError(
                f"a cell of the study {self.study!r} needs the table {name!r}, but workers have no store; read it in "
                "the stage before the cell is given out, through context.once"
            )
        cells = [cell for cell in self.cells if all(getattr(cell, key) == which[key] for key in which)]
        return read_cells(self._folder, cells, name)

    def notes(self, cell: Cell) -> dict[str, Any]:
        """The notes of a finished cell."""
        assert self._folder is not None, "workers have no store"
        return self._folder.store.notes(cell.key)

    def progress(self, label: str, steps: int) -> AbstractContextManager[Advance]:
        """A progress bar, where the run shows any."""
        return progress(f"{label} ({self.stage})" if self.stage else label, steps, show=self.bench.progress)

    def scores(
        self, label: str, model: Model, task: Task, method: str, *, seed: int | None = None, **options: Any
    ) -> Scores:
        """Scores by a method, by default with the study's seed, under a progress bar.

        A study's `reference: mean` is for methods that ablate: `direct` then has its own default, as in `hw.score`.
        """
        if options.get("reference") == "mean":
            options["reference"] = None
        kept = None if self._folder is None else self._folder.path / "partial"
        with self.progress(label, method_named(method).steps(model, task)) as advance, kept_in(kept):
            seed = self.settings.seed if seed is None else seed
            return score(model, task, method, seed=seed, progress=advance, **options)
