"""A metric as the first k heads of an order are kept alone, or masked. Every k is one row of gates.

K points of a curve, E examples, V variants (one array of gates each), L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.controls import layer_matched_order, random_order
from headwise.errors import HeadwiseError, unknown
from headwise.explained import (
    Estimate,
    HeadsNeeded,
    areas,
    heads_needed,
    knee_points,
    resampled_needs,
    spread_points,
)
from headwise.heads import Head, Order, Scores, keep_gates, mask_gates, ones
from headwise.metrics import metric as metric_named
from headwise.model.engine import Engine

if TYPE_CHECKING:
    from headwise.model.load import Model
    from headwise.tasks.examples import Task

ACTIONS = ("keep", "mask")
CONTROLS = ("random", "random_layer")
THRESHOLD = 0.9
POINTS = 25
"""Most points of a curve whose grid is not given: a third is spread over all heads, the rest near the knee."""
CONTROL_POINTS = 8
EXPLAINED = "explained_effect"
"""What the explained effect is called among the metrics of a table."""


@dataclass(frozen=True)
class Sweep:
    """A curve over the first k heads of an order, with the per-example values behind every point."""

    k: np.ndarray  # K, ascending
    values: np.ndarray  # K, E: the metric itself
    none: np.ndarray  # E: with every head replaced by the reference
    full: np.ndarray  # E: with all heads
    order: Order
    model: str
    task: str
    series: str
    """The order's name, or the kind of control."""
    action: str
    metric: str
    reference: str
    total: int
    """Heads of the model."""
    by: str = "given"
    """How the order was made of its scores: signed, absolute, hinders; or given as a list of heads."""
    draw: int | None = None
    """Which of several draws of a control."""
    seed: int = 0
    controls: tuple[Sweep, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.none)

    @property
    def gains(self) -> np.ndarray:
        """What the first k heads bring back (kept) or take away (masked), per example `[K, E]`."""
        return self.values - self.none if self.action == "keep" else self.full - self.values

    @property
    def effect(self) -> Estimate:
        """m(full) − m(none): what all heads together do, in the metric's unit."""
        whole = self.full - self.none
        lo, hi = stats.bootstrap_mean(whole, seed=self.seed)
        return Estimate(float(whole.mean()), float(lo), float(hi))

    @property
    def defined(self) -> bool:
        """Whether there is an effect to explain: its interval leaves out 0."""
        _, lo, hi = self.effect
        return lo > 0 or hi < 0

    def explained(self) -> pd.DataFrame:
        """The explained effect at each k with its interval (columns k, value, lo, hi); NaN where undefined."""
        found = stats.bootstrap_ratio(self.gains.T, self.full - self.none, seed=self.seed)
        return pd.DataFrame({"k": self.k, "value": found.value, "lo": found.lo, "hi": found.hi})

    def k_at(self, threshold: float = THRESHOLD) -> HeadsNeeded:
        """How many heads it takes to reach this explained effect, and from how many on it stays there.

        Between measured points the curve is taken as straight, and heads are rounded up; a sweep on the default
        grid has measured the points beside the answer. NaN where the explained effect is undefined.
        """
        if not 0 < threshold <= 1:
            raise HeadwiseError(
                f"a threshold of the explained effect lies above 0 and up to 1, not at {threshold}"
            )
        if not self.defined:
            return HeadsNeeded(*[float("nan")] * 6)
        shares = self.explained()["value"].to_numpy()
        found: list[float] = []
        for stays in (False, True):
            value = float(heads_needed(self.k, shares, threshold, stays=stays))
            found += [value, *stats.interval(self.resampled_k(threshold, stays=stays))]
        return HeadsNeeded(*found)

    def resampled_k(
        self, threshold: float = THRESHOLD, *, stays: bool = False, seed: int | None = None
    ) -> np.ndarray:
        """Heads needed in each resample of the examples `[B]`; two sweeps over the same examples stay paired."""
        return resampled_needs(
            self.k,
            self.gains,
            self.full - self.none,
            threshold,
            stays=stays,
            seed=self.seed if seed is None else seed,
        )

    def cpr(self) -> Estimate:
        """∫ explained effect over the fraction of heads: more is better; above 1 where parts outdo the whole."""
        return self._area(0)

    def cmd(self) -> Estimate:
        """∫ |1 − explained effect| over the fraction of heads: how far the curve is from the whole model, 0 is best."""
        return self._area(1)

    def _area(self, which: int) -> Estimate:
        # The ends are known without measuring; an order that leaves heads out says nothing of the way to them.
        if not self.defined or len(self.order) < self.total:
            return Estimate(float("nan"), float("nan"), float("nan"))
        whole = self.full - self.none
        k = np.array([0, *self.k, self.total])
        gains = np.stack([np.zeros_like(whole), *self.gains, whole])
        found = areas(k, gains.mean(1) / whole.mean(), self.total)[which]
        resampled = areas(k, stats.resampled_ratio(gains.T, whole, seed=self.seed), self.total)[which]
        return Estimate(float(found), *stats.interval(resampled))

    # ---- tables ----------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The contract's curve table: the explained effect, then the metric itself; controls after the order."""
        shares = self.explained()
        lo, hi = stats.bootstrap_mean(self.values.T, seed=self.seed)
        raw = pd.DataFrame({"k": self.k, "value": self.values.mean(1), "lo": lo, "hi": hi})
        frames = [
            self._rows(shares.assign(metric=EXPLAINED)),
            self._rows(raw.assign(metric=self.metric)),
        ]
        return pd.concat([*frames, *(control.table() for control in self.controls)], ignore_index=True)

    def example_table(self) -> pd.DataFrame:
        """The metric of every example at every k; controls after the order."""
        own = self._rows(
            pd.DataFrame(
                {
                    "k": np.repeat(self.k, self.n),
                    "metric": self.metric,
                    "example": np.tile(np.arange(self.n), len(self.k)),
                    "value": self.values.ravel(),
                }
            )
        ).drop(columns="n")
        return pd.concat([own, *(control.example_table() for control in self.controls)], ignore_index=True)

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        draw = pd.array([self.draw] * len(frame), dtype="Int32")
        about = {"model": self.model, "task": self.task, "series": self.series, "action": self.action}
        more = {"n": self.n, "draw": draw, "order": self.details.get("order", self.series), "by": self.by}
        return frame.assign(**about, **more, reference=self.reference)

    def summary(self, threshold: float = THRESHOLD) -> dict[str, Any]:
        """One row: heads needed, areas and effect, each with its interval."""
        needed, cpr, cmd, effect = self.k_at(threshold), self.cpr(), self.cmd(), self.effect
        row: dict[str, Any] = {
            "model": self.model,
            "task": self.task,
            "series": self.series,
            "by": self.by,
            "action": self.action,
            "threshold": threshold,
            "k": needed.k,
            "k_lo": needed.lo,
            "k_hi": needed.hi,
            "stays": needed.stays,
            "stays_lo": needed.stays_lo,
            "stays_hi": needed.stays_hi,
            "of": self.total,
        }
        for name, found in (("cpr", cpr), ("cmd", cmd), ("effect", effect)):
            row |= {name: found.value, f"{name}_lo": found.lo, f"{name}_hi": found.hi}
        return row | {
            "defined": self.defined,
            "metric": self.metric,
            "reference": self.reference,
            "n": self.n,
        }

    def plot(self, threshold: float = THRESHOLD) -> Any:
        """Draw the curve with its band; returns the matplotlib figure."""
        from headwise.figures.circuits import explained_panels

        return explained_panels(self.table(), threshold=threshold)


