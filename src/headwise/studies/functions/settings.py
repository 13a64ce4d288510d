"""Settings of the study `functions`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeInt

from headwise.settings import Count, Several, Text
from headwise.studies.abilities import check_limit
from headwise.studies.settings import shared


class FunctionsSettings(shared.AbilitySettings):
    """Settings of the study `functions`."""

    QUICK: ClassVar = {"n": 12}

    abilities: Several[Text] = ()
    """Labels to include; by default all."""
    methods: shared.MethodNames = ("attribution", "probe")
    """Score methods (headwise list methods); each gives one map per ability."""
    n: Count | None = None
    """Maximum number of examples per ability; by default 40 of a built-in task, all of a file."""
    metric: shared.MetricName | None = None
    """Metric of the causal methods; by default the one of each task."""
    reference: shared.ReferenceName = "mean"
    """Ablation type of the causal methods: what replaces an ablated head (zero, mean, resample, patch, …)."""
    answer_tokens: Count | None = None
    """Number of answer tokens that the probe averages over, least probable first; by default all."""
    cards: NonNegativeInt = 2
    """Number of heads of each ability and causal method that get a card (head page) in the report: those with the
    largest scores. 0 for none."""

    def before_run(self) -> None:
        super().before_run()
        check_limit(self)
