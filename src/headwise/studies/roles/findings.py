"""Does a head help, hinder, or do nothing?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding, Tables, head_rows, table_of
from headwise.charts.words import plus


def findings(tables: Tables) -> list[Finding]:
    return [
        *_order(table_of(tables, "order"), table_of(tables, "shares")),
        *_joint(table_of(tables, "joint")),
    ]


def heads(tables: Tables) -> pd.DataFrame | None:
    """One row per role: facilitation with its interval over seeds, the others with their mean."""
    first = head_rows(tables)
    if first is None:
        return None
    rest = [
        first.assign(measure=role, score=tables["scores"][role], lo=None, hi=None)
        for role in ("irrelevance", "interference")
    ]
    return pd.concat([first.assign(measure="facilitation"), *rest], ignore_index=True)


def _order(order: pd.DataFrame, shares: pd.DataFrame) -> list[Finding]:
    found = []
    for row in order.to_dict("records"):
        own = shares[(shares["model"] == row["model"]) & (shares["task"] == row["task"])].set_index("label")
        counted = ", ".join(
            f"{own.loc[label, 'always']:.0f} always and {own.loc[label, 'ever']:.0f} ever {word}"
            for label, word in (
                ("facilitating", "help"),
                ("interfering", "hinder"),
                ("irrelevant", "do nothing"),
            )
        )
        falls = (
            f"ablating the {row['k']} most helpful heads changes the answer's log probability by "
            f"{plus(row['facilitation'])} nats (as many irrelevant ones {plus(row['irrelevance'])})"
        )
        if not row["below"]:
            falls += ", bands overlap"
        rises = f"ablating the {row['peak']} most hindering ones, by {plus(row['interference_at_peak'])}"
        if not row["above"]:
            rises += ", not told from irrelevant heads"
        sentence = (
            f"On {row['task']}, {row['model']}: {falls}; {rises}. Of {own['heads'].iloc[0]:.0f} heads over "
            f"{own['seeds'].iloc[0]:.0f} seeds {counted}."
        )
        found.append(Finding(sentence=sentence, weight=0.6 if row["below"] and row["above"] else 0.4))
    return found


def _joint(joint: pd.DataFrame) -> list[Finding]:
    return [
        Finding(
            sentence=f"On {row['task']}, {row['model']}: the most facilitating heads removed together cost "
            f"{row['effect']:.2f} nats, more than {row['larger_than']:.1%} of {row['sets']} random sets (mean "
            f"{row['random_mean']:.2f}); facilitation and exact ablation have rank correlation "
            f"{row['facilitation_correlation']:+.2f}.",
            weight=0.35,
        )
        for row in joint.to_dict("records")
    ]
