"""The study `roles`: does a head help, hinder, or do nothing?

Gates are fitted on one half of each task's examples, in three fits of several seeds (`scores/gating.py`); the
curves are measured on some of the other half. Tables beside the contract's: `gates` and `objective` (how each fit
went), `fits` (where it ended, held-out examples included), `roles` (every seed's label of every head), `shares` (how
many heads have a label always, ever, on average), `order` (whether the curves came out as the roles promise), `joint`
(the most facilitating heads removed together, beside random sets; rank correlation with exact ablation).
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.charts.section import Tables, table_of
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.roles.cells import fit_gates, label_heads, measure_curves, remove_together, stages
from headwise.studies.roles.charts import section
from headwise.studies.roles.settings import RolesSettings
from headwise.studies.roles.tables import order_sentence, overfitted


def notices(context: Context[RolesSettings], tables: Tables) -> Iterator[str]:
    """For each model and task: did the curves come out as expected, and how far do seeds agree?"""
    shares = tables["shares"]
    for row in tables["order"].to_dict("records"):
        yield f"{row['task']}, {row['model']}: {order_sentence(row)}"
        own = shares[(shares["model"] == row["model"]) & (shares["task"] == row["task"])].set_index("label")
        counted = ", ".join(
            f"{label} {own.loc[label, 'always']} always / {own.loc[label, 'ever']} ever"
            for label in ("facilitating", "interfering", "irrelevant")
        )
        seeds, heads = own["seeds"].iloc[0], own["heads"].iloc[0]
        yield f"{row['task']}, {row['model']}: of {heads} heads over {seeds} seeds {counted}"
    if not context.settings.quick:  # whose few held-out examples may be harder than the others
        yield from overfitted(tables["fits"])
    for row in table_of(tables, "joint").to_dict("records"):
        yield (
            f"{row['task']}, {row['model']}: removing the most facilitating heads together costs "
            f"{row['effect']:.2f} nats, more than {row['larger_than']:.1%} of {row['sets']} random sets (mean "
            f"{row['random_mean']:.2f}); rank correlation of facilitation with exact ablation "
            f"{row['facilitation_correlation']:+.2f}"
        )


register(
    Study(
        name="roles",
        question="Does a head help, hinder, or do nothing?",
        settings=RolesSettings,
        stages=stages,
        compute={
            "fit": fit_gates,
            "roles": label_heads,
            "curves": measure_curves,
            "joint": remove_together,
        },
        section=section,
        notices=notices,
    )
)
