"""Which heads serve one behaviour and not another? What the fitted gates keep and lose, in a sentence."""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.style import file_name
from headwise.studies.score.findings import findings as score_findings
from headwise.tables.frames import Tables, groups, table_of


def findings(tables: Tables) -> list[Finding]:
    models = groups(table_of(tables, "contrast"), "model")
    kept = [
        Finding(sentence=f"{model}: {kept_and_lost(part)}.", weight=0.5, chart=f"contrast-{file_name(model)}")
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
