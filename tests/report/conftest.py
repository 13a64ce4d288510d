"""Runs made by the run folder's own code, with tables that a test knows by heart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headwise.heads import Scores
from headwise.runs import Cell, CellResult, RunFolder, execute

HOSTILE = "<script>window.broken=1</script><img src=x onerror=window.broken=2>"


def score_table(model: str, task: str, method: str, shape: tuple[int, int], seed: int = 0) -> pd.DataFrame:
    examples = np.random.default_rng(seed).normal(size=(6, *shape))
    return Scores.from_examples(examples, model=model, task=task, method=method, metric="logit_diff").table()


def finished_run(path, study, tables, models=("tiny",), command=None, notices=(), question=None):
    """A finished run with the given tables."""
    with RunFolder(
        path,
        study=study,
        question=question,
        settings={"models": list(models)},
        fingerprints=dict.fromkeys(models, "0123456789abcdef"),
        command=command or f"headwise run {study}",
    ) as folder:
        cell = Cell(study, models[0], "task", "all", {}, {})
        execute(folder, [cell], lambda _: CellResult(tables), progress=False)
        for notice in notices:
            folder.notice(notice)
    return folder.path


@pytest.fixture
def make_run(tmp_path):
    """A finished run below the test's own folder: `make_run(name, study, tables, ...)`."""
    return lambda name, *about, **more: finished_run(tmp_path / name, *about, **more)
