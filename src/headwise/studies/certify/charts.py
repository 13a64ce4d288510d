"""The certificate of every set of heads: one page each, and its sentence."""

from __future__ import annotations

import pandas as pd

from headwise.charts.certificate import certificate_chart
from headwise.charts.chart import Chart
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.tables.frames import Tables, groups, table_of

_WEIGHTS = {"certified": 1.0, "certified with limits": 0.9, "rejected": 0.8, "undecided": 0.3}


def charts(tables: Tables) -> list[Chart]:
    def part(name: str, model: str, task: str) -> pd.DataFrame:
        rows = table_of(tables, name)
        return (
            rows[(rows["model"] == model) & (rows["task"] == task)].reset_index(drop=True)
            if len(rows)
            else rows
        )

    return [
        certificate_chart(
            rows.reset_index(drop=True),
            part("levels", str(model), str(task)),
            part("followed", str(model), str(task)),
            str(part("certificates", str(model), str(task)).iloc[0]["sentence"]),
            name=f"certificate-{file_name(str(task))}-{file_name(str(model))}",
        )
        for (model, task), rows in groups(table_of(tables, "checks"), "model", "task")
    ]


def findings(tables: Tables) -> list[Finding]:
    """The sentence of each certificate, then the prompts that the set follows least."""
    found = []
    for row in table_of(tables, "certificates").to_dict("records"):
        found.append(Finding(sentence=row["sentence"], weight=_WEIGHTS[row["verdict"]]))
        rows = table_of(tables, "followed")
        rows = rows[(rows["model"] == row["model"]) & (rows["task"] == row["task"])]
        worst = rows.loc[(rows["kept"] - rows["full"]).abs().idxmax()]
        family = f" ({worst['family']})" if worst["family"] else ""
        found.append(
            Finding(
                sentence=f"The set follows this prompt least{family}: “{str(worst['prompt'])[-160:]}”: {row['metric']} "
                f"{worst['full']:.2f} with all heads, {worst['kept']:.2f} with the set alone.",
                weight=0.1,
            )
        )
    return found


def heads(tables: Tables) -> pd.DataFrame | None:
    """No map of scores: the table `circuit` has the heads of the set."""
    return None


section = Section(charts=charts, findings=findings, heads=heads, docs="certify")
SECTIONS.add("certify", section)
