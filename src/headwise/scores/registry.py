"""What a score method is, the methods known by name, and `score`, which runs one.

A method is one function from a `Setup` to values per example and head, and one registration; it then turns
up in the command line, in the tables and in the report by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
from pydantic import ConfigDict, create_model

from headwise.errors import HeadwiseError, unknown
from headwise.heads import HEADS, ComponentKinds, Layout, Order, Scores, head_list, mask_gates
from headwise.heads.components import existing
from headwise.metrics import Metric
from headwise.metrics import metric as metric_named
from headwise.metrics.leading_space import note_leading_space
from headwise.model.measure.engine import Engine
from headwise.model.measure.rows import MeasureSettings
from headwise.model.model import Model
from headwise.progress import Progress, reporting
from headwise.registry import Registry
from headwise.scores.few_examples import note_too_few
from headwise.settings import Settings
from headwise.tasks.examples import Task
from headwise.tasks.opening import TaskLike, as_task


@dataclass
class Setup:
    """Everything a method may need: what to score, and how."""

    model: Model
    task: Task
    metric: Metric
    reference: str = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch)."""
    positions: str = "all"
    """Where gates act."""
    seed: int = 0
    reference_task: Task | None = None
    """Examples behind a mean reference; the task itself by default."""
    batch_tokens: int | None = None
    advance: Callable[[int], None] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """What the method stores with its scores."""
    estimates: dict[str, np.ndarray] = field(default_factory=dict)
    """`value`, `stderr`, `lo`, `hi`, `n` and `p`, each `[L, H]`, of a method that does not run every example."""
    signed: bool | None = None
    """Set by a method whose option decides whether its numbers have a sign."""
    unit: str | None = None
    """Set by a method whose numbers are not in the metric's unit."""
    chosen: np.ndarray | None = None
    """`[L, H]`: the heads that are asked for; None for all. A method may compute others too; they are left out."""
    components: tuple[str, ...] = HEADS
    """What has gates and scores: heads, mlps, input."""

    @cached_property
    def layout(self) -> Layout:
        """Where each component stands in gates and scores."""
        return self.model.layout(self.components)

    @property
    def exists(self) -> np.ndarray:
        """`[L, H]`: the heads that are scored."""
        return self.layout.exists if self.chosen is None else self.chosen

    @property
    def heads(self) -> Order:
        """The heads (and other components) that are scored, layer by layer."""
        return existing(self.exists, self.layout.components)

    @property
    def engine_options(self) -> dict[str, Any]:
        """How heads are ablated, as keyword arguments of `Engine`."""
        names = ("reference", "positions", "reference_task", "seed", "batch_tokens", "components")
        return {name: getattr(self, name) for name in names}

    def engine(self, passes: int = 1) -> Engine:
        """The engine for this setup; progress is a share of `passes` runs over all examples."""
        advance = scaled_progress(self.advance, 1 / passes)
        return Engine(self.model, self.task, self.metric, **self.engine_options, advance=advance)

    def per_head(self, values: np.ndarray) -> np.ndarray:
        """Numbers of the scored heads in their order, `[heads]` or `[heads, E]`, as `[L, H]` or `[E, L, H]`.

        All other entries are NaN.
        """
        full = np.full((*values.shape[1:], *self.layout.shape), np.nan)
        full[..., self.exists] = values.T
        return full


def scaled_progress(advance: Callable[[int], None] | None, factor: float) -> Callable[[int], None] | None:
    """Reports `factor` steps for every step that is finished, in whole numbers."""
    if advance is None or factor == 1:
        return advance
    finished = 0.0

    def report(steps: int) -> None:
        nonlocal finished
        before, finished = finished, finished + steps * factor
        advance(round(finished) - round(before))

    return report


