"""Which heads stand in for one another? The backups, the proof by freezing, the groups, joint removal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Chart
from headwise.charts.interactions import (
    effects_chart,
    freezing_chart,
    interaction_scale,
    pairs_panel,
    removal_chart,
)
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import joined, percent, plus, rounded, span, under
from headwise.tables.frames import HEAD_COLUMNS, Tables, groups, head_names, head_rows, rows_where, table_of

_NAMED = 5


def findings(tables: Tables) -> list[Finding]:
    primary, backups, freezing, sets, curves = (
        dict(groups(table_of(tables, name), "model", "task"))
        for name in ("primary", "backups", "freezing", "groups", "curves")
    )
    found = [_backups(rows, primary[names], *names) for names, rows in backups.items()]
    found += [_freezing(rows, *names) for names, rows in freezing.items()]
    for task, rows in groups(table_of(tables, "freezing"), "task"):
        found += _models(rows[rows["frozen"] == "all"], task)
    found += [_group(rows, *names) for names, rows in sets.items()]
    found += [_removal(rows, *names) for names, rows in curves.items()]
    return found + [_untested(primary.get(names), *names) for names in curves if names not in backups]


def _backups(rows: pd.DataFrame, primary: pd.DataFrame, model: str, task: str) -> Finding:
    """The primary set, and how many heads take over when it is removed."""
    backups, first = rows[rows["backup"]], rows.iloc[0]
    names = head_names(primary[primary["accepted"]])
    removed = joined(names) + " together" * (len(names) > 1)
    sentence = (
        f"On {task}, {model}: removing {removed} costs {first['set_effect']:.2f} "
        f"[{first['set_lo']:.2f}, {first['set_hi']:.2f}] {first['metric']} on the testing half. "
        f"{len(backups)} of {len(rows)} later heads are backups: they help more, or hinder less, once the set is gone "
        f"(q < .05, n = {first['n']})"
    )
    each = [
        f"{name} {row.single:+.2f} alone, {row.conditional:+.2f} with the set removed"
        for name, row in zip(head_names(backups), backups.head(_NAMED).itertuples(), strict=False)
    ]
    sentence += f"; the largest {len(each)}: {'; '.join(each)}." if each else "."
    weight = float(np.clip(backups["share"].sum(), 0, 1)) if len(backups) else 0.05
    return Finding(sentence=sentence, weight=weight, chart=file_name("effects", task))


def _untested(primary: pd.DataFrame | None, model: str, task: str) -> Finding:
    """Why no head was tested as a backup."""
    if primary is not None and primary["accepted"].any():
        reason = "no head comes after the primary set, so nothing can react to its removal."
    else:
        reason = (
            "no head has a significant effect by itself, so there is no primary set; use more examples, or name heads "
            "with primary."
        )
    return Finding(sentence=f"On {task}, {model}: {reason}", chart=file_name("removal", task), found=False)


def _freezing(rows: pd.DataFrame, model: str, task: str) -> Finding:
    """How much of the repair vanishes when the backups cannot react."""
    by_set: dict[Any, dict[Any, Any]] = {row["frozen"]: row for row in rows.to_dict("records")}
    none, backups, random = (by_set[name] for name in ("none", "backups", "random"))
    sentence = (
        f"On {task}, {model}: with the {backups['heads']} backups held at their plain output, removing the primary set "
        f"costs {backups['effect']:.2f} instead of {none['effect']:.2f} {none['metric']} on the finding half"
    )
    if np.isfinite(backups["share"]):
        shares = [_with_interval(row) for row in (backups, random)]
        sentence += (
            f": {shares[0]} of their repair ({plus(none['repair'], 2)}, 95 % CI {plus(none['repair_lo'], 2)} to "
            f"{plus(none['repair_hi'], 2)}) is gone. With as many random heads of the same layers held: "
            f"{shares[1]}."
        )
    else:
        sentence += (
            f". On these examples the set and its backups have no significant interaction ({plus(none['repair'], 2)}), "
            "so there is no repair to compare with."
        )
    weight = float(np.clip(backups["share"], 0, 1)) if np.isfinite(backups["share"]) else 0.1
    return Finding(sentence=sentence, weight=weight, chart=file_name("freezing", task))


def _with_interval(row: dict[Any, Any]) -> str:
    """The share of the repair that is gone; bounds may be negative, so they are joined by a word."""
    lo, hi = rounded(100 * row["share_lo"]), rounded(100 * row["share_hi"])
    return f"{percent(row['share'])} (95 % CI {lo:.0f} to {hi:.0f} %)"


def _models(rows: pd.DataFrame, task: str) -> list[Finding]:
    """How much of the damage the backups repair, model by model."""
    defined = rows[rows["repaired"].notna()].to_dict("records")
    if len(defined) < 2:
        return []
    shares = [percent(row["repaired"], row["repaired_lo"], row["repaired_hi"]) for row in defined]
    each = [f"{row['model']} {share}" for row, share in zip(defined, shares, strict=True)]
    sentence = (
        f"Share of the damage of removing the primary set that other heads repair, {task}: {'; '.join(each)}."
    )
    spread = float(np.ptp([row["repaired"] for row in defined]))
    return [Finding(sentence=sentence, weight=spread, chart=file_name("freezing", task))]


def _group(rows: pd.DataFrame, model: str, task: str) -> Finding:
    """The groups whose excess holds on the other half and beats random heads of the same layers."""
    sure = rows[(rows["q"] < 0.05) & (rows["excess"] > 0) & (rows["p_random"] < 0.05)]
    chart = file_name("interactions", model, task)
    if not len(sure):
        sentence = (
            f"On {task}, {model}: none of {len(rows)} groups of heads has a joint effect above the sum of its single "
            "effects on the other half that random heads of the same layers do not have too."
        )
        return Finding(sentence=sentence, weight=0.02, chart=chart)
    best = sure.nlargest(1, "excess").iloc[0]
    others = f" {len(sure)} of {len(rows)} groups pass this test." if len(rows) > 1 else ""
    sentence = (
        f"On {task}, {model}: {joined(str(best['heads']).split())} matter together more than alone. Removing all "
        f"{best['size']} costs {best['joint']:.2f} {best['metric']}, the sum of their single effects is "
        f"{best['sum']:.2f} (excess {plus(best['excess'], 2)}, 95 % CI "
        f"{plus(best['excess_lo'], 2)} to {plus(best['excess_hi'], 2)}; {best['draws']} draws of random heads of "
        f"the same layers: {plus(best['random_excess'], 2)} on average).{others}"
    )
    return Finding(sentence=sentence, weight=_share(best["excess"], best["joint"]), chart=chart)


def _share(part: Any, whole: Any) -> float:
    return float(np.clip(part / whole, 0, 1)) if whole else 0.0


def _removal(rows: pd.DataFrame, model: str, task: str) -> Finding:
    """What joint removal costs by each order."""
    k, metric = int(rows["k"].max()), rows["metric"].iloc[0]
    at = {series: part.set_index("k")["value"] for series, part in rows.groupby("series", sort=False)}
    values = {series: f"{value.loc[k]:.2f}" for series, value in at.items()}
    sentence = (
        f"On {task}, {model}: removing {k} heads takes {metric} from {at['greedy'].loc[0]:.2f} to "
        f"{values['greedy']} in greedy order, to {values['single']} by single effects, to {values['random']} for "
        "random heads (all on examples that did not choose the order)."
    )
    lost = [at[series].loc[0] - at[series].loc[k] for series in ("single", "greedy")]
    return Finding(sentence=sentence, weight=0.3 * (1 - _share(*lost)), chart=file_name("removal", task))


def charts(tables: Tables) -> list[Chart]:
    """For each task: effects given the primary set, freezing, joint removal, and each model's matrix."""
    drawn: list[Chart] = []
    primary, order = table_of(tables, "primary"), table_of(tables, "curves")
    tasks = [task for task, _ in groups(order, "task")]
    for task in tasks:
        part = {
            name: rows_where(table_of(tables, name), task=task).reset_index(drop=True)
            for name in ("backups", "freezing", "curves", "interactions")
        }
        if len(part["backups"]):
            sets = {
                m: joined(head_names(rows[rows["accepted"]]))
                for m, rows in groups(rows_where(primary, task=task), "model")
            }
            drawn.append(effects_chart(part["backups"], sets, name=file_name("effects", task)))
        if len(part["freezing"]):
            drawn.append(freezing_chart(part["freezing"], name=file_name("freezing", task)))
        drawn.append(removal_chart(part["curves"], name=file_name("removal", task)))
        for model, rows in groups(part["interactions"], "model"):
            drawn.append(_matrix(rows.reset_index(drop=True), model, task))
    return drawn


def _matrix(rows: pd.DataFrame, model: str, task: str) -> Chart:
    scale = interaction_scale(rows)
    panels = [pairs_panel(rows, scale, order, model=model) for order in ("layer", "cluster")]
    side = 2.2 + 0.13 * len(panels[0].y.names or ())
    return Chart(
        name=file_name("interactions", model, task),
        title=f"Interaction of every two heads, {task}, {model}, n = {span(rows['n'])}{under(rows)}",
        panels=panels,
        size=(2 * side + 1.4, side),
        columns=2,
        height=560,
        min_panel_width=420,
        caption="Blue: removing both heads costs more than the sum of their single effects; they can replace one "
        "another. Red: it costs less; they need one another. By cluster, heads that back each other up stand together.",
    )


def heads(tables: Tables) -> pd.DataFrame | None:
    """The single effects, then each head's difference given the primary set."""
    backups = table_of(tables, "backups")
    if not len(backups):
        return head_rows(tables)
    named = backups.assign(measure="backup", score=backups["difference"], unit=backups["metric"])
    return pd.concat([head_rows(tables), named.reindex(columns=HEAD_COLUMNS)], ignore_index=True)


section = SECTIONS.add("backups", Section(charts=charts, findings=findings, heads=heads, docs="backups"))
