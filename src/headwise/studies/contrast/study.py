"""The study `contrast`: which heads carry one behaviour and not another?

Gates are fitted on some (keep, lose) pairs of tasks so that what is kept stays likely and what is lost does not, and
tested on the pairs that were held out. Tables: `contrast` (every held-out pair, side and seed; seed −1 is the ungated
model), `scores` (each head's gate), `gates` and `objective` (how the fit went).
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.charts.section import Tables
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.contrast.cells import fit, stages
from headwise.studies.contrast.charts import section
from headwise.studies.contrast.findings import kept_and_lost
from headwise.studies.contrast.settings import ContrastSettings


def notices(context: Context[ContrastSettings], tables: Tables) -> Iterator[str]:
    for display_name, part in tables["contrast"].groupby("model", sort=False):
        yield f"{display_name}: {kept_and_lost(part)}"


register(
    Study(
        name="contrast",
        question="Which heads carry one behaviour and not another?",
        settings=ContrastSettings,
        stages=stages,
        compute={"fit": fit},
        section=section,
        notices=notices,
    )
)
