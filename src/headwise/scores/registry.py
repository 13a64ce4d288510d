"""What a score method is, and the methods known by name; `run.py` runs one.

A method is one function from a `Setup` to values per example and head, and one registration; it then turns
up in the command line, in the tables and in the report by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import create_model

from headwise import stats
from headwise.errors import HeadwiseError, unknown, warn_once
from headwise.heads import HEADS, ComponentKinds, Layout, Order, Scores
from headwise.heads.components import existing
from headwise.metrics import Metric
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.measure.positions import ANSWERED, EACH, Given
from headwise.model.model import Model
from headwise.progress import scaled_progress
from headwise.registry import Registry
from headwise.settings import Settings, settings_of
from headwise.stats.resampling import independent
from headwise.tasks.examples import Task


@dataclass
class Setup:
    """Everything a method may need: what to score, and how."""

    model: Model
    task: Task
    metric: Metric
    reference: str = "mean"
    """Ablation type: what replaces an ablated head (zero, mean, position_mean, resample, patch, window)."""
    positions: Given = "all"
    """Where gates act."""
    seed: int = 0
    reference_task: Task | None = None
    """Examples behind a mean reference; the task itself by default."""
    batch_tokens: int | None = None
    folder: Path | None = None
    """Where finished parts of a long computation are kept; None to keep nothing."""
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
    """What has gates and scores: heads, mlps, input; or kv_heads."""
    engines: list[Engine] = field(default_factory=list)
    """Those that were made for it."""

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
        engine = Engine(self.model, self.task, self.metric, **self.engine_options, advance=advance)
        self.engines.append(engine)
        return engine

    @property
    def spent(self) -> dict[str, int]:
        """What the last engine of this setup took, for the details of the scores."""
        found: dict[str, int] = {}
        for engine in self.engines[-1:]:
            found = {"batch_tokens": engine.batch_tokens}
            found |= {"rows": engine.rows_spent} if engine.rows_spent else {}
        return found

    def per_head(self, values: np.ndarray) -> np.ndarray:
        """Numbers of the scored heads in their order, `[heads]` or `[heads, E]`, as `[L, H]` or `[E, L, H]`.

        All other entries are NaN.
        """
        full = np.full((*values.shape[1:], *self.layout.shape), np.nan)
        full[..., self.exists] = values.T
        return full


BACKWARD_ROWS = 3
"""Forward rows that a forward and a backward pass over one row are worth."""
SHARED_ROW = 0.5
"""What a row costs whose first blocks are shared with others, in forward rows."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """What methods for heads and for edges have in common."""

    name: str
    about: str
    run: Callable[..., np.ndarray]
    """From a setup (and the method's own options) to values per example and head, or edge."""
    first_order: bool = False
    """Whether it reads the gradient at all gates 1, and so refuses metrics whose gradient there is 0."""
    version: int = 1
    """Of its formula: raised when its numbers change, so that steps of an earlier version are computed again."""

    @cached_property
    def settings(self) -> type[Settings]:
        """The method's own options: their types, bounds and defaults."""
        return settings_of(self.name, self.run)


@dataclass(frozen=True, kw_only=True)
class Method(Registered):
    """A registered way to score heads; it gives values per example and head `[E, L, H]`."""

    signed: bool = True
    steps: Callable[..., int] = lambda model, task, components=HEADS: len(task)
    """How many (variant, row) pairs it will report as done, for the progress bar, from the model, the task and the
    components."""
    option_class: type[Settings] | None = None
    """Its own options, where the parameters of `run` do not say all of them."""
    per_label: Callable[..., dict[str, Scores]] | None = None
    """Of a method that distinguishes labels and takes an option `label`: from a model, examples of all labels, `seed`,
    `advance` and its other options to the map of every label."""
    learned: bool = False
    """Whether it is trained: another seed and other examples then give another ranking."""
    ablates: bool = True
    """Whether it replaces heads by the reference, or measures what that would do."""
    components: bool = False
    """Whether it can score MLPs and the embeddings beside heads, and key/value heads; it then has the option
    `components`."""
    each: Callable[[Setup], np.ndarray] | None = None
    """From a setup to the effect of each scored head at each position `[E, heads, T]` (`positions="each"`); NaN where a
    prompt has no such position. None for a method without such numbers."""
    rows: Callable[..., float] = lambda model, task, reference, options: BACKWARD_ROWS * len(task)
    """Forward rows of one scoring, about: from the model, the task, the reference and all options of the method."""

    def cost(self, model: Model, task: Task, reference: str, options: Mapping[str, Any]) -> int:
        """Forward rows of one scoring, about. options: of all methods. A backward pass counts as two rows, a row whose
        first blocks are shared with others (prefix sharing) as half a row."""
        rows = self.rows(model, task, reference, dict(self.settings(**own_options(self.name, options))))
        return max(1, round(rows))

    @property
    def reference(self) -> str:
        """The default ablation type."""
        return "mean" if self.ablates else "zero"

    @cached_property
    def settings(self) -> type[Settings]:
        option_class = settings_of(self.name, self.run) if self.option_class is None else self.option_class
        if not self.components:
            return option_class
        more: dict[str, Any] = {"components": (ComponentKinds, HEADS)}
        return create_model(option_class.__name__, __base__=option_class, **more)

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options and their defaults."""
        return {name: one.get_default() for name, one in self.settings.model_fields.items()}


METHODS: Registry[Method] = Registry(
    "method",
    "headwise.scores.*",
    "headwise.scores.gates.gating",
    "headwise.scores.nested.nested",
)


def register(
    name: str, *, options: type[Settings] | None = None, **fields: Any
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make a method known under `name`; the other arguments are the fields of `Method`, such as `about`.

    options: a class of its options, where the parameters of the function do not say all of them.
    """
    return METHODS.decorator(name, lambda run: Method(name=name, run=run, option_class=options, **fields))


methods, method = METHODS.all, METHODS.get


def own_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that this method takes."""
    accepted = method(name).options
    return {option: value for option, value in options.items() if option in accepted}


def check_methods(chosen: Sequence[str], options: Mapping[str, Any], metric: str | None) -> None:
    """Refuse an option that none of the chosen methods takes, naming those that do; a wrong value; a metric (by default
    each task's own) that does not suit a method."""
    valid = {option for name in chosen for option in method(name).options}
    for option in (option for option in options if option not in valid):
        others = [name for name, other in methods().items() if option in other.options]
        if others:
            raise HeadwiseError(
                f"{option} is an option of {', '.join(others)}, not of {', '.join(chosen)}; choose such a method, or "
                f"leave {option} out"
            )
        raise unknown("option of the methods", option, valid)
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
    if getattr(chosen.settings(**options), "stops_early", False) and not measured.differentiable:
        raise HeadwiseError(
            f"the metric {measured.name!r} takes few values: a head may have no effect on the first examples and a "
            "large one on others; with precision or top use a metric such as logit_diff or logprob"
        )


def check_method_positions(chosen: Method, positions: Any, options: Mapping[str, Any]) -> None:
    """Refuse positions that a method cannot be restricted to."""
    if positions == EACH and chosen.each is None:
        able = " and ".join(name for name, other in methods().items() if other.each)
        raise HeadwiseError(
            f"the method {chosen.name!r} has no score for every position; positions='each' works with {able}"
        )
    of_method = [name for name in options if name != "components"]
    if positions == EACH and of_method:
        raise HeadwiseError(f"{of_method[0]} cannot be combined with positions='each'; leave one of them out")
    if not chosen.ablates and positions not in ANSWERED:
        raise HeadwiseError(
            f"the method {chosen.name!r} ablates nothing, so it cannot be restricted to positions; use 'ablation' or "
            "'attribution', or leave positions out"
        )


def row_groups(task: Task, details: dict[str, Any]) -> tuple[str | None, ...] | None:
    """The groups behind a score's rows: those of the examples that a probe held out; none where rows are seeds."""
    groups = task.shared_groups()
    if groups is None or details.get("replicates") == "seeds":
        return None
    return tuple(groups[i] for i in details["held_out"]) if "held_out" in details else groups


def row_numbers(task: Task, details: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The numbers of the examples behind a score's rows; none where rows are seeds."""
    if details.get("replicates") == "seeds":
        return None
    return tuple(task.numbers[i] for i in details["held_out"]) if "held_out" in details else task.numbers


def note_too_few(task: Task, tests: int, what: str = "head") -> None:
    """Log, once for each sentence, what the task's examples are too few to show."""
    if sentence := stats.too_few(independent(task.shared_groups(), len(task)), tests, what):
        warn_once(logging.getLogger(__name__), sentence)
