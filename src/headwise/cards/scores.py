"""The scores of one head with intervals and its rank among all heads: of a run's studies, or computed quickly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from headwise import stats
from headwise.cards.measured import Measured
from headwise.charts.section import section_of
from headwise.errors import HeadwiseError
from headwise.files import user_path
from headwise.heads import Head
from headwise.metrics import metric as metric_named
from headwise.model.model import Model
from headwise.names import method_name
from headwise.runs.reader import RunReader
from headwise.scores.run import score
from headwise.tasks.examples import Task

COLUMNS = ["study", "task", "measure", "score", "lo", "hi", "n", "q", "rank", "heads"]


def run_scores(path: str | Path, model: str, head: Head) -> pd.DataFrame:
    """The rows of one head in a run's table of heads; rank 1 is the largest absolute score of a task and measure."""
    run = RunReader(user_path(path))
    with run.explained():
        return _run_scores(run, model, head)


def _run_scores(run: RunReader, model: str, head: Head) -> pd.DataFrame:
    path = run.path
    rows = section_of(run.study, run.info["plugins"]).heads(run.tables)
    if rows is None or rows.empty:
        raise HeadwiseError(f"the run {path} has no scores of heads; leave the run out to compute them")
    if model not in set(rows["model"]):
        names = ", ".join(map(str, rows["model"].unique()))
        raise HeadwiseError(f"the run {path} has scores of {names}, not of {model}; give a run of this model")
    of_model = rows[rows["model"] == model]
    grouped = of_model.groupby(["task", "measure"], sort=False)["score"]
    ranks = grouped.transform(lambda column: column.abs().rank(ascending=False, method="min"))
    of_model = of_model.assign(study=run.study, rank=ranks, heads=grouped.transform("size"))
    mine = (of_model["layer"] == head.layer) & (of_model["head"] == head.head)
    if not mine.any():
        raise HeadwiseError(f"the run {path} has no score of {head}; leave the run out to compute one")
    return of_model.loc[mine, COLUMNS].reset_index(drop=True)


def quick_scores(
    model: Model, task: Task, head: Head, measured: Measured, options: Mapping[str, Any]
) -> pd.DataFrame:
    """The head's exact ablation score, and its attribution score with the rank among all heads.

    Ablation of the one head has no rank and no q-value: these need all heads.
    """
    (effects,) = measured.effects
    lo, hi = stats.effect_interval(effects[:, None], groups=task.shared_groups(), metric=measured.metric)
    exact = {"score": float(effects.mean()), "lo": float(lo[0]), "hi": float(hi[0]), "n": len(effects)}
    names = {"study": "card", "task": task.name}
    rows: list[Any] = [{**names, "measure": method_name("ablation", measured.reference), **exact}]
    if metric_named(measured.metric).first_order:
        table = score(model, task, "attribution", progress=False, **options).table()
        rank = table["score"].abs().rank(ascending=False, method="min")
        names["measure"] = method_name("attribution", measured.reference)
        table = table.assign(rank=rank, heads=len(table), **names)
        rows += table[(table["layer"] == head.layer) & (table["head"] == head.head)].to_dict("records")
    return pd.DataFrame(rows).reindex(columns=COLUMNS)
