"""Exact ablation: remove one head and measure the change of the metric."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, WrapValidator, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import HEADS, RANKED_BY, Head, lone_gates, single_gates
from headwise.model.measure.by_position import acting_positions, position_effects
from headwise.model.measure.engine import Engine
from headwise.progress import live_table, scaled_progress
from headwise.scores.adaptive.adaptive import to_precision, top_k
from headwise.scores.adaptive.sample import Sample, design_effect
from headwise.scores.registry import BACKWARD_ROWS, SHARED_ROW, Setup, register
from headwise.settings import Count, Settings, one_of

CALL_COST = {"cpu": 0.5, "accelerator": 256}
"""What starting a measurement costs, in rows: on an accelerator a pass of a small model takes as long as hundreds of
its rows, because starting its kernels does."""


WORTH_A_PREVIEW = 1_000
"""Rows of an ablation from which on a first estimate is shown while it runs."""
AUTO = 0.05
"""The share of the largest score to which `precision: auto` measures every head."""


def _or_auto(given: Any, number: Callable[[Any], Any]) -> Any:
    return given if isinstance(given, str) and given == "auto" else number(given)


class AblationOptions(Settings):
    """How many examples each head is run on; by default all of them."""

    precision: Annotated[NonNegativeFloat | None, WrapValidator(_or_auto)] = None
    """Only as many as give a head's mean over the task's examples to ± this, at `confidence`; `auto`: to ± 5 % of the
    largest score."""
    top: Count | None = None
    """Only as many as separate the first `top` heads of the `order` from the rest, all right at `confidence`."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    order: Annotated[str, one_of("order", lambda: RANKED_BY)] = "signed"
    """`signed`, `absolute` or `hinders`."""
    population: bool = False
    """Standard errors and precision of the mean over all examples like these, not of the task's examples."""

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.precision is not None and self.top is not None:
            raise HeadwiseError(
                f"precision ({self.precision}) and top ({self.top}) cannot be combined: give one of them, with a "
                "confidence"
            )
        stopping = (self.confidence, self.order, self.population)
        if not self.stops_early and stopping != (0.95, "signed", False):
            raise HeadwiseError(
                "confidence, order and population are options of precision and top; give precision or top as well"
            )
        return self

    @property
    def stops_early(self) -> bool:
        """Whether heads are run on fewer examples than there are, which not every metric allows (`check_metric`)."""
        return self.precision is not None or self.top is not None


def each_position(setup: Setup) -> np.ndarray:
    """m(full) − m(head's gate at 0 at one position only), per example `[E, heads, T]`; positive where it helps."""
    engine = setup.engine()
    _, changes = acting_positions(engine)
    engine.advance = scaled_progress(setup.advance, len(setup.task) / max(changes.sum(), 1)) or engine.advance
    return position_effects(engine, single_gates(setup.heads, setup.layout)).swapaxes(0, 1)


_each_head = partial(
    register,
    steps=lambda model, task, components=HEADS: len(model.layout(components).listed()) * len(task),
    rows=lambda model, task, _, options: (
        SHARED_ROW * len(model.layout(options["components"]).listed()) * len(task)
    ),
    components=True,
)


@_each_head(
    "ablation",
    about="exact ablation: metric with the head minus metric without it",
    options=AblationOptions,
    each=each_position,
)
def ablation(setup: Setup, **options: Any) -> np.ndarray:
    """m(full) − m(head's gate at 0), per example, in the metric's unit; positive where the head helps.

    Cost: one forward row per head and example; the blocks before the head are shared (prefix sharing). Known failure: a
    head whose work another head takes over when it is ablated (a backup head) scores near 0 although both matter; the
    effect of ablating several heads is not the sum of their scores. With `zero` it also counts what the head adds
    whatever the input, with `mean` and `patch` only what depends on it (Wang et al. 2022, arXiv 2211.00593).

    options: see `AblationOptions`. With precision, estimates are unbiased; with top, those near the k-th rank have a
    small bias. Attribution is the control variate (`headwise.scores.adaptive.adaptive`).
    """
    request, engine = AblationOptions(**options), setup.engine()
    heads = setup.heads
    gates = single_gates(heads, setup.layout)
    if request.stops_early:
        return _adaptive(setup, engine, request, heads, gates)
    with live_table(f"ablation on {setup.task.name}, {setup.model.name}") as show:
        more = {} if show is None else _preview(setup, engine, heads, show)
        return setup.per_head(engine.measure(gates, **more).effects)


