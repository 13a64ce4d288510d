"""Settings that every study has, and the types that the settings of several studies share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field
from typing_extensions import Self

from headwise.errors import HeadwiseError, hint, quoted
from headwise.metrics import metrics, text_metrics
from headwise.model.measure.positions import AnswerPositions as AnswerPositions
from headwise.model.measure.positions import Positions as Positions
from headwise.model.measure.positions import PositionsOrEach as PositionsOrEach
from headwise.model.measure.references import ReferenceName as ReferenceName
from headwise.model.sites.probe import DTYPES
from headwise.scores.registry import methods
from headwise.settings import (
    Count,
    Named,
    Seed,
    Settings,
    Several,
    Text,
    field_texts,
    not_empty,
    one_of,
    passes,
)
from headwise.tasks import Example
from headwise.tasks.opening import check_source, check_task

RANKINGS = ("signed", "absolute", "hinders")
_DEVICES = re.compile(r"cpu|mps|meta|auto|(cuda|xpu|npu|hpu|mlu|musa)(:[0-9]+)?|mps:0|cpu:0")


def _check_device(value: str) -> None:
    if not _DEVICES.fullmatch(value):
        raise HeadwiseError(f"device is {quoted(value)}; expected cpu, cuda, cuda:1, mps or auto")


def _with_names(value: Any) -> Any:
    return [f"{name}={source}" for name, source in value.items()] if isinstance(value, Mapping) else value


TaskName = Annotated[Text, passes(check_source)]
"""A built-in task, a file, or hub:owner/name."""
MethodName = Annotated[Text, one_of("method", methods)]
MetricName = Annotated[Text, one_of("metric", metrics)]
TextMetricName = Annotated[Text, one_of("text metric", text_metrics)]
Models = Annotated[Several[Text], BeforeValidator(_with_names)]
"""Sources of models, each with a name for the tables or without: `NAME=source`, or a mapping of names to sources."""
ModelNames = Annotated[Models, not_empty("model")]
TaskNames = Annotated[Several[TaskName], not_empty("task")]
MethodNames = Annotated[Several[MethodName], not_empty("method")]
Options = Named[Any]


class StudySettings(Settings):
    """Settings that every study has; a study adds its own fields, and may give these other defaults."""

    QUICK: ClassVar[Mapping[str, int]] = {}
    """The largest value of some numbers with `quick`."""

    models: ModelNames = ("smollm2",)
    """Bundled aliases, hub ids, folders or GGUF files; several are shown side by side. NAME=path gives a name."""
    seed: Seed = 0
    """Random seed."""
    quick: bool = False
    """Fewer examples and points: at most three minutes on two cores with the bundled model."""
    device: Annotated[Text, passes(_check_device)] | None = None
    """cpu, cuda, cuda:1, mps; by default an accelerator if there is one."""
    dtype: Annotated[Text, one_of("dtype", lambda: DTYPES)] | None = None
    """float32, bfloat16, float16, float64; by default float32 on a CPU, else bfloat16."""
    batch_tokens: Count | None = None
    """Maximum number of tokens in one forward pass."""
    compile: bool = False
    """On an accelerator: fuse small operations with torch.compile; faster for large models and long runs."""
    truncate: bool = False
    """Truncate prompts longer than the context length from the left; by default they are refused."""
    revision: Text | None = None
    """Revision of models from the hub: a branch, a tag or a commit."""
    base: Text | None = None
    """Base model of the adapters among the models, instead of the one that each adapter names."""
    trust_remote_code: bool = False
    """Allow code from the models' repositories to run."""

    @property
    def ablation(self) -> dict[str, Any]:
        """How heads are ablated, for steps: as far as the study has settings for it."""
        names = ("metric", "reference", "positions", "seed")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def at_most(self, **most: int) -> Self:
        """The same settings with each of these numbers at most this large; one that was None becomes it."""
        values = {name: getattr(self, name) for name in most}
        return self.replaced(
            **{n: most[n] if value is None else min(value, most[n]) for n, value in values.items()}
        )

    def quickened(self) -> Self:
        """The settings that `quick` makes of these; a run records them, and they make the same of themselves."""
        return self.at_most(**self.QUICK)

    def sources(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every task that the study will open, with its options."""
        for source in (*getattr(self, "tasks", ()), getattr(self, "data", None)):
            if source is not None:
                yield source, getattr(self, "task_options", {})

    def before_run(self) -> None:
        """Refuse mistakes that need no model to be seen, before a model is loaded or a folder made.

        Beside the checks of each setting: whether files and packages are there, and whether enough was given.
        """
        for source, options in self.sources():
            if (examples := check_task(source, options)) is not None:
                self._check_examples(source, examples)

    def _check_examples(self, source: str, examples: Sequence[Example]) -> None:
        """Refuse a file whose examples lack what the metric or the ablation type reads."""
        metric, needs = getattr(self, "metric", None), ("pairs", "sets")
        if metric in metrics() and metrics()[metric].needs in needs:
            self._check_field(
                source, [bool(e.foils) for e in examples], "foils", f"the metric {metric!r}", "logprob"
            )
        if "patch" in (getattr(self, "reference", None), *getattr(self, "references", ())):
            has = [e.counterfactual is not None for e in examples]
            self._check_field(source, has, "counterfactual", "the ablation type 'patch'", "mean")

    def _check_field(self, source: str, has: list[bool], field: str, reader: str, other: str) -> None:
        """Refuse a file of which so many examples lack a field that any `n` of them would lack it too."""
        n = min(getattr(self, "n", None) or len(has), len(has))
        if n > sum(has):
            raise HeadwiseError(
                f"{len(has) - sum(has)} of {len(has)} examples in {source} have no {field}, which {reader} needs; "
                f"add a column {field!r}, name one with {hint('columns', {field: 'NAME'})}, or use {other!r}"
            )


class TaskSettings(StudySettings):
    """Settings of studies whose tasks are taken as they are."""

    tasks: TaskNames = ("ioi",)
    """Built-in names, files, or hub:owner/name."""
    metric: MetricName | None = None
    """Metric; by default the one of each task."""
    task_options: Options = Field(default_factory=dict)
    """Options of the task (pattern: ABB), of its prompts (shots, template, separator) or of its file (columns)."""


class AbilitySettings(StudySettings):
    """Settings of studies whose examples are sorted by ability."""

    tasks: Several[TaskName] = ()
    """Built-in names, files, or hub:owner/name; `abilities` by default. The label of an example is its ability;
    examples without a label are one ability, named like their task or file."""
    data: TaskName | None = None
    """A task file, in addition to `tasks` or instead of it."""
    task_options: Options = Field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    limit: Count | None = None
    """Maximum number of examples read from a file, over all abilities."""


# ---- settings as text ----------------------------------------------------------------------------


class Described(NamedTuple):
    """One setting."""

    name: str
    """As `--set` takes it: `n`, or `fit.updates` for a setting of a setting."""
    default: str
    about: str


def described(settings: type[Settings], prefix: str = "") -> list[Described]:
    """Every setting of a class, a study's own before those that all studies share."""
    rows: list[Described] = []
    texts = field_texts(settings)
    for name in sorted(settings.model_fields, key=StudySettings.model_fields.__contains__):
        field = settings.model_fields[name]
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            rows += described(type(default), f"{prefix}{name}.")
        else:
            description = " ".join(texts.get(name, "").split())
            rows.append(Described(prefix + name, _shown(default), description))
    return rows


def _shown(value: Any) -> str:
    """A default as it would be typed; a line where there is none."""
    if value is None or value in ((), {}, ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        inside = [_shown(item) for item in value]
        return inside[0] if len(inside) == 1 else f"[{', '.join(inside)}]"
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
