"""Which heads serve one behaviour and not another? What the fitted gates keep and lose, in a sentence."""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, by_model, table_of
from headwise.studies.score.findings import findings as score_findings


def findings(tables: Tables) -> list[Finding]:
    kept = by_model(table_of(tables, "contrast"))
    own = [Finding(sentence=f"{model}: {kept_and_lost(part)}.", weight=0.5) for model, part in kept]
    return [*own, *score_findings(tables)]


def kept_and_lost(table: pd.DataFrame) -> str:
    """What the gates do on the held-out pairs."""
    gated = table["seed"] >= 0
    means = {
        (side, state): part["mean_logprob"].mean()
        for (side, state), part in table.groupby(["side", gated], sort=False)
    }
    return (
        f"on {table['pair'].nunique()} held-out pairs what is kept goes from {means['keep', False]:.2f} to "
        f"{means['keep', True]:.2f} nats per token, what is lost from {means['lose', False]:.2f} to "
        f"{means['lose', True]:.2f}"
    )
