"""The plain study: score every head of each model on each task by each method."""

from __future__ import annotations

from collections.abc import Iterator

from headwise.charts.section import Tables
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.score.cells import score_heads, stages
from headwise.studies.score.charts import section
from headwise.studies.score.settings import ScoreSettings


def notices(context: Context[ScoreSettings], tables: Tables) -> Iterator[str]:
    for cell in context.cells:
        if said := context.notes(cell).get("said"):
            yield f"{cell.label}: {said}"


register(
    Study(
        name="score",
        question="Which heads matter for this task?",
        settings=ScoreSettings,
        stages=stages,
        compute={"score": score_heads},
        section=section,
        notices=notices,
    )
)
