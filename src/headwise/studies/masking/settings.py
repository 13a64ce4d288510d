"""Settings of the study `masking`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, model_validator
from typing_extensions import Self

from headwise.errors import unknown
from headwise.metrics import metric, text_metric, text_metrics
from headwise.scores.registry import check_metric, method
from headwise.settings import Count, Named, Several, Text, one_of
from headwise.studies.abilities import check_limit
from headwise.studies.settings import shared

AUTO = "auto"
"""The accuracy metric that suits the answers."""
ANSWERS = ("sentence", "text")
"""Parts of a text that can be judged."""
STRENGTHS = {"amplify": (1.25, 1.5, 2.0), "shift": (1.0, 3.0, 10.0)}
"""By kind of intervention: gates to try, and values of α."""
Intervention = Annotated[Text, one_of("intervention", lambda: STRENGTHS)]


def _known_kinds(strengths: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    for kind in strengths:
        if kind not in STRENGTHS:
            raise unknown("intervention", kind, STRENGTHS)
    return strengths


class MaskingSettings(shared.AbilitySettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 10, "max_new_tokens": 8}

    abilities: Several[Text] = ()
    """Labels to include; by default Retrieval, Knowledge Recall, Math Calculation and Inference if the examples have
    them, else every label. `all` means every label."""
    n: Annotated[int, Field(ge=2)] = 40
    """Test examples per ability, from which text is generated; as many others rank the heads. An ability with fewer
    than twice as many examples is split in halves."""
    k: Several[Count] = ()
    """Numbers of heads to mask; by default 16, 32, 64, 128, or the same shares of a model with fewer than 512 heads."""
    method: shared.MethodName = "attribution"
    """Score method that ranks the heads."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the method."""
    metric: shared.MetricName = "logprob"
    """Metric of the score; by default the log probability of the correct answer, as generation depends on it."""
    order: Annotated[Text, one_of("order", lambda: shared.RANKINGS)] | None = None
    """How the score ranks heads: `signed` (most helpful first), `absolute` or `hinders`; by default `signed` if the
    method is signed, else `absolute`."""
    cards: NonNegativeInt = 2
    """Number of heads of each ability that get a card (head page) in the report: those with the largest scores. 0 for
    none."""
    draws: Count = 5
    """Random draws of each control."""
    layer_matched: Several[Count] | None = None
    """Values of k with layer-matched draws too; by default the third, [] for none."""
    scale: NonNegativeFloat = 0.0
    """Gate of a masked head: 0 removes it; the paper uses .001, its code .0001."""
    positions: shared.AnswerPositions = "all"
    """Token positions that gates act on: `all`, or from the `last` prompt token on."""
    max_new_tokens: Count = 16
    """Maximum number of tokens generated per prompt."""
    chat: bool = False
    """Use the model's chat template."""
    accuracy: Annotated[Text, one_of("text metric", lambda: (AUTO, *text_metrics()))] = AUTO
    """Text metric that decides whether an answer is correct; `auto` is `contains`, or `math` if all answers are
    numbers."""
    answer: Annotated[Text, one_of("answer", lambda: ANSWERS)] = "sentence"
    """Part of the text that is judged for accuracy: its first `sentence`, or the whole `text`."""
    similarity: shared.TextMetricName = "chrf"
    """Text metric that compares with the text of the full model: chrf, bleu, rouge1, cosine, comet."""
    cross: bool = False
    """Also mask each ability's heads and measure every other ability, at one k."""
    cross_k: Count | None = None
    """Value of k for `cross`; by default the third."""
    intervene: Several[Intervention] = ()
    """Also strengthen heads: `amplify` (gate above 1), `shift` (add α·σ·direction)."""
    intervene_k: Count | None = None
    """Number of top heads that are strengthened; by default the first k."""
    strengths: Annotated[Named[Several[float]], AfterValidator(_known_kinds)] = Field(default_factory=dict)
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
        accuracy = "math" if self.accuracy == AUTO else self.accuracy  # auto may choose math
        for name in {accuracy, self.similarity}:
            text_metric(name).ready()
