"""A step: a function whose results are remembered, so that the same call is never computed twice.

    @step(version=1, cost=lambda model, task, **_: len(model.heads()) * len(task), label="ablation on {task.name}")
    def ablate(job: Job, model: Model, task: Task, reference: str) -> Scores: ...

    call = ablate(model, task, "mean")      # nothing is computed yet
    scores = run.one(call)                  # computed, or read back from the run's store

The key of a call is made of the name and version of the step and the fingerprints of its arguments
(`tables/codec.py`): a step must depend on nothing else.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from headwise.errors import HeadwiseError
from headwise.progress import Advance
from headwise.runs.values import canonical

if TYPE_CHECKING:
    from headwise.runs.store import Encoded

P = ParamSpec("P")
T = TypeVar("T")

ROW, SHARED, BACKWARD, NEW_TOKEN = "row", "shared row", "backward row", "new token"
UNITS = {ROW: 1.0, SHARED: 0.5, BACKWARD: 2.0}
"""What one unit of a cost is worth in forward rows: a row whose first blocks are shared with others; a forward and a
backward pass of a fit, which packs rows without padding. A generated token is timed by itself."""


def _silent(steps: int = 1) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Job:
    """The first argument of every step: what it gets from whoever computes it."""

    advance: Advance = _silent
    """Says how much of the step's cost is done."""
    folder: Path | None = None
    """Where a long computation keeps what it has finished so far; None on workers, which have no run folder."""

    def __call__(self, steps: int = 1) -> None:
        """As the option `progress` of a call of headwise, which then also keeps its parts in the folder."""
        self.advance(steps)


class Step(Generic[P, T]):
    """A function with a memory. Calling it gives a `Call`, which a run computes or reads back."""

    def __init__(
        self,
        function: Callable[Concatenate[Job, P], T],
        version: int | Callable[..., Any],
        cost: Callable[..., int] | None,
        label: str | None,
        unit: str = ROW,
    ) -> None:
        self.function, self.version, self.cost, self.unit = function, version, cost, unit
        module = (function.__module__ or "script").removeprefix("headwise.studies.")
        self.name = f"{module}.{function.__qualname__}"
        self.label = label or function.__name__.replace("_", " ")
        signature = inspect.signature(function)
        self.signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in signature.parameters.values()):
            raise TypeError(
                f"the step {self.name!r} must name all of its arguments; give options as one mapping"
            )
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **options: P.kwargs) -> Call[T]:
        bound = self.signature.bind(*args, **options)
        bound.apply_defaults()
        return Call(self, dict(bound.arguments))


def step(
    *,
    version: int | Callable[..., Any] = 1,
    cost: Callable[..., int] | None = None,
    label: str | None = None,
    unit: str = ROW,
) -> Callable[[Callable[Concatenate[Job, P], T]], Step[P, T]]:
    """Decorator: remember the results of a function whose first argument is a `Job`.

    version: raised when the numbers change, so that stored results are computed again; or a function of the arguments.
    cost: from the arguments to forward rows, the unit of `job.advance`; a step without a cost runs no model and is
    computed in this process. label: what messages call it; `{name}` and `{task.name}` stand for arguments. unit: what
    the cost counts, for plans: one of `UNITS`, or `NEW_TOKEN`.
    """

    def decorate(function: Callable[Concatenate[Job, P], T]) -> Step[P, T]:
        return Step(function, version, cost, label, unit)

    return decorate


@dataclass(frozen=True, eq=False)
class Call(Generic[T]):
    """A step with its arguments: what is to be computed, down to everything that could change the answer."""

    step: Step[Any, T]
    arguments: dict[str, Any] = field(repr=False)

    @cached_property
    def text(self) -> str:
        """The call as canonical JSON: equal calls give equal text."""
        from headwise.tables.codec import fingerprint

        version = self.step.version(**self.arguments) if callable(self.step.version) else self.step.version
        try:
            parts = {name: fingerprint(value) for name, value in self.arguments.items()}
        except HeadwiseError as error:
            raise HeadwiseError(f"an argument of the step {self.step.name!r}: {error}") from None
        return canonical({"step": self.step.name, "version": version, "arguments": parts})

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def label(self) -> str:
        """How the call is named in messages."""
        return self.step.label.format(**self.arguments)

    @cached_property
    def cost(self) -> int | None:
        """Forward rows, about; None for a step that runs no model."""
        return None if self.step.cost is None else int(self.step.cost(**self.arguments))

    def compute(self, job: Job) -> T:
        return self.step.function(job, **self.arguments)


class Finished(NamedTuple):
    """A call that has been computed."""

    call: Call[Any]
    result: Encoded
    """As the store keeps it; another process may have computed it."""
    seconds: float


class Executor(Protocol):
    """Something that computes calls."""

    def run(
        self, calls: Sequence[Call[Any]], folder: Path | None, progress: bool
    ) -> Generator[Finished, None, None]:
        """Give out each call as it is finished, in any order.

        An exception of a step is raised from here and ends the run. The iterator is closed when the run ends early
        (`GeneratorExit`), which is the moment to call off what is still under way. folder: for partial results.
        """
        ...
