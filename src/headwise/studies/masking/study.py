"""The study `masking`: does the model fail when the important heads go, and not when random ones go?

Half of each ability's examples give an order of heads; the other half is written on from, with the first K heads
of the order masked, with as many random ones, and with as many random ones of the same layers. Tables beside the
contract's: `texts` (everything that was written), `samples` (prompt, gold answer and texts side by side),
`orders` (which heads were masked), `cross` (mask one ability's heads, measure another), `interventions` (accuracy
before and after heads are amplified or shifted).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.charts.section import Tables
from headwise.runs import Cell
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.masking.cells import (
    all_places,
    find_order,
    first_cells,
    mask,
    mask_cells,
    places,
    sets_of,
    write_full,
)
from headwise.studies.masking.charts import section
from headwise.studies.masking.cross import cross, cross_cells
from headwise.studies.masking.intervene import intervention_cells, strengthen
from headwise.studies.masking.samples import sample_cells, side_by_side
from headwise.studies.masking.settings import MaskingSettings

BAR = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


def stages(context: Context[MaskingSettings]) -> Iterator[Sequence[Cell]]:
    for here in list(all_places(context)):
        here.judge.ready()
    yield list(first_cells(context))
    yield list(mask_cells(context))
    if context.settings.cross:
        yield list(cross_cells(context))
    if context.settings.intervene:
        yield list(intervention_cells(context))
    yield list(sample_cells(context))


def notices(context: Context[MaskingSettings], tables: Tables) -> Iterator[str]:
    """What the reader of the curves must know: a low start, and controls that are not quite what they should be."""
    curves, n = tables["curves"], context.settings.n
    for given in context.settings.models:
        display_name = context.display_name(given)
        own = curves[(curves["model"] == display_name) & (curves["metric"] == "accuracy")]
        low = own[(own["k"] == 0) & (own["value"] < BAR)]
        if len(low):
            listed = ", ".join(f"{row.task} {row.value:.0%}" for row in low.itertuples())
            yield (
                f"{display_name} answers few examples correctly with all heads ({listed}), so masking has little to "
                "remove there; give examples it can do, shots (task_options: {shots: 3}) or another accuracy"
            )
        for label, here in context.once(places, given).items():
            if len(here.test) < n:
                yield (
                    f"{label} has {len(here.test) + len(here.find)} examples, so {len(here.test)} are written on from "
                    f"instead of {n}"
                )
            for one in sets_of(context, here):
                if one.moved:
                    yield (
                        f"{label}, {display_name}: {one.moved} of {one.k * len(one.draws)} heads of the layer-matched "
                        f"draws at K = {one.k} come from neighbouring layers, because theirs had too few free heads"
                    )


register(
    Study(
        name="masking",
        question="Does the model fail when the important heads go, and not when random ones go?",
        settings=MaskingSettings,
        stages=stages,
        compute={
            "order": find_order,
            "full": write_full,
            "mask": mask,
            "cross": cross,
            "intervene": strengthen,
            "samples": side_by_side,
        },
        section=section,
        notices=notices,
    )
)