class _Options(Settings):
    """Options whose types are those of a function's parameters."""

    model_config = ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Method:
    """A registered way to score heads."""

    name: str
    about: str
    run: Callable[..., np.ndarray]
    """From a setup (and the method's own options) to values per example and head `[E, L, H]`."""
    signed: bool
    first_order: bool
    """Whether it reads the gradient at all gates 1, and so refuses metrics whose gradient there is 0."""
    steps: Callable[[Model, Task], int]
    """How many (variant, row) pairs it will report as done, for the progress bar."""
    option_class: type[Settings] | None
    """Its own options, where the parameters of `run` do not say all of them."""
    version: int
    """Of its formula: raised when its numbers change, so that cells of an earlier version are computed again."""
    per_label: Callable[..., dict[str, Scores]] | None
    """Of a method that distinguishes labels and takes an option `label`: from a model, examples of all labels, `seed`,
    `advance` and its other options to the map of every label."""
    learned: bool
    """Whether it is trained: another seed and other examples then give another ranking."""
    ablates: bool
    """Whether it replaces heads by the reference, or measures what that would do."""
    components: bool
    """Whether it can score MLPs and the embeddings beside heads; it then has the option `components`."""

    @property
    def reference(self) -> str:
        """The default ablation type."""
        return "mean" if self.ablates else "zero"

    @cached_property
    def settings(self) -> type[Settings]:
        """The method's own options: their types, bounds and defaults."""
        own = self._own_settings
        if not self.components:
            return own
        more: dict[str, Any] = {"components": (ComponentKinds, HEADS)}
        return create_model(own.__name__, __base__=own, **more)

    @property
    def _own_settings(self) -> type[Settings]:
        return settings_of(self.name, self.run) if self.option_class is None else self.option_class

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options and their defaults."""
        return {name: one.get_default() for name, one in self.settings.model_fields.items()}


def settings_of(name: str, run: Callable[..., Any]) -> type[Settings]:
    """The options that are parameters of a method's function, after its setup."""
    hints = get_type_hints(run, include_extras=True)
    parameters = list(inspect.signature(run).parameters.values())[1:]
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in parameters
    }
    return create_model(name, __base__=_Options, **fields)


METHODS: Registry[Method] = Registry(
    "method",
    "headwise.scores.*",
    "headwise.scores.gates.gating",
    "headwise.scores.nested.nested",
    "headwise.scores.probe.probe",
)


