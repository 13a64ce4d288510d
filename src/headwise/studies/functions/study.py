"""The study `functions`: which heads serve which ability?

Each ability (a label of the examples) gets a map by each method. The probe reads all abilities at once; every
other method is run on one ability's examples. Tables beside the contract's: `elbows` (how many heads stand out,
and how stable they are), `overlap` (how far abilities share them), `agreement` (how far methods agree), `probe`
(how well the probe tells abilities apart, beside its controls).
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.charts.section import Tables, table_of
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.functions.cells import map_ability, map_labels, stages, summarise
from headwise.studies.functions.charts import section
from headwise.studies.functions.findings import READABLE
from headwise.studies.functions.settings import FunctionsSettings
from headwise.studies.functions.tables import EVERY


def notices(context: Context[FunctionsSettings], tables: Tables) -> Iterator[str]:
    """The probe's worth, in one sentence per model."""
    for row in table_of(tables, "probe").to_dict("records"):
        if row["task"] == EVERY:
            yield (
                f"probe of {row['model']}: {row['accuracy']:.0%} of {row['n']} held-out examples right, chance "
                f"{row['chance']:.0%}, shuffled labels {row['shuffled']:.0%}, bag of words "
                f"{row['bag_of_words']:.0%}; {READABLE}"
            )


register(
    Study(
        name="functions",
        question="Which heads serve which ability?",
        settings=FunctionsSettings,
        stages=stages,
        compute={"map": map_ability, "labels": map_labels, "summary": summarise},
        section=section,
        notices=notices,
    )
)
