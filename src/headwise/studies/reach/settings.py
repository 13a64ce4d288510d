"""Settings of the study `reach`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.model.sites.probe import accelerated
from headwise.names import reference_name
from headwise.scores.registry import check_methods, own_options
from headwise.settings import Count, Several, Text, one_of, passes
from headwise.studies.reach.kept import UNITS
from headwise.studies.settings import shared
from headwise.sweeps.curve import check_threshold
from headwise.tasks import families

PATTERN = "pattern"
RANKINGS = ("nested", "ablation", "attribution", PATTERN)
LENGTHS, LENGTHS_ON_CPU = (4000,), (2000,)
NESTED = {"seeds": 1, "updates": 200}
NESTED_ON_CPU = {"seeds": 1, "start": "attribution", "rows": 600}
NESTED_QUICK = {**NESTED_ON_CPU, "rows": 48}
"""Options of the learned ranking that are not given: with long prompts a row takes seconds on a CPU."""


class ReachSettings(shared.TaskSettings):
    QUICK: ClassVar[dict[str, Any]] = {
        "n": 8,
        "length": 150,
        "window": 6,
        "points": 6,
        "draws": 1,
        "texts": 2,
    }

    tasks: shared.TaskNames = ("needle",)
    """Built-in names, files, or hub:owner/name; prompts longer than sink and window together."""
    unit: Annotated[Text, one_of("unit", lambda: UNITS)] = "kv_heads"
    """What is ranked: `kv_heads` (all query heads of a key/value head together: what a cache stores) or `heads`."""
    methods: shared.MethodNames = RANKINGS
    """Score methods that rank; the first is compared with each of the others. `pattern` is the attention mass on the
    answer in the prompt; the others measure what is lost with a short view."""
    window: Count = 64
    """How many of the last tokens a head with a short view sees, its own included."""
    sink: NonNegativeInt = 4
    """How many of the first tokens it sees."""
    length: Count = 1000
    """Tokens of the prompts that rank heads, for tasks that have this option."""
    lengths: Several[Count] | None = None
    """Other lengths at which the same heads are tested; by default 4000, without an accelerator 2000, with `quick`
    twice the length."""
    transfer: Several[shared.TaskName] = ("recall_from_context",)
    """Other tasks on which the same heads are tested."""
    text: Text = "sentences"
    """Plain text whose cross-entropy is measured by position: `sentences` (ours) or a text file."""
    texts: NonNegativeInt = 16
    """How many pieces of this text; 0 for none."""
    budget: Annotated[PositiveFloat, Field(lt=1)] = 0.1
    """Share of the KV cache at which rankings are compared."""
    threshold: Annotated[float, passes(check_threshold)] = 0.9
    """Explained effect at which the number of key/value heads is read."""
    n: Annotated[int, Field(ge=4)] = 64
    """Examples: one half ranks the heads, the other tests them."""
    points: Annotated[int, Field(ge=3)] = 14
    """Points of a curve, about."""
    draws: Count = 5
    """Random draws of each control: key/value heads anywhere, and as many in each layer as the first ranking has."""
    task_options: shared.Options = Field(default_factory=dict)
    """Options of the tasks (depth, needles, distractors, filler), of their prompts or of their file (columns)."""
    method_options: shared.Options = Field(default_factory=dict)
    """Options of the score methods."""

    @property
    def reference(self) -> str:
        """The ablation type, as results name it."""
        return reference_name("window", self.window, self.sink)

    def options(self, method: str) -> dict[str, Any]:
        """Of a score method."""
        fast = accelerated(self.device)
        usual = NESTED_QUICK if self.quick else NESTED if fast else NESTED_ON_CPU
        if {"rows", "updates"} & set(self.method_options):  # one of them bounds the other
            usual = {name: value for name, value in usual.items() if name not in ("rows", "updates")}
        options = {**(usual if method == "nested" else {}), **self.method_options}
        if method == PATTERN:
            return own_options(method, {"kind": "retrieval", **options})
        return own_options(method, options | {"components": (self.unit,)})

    def task_options_of(self, task: str, length: int) -> dict[str, Any]:
        """Of a task, with its length where it has one."""
        family = families().get(task)
        return {**self.task_options, **({"length": length} if family and "length" in family.options else {})}

    def sources(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for task in self.tasks:
            yield task, self.task_options_of(task, self.length)
        for task in self.transfer:
            yield task, {}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_methods(self.methods, self.method_options, self.metric)
        if len(set(self.methods)) < len(self.methods):
            raise HeadwiseError(f"methods are {', '.join(self.methods)}; expected each method once")
        lengths = self.lengths
        if lengths is None:
            usual = LENGTHS if accelerated(self.device) else LENGTHS_ON_CPU
            self.__dict__["lengths"] = (2 * min(self.length, self.QUICK["length"]),) if self.quick else usual
        return self
