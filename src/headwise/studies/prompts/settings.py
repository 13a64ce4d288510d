"""Settings of the study `prompts`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.metrics import text_metric
from headwise.model.arm import MODES
from headwise.settings import Count, Named, Seed, Settings, Several, Text, not_empty, one_of, passes
from headwise.studies.settings.shared import Options, StudySettings, TaskName, TextMetricName
from headwise.tasks.conditions import PLACES, conditions


class ArmSettings(Settings):
    """Settings of the condition `arm`; the paper tunes c and p1 for each model and task."""

    c: PositiveFloat = 0.13
    """Activations closer to 0 than this count as small, in robust standard deviations (1.4826 · MAD)."""
    p1: Annotated[float, Field(ge=0, le=100)] = 99.5
    """Percentile of the activations that bounds the new values."""
    mode: Annotated[Text, one_of("mode of arm", lambda: MODES)] = "replace"
    """`replace` (as in the authors' code) or `add` (as in their paper)."""
    seed: Seed = 0
    """Random seed of the new values."""


class PromptsSettings(StudySettings):
    QUICK: ClassVar[dict[str, Any]] = {"n": 20, "attention_prompts": 2, "samples": 1}

    tasks: Several[TaskName] = ()
    """Built-in names or files (GSM8K, MATH-500, your own); `word_problems` by default."""
    data: TaskName | None = None
    """A task file, in addition to `tasks` or instead of it."""
    n: Count = 60
    """Problems per task."""
    task_options: Options = Field(default_factory=dict)
    """Options of the tasks or of their files (columns, mapping)."""
    conditions: Annotated[Several[Text], not_empty("condition")] = ("none", "meaningless", "meaningful")
    """`none`, `meaningless`, `meaningful`, `arm`, names of `fillers`; `meaningless:20` for 20 copies. The
    baseline is `none`, or else the first."""
    fillers: Named[Text] = Field(default_factory=dict)
    """Your own filler texts by name; a text with {question} is put around the question."""
    lengths: Several[Count] = ()
    """Numbers of copies of each filler; each number is a condition."""
    place: Annotated[Text, one_of("place", lambda: PLACES)] = "between"
    """Position of the filler: `between` system prompt (and few-shot examples) and question, `before` everything, at the
    `end`."""
    joint: Text = "\n"
    """Text between the filler and its neighbour; it counts as inserted."""
    chat: bool | None = None
    """Use the model's chat template, with few-shot examples as turns; by default if the model has one and there are no
    few-shot examples."""
    system: Text | None = None
    """System prompt; by default none, or for GSM8K and MATH-500 a request for steps and a boxed result."""
    shots: NonNegativeInt | None = None
    """Few-shot examples before each problem; by default 8 for word_problems, none for files in a chat, else 4."""
    working: bool | None = None
    """Few-shot examples show the steps; by default true for GSM8K and MATH-500, false for word_problems."""
    template: Text = "Q: {prompt}\nA:{target}"
    """Template of problem and answer without a chat template."""
    separator: Text = "\n\n"
    """Text between few-shot examples without a chat template."""
    stop: Several[Text] | None = None
    """Stop strings; by default the separator, or none with a chat template."""
    max_new_tokens: Count | None = None
    """Maximum number of generated tokens; by default twice the longest few-shot example plus 16, or 512."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0 is greedy decoding."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: cumulative probability of the tokens that are sampled from."""
    samples: Count = 1
    """Sampled answers per problem, each with its own seed; needs a temperature above 0."""
    metric: TextMetricName = "math"
    """Text metric that judges the answers: `math`, `contains`, `exact`."""
    heads: Several[Annotated[Text, passes(Head.parse)]] = ()
    """Heads whose attention profile is drawn; by default the one whose attention the insertion changes most."""
    attention_prompts: NonNegativeInt = 8
    """Problems on which attention, outputs and activations are measured; 0 for none."""
    profile_prompts: Count = 1
    """Number of problems that attention profiles are averaged over."""
    arm: ArmSettings = ArmSettings()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        conditions(self.conditions, self.fillers, self.lengths)
        if self.place == "end" and self.profile_prompts > 1:
            raise HeadwiseError(
                "with place=end every problem has its inserted tokens elsewhere, so profiles cannot be averaged by "
                "position; use profile_prompts=1"
            )
        if self.samples > 1 and self.temperature == 0 and not self.quick:
            raise HeadwiseError(
                f"samples is {self.samples}, but greedy decoding gives the same answer each time; set a temperature, "
                "such as temperature=0.7"
            )
        return self

    def before_run(self) -> None:
        super().before_run()
        text_metric(self.metric).ready()
