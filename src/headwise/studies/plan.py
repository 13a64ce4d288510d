"""What a run will cost, before anything of it is computed: `--dry-run`.

A study's plan gives the calls that its body will make, with stand-ins of the right size where a call needs an earlier
result (any 16 heads in the place of the top 16). Nothing is computed from a plan: only the costs of its calls are read,
and one timed pass of each model says what they mean on this device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from headwise.display import counted
from headwise.errors import HeadwiseError
from headwise.heads import Order, ones
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.runs.step import NEW_TOKEN, UNITS, Call
from headwise.studies.run import Run
from headwise.sweeps.plan import duration, few_parameters, seconds_of, tokens_per_second
from headwise.tasks import Task

_TIMED_TEXTS, _TIMED_NEW = 24, 6
"""Texts of the timed generation, and the tokens that it adds to each."""
_LISTED = 32
"""Examples of a task whose tokens are counted."""
_TABLES, _PER_CALL, _SLOWER = 4.0, 0.3, 1.5
"""Seconds on one core for tables, figures and report, and for the statistics of one step; how much longer the rows of a
step take than those of the timed pass (measured: 1.3 to 1.8 in four studies with `quick`)."""


class PlanningRun(Run):
    """Opens models and tasks as a run does, keeps what a study has to say, and computes nothing."""

    def __init__(self, settings: Any, bench: Any) -> None:
        nothing: Any = None
        super().__init__(settings, bench, nothing)
        self.notes: list[str] = []

    def all(self, calls: Mapping[Any, Call[Any]], label: str = "steps") -> Any:
        raise AssertionError(f"a plan computes nothing, and {label} were asked for")

    def say(self, *sentences: str) -> None:
        self.notes += sentences


@dataclass(frozen=True)
class Planned:
    """The calls of one step: how many, and what they cost."""

    step: str
    calls: int
    rows: int
    """Forward rows; a backward pass counts as two more."""
    new_tokens: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What a run would compute."""

    study: str
    question: str
    settings: dict[str, Any]
    changed: list[str]
    """The settings that are not the study's defaults."""
    models: list[str] = field(default_factory=list)
    examples: dict[str, int] = field(default_factory=dict)
    steps: list[Planned] = field(default_factory=list)
    memory: str = ""
    published: dict[str, Any] = field(default_factory=dict)
    """Of a published set-up: paper, deviations, what must be done first."""
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(planned.rows for planned in self.steps)

    @property
    def seconds(self) -> float:
        return sum(planned.seconds for planned in self.steps) + _TABLES

    def __str__(self) -> str:
        lines = [f"{self.study}: {self.question}", "settings (*: not the default)"]
        shown = {
            name: value for name, value in self.settings.items() if value not in (None, (), [], {}, False)
        }
        lines += [f"  {name}{'*' * (name in self.changed)}: {value}" for name, value in shown.items()]
        for name in ("paper", "figure", "first", "cost"):
            lines += [f"{name}: {self.published[name]}"] if name in self.published else []
        for row in self.published.get("settings", ()):
            kept = {name: row[name] for name in ("paper", "published", "data", "why") if name in row}
            lines.append(
                f"  {row['setting']}: " + "; ".join(f"{name}: {text}" for name, text in kept.items())
            )
        lines += ["models", *(f"  {model}" for model in self.models)]
        lines += ["examples", *(f"  {task}: {n}" for task, n in self.examples.items())]
        for planned in self.steps:
            text = f", {planned.new_tokens:,} new tokens" if planned.new_tokens else ""
            rows = f"{planned.rows:,} forward rows" if planned.rows or not text else ""
            lines.append(
                f"  {planned.step}: {counted(planned.calls, 'step')}, {(rows + text).lstrip(', ')}, "
                f"{duration(planned.seconds)}"
            )
        lines += self.notes
        if self.steps:
            lines.append(
                f"{self.rows:,} forward rows, {duration(self.seconds)} on this device, {self.memory}"
            )
        return "\n".join(lines)


