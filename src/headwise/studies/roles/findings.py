"""Does a head help, interfere, or do nothing?"""

from __future__ import annotations

import pandas as pd

from headwise.charts.section import Finding
from headwise.charts.words import minus, plus
from headwise.tables.frames import Tables, groups, head_rows, table_of

_VERBS = {"facilitating": "facilitate", "interfering": "interfere", "irrelevant": "are irrelevant"}


def findings(tables: Tables) -> list[Finding]:
    order, shares, joint = (table_of(tables, name) for name in ("order", "shares", "joint"))
    return [*_order(order, shares), *_joint(joint)]


def heads(tables: Tables) -> pd.DataFrame | None:
    """One row per role: facilitation with its interval over seeds, the others with their mean."""
    first = head_rows(tables)
    if first is None:
        return None
    others = [
        first.assign(measure=role, score=tables["scores"][role], lo=None, hi=None, q=None)
        for role in ("irrelevance", "interference")
    ]
    return pd.concat([first.assign(measure="facilitation"), *others], ignore_index=True)


def _order(order: pd.DataFrame, shares: pd.DataFrame) -> list[Finding]:
    found = []
    by_task = dict(groups(shares, "model", "task"))
    for row in order.to_dict("records"):
        counts = by_task[row["model"], row["task"]].set_index("label")
        counted = "; ".join(
            f"{counts.loc[label, 'always']:.0f} {verb} in every seed, {counts.loc[label, 'ever']:.0f} in at least one"
            for label, verb in _VERBS.items()
        )
        below = "" if row["below"] else " (not significantly lower)"
        above = "" if row["above"] else " (not significantly higher)"
        ablation = "" if row["reference"] == "zero" else f" ({row['reference']} ablation)"
        sentence = (
            f"On {row['task']}, {row['model']}{ablation}: ablating the {row['k']} most facilitating heads changes the "
            f"answer's log probability by {plus(row['facilitation'], 2)} nats, ablating {row['k']} irrelevant heads by "
            f"{plus(row['irrelevance'], 2)}{below}; ablating the {row['peak']} most interfering heads changes it by "
            f"{plus(row['interference_at_peak'], 2)}, {row['peak']} irrelevant heads by "
            f"{plus(row['irrelevance_at_peak'], 2)}{above}. Of {counts['heads'].iloc[0]:.0f} heads over "
            f"{counts['seeds'].iloc[0]:.0f} seeds, {counted}."
        )
        both, either = row["below"] and row["above"], row["below"] or row["above"]
        changes = (
            f"by {plus(row['facilitation'], 2)} nats without the {row['k']} heads that help most, and by "
            f"{plus(row['interference_at_peak'], 2)} without the {row['peak']} that hinder most"
        )
        plain = (
            f"The log probability of the right answers of {row['model']} on {row['task']} changes {changes}."
        )
        if not either:
            plain = (
                f"Heads that clearly help or hinder {row['model']} on {row['task']}: the log probability of the right "
                f"answer changes {changes}, but so few fits cannot tell this from unimportant heads."
            )
        found.append(Finding(sentence=sentence, weight=0.6 if both else 0.4, plain=plain, found=bool(either)))
    return found


def _joint(joint: pd.DataFrame) -> list[Finding]:
    """The joint effect of the most facilitating heads."""
    found = []
    for row in joint.to_dict("records"):
        cost, lo, hi, mean = (minus(f"{row[name]:.2f}") for name in ("effect", "lo", "hi", "random_mean"))
        sentence = (
            f"On {row['task']}, {row['model']}: ablating the most facilitating heads together costs {cost} nats "
            f"[{lo}, {hi}], more than {row['larger_than']:.1%} of {row['sets']} random sets of heads (mean {mean}); "
            f"the rank correlation of facilitation with exact ablation is {plus(row['facilitation_correlation'], 2)}."
        )
        found.append(Finding(sentence=sentence, weight=0.35))
    return found