def sweep(
    model: Model,
    task: Task,
    order: Scores | Sequence[Head | str],
    action: str = "keep",
    *,
    reference: str | None = None,
    metric: str | None = None,
    k: Sequence[int] | None = None,
    controls: Sequence[str] = CONTROLS,
    draws: int = 2,
    by: str = "signed",
    threshold: float = THRESHOLD,
    points: int = POINTS,
    control_points: int = CONTROL_POINTS,
    positions: str = "all",
    seed: int = 0,
    reference_task: Task | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Sweep:
    """The metric as only the first k heads of an order are kept, or as they are masked; the rest is the reference.

    order: scores (ranked by `by`: signed, absolute, hinders), or heads, most important first. To test an order,
        measure it on examples that it was not found on: `found, tested = task.halves()`.
    reference: by default `patch` where every example has a counterfactual, else `mean`.
    metric: by default the task's own. positions, reference_task: see `headwise.model.engine.Engine`.
    k: the numbers of heads to measure; by default at most `points`, a few spread over all heads and the rest
        where the curve reaches `threshold` of the explained effect.
    controls: `random` orders and `random_layer` ones (which visit the layers as the order does), `draws` of each,
        at `control_points` numbers of heads.

    >>> found, tested = hw.task("ioi", 64, model=model).halves()                # doctest: +SKIP
    >>> scores = hw.score(model, found, "integrated", reference="patch")        # doctest: +SKIP
    >>> hw.sweep(model, tested, scores).k_at(0.9)                               # doctest: +SKIP
    """
    if action not in ACTIONS:
        raise unknown("action", action, ACTIONS)
    for kind in controls:
        if kind not in CONTROLS:
            raise unknown("control", kind, CONTROLS)
    heads = _heads(model, order, by)
    chosen = None if k is None else _checked(k, len(heads))
    measured = metric_named(metric or task.metric)
    reference = reference or default_reference(task)
    engine = Engine(
        model,
        task,
        measured,
        reference=reference,
        positions=positions,
        reference_task=reference_task,
        seed=seed,
        batch_tokens=batch_tokens,
        advance=advance,
    )
    curve = _Curve(engine, action)
    about: dict[str, Any] = {
        "model": model.name,
        "task": task.name,
        "action": action,
        "metric": measured.name,
        "reference": reference,
        "total": len(model.heads()),
        "seed": seed,
    }
    ranked_by, name = "given", "order"
    if isinstance(order, Scores):
        ranked_by, name = ranking(order.method, order.signed, by)
    drawn = _control_orders(model, heads, controls, draws, seed)
    at = spread_points(len(heads), control_points)
    first = chosen or spread_points(len(heads), max(2, points // 3 + 1))
    values, *under = curve.values([(heads, first), *((one, at) for _, _, one in drawn)])
    own = np.array(first), values
    if chosen is None:
        own = _refined(curve, heads, *own, threshold, points)
    ends = {"none": curve.none, "full": curve.full}
    others = tuple(
        Sweep(
            np.array(at),
            values,
            **ends,
            order=one,
            series=kind,
            draw=number,
            details={"order": name},
            **about,
        )
        for (kind, number, one), values in zip(drawn, under, strict=True)
    )
    details = {"order": name, "rows": engine.rows_spent, "batch_tokens": engine.batch_tokens}
    return Sweep(
        *own,
        **ends,
        order=heads,
        series=name,
        by=ranked_by,
        controls=others,
        details=details,
        **about,
    )


def default_reference(task: Task) -> str:
    """`patch` where every example has a counterfactual, else `mean`."""
    return "patch" if all(example.counterfactual is not None for example in task) else "mean"


def ranking(method: str, signed: bool, by: str) -> tuple[str, str]:
    """How an order is ranked and what it is called: signed and absolute orders are different things.

    >>> ranking("integrated", True, "signed"), ranking("integrated", True, "absolute")
    (('signed', 'integrated'), ('absolute', 'integrated absolute'))
    >>> ranking("sensitivity", False, "signed")
    ('unsigned', 'sensitivity')
    """
    if not signed and by != "hinders":
        return "unsigned", method
    return by, method if by == "signed" else f"{method} {by}"


def most_rows(points: int, kinds: int, draws: int, control_points: int = CONTROL_POINTS) -> int:
    """Most variants that a sweep measures per example: what its cost is counted in."""
    return points - 1 + kinds * draws * max(control_points - 2, 0)


class _Curve:
    """Measures points of curves beside the end that they start from, so that differences never mix batch shapes."""

    def __init__(self, engine: Engine, action: str) -> None:
        self.engine, self.action = engine, action
        shape = engine.model.shape
        # A few kept heads are close to none, a few masked heads close to all: entering the decoder where a
        # variant leaves its baseline spares the layers before it.
        self.baseline = np.zeros(shape) if action == "keep" else ones(shape)
        other = ones(shape) if action == "keep" else np.zeros(shape)
        self._other_end = np.asarray(other, dtype=np.float64)
        self._none: np.ndarray | None = None
        self._full: np.ndarray | None = None

    @property
    def none(self) -> np.ndarray:
        assert self._none is not None, "values come first"
        return self._none

    @property
    def full(self) -> np.ndarray:
        assert self._full is not None, "values come first"
        return self._full

    def values(self, asked: Sequence[tuple[Order, Sequence[int]]]) -> list[np.ndarray]:
        """For each order the metric at its k, `[K, E]`, all in one call of the engine."""
        total = len(self.engine.model.heads())
        shape = self.engine.model.shape
        make = keep_gates if self.action == "keep" else mask_gates
        wanted = [
            (place, slot, make(order[:k], shape))
            for place, (order, ks) in enumerate(asked)
            for slot, k in enumerate(ks)
            if 0 < k < total
        ]
        gates = [gate for _, _, gate in wanted]
        first = self._none is None
        gates += [self._other_end] if first else []
        if gates:
            measured = self.engine.measure(np.stack(gates), baseline=self.baseline)
            gained = measured.values - measured.full  # V, E: against the baseline in the same batch
            if first:
                start, end = measured.full[-1], measured.full[-1] + gained[-1]
                self._none, self._full = (start, end) if self.action == "keep" else (end, start)
        start, end = (self.none, self.full) if self.action == "keep" else (self.full, self.none)
        # Nothing changed is the start and everything changed is the end, exactly: no rounding of other batches.
        found = [np.stack([start if k == 0 else end for k in ks]) for _, ks in asked]
        for number, (place, slot, _) in enumerate(wanted):
            found[place][slot] = start + gained[number]
        return found


def _refined(
    curve: _Curve, order: Order, k: np.ndarray, values: np.ndarray, threshold: float, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """A few measured points `[K]`, `[K, E]`, and in two rounds more near the knee, at most `points` in all."""
    for rounds_left in (2, 1):
        whole = curve.full - curve.none
        gains = values - curve.none if curve.action == "keep" else curve.full - values
        shares = stats.bootstrap_ratio(gains.T, whole).value
        further = knee_points(k, shares, threshold, (points - len(k)) // rounds_left)
        if not further:
            break
        k = np.concatenate([k, further])
        values = np.concatenate([values, curve.values([(order, further)])[0]])
        ascending = np.argsort(k)
        k, values = k[ascending], values[ascending]
    return k, values


def _heads(model: Model, order: Scores | Sequence[Head | str], by: str) -> Order:
    if isinstance(order, Scores):
        heads = order.order(by)
    else:
        heads = [Head.parse(one) if isinstance(one, str) else Head(*one) for one in order]
    known = set(model.heads())
    strange = [head for head in heads if head not in known]
    if strange:
        layers, width = model.shape
        raise HeadwiseError(
            f"the order names {strange[0]}, which {model.name} does not have ({layers} layers × {width} heads); give "
            "an order of this model's heads"
        )
    twice = next((head for i, head in enumerate(heads) if head in heads[:i]), None)
    if twice is not None:
        raise HeadwiseError(f"the order names {twice} twice; every head has one place in an order")
    if not heads:
        raise HeadwiseError("the order is empty; a sweep needs at least one head")
    return heads


def _checked(k: Sequence[int], most: int) -> list[int]:
    wrong = [one for one in k if int(one) != one or not 0 <= one <= most]
    if wrong or not len(k):
        said = f"has {wrong[0]}" if wrong else "is empty"
        raise HeadwiseError(f"the grid {said}; k are whole numbers of heads from 0 to the order's {most}")
    return sorted({int(one) for one in k})


def _control_orders(
    model: Model, order: Order, kinds: Sequence[str], draws: int, seed: int
) -> list[tuple[str, int, Order]]:
    """(kind, draw, order) of every control, over as many heads as the order has, drawn from all of the model's."""
    drawn = []
    ranked = set(order)
    whole = [*order, *(head for head in model.heads() if head not in ranked)]
    for kind in kinds:
        for number in range(draws):
            name = f"{seed}/{number}"
            if kind == "random":
                drawn.append((kind, number, random_order(model.heads(), name)[: len(order)]))
            else:
                drawn.append((kind, number, layer_matched_order(whole, name)[: len(order)]))
    return drawn


def renamed(found: Sweep, **about: Any) -> Sweep:
    """The same curve and its controls under other names (model, task)."""
    return replace(found, **about, controls=tuple(renamed(control, **about) for control in found.controls))
