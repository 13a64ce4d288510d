"""What contrastive gates do on held-out pairs: kept and lost, before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.chart import Axis, Bars, Chart, Mark, Panel, Rule, names_axis, points
from headwise.charts.section import SECTIONS, Finding, Section
from headwise.charts.style import file_name
from headwise.charts.words import shortened, under
from headwise.studies.score.section import charts as score_charts
from headwise.studies.score.section import findings as score_findings
from headwise.tables.frames import Tables, distinct, groups, table_of


def findings(tables: Tables) -> list[Finding]:
    models = groups(table_of(tables, "contrast"), "model")
    kept = [
        Finding(sentence=f"{model}: {kept_and_lost(part)}.", weight=0.5, chart=file_name("contrast", model))
        for model, part in models
    ]
    return [*kept, *score_findings(tables)]


def kept_and_lost(table: pd.DataFrame) -> str:
    """What the gates do on the held-out pairs; seed −1 is the ungated model."""
    means = table.groupby(["side", table["seed"] >= 0])["mean_logprob"].mean()
    changes = {side: f"from {means[side, False]:.2f} to {means[side, True]:.2f}" for side in ("keep", "lose")}
    return (
        f"on {table['pair'].nunique()} held-out pairs the log probability per token goes {changes['keep']} nats for "
        f"the behaviour to keep, {changes['lose']} for the behaviour to lose"
    )


_SIDES = {"keep": ("kept", "#2a9d4e"), "lose": ("lost", "#d1352b")}


def charts(tables: Tables) -> list[Chart]:
    """What was kept and lost, then the gates as scores, which have no files of their own."""
    bars = [contrast_bars(part) for _, part in groups(table_of(tables, "contrast"), "model")]
    return bars + [replace(chart, name="") for chart in score_charts(tables)]


def contrast_bars(table: pd.DataFrame) -> Chart:
    """Log probability per target token and accuracy of each held-out pair, ungated (light) and gated (dark).

    `table` holds the rows of `contrast` of one model; seed −1 is the ungated model. A dot is a seed.
    """
    pairs = distinct(table["pair"])
    x = names_axis([shortened(pair, 22) for pair in pairs])
    likely = Axis(label="Log Probability\nper Target Token (nats)")
    right = Axis(label="Accuracy", limits=(0, 1.02))
    model = str(table["model"].iloc[0])
    return Chart(
        name=file_name("contrast", model),
        title=f"Kept and lost on held-out pairs: {shortened(model, 22)}{under(table)}",
        panels=[
            Panel(marks=_marks(table, pairs, "mean_logprob"), x=x, y=likely),
            Panel(marks=_marks(table, pairs, "accuracy"), x=x, y=right),
        ],
        size=(2.6 + 1.9 * len(pairs), 4.6),
        columns=1,
        page_columns=2,
        legend="right",
        table=table,
    )


def _marks(table: pd.DataFrame, pairs: list[str], measured: str) -> list[Mark]:
    """A light and a dark bar for each side of each pair, and a dot for each seed."""
    marks: list[Mark] = []
    dots: list[tuple[float, float]] = []
    for number, (side, (word, colour)) in enumerate(_SIDES.items()):
        rows = table[table["side"] == side]
        before, after = rows[rows["seed"] < 0], rows[rows["seed"] >= 0]
        for shift, state, opacity, part in ((0.0, "all heads", 0.35, before), (0.2, "gated", 1.0, after)):
            mean = part.groupby("pair")[measured].mean().reindex(pairs)
            at = np.arange(len(pairs)) + 0.42 * number - 0.31 + shift
            look: dict[str, Any] = {"name": f"{word}, {state}", "colours": colour, "opacity": opacity}
            hover = [f"{pair}: {value:.3g}" for pair, value in mean.items()]
            marks.append(Bars(at=at, values=mean, thickness=0.18, hover=hover, **look))
        dots_at = after["pair"].map(pairs.index) + 0.42 * number - 0.11
        dots += sorted(zip(dots_at, after[measured].astype(float), strict=True), key=lambda dot: dot[0])
    x, y = zip(*dots, strict=True) if dots else ((), ())
    seed = points(x, y, name="one seed", size=2.5)
    return [*marks, Rule(at=0, colour="#666666", width=0.6), seed]


section = SECTIONS.add("contrast", Section(charts=charts, findings=findings, docs="roles"))