def register(
    name: str,
    *,
    about: str,
    steps: Callable[[Model, Task], int] = lambda model, task: len(task),
    options: type[Settings] | None = None,
    version: int = 1,
    per_label: Callable[..., dict[str, Scores]] | None = None,
    **flags: bool,
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make a method known under `name`; the other arguments are the fields of `Method`.

    flags: `signed` and `ablates` (True by default), `first_order`, `learned`, `components`.
    """
    signed, first_order = flags.pop("signed", True), flags.pop("first_order", False)
    learned, components = flags.pop("learned", False), flags.pop("components", False)
    ablates = flags.pop("ablates", True)
    if flags:
        raise TypeError(
            f"a method has no flag {next(iter(flags))!r}; it has signed, ablates, first_order, learned and components"
        )

    def add(run: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        fields = (name, about, run, signed, first_order, steps, options, version, per_label, learned)
        METHODS.add(name, Method(*fields, ablates, components))
        return run

    return add


def methods() -> dict[str, Method]:
    """Every registered method, by name."""
    return METHODS.all()


def method(name: str) -> Method:
    """The method of this name."""
    return METHODS.get(name)


def own_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that this method takes."""
    known = method(name).options
    return {option: value for option, value in options.items() if option in known}


def versions(name: str, task: Task) -> dict[str, str]:
    """For the fingerprints of a cell: what its numbers depend on beside model, task and settings.

    Empty for the first version of a method, so that the cells of older runs keep their keys.
    """
    version = method(name).version
    prints = {"method version": str(version)} if version > 1 else {}
    # Intervals of tasks whose examples share groups resample groups.
    return prints | ({"groups": "resampled"} if task.shared_groups() is not None else {})


def check_methods(chosen: Sequence[str], options: Mapping[str, Any], metric: str | None) -> None:
    """Refuse an option that none of the chosen methods takes, naming those that do; a wrong value; a metric (by default
    each task's own) that does not suit a method."""
    known = {option for name in chosen for option in method(name).options}
    for option in (option for option in options if option not in known):
        others = [name for name, other in methods().items() if option in other.options]
        if others:
            raise HeadwiseError(
                f"{option} is an option of {', '.join(others)}, not of {', '.join(chosen)}; choose such a method, or "
                f"leave {option} out"
            )
        raise unknown("option of the methods", option, known)
    for name in chosen:
        accepted = own_options(name, options)
        method(name).settings(**accepted)
        if metric is not None:
            check_metric(method(name), metric_named(metric), accepted)


def check_metric(chosen: Method, measured: Metric, options: Mapping[str, Any]) -> None:
    """Refuse a metric without gradient for a method that reads it, and one of few values for one that stops early."""
    if chosen.first_order and not measured.first_order:
        raise HeadwiseError(
            f"the method {chosen.name!r} uses the gradient at all gates 1, which is 0 or undefined for the metric "
            f"{measured.name!r}; use logit_diff or logprob, or the method 'ablation'"
        )
    if getattr(chosen.settings(**options), "early", False) and not measured.differentiable:
        raise HeadwiseError(
            f"the metric {measured.name!r} takes few values: a head may have no effect on the first examples and a "
            "large one on others; with precision or top use a metric such as logit_diff or logprob"
        )


def score(
    model: Model,
    task: TaskLike,
    method: str = "ablation",
    *,
    heads: Any = None,
    metric: str | None = None,
    reference: str | None = None,
    positions: str = "all",
    seed: int = 0,
    reference_task: Task | None = None,
    batch_tokens: int | None = None,
    progress: Progress = True,
    **options: Any,
) -> Scores:
    """One number per head, with its per-example values and standard error.

    task: a task, or what `hw.task` makes one of: a name, a path, a list of examples, a DataFrame. Options of a file
        (`columns`) can be given too.
    method: how heads are scored ("ablation", "attribution", "random", …; `headwise list methods`).
    heads: score only these, such as ["L3H2"]. `ablation` and `keep` then run only these; gradient methods compute all
        heads in one pass anyway. q-values correct for the heads that are scored.
    metric: by default that of the task.
    reference: what replaces an ablated head (zero, mean, position_mean, resample, patch); by default `mean`. Methods
        that ablate nothing ignore it, except `direct`: by default `zero` there, so the head's whole output counts.
    positions: see `headwise.model.measure.engine.Engine`.
    progress: False for no progress bar.
    options: the method's own. Most have `components`: ["heads", "mlps", "input"] scores the output of each MLP
        (`MLP12`) and the embeddings (`input`) beside the heads.
    """
    chosen = METHODS.get(method)
    task = as_task(task, model, options)
    _check_options(chosen, options)
    note_leading_space(model, task)
    reference = reference or chosen.reference
    MeasureSettings(reference=reference, positions=positions, seed=seed, batch_tokens=batch_tokens)
    measured = metric_named(metric or task.metric)
    check_metric(chosen, measured, options)
    setup = Setup(model, task, measured, reference, positions, seed, reference_task, batch_tokens)
    own = dict(options)
    if chosen.components:
        setup.components = chosen.settings(**options).components  # type: ignore[attr-defined]
        own.pop("components", None)
    setup.chosen = None if heads is None else _chosen_heads(setup, heads)
    steps = chosen.steps(model, task)
    if steps == len(model.heads()) * len(task):  # one step per head and example
        steps = len(setup.heads) * len(task)
    if chosen.signed and not getattr(chosen.settings(**options), "early", False):
        note_too_few(task, len(setup.heads))
    with reporting(f"{method} on {task.name}", steps, progress) as setup.advance:
        examples = np.where(setup.exists, _checked_values(setup, method, chosen.run(setup, **own)), np.nan)
    details = {
        "reference": reference if chosen.ablates else None,
        "positions": positions,
        "seed": seed,
        **options,
        **setup.details,
    }
    about: dict[str, Any] = {
        "model": model.name,
        "task": task.name,
        "method": method,
        "signed": chosen.signed if setup.signed is None else setup.signed,
        "metric": setup.unit or measured.name,
        "details": details | {"options": options, "examples": task.fingerprint},
        "exists": np.array(setup.exists),
        "groups": row_groups(task, setup.details),
        "components": setup.layout.components,
    }
    columns = dict(setup.estimates)
    if columns:
        return Scores(columns.pop("value"), columns.pop("stderr"), examples, **about, own=columns)
    return Scores.from_examples(examples, **about)


def _check_options(chosen: Method, options: Mapping[str, Any]) -> None:
    """Refuse options that the method does not take."""
    if "components" in options and not chosen.components:
        able = ", ".join(name for name, other in methods().items() if other.components)
        raise HeadwiseError(
            f"the method {chosen.name!r} scores heads alone; components other than heads have scores by {able}"
        )
    for option in options:
        if option not in chosen.options:
            parameters = inspect.signature(score).parameters.values()
            shared = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
            raise unknown(f"option of method {chosen.name!r}", option, [*chosen.options, *shared])


def _checked_values(setup: Setup, method: str, values: Any) -> np.ndarray:
    """What a method returned, if it has a value per example and head: `[L, H]` alone would be spread over examples."""
    values, expected = np.asarray(values), setup.layout.shape
    if values.ndim != 3 or values.shape[1:] != expected or not len(values):
        raise HeadwiseError(
            f"the method {method!r} returned an array of shape {list(values.shape)}; expected "
            f"[{len(setup.task)}, {expected[0]}, {expected[1]}] (examples, layers, heads)"
        )
    return values


def _chosen_heads(setup: Setup, heads: Any) -> np.ndarray:
    """`[L, H]`: True for these heads, which the model must have."""
    listed = head_list(heads)
    setup.layout.check(listed, setup.model.name)
    if not listed:
        raise HeadwiseError(
            "heads is empty; name at least one head, such as 'L0H0', or leave heads out for all"
        )
    return mask_gates(listed, setup.layout) == 0


def row_groups(task: Task, details: dict[str, Any]) -> tuple[str | None, ...] | None:
    """The groups behind a score's rows: those of the examples that a probe held out; none where rows are seeds."""
    groups = task.shared_groups()
    if groups is None or details.get("replicates") == "seeds":
        return None
    return tuple(groups[i] for i in details["held_out"]) if "held_out" in details else groups
