"""The certificate of every set of heads: one page each, and its sentence."""

from __future__ import annotations

import pandas as pd

from headwise.charts.certificate import certificate_chart, least_followed
from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.tables.frames import Tables, groups, rows_where, table_of

LISTED = 10
"""Prompts on the page."""
_WEIGHTS = {"certified": 1.0, "certified with limits": 0.9, "rejected": 0.8, "undecided": 0.3}


def charts(tables: Tables) -> list[Chart]:
    drawn = []
    for (model, task), rows in groups(table_of(tables, "checks"), "model", "task"):
        levels, followed, certificates = (
            rows_where(table_of(tables, name), model=model, task=task).reset_index(drop=True)
            for name in ("levels", "followed", "certificates")
        )
        sentence, heads = (str(certificates[name].iloc[0]) for name in ("sentence", "heads"))
        name = file_name("certificate", task, model)
        checks = rows.reset_index(drop=True)
        drawn.append(certificate_chart(checks, levels, followed, sentence, heads.split(), name=name))
    return drawn


def findings(tables: Tables) -> list[Finding]:
    """The sentence of each certificate."""
    return [
        Finding(sentence=row["sentence"], weight=_WEIGHTS[row["verdict"]])
        for row in table_of(tables, "certificates").to_dict("records")
    ]


def prompts(tables: Tables) -> pd.DataFrame:
    """The prompts that each set follows least, with their family."""
    parts = []
    for (model, task), rows in groups(table_of(tables, "followed"), "model", "task"):
        worst = least_followed(rows, LISTED)
        texts = {"prompt": worst["prompt"].str[-400:], "family": worst["family"], "metric": worst["metric"]}
        numbers = {"all heads": worst["full"].round(2), "the set alone": worst["kept"].round(2)}
        parts.append(pd.DataFrame({"task": task, "model": model, **texts, **numbers}))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    needless = [name for name in ("task", "model", "family") if name in table and table[name].nunique() == 1]
    return table.drop(columns=needless)


def heads(tables: Tables) -> pd.DataFrame | None:
    """No map of scores: the table `circuit` has the heads of the set."""
    return None


section = SECTIONS.add(
    "certify",
    Section(
        charts=charts,
        findings=findings,
        heads=heads,
        texts=prompts,
        texts_title="The prompts that the set follows least",
        docs="certify",
    ),
)
