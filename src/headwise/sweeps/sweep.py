"""A metric as the first k heads of an order are kept alone, or masked. Every k is one row of gates.

K points of a curve, E examples, V variants (one array of gates each), L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise import stats
from headwise.errors import HeadwiseError, quoted, unknown
from headwise.heads import Head, Order, Scores, head_list, keep_gates, mask_gates, ones
from headwise.heads.controls import Draw, control_sets, most_k
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.several import several
from headwise.sweeps.curve import THRESHOLD, Sweep, check_threshold
from headwise.sweeps.explained import knee_points, spread_points

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.examples import Task

ACTIONS = ("keep", "mask")
CONTROLS = ("random", "random_layer")
POINTS = 25
"""Most points of a curve whose grid is not given: a third is spread over all heads, the rest near the knee."""
CONTROL_POINTS = 8
DRAWS = 5
"""Of each control: one draw may hold, by chance, heads that matter."""


def sweep(
    model: Model,
    task: Task,
    order: Scores | Head | str | Sequence[Head | str],
    action: str = "keep",
    *,
    reference: str | None = None,
    metric: str | None = None,
    k: Sequence[int] | None = None,
    controls: str | Sequence[str] = CONTROLS,
    draws: int = DRAWS,
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
    metric: by default the task's own. positions, reference_task: see `headwise.model.measure.engine.Engine`.
    k: the numbers of heads to measure; by default at most `points`, a few spread over all heads and the rest
        where the curve reaches `threshold` of the explained effect.
    controls: `random` heads and `random_layer` ones (as many from each layer as the order's first k have there), never
        one of the order's first k; `draws` of each, at `control_points` numbers of heads, up to half of all heads:
        beyond that there are not enough others.

    >>> found, tested = hw.task("ioi", 64, model=model).halves()                # doctest: +SKIP
    >>> scores = hw.score(model, found, "integrated", reference="patch")        # doctest: +SKIP
    >>> hw.sweep(model, tested, scores).k_at(0.9)                               # doctest: +SKIP
    """
    if action not in ACTIONS:
        raise unknown("action", action, ACTIONS)
    controls = several(controls)
    for kind in controls:
        if kind not in CONTROLS:
            raise unknown("control", kind, CONTROLS)
    check_threshold(threshold)
    if draws < 1 or control_points < 2 or points < 2:
        raise HeadwiseError(
            f"draws is {draws}, points {points} and control_points {control_points}; expected at least 1 draw and "
            "2 points"
        )
    heads = _heads(model, order, by)
    chosen = None if k is None else _checked(k, len(heads))
    measured = metric_named(metric or task.metric)
    engine = Engine(
        model,
        task,
        measured,
        reference=reference or default_reference(task),
        positions=positions,
        reference_task=reference_task,
        seed=seed,
        batch_tokens=batch_tokens,
        advance=advance,
    )
    curve = _Curve(engine, action)
    ranked_by, name = "given", "order"
    if isinstance(order, Scores):
        ranked_by, name = ranking(order.method, order.signed, by)
    at = spread_points(min(len(heads), most_k(len(model.heads()))), control_points)
    drawn = _drawn(model, heads, controls, draws, at, seed)
    first = chosen or spread_points(len(heads), max(2, points // 3 + 1))
    asked = [[heads[:k] for k in first], *([one.heads for one in sets] for _, _, sets in drawn)]
    values, *under = curve.values(asked)
    own = np.array(first), values
    if chosen is None:
        own = _refined(curve, heads, *own, threshold, points)

    def found(k: np.ndarray, values: np.ndarray, order: Order, series: str, **about: Any) -> Sweep:
        return Sweep(
            k,
            values,
            curve.none,
            curve.full,
            order,
            model.name,
            task.name,
            series,
            action,
            measured.name,
            engine.reference,
            total=len(model.heads()),
            groups=task.shared_groups(),
            seed=seed,
            **about,
        )

    others = tuple(
        found(
            np.array(at),
            values,
            sets[-1].heads,
            kind,
            draw=number,
            sets=tuple(one.heads for one in sets),
            moved=tuple(one.moved for one in sets) if kind == "random_layer" else None,
            details={"order": name},
        )
        for (kind, number, sets), values in zip(drawn, under, strict=True)
    )
    details = {"order": name, "rows": engine.rows_spent, "batch_tokens": engine.batch_tokens}
    return found(*own, heads, name, by=ranked_by, controls=others, details=details)


def default_reference(task: Task) -> str:
    """`patch` where every example has a counterfactual, else `mean`."""
    return "patch" if all(example.counterfactual is not None for example in task) else "mean"


def ranking(method: str, signed: bool, by: str) -> tuple[str, str]:
    """How an order is ranked and what it is called: signed and absolute orders are different things.

    An order by the method `random` is not called like the control `random`, whose rows stand in the same tables.

    >>> ranking("integrated", True, "signed"), ranking("integrated", True, "absolute")
    (('signed', 'integrated'), ('absolute', 'integrated absolute'))
    >>> ranking("sensitivity", False, "signed")
    ('unsigned', 'sensitivity')
    >>> ranking("random", True, "signed")
    ('signed', 'random order')
    """
    name = f"{method} order" if method in CONTROLS else method
    if not signed and by != "hinders":
        return "unsigned", name
    return by, name if by == "signed" else f"{name} {by}"


def most_rows(points: int, kinds: int, draws: int, control_points: int = CONTROL_POINTS) -> int:
    """Most variants that a sweep measures per example: what its cost is counted in."""
    return points - 1 + kinds * draws * max(control_points - 1, 0)


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

    def values(self, asked: Sequence[Sequence[Order]]) -> list[np.ndarray]:
        """For each curve the metric with each of its sets of heads, `[K, E]`, all in one call of the engine."""
        total = len(self.engine.model.heads())
        shape = self.engine.model.shape
        make = keep_gates if self.action == "keep" else mask_gates
        wanted = [
            (place, slot, make(heads, shape))
            for place, sets in enumerate(asked)
            for slot, heads in enumerate(sets)
            if 0 < len(heads) < total
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
        found = [np.stack([end if heads else start for heads in sets]) for sets in asked]
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
        shares = stats.bootstrap_ratio(gains.T, whole, groups=curve.engine.task.shared_groups()).value
        further = knee_points(k, shares, threshold, (points - len(k)) // rounds_left)
        if not further:
            break
        k = np.concatenate([k, further])
        values = np.concatenate([values, curve.values([[order[:one] for one in further]])[0]])
        ascending = np.argsort(k)
        k, values = k[ascending], values[ascending]
    return k, values


def _heads(model: Model, order: Scores | Head | str | Sequence[Head | str], by: str) -> Order:
    heads = order.order(by) if isinstance(order, Scores) else head_list(order)
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
    try:
        wrong = [one for one in k if int(one) != one or not 0 <= one <= most]
    except (TypeError, ValueError, OverflowError):
        raise HeadwiseError(
            f"k is {quoted(k)}; give a list of whole numbers of heads, such as [0, 1, 2, 4]"
        ) from None
    if wrong or not len(k):
        said = f"has {wrong[0]}" if wrong else "is empty"
        raise HeadwiseError(f"the grid {said}; k are whole numbers of heads from 0 to the order's {most}")
    return sorted({int(one) for one in k})


def _drawn(
    model: Model, order: Order, kinds: Sequence[str], draws: int, ks: Sequence[int], seed: int
) -> list[tuple[str, int, list[Draw]]]:
    """(kind, draw, the heads at each k) of every control."""
    return [
        (kind, number, control_sets(kind, model.heads(), order, ks, f"{seed}/{number}"))
        for kind in kinds
        for number in range(draws)
    ]