def make_plan(
    chosen: Any, settings: Any, bench: Any, published: Mapping[str, Any], notes: Sequence[str]
) -> Plan:
    """The plan of a study with these settings. A model that cannot be loaded is named, and costs are left out."""
    kind = type(settings)
    defaults = {name: one.get_default(call_default_factory=True) for name, one in kind.model_fields.items()}
    changed = [name for name, value in defaults.items() if getattr(settings, name) != value]
    fields: dict[str, Any] = {"study": chosen.name, "question": chosen.question}
    quick = settings.quickened() if settings.quick else settings
    fields |= {"settings": quick.model_dump(), "changed": changed, "published": dict(published)}
    run = PlanningRun(quick, bench)
    run.say(*notes)
    try:
        bench.prepare(settings)
        models = {source: bench.model(source) for source in quick.models}
        if chosen.plan is None:
            run.say(f"the study {chosen.name!r} has no plan, so its cost is not known before it is run")
            return Plan(**fields, models=[_named(model) for model in models.values()], notes=run.notes)
        calls = list(chosen.plan(run, quick))
    except HeadwiseError as error:
        return Plan(**fields, models=list(quick.models), notes=[*run.notes, f"no cost: {error}"])
    tasks: dict[str, set[int]] = {}  # halves of a task are parts of one
    for task in (task for call in calls for task in _found(call.arguments, Task)):
        tasks.setdefault(task.name, set()).update(task.numbers)
    opened = {model.name: model for call in calls for model in _found(call.arguments, Model)}
    fields |= {
        "models": [_named(model) for model in opened.values()],
        "examples": {name: len(numbers) for name, numbers in tasks.items()},
    }
    return Plan(**fields, steps=_timed(calls), memory=_memory(opened.values()), notes=run.notes)


def _timed(calls: Sequence[Call[Any]]) -> list[Planned]:
    """The calls of each step together, with their seconds on this device."""
    rates: dict[tuple[str, str], float] = {}
    lengths: dict[str, float] = {}
    sums: dict[str, list[float]] = {}
    for call in calls:
        model = next(_found(call.arguments, Model))
        task = next(_found(call.arguments, Task), None)
        written = call.step.unit == NEW_TOKEN
        cost = float(call.cost or 0)
        rows, new = (0.0, cost) if written else (cost * UNITS[call.step.unit], 0.0)
        seconds = 0.0
        if task is not None:
            key = (model.name, call.step.unit if written else "rows")
            if key not in rates:
                rates[key] = (new_tokens_per_second if written else tokens_per_second)(model, task)
            if task.fingerprint not in lengths:
                lengths[task.fingerprint] = _length(model, task)
            seconds = (new if written else _SLOWER * rows * lengths[task.fingerprint]) / rates[key]
        name = call.step.__name__.replace("_", " ")  # type: ignore[attr-defined]
        of_step = sums.setdefault(name, [0, 0, 0, 0])
        for place, value in enumerate((1, rows, new, seconds + _PER_CALL)):
            of_step[place] += value
    return [
        Planned(name, int(n), round(rows), round(new), seconds)
        for name, (n, rows, new, seconds) in sums.items()
    ]


def _found(value: Any, kind: type, depth: int = 3) -> Iterator[Any]:
    """Every object of a class among the arguments of a call, in mappings, lists and dataclasses."""
    if isinstance(value, kind):
        yield value
    elif depth and isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _found(item, kind, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, Task | Model):
        for one in fields(value):
            yield from _found(getattr(value, one.name), kind, depth - 1)


def some_heads(model: Model, number: int) -> Order:
    """Stand-ins for the `number` top heads of a model: as many heads, spread over its layers."""
    heads = model.heads()
    return [heads[i] for i in np.linspace(0, len(heads) - 1, min(number, len(heads))).astype(int)]


def _named(model: Model) -> str:
    layers, heads = model.shape
    count = sum(p.numel() for p in model.hf.parameters())
    return (
        f"{model.name}: {layers} layers × {heads} heads, {count / 1e6:,.0f} M parameters, {model.dtype_name} on "
        f"{model.device}"
    )


def _memory(models: Iterable[Model]) -> str:
    """What the weights take, and the most that this process has had in use, the timed passes included."""
    opened = list(models)
    weights = sum(p.nbytes for model in opened for p in model.hf.parameters()) / 1e9
    if any(model.device.type == "cuda" for model in opened):
        used = torch.cuda.max_memory_allocated() / 1e9
    else:
        import resource  # not on Windows, where models that need an accelerator are not planned on a CPU

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    return f"memory {weights:.1f} GB for weights, {used:.1f} GB with a timed pass"


# ---- how fast this device is -------------------------------------------------------------------------------


def _length(model: Model, task: Task) -> float:
    """Tokens of one row of a task, about."""
    some = task.examples[:_LISTED]
    return float(np.mean([len(model.tokens(example.prompt + example.target)) for example in some]))


def new_tokens_per_second(model: Model, task: Task) -> float:
    """Tokens that are generated per second, of several texts at once."""
    prompts = [example.prompt for example in task.examples[: _TIMED_TEXTS if few_parameters(model) else 1]]
    gates = np.stack([ones(model.shape)] * max(1, _TIMED_TEXTS // len(prompts) if len(prompts) > 1 else 1))
    gates *= 1 - 1e-3 * np.arange(len(gates))[:, None, None]
    written: dict[str, Any] = {"max_new_tokens": _TIMED_NEW, "progress": False}
    seconds = seconds_of(lambda: generate(model, prompts, gates, **written), model.device)
    return len(gates) * len(prompts) * _TIMED_NEW / seconds
