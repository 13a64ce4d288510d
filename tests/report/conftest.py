"""Runs made by the run folder's own code, with tables that a test knows by heart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headwise.heads import Scores
from headwise.runs import Job, RunFolder, compute, step, write_table

HOSTILE = "<script>window.broken=1</script><img src=x onerror=window.broken=2>"


def score_table(model: str, task: str, method: str, shape: tuple[int, int], seed: int = 0) -> pd.DataFrame:
    examples = np.random.default_rng(seed).normal(size=(6, *shape))
    return Scores.from_examples(examples, model=model, task=task, method=method, metric="logit_diff").table()


@step()
def given_tables(job: Job, tables):
    return dict(tables)


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
        results = compute(folder, {0: given_tables(tables)})
        for name, table in results[0].items():
            write_table(folder, name, [table])
        folder.wrote(sorted(tables))
        for notice in notices:
            folder.notice(notice)
    return folder.path


@pytest.fixture
def make_run(tmp_path):
    """A finished run below the test's own folder: `make_run(name, study, tables, ...)`."""
    return lambda name, *about, **more: finished_run(tmp_path / name, *about, **more)
