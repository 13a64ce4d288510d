"""Settings of the study `wiring`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeInt

from headwise.errors import HeadwiseError
from headwise.heads.edges import inputs_of
from headwise.model.measure.references import check_stored
from headwise.scores.edges.registry import edge_methods
from headwise.settings import Count, Several, Text, one_of, passes
from headwise.studies.settings import shared
from headwise.sweeps.curve import check_threshold


def _check_receiver(name: str) -> None:
    inputs_of(name, {})


class WiringSettings(shared.StudySettings):
    """Settings of the study `wiring`."""

    QUICK: ClassVar = {"n": 24, "heads": 6, "points": 7, "cards": 2}

    models: shared.Models = ("smollm2",)
    """One model; or two, the dense one first, then the sparse one, whose circuits are compared."""
    tasks: shared.TaskNames = ("ioi",)
    """Built-in names, files, or hub:owner/name."""
    n: Annotated[int, Field(ge=4)] = 32
    """Examples per task: one half finds the heads and ranks the edges, the other tests them."""
    order: Annotated[Text, one_of("method", shared.methods)] = "ablation"
    """Score method that finds the heads whose edges are measured."""
    heads: Count = 16
    """Number of top heads, by absolute score."""
    into: Several[Annotated[Text, passes(_check_receiver)]] = ()
    """Receivers, such as L23H3; by default the top heads and the logits. All heads before them are then senders."""
    method: Annotated[Text, one_of("edge method", edge_methods)] = "exact"
    """Edge method of the edges among the top heads: exact, attribution or integrated."""
    gradient: Annotated[Text, one_of("edge method", edge_methods)] | None = "attribution"
    """Gradient method that scores all edges of the model, MLPs and embeddings too; null for none. Not with `into`."""
    metric: shared.MetricName | None = None
    """Metric; by default the one of each task."""
    reference: Annotated[shared.ReferenceName, passes(partial(check_stored, what="the edges"))] = "mean"
    """Ablation type: what replaces a sender's contribution (zero, mean, position_mean, resample, patch)."""
    threshold: Annotated[float, passes(check_threshold)] = 0.9
    """Explained effect (faithfulness) at which the circuit size is read."""
    points: Annotated[int, Field(ge=4)] = 15
    """Maximum number of points of a curve; 0 edges and all edges are always there."""
    curve: bool = True
    """Whether the curve of explained effect against edges kept is measured. Not with `into`."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the task, of its prompts or of its file."""
    cards: NonNegativeInt = 4
    """Number of heads of the circuit that get a card (head page) in the report; 0 for none."""

    def before_run(self) -> None:
        super().before_run()
        if not 1 <= len(self.models) <= 2:
            raise HeadwiseError(
                f"the study 'wiring' takes one model, or a dense and a sparse one; {len(self.models)} are given"
            )
