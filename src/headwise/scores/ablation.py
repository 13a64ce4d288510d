"""Exact ablation: take one head away and measure what is lost."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator
from typing_extensions import Self

from headwise.errors import HeadwiseError
from headwise.heads import single_gates
from headwise.model.measure.engine import Engine
from headwise.scores.adaptive.adaptive import Adaptive, crowding_of, to_precision, top_k
from headwise.scores.adaptive.race import KEYS
from headwise.scores.registry import Setup, register
from headwise.settings import Count, Settings, one_of

BACKWARD_ROWS = 3
"""What one example's attribution costs in forward rows: its forward pass, and a backward pass worth two."""
CALL_COST = {"cpu": 0.5, "accelerator": 256}
"""What starting a measurement costs, in rows: on an accelerator a pass of a small model takes as long as hundreds of
its rows, because starting its kernels does."""


class AblationOptions(Settings):
    """How many examples each head is run on; by default all of them."""

    precision: NonNegativeFloat | None = None
    """Only as many as give a head's mean over the task's examples to ± this, at `confidence`."""
    top: Count | None = None
    """Only as many as tell the first `top` heads of the `order` from the rest, all of them right at `confidence`."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    order: Annotated[str, one_of("order", lambda: KEYS)] = "signed"
    """`signed`, `absolute` or `hinders`."""
    population: bool = False
    """Standard errors and precision of the mean over all examples like these, not of the given ones."""

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.precision is not None and self.top is not None:
            raise HeadwiseError(
                f"precision ({self.precision}) and top ({self.top}) are two questions: give one of them, with a "
                "confidence"
            )
        how = (self.confidence, self.order, self.population)
        if not self.early and how != (0.95, "signed", False):
            raise HeadwiseError(
                "confidence, order and population say how precision or top is meant; give one of these as well"
            )
        return self

    @property
    def early(self) -> bool:
        """Whether heads are run on fewer examples than there are, which not every metric allows (`check_metric`)."""
        return self.precision is not None or self.top is not None


@register(
    "ablation",
    about="exact: metric with the head minus metric without it",
    steps=lambda model, task: len(model.heads()) * len(task),
    options=AblationOptions,
)
def ablation(setup: Setup, **options: Any) -> np.ndarray:
    """m(full) − m(head's gate at 0), per example, in the metric's unit; positive where the head helps.

    Cost: one forward row per head and example, entered at the head's own layer. Known failure: a head whose
    work another head takes over when it is gone (a backup head) scores near 0 although both matter; the effect
    of removing several heads is not the sum of their scores. With `zero` it also counts what the head adds
    whatever the input, with `mean` and `patch` only what depends on it (Wang et al. 2022, arXiv 2211.00593).

    options: see `AblationOptions`. With precision or top estimates are unbiased, with attribution as control variate
    (`headwise.scores.adaptive.adaptive`).
    """
    asked, engine = AblationOptions(**options), setup.engine()
    if not asked.early:
        examples = _every_example(setup, engine)
        setup.details |= {"batch_tokens": engine.batch_tokens, "rows": engine.rows_spent}
        return examples
    return _adaptive(setup, engine, asked)


def _every_example(setup: Setup, engine: Engine) -> np.ndarray:
    heads = setup.model.heads()
    effects = engine.measure(single_gates(heads, setup.model.shape)).effects  # V, E
    examples = np.full((len(setup.task), *setup.model.shape), np.nan)
    for (layer, head), effect in zip(heads, effects, strict=True):
        examples[:, layer, head] = effect
    return examples


def _adaptive(setup: Setup, engine: Engine, asked: AblationOptions) -> np.ndarray:
    """The engine's side: attribution once, then the pairs that the statistics ask for."""
    top, confidence = asked.top, asked.confidence
    metric, heads = setup.metric, setup.model.heads()
    layers, numbers = (np.array(part) for part in zip(*heads, strict=True))
    attribution = None
    if (
        metric.first_order
    ):  # without a slope at full gates there is no control variate, and all else is the same
        attribution = engine.gradients()[1][:, layers, numbers]  # E, heads
    gates = single_gates(heads, setup.model.shape)

    def exact(chosen: np.ndarray, examples: np.ndarray) -> np.ndarray:
        return engine.measure(gates[chosen], examples).effects.T

    shape = (len(setup.task), len(heads))
    common: dict[str, Any] = {"confidence": confidence, "population": asked.population, "seed": setup.seed}
    common["crowding"] = crowding_of(setup.task.shared_groups())
    common["call_cost"] = CALL_COST["cpu" if setup.model.device.type == "cpu" else "accelerator"]
    if top is not None:
        found = top_k(exact, attribution, shape, top, order=asked.order, **common)
        rule = f"the first {top} by {asked.order} score, all right with {confidence:.0%} confidence"
    else:
        assert asked.precision is not None
        found = to_precision(exact, attribution, shape, asked.precision, **common)
        rule = f"every head to ± {asked.precision:g} with {confidence:.0%} confidence"
    if setup.advance:  # the pairs that need not be run are done too
        attributed = 0 if attribution is None else len(setup.task)
        setup.advance(max(0, len(heads) * len(setup.task) - found.pairs - attributed))

    def on_heads(column: np.ndarray) -> np.ndarray:
        full = np.full((*column.shape[:-1], *setup.model.shape), np.nan)
        full[..., layers, numbers] = column
        return full

    setup.estimates |= {
        "value": on_heads(found.values),
        **{name: on_heads(getattr(found, name)) for name in ("stderr", "lo", "hi", "p")},
        "n": np.nan_to_num(on_heads(found.n)).astype(int),
    }
    if not asked.population:
        rule += f" (intervals of the mean over these {len(setup.task)} examples; p and q are of examples like them)"
    setup.details |= _account(found, rule, attribution is not None, heads, engine)
    return on_heads(found.examples)


def _account(
    found: Adaptive, rule: str, attributed: bool, heads: list[Any], engine: Engine
) -> dict[str, Any]:
    """What was spent against what running everything would have cost, in forward rows."""
    examples = len(engine.task)
    spent = found.pairs + attributed * BACKWARD_ROWS * examples
    everything = len(heads) * examples
    account: dict[str, Any] = {
        "rule": rule,
        "rows": spent,
        "rows_exhaustive": everything,
        "ratio": everything / spent,
        "rows_run": engine.rows_spent + attributed * (BACKWARD_ROWS - 1) * examples,
        "batch_tokens": engine.batch_tokens,
        "slopes": {
            str(head): round(float(slope), 4) for head, slope in zip(heads, found.slopes, strict=True)
        },
        "said": f"{rule}: {spent:,} forward rows instead of {everything:,} ({everything / spent:.1f}× fewer)",
    }
    if found.top is not None:
        account["top_heads"] = [str(heads[number]) for number in found.top]
    return account
