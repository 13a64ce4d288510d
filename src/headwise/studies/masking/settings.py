"""What the study `masking` can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, NonNegativeFloat, model_validator
from typing_extensions import Self

from headwise.errors import unknown
from headwise.metrics import metric, text_metric, text_metrics
from headwise.scores.registry import check_metric, method
from headwise.settings import Count, Named, Several, Text, one_of
from headwise.studies.abilities import check_limit
from headwise.studies.masking.texts import ANSWERS, AUTO
from headwise.studies.settings import shared

KINDS = ("amplify", "shift")
"""Of interventions."""
Intervention = Annotated[Text, one_of("intervention", lambda: KINDS)]


def _known(strengths: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    for kind in strengths:
        if kind not in KINDS:
            raise unknown("intervention", kind, KINDS)
    return strengths


class MaskingSettings(shared.StudySettings):
    """Settings of the study `masking`."""

    QUICK: ClassVar = {"n": 10, "max_new_tokens": 8}
    RENAMED: ClassVar = {"new_tokens": "max_new_tokens", "order_by": "order"}

    tasks: Several[shared.TaskName] = ()
    """Built-in names, files, or hub:owner/name; `abilities` by default. The label of an example is its ability;
    examples without a label are one ability, named like their task or file."""
    data: shared.TaskName | None = None
    """A task file, beside `tasks` or instead."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    limit: Count | None = None
    """Most examples taken from a file, over all abilities."""
    abilities: Several[Text] = ()
    """Labels; by default Retrieval, Knowledge Recall, Math Calculation and Inference where the examples have
    them, else every label. `all` is every label."""
    n: Annotated[int, Field(ge=2)] = 40
    """Examples of each ability that are written on from; as many others give the order. Where there are fewer
    than twice as many, half of them."""
    k: Several[Count] = ()
    """How many heads to mask; by default 16, 32, 64, 128, and the same shares of a model with fewer than 512."""
    method: shared.MethodName = "attribution"
    """The score that orders the heads."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the method."""
    metric: shared.MetricName = "logprob"
    """What the score measures: by default how probable the right answer is, because that is what a text needs."""
    order: Annotated[Text, one_of("order", lambda: shared.RANKINGS)] | None = None
    """`signed` (helps most first), `absolute` or `hinders`; by default signed where the method is, else absolute."""
    draws: Count = 5
    """Random draws of heads for each control."""
    layer_matched: Several[Count] | None = None
    """The K at which layer-matched draws are made too; by default the third, with [] none."""
    scale: NonNegativeFloat = 0.0
    """The gate of a masked head: 0 removes it; the paper has .001, its code .0001."""
    positions: shared.Positions = "all"
    """Where gates act: `all`, or from the `last` prompt token on."""
    max_new_tokens: Count = 16
    """Most tokens written after each prompt."""
    chat: bool = False
    """Put prompts into the model's chat template."""
    accuracy: Annotated[Text, one_of("text metric", lambda: (AUTO, *text_metrics()))] = AUTO
    """The text metric that decides what is right; `auto` is `contains`, or `math` where all answers are numbers."""
    answer: Annotated[Text, one_of("answer", lambda: ANSWERS)] = "sentence"
    """What of a text is judged for accuracy: its first `sentence`, or the whole `text`."""
    similarity: shared.TextMetricName = "chrf"
    """The text metric that compares with what the full model wrote: chrf, bleu, rouge1, cosine, comet."""
    cross: bool = False
    """Also mask each ability's heads and measure every other ability, at one K."""
    cross_k: Count | None = None
    """By default the third K."""
    intervene: Several[Intervention] = ()
    """Also make heads stronger: `amplify` (a gate above 1), `shift` (add α·σ·direction)."""
    intervene_k: Count | None = None
    """How many of the order's first heads are made stronger; by default the first K."""
    strengths: Annotated[Named[Several[float]], AfterValidator(_known)] = Field(default_factory=dict)
    """Gates to try for `amplify`, α for `shift`."""

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        # The study maps all labels at once, so `label` is none of the options of a method that tells them apart.
        chosen = method(self.method)
        options = {option for option in chosen.options if not (chosen.per_label and option == "label")}
        for option in self.method_options:
            if option not in options:
                raise unknown(f"option of method {self.method!r}", option, options)
        check_metric(chosen, metric(self.metric), self.method_options)
        return self

    def before_run(self) -> None:
        super().before_run()
        check_limit(self)
        for name in {
            "math" if self.accuracy == AUTO else self.accuracy,
            self.similarity,
        }:  # auto may choose math
            text_metric(name).ready()
