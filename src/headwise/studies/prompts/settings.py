"""What the study `prompts` can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.metrics import text_metric
from headwise.model.arm.arm import MODES
from headwise.settings import Count, Named, Seed, Settings, Several, Text, not_empty, one_of, passes
from headwise.studies.settings.shared import Options, StudySettings, TaskName, TextMetricName
from headwise.tasks.conditions import PLACES, conditions


class ArmSettings(Settings):
    """Of the condition `arm`; the paper tunes c and p1 for each model and task."""

    c: PositiveFloat = 0.13
    """How far from 0 an activation counts as small, in units of the spread."""
    p1: Annotated[float, Field(ge=0, le=100)] = 99.5
    """Percentile of the activations up to which new values are drawn."""
    mode: Annotated[Text, one_of("mode of arm", lambda: MODES)] = "replace"
    """`replace` (the authors' code) or `add` (their paper)."""
    seed: Seed = 0
    """Of the new values."""


class PromptsSettings(StudySettings):
    """Settings of the study `prompts`."""

    QUICK: ClassVar = {"n": 20, "attention_prompts": 2, "samples": 1}

    tasks: Several[TaskName] = ()
    """Built-in names or files (GSM8K, MATH-500, your own); `word_problems` by default."""
    data: TaskName | None = None
    """A task file, beside `tasks` or instead."""
    n: Count = 60
    """Problems of each task."""
    task_options: Options = Field(default_factory=dict)
    """Options of the tasks or of their files (columns, mapping)."""
    conditions: Annotated[Several[Text], not_empty("condition")] = ("none", "meaningless", "meaningful")
    """`none`, `meaningless`, `meaningful`, `arm`, names of `fillers`; `meaningless:20` for 20 copies. The others are
    compared with `none`, or else with the first."""
    fillers: Named[Text] = Field(default_factory=dict)
    """Texts of your own by name; with the gap {question} a text stands around the question."""
    lengths: Several[Count] = ()
    """Ask under each filler once for each of these numbers of copies."""
    place: Annotated[Text, one_of("place", lambda: PLACES)] = "between"
    """Of the filler: `between` system prompt (and solved examples) and question, `before` everything, at the `end`."""
    joint: Text = "\n"
    """What separates the filler from its neighbour; counts as inserted."""
    chat: bool | None = None
    """Use the model's chat template, solved examples as turns; by default where it has one and there are no solved
    examples."""
    system: Text | None = None
    """System prompt; by default none, or for GSM8K and MATH-500 a request for steps and a boxed result."""
    shots: NonNegativeInt | None = None
    """Solved examples before each problem; by default 8 for word_problems, none for files in a chat, else 4."""
    working: bool | None = None
    """Solved examples show their working; by default those of GSM8K and MATH-500 do, word_problems' do not."""
    template: Text = "Q: {prompt}\nA:{target}"
    """Of problem and answer in plain text."""
    separator: Text = "\n\n"
    """Between solved examples in plain text."""
    stop: Several[Text] | None = None
    """Texts that end an answer; by default the separator in plain text, none in a chat."""
    max_new_tokens: Count | None = None
    """By default twice the longest solved example and 16, or 512."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Tokens are drawn from the likeliest ones that have this probability together."""
    samples: Count = 1
    """Answers to each problem, each with a seed of its own; needs a temperature above 0."""
    metric: TextMetricName = "math"
    """How answers are judged: `math`, `contains`, `exact`."""
    heads: Several[Annotated[Text, passes(Head.parse)]] = ()
    """Heads whose profile is drawn; by default the one that the insertion moves most."""
    attention_prompts: NonNegativeInt = 8
    """Problems on which attention, outputs and activations are looked at; 0 for none."""
    profile_prompts: Count = 1
    """Profiles are those of the first problem, or the mean over so many."""
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
