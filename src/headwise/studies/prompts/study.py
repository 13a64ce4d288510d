"""The study `prompts`: what do inserted tokens do to a model's answers and to a head's attention?

The same problems are asked under each condition and compared in pairs (arXiv 2510.01032 reports gains of a few
points without a test). Tables beside the contract's: `answers`, `accuracy`, `comparisons`, and from inside the
model `profiles`, `moved`, `affine`, `activations`.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.charts.section import Tables, table_of
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.prompts.cells import answer, look_inside, stages, summarise
from headwise.studies.prompts.charts import section
from headwise.studies.prompts.findings import significance
from headwise.studies.prompts.settings import PromptsSettings


def notices(context: Context[PromptsSettings], tables: Tables) -> Iterator[str]:
    """What was found, and what could have been, in a sentence per comparison."""
    for row in tables["accuracy"].to_dict("records"):
        lost = (
            f", {row['truncated']} cut off, {row['unparsed']} without a result"
            if (row["truncated"] or row["unparsed"])
            else ""
        )
        yield (
            f"{row['model']} on {row['task']}, {row['condition']}: {row['accuracy']:.1%} right "
            f"[{row['lo']:.1%}, {row['hi']:.1%}], {row['n']} problems{lost}"
        )
    for row in table_of(tables, "comparisons").to_dict("records"):
        yield significance(row)


register(
    Study(
        name="prompts",
        question="What do inserted tokens do to a model's answers and to a head's attention?",
        settings=PromptsSettings,
        stages=stages,
        compute={"answers": answer, "attention": look_inside, "summary": summarise},
        section=section,
        notices=notices,
    )
)