def _preview(
    setup: Setup, engine: Engine, heads: list[Head], show: Callable[[list[dict[str, Any]]], None]
) -> dict[str, Any]:
    """Show attribution as a first estimate of every head. Returns options of `measure` that run the heads with the
    largest estimates first and replace estimates by exact values; the numbers that it ends with stay the same."""
    N, metric = len(setup.task), setup.metric
    if len(heads) * N < WORTH_A_PREVIEW or len(engine.rows) != N:
        return {}
    if not (metric.first_order and metric.differentiable):
        return {}
    spent, advance, engine.advance = engine.rows_spent, engine.advance, lambda count: None
    try:
        estimates = engine.gradients()[1][:, setup.exists].mean(axis=0)  # heads
    except HeadwiseError:  # a backward pass needs more memory
        return {}
    finally:
        engine.rows_spent, engine.advance = spent, advance

    def seen(effects: np.ndarray) -> None:
        run = (~np.isnan(effects)).sum(axis=1)
        exact = np.where(run, np.nansum(effects, axis=1) / np.maximum(run, 1), estimates)
        show(
            [
                {"head": str(heads[k]), "score": float(exact[k]), "exact_on": int(run[k]), "examples": N}
                for k in np.argsort(-np.abs(exact), kind="stable")
            ]
        )

    seen(np.full((len(heads), N), np.nan))
    return {"first": np.abs(estimates), "seen": seen}


def _adaptive(
    setup: Setup, engine: Engine, request: AblationOptions, heads: list[Head], gates: np.ndarray
) -> np.ndarray:
    """The engine's side: attribution once, then the (head, example) pairs that the statistics ask for."""
    N, K = len(setup.task), len(heads)
    attribution = None
    if setup.metric.first_order:  # without a gradient at all gates 1 there is no control variate
        attribution = engine.gradients()[1][:, setup.exists]  # E, heads
    sample = Sample(
        lambda chosen, examples: engine.measure(gates[chosen], examples).effects.T,
        attribution,
        (N, K),
        population=request.population,
        crowding=design_effect(setup.task.shared_groups()),
        seed=setup.seed,
        call_cost=CALL_COST["cpu" if setup.model.device.type == "cpu" else "accelerator"],
    )
    if request.top is not None:
        estimates = top_k(sample, request.top, request.confidence, request.order)
        rule = f"the first {request.top} by {request.order} score, all right"
    else:
        assert request.precision is not None
        auto = isinstance(request.precision, str)
        precision = AUTO if auto else request.precision
        estimates = to_precision(sample, precision, request.confidence, of_largest=auto)
        rule = f"every head to ± {f'{AUTO:.0%} of the largest score' if auto else f'{precision:g}'}"
    rule += f" with {request.confidence:.0%} confidence"
    if not request.population:
        rule += f" (intervals of the mean over these {N} examples; p and q are of examples like them)"
    attributed = 0 if attribution is None else N
    if setup.advance:  # the pairs that need not be run are done too
        setup.advance(max(0, K * N - estimates.pairs - attributed))
    setup.estimates["value"] = setup.per_head(estimates.values)
    setup.estimates |= {
        name: setup.per_head(getattr(estimates, name)) for name in ("stderr", "lo", "hi", "p")
    }
    setup.estimates["n"] = np.nan_to_num(setup.per_head(estimates.n)).astype(int)
    spent = estimates.pairs + BACKWARD_ROWS * attributed
    setup.details |= {
        "rule": rule,
        "rows": spent,
        "rows_exhaustive": K * N,
        "ratio": K * N / spent,
        "rows_run": engine.rows_spent + (BACKWARD_ROWS - 1) * attributed,
        "slopes": {
            str(head): round(float(c), 4) for head, c in zip(heads, estimates.coefficients, strict=True)
        },
        "said": f"{rule}: {spent:,} forward rows instead of {K * N:,} ({K * N / spent:.1f}× fewer)",
    }
    if estimates.top is not None:
        setup.details["top_heads"] = [str(heads[number]) for number in estimates.top]
    return setup.per_head(estimates.examples.T)


@_each_head("keep", about="exact: metric with only this head minus metric with no heads")
def keep(setup: Setup) -> np.ndarray:
    """m(none + this head) − m(none), per example, in the metric's unit; positive where the head helps.

    Sufficiency where `ablation` asks for necessity: all other heads are replaced by the reference. Cost: one
    forward row per head and example; equal blocks are shared (prefix sharing). Known failure: a head that needs another
    one (the second of an induction pair) scores near 0, and with `zero` the model without any head is so far
    from its usual state that late heads read nonsense; `mean` and `patch` are milder (Chan et al. 2022, causal
    scrubbing, and Wang et al. 2022, arXiv 2211.00593, on what a circuit is tested against).
    """
    nothing = np.zeros(setup.layout.shape)
    measured = setup.engine().measure(lone_gates(setup.heads, setup.layout), baseline=nothing)
    return setup.per_head(measured.values - measured.full)
