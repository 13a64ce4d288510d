"""A metric as the first k heads of an order are kept alone, or masked. Every k is one row of gates.

K points of a curve, E examples, V variants (one array of gates each), L layers, H heads, M = 2 where answers are
compared (the metric, and the number of the most likely answer), else 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast

import numpy as np

from headwise import stats
from headwise.arguments import checked
from headwise.errors import HeadwiseError, quoted, unknown
from headwise.heads import Head, Order, Scores, head_list, keep_gates, mask_gates, ones
from headwise.heads.components import HEADS, Layout
from headwise.heads.controls import control_sets, most_k
from headwise.metrics import metric as metric_named
from headwise.metrics.logits import winner
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.tokens.encode import encode_rows
from headwise.progress import Progress, reporting
from headwise.scores.measure import MeasureOptions
from headwise.settings import several
from headwise.sweeps.curve import THRESHOLD, Sweep, check_threshold
from headwise.sweeps.explained import knee_points, spread_points
from headwise.sweeps.mib import Mib, mib
from headwise.tasks.opening import TaskLike, as_task

if TYPE_CHECKING:
    from typing_extensions import Unpack

ACTIONS = ("keep", "mask")
CONTROLS = ("random", "random_layer")
POINTS = 25
"""Most points of a curve whose grid is not given: a third is spread over all heads, the rest near the knee."""
CONTROL_POINTS = 8
DRAWS = 5
"""Random draws of each control: a single draw may contain important heads by chance."""


class SweepOptions(MeasureOptions, total=False):
    """How components are ablated, and which have gates."""

    components: Sequence[str]


_P = ParamSpec("_P")


class _WithMib(Protocol[_P]):
    """`hw.sweep`, beside it `hw.sweep.mib(model, task, scores)`: the benchmark MIB's own curve and its areas."""

    mib: Callable[..., Mib]

    def __call__(self, *args: _P.args, **options: _P.kwargs) -> Sweep: ...


def _with_mib(call: Callable[_P, Sweep]) -> _WithMib[_P]:
    return cast("_WithMib[_P]", call)


@_with_mib
def sweep(
    model: Model,
    task: TaskLike,
    order: Scores | Head | str | Sequence[Head | str] | None = None,
    action: str | None = None,
    *,
    ablate: Any = None,
    keep: Any = None,
    heads: Any = None,
    metric: str | None = None,
    k: Sequence[int] | None = None,
    controls: str | Sequence[str] = CONTROLS,
    draws: int = DRAWS,
    by: str = "signed",
    threshold: float = THRESHOLD,
    points: int = POINTS,
    control_points: int = CONTROL_POINTS,
    progress: Progress = True,
    **settings: Unpack[SweepOptions],
) -> Sweep:
    """The metric as only the first k heads of an order are kept, or as they are masked; the rest is the reference.

    task: a task, or what `hw.task` makes one of: a name, a path, a list of examples, a DataFrame.
    order: scores (ranked by `by`: signed, absolute, hinders), or heads, most important first. To test an order,
        measure it on examples that it was not found on: `found, tested = task.halves()`.
    action: `keep` (default) or `mask`.
    ablate, keep: instead of an order and an action, heads to mask or to keep, such as ["L3H2", "L5H0"], one more at
        each k as they are listed.
    heads: only these of the order.
    metric: by default the task's own.
    k: the numbers of heads to measure; by default at most `points`, a few spread over all heads and the rest
        where the curve reaches `threshold` of the explained effect.
    controls: `random` heads and `random_layer` ones (as many from each layer as the order's first k have there), never
        one of the order's first k; `draws` of each, at `control_points` numbers of heads, up to half of all heads:
        beyond that there are not enough others.
    progress: False for no progress bar.
    settings: `reference` (by default `mean`), `positions`, `seed`,
        `reference_task`, `batch_tokens`: see `hw.measure`; `components`: what the order ranks and what has gates, by
        default that of the scores, else heads. With MLPs or the input k counts components, and none kept means that
        all of them are replaced.

    >>> found, tested = hw.task("ioi", 64, model=model).halves()                # doctest: +SKIP
    >>> scores = hw.score(model, found, "integrated", reference="patch")        # doctest: +SKIP
    >>> hw.sweep(model, tested, scores).k_at(0.9)                               # doctest: +SKIP
    """
    task = as_task(task, model, {})
    controls = several(controls)
    order, action = _what(order, action, ablate, keep)
    _check(action, controls, draws, points, control_points)
    check_threshold(threshold)
    settings["reference"] = settings.get("reference") or "mean"
    seed = settings.setdefault("seed", 0)
    settings.setdefault("components", order.components if isinstance(order, Scores) else HEADS)
    layout = model.layout(settings["components"])
    ranked_heads, ranked_by, name = _ranked(model.name, layout, order, by, heads)
    total = len(layout.listed())
    grid = None if k is None else _checked(k, len(ranked_heads))
    first = grid or spread_points(len(ranked_heads), max(2, points // 3 + 1))
    control_k = spread_points(min(len(ranked_heads), most_k(total)), control_points)
    drawn = {
        (kind, draw): control_sets(kind, layout.listed(), ranked_heads, control_k, f"{seed}/{draw}")
        for kind in controls
        for draw in range(draws)
    }
    # No heads and all heads are the two ends, which are measured once.
    inner = [sum(0 < k < total for k in grid) for grid in (first, control_k)]
    variants = 1 + (inner[0] if grid else min(points, len(ranked_heads))) + len(drawn) * inner[1]
    with reporting(f"sweep on {task.name}", variants * len(task), progress) as advance:
        engine = Engine(model, task, metric_named(metric or task.metric), advance=advance, **settings)
        measured = Curves(engine, action)
        of_controls = ([one.heads for one in sets] for sets in drawn.values())
        points_of, *control_points_of = measured.points([[ranked_heads[:k] for k in first], *of_controls])
        curve = measured.sweep(first, points_of, ranked_heads, seed)
        if grid is None:
            curve = _refined(measured, curve, threshold, points)
    others = []
    for ((kind, draw), sets), of_control in zip(drawn.items(), control_points_of, strict=True):
        control = measured.sweep(control_k, of_control, sets[-1].heads, seed)
        moved = tuple(drawing.moved for drawing in sets) if kind == "random_layer" else None
        fields = {"series": kind, "draw": draw, "moved": moved, "details": {"order": name}}
        others.append(replace(control, sets=tuple(drawing.heads for drawing in sets), **fields))
    details = {"order": name, "rows": engine.rows_spent, "batch_tokens": engine.batch_tokens}
    return replace(curve, series=name, by=ranked_by, controls=tuple(others), details=details)


def _what(order: Any, action: str | None, ablate: Any, keep: Any) -> tuple[Any, str]:
    """Order and action; heads to ablate or to keep are both at once."""
    lists = {"mask": ablate, "keep": keep}
    given = [name for name, heads in lists.items() if heads is not None]
    if not given:
        return order, action or "keep"
    if order is not None or action is not None or len(given) > 1:
        raise HeadwiseError(
            "a sweep takes an order, or ablate=[…], or keep=[…]; give one of them, and an action only with an order"
        )
    return head_list(lists[given[0]]), given[0]


def _check(action: str, controls: Sequence[str], draws: int, points: int, control_points: int) -> None:
    if action not in ACTIONS:
        raise unknown("action", action, ACTIONS)
    for kind in controls:
        if kind not in CONTROLS:
            raise unknown("control", kind, CONTROLS)
    if draws < 1 or control_points < 2 or points < 2:
        raise HeadwiseError(
            f"draws is {draws}, points {points} and control_points {control_points}; expected at least 1 draw and "
            "2 points"
        )


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


def reads_answers(engine: Engine) -> bool:
    """Let the engine number the most likely answer beside its metric, where the same logits tell."""
    if not all(example.foils for example in engine.task):
        return False
    answer = winner(engine.task)
    same = encode_rows(engine.model.text, engine.task.examples, answer.needs) == engine.rows
    engine.metrics += [answer] * same
    return same


class Curves:
    """Measures points of curves in one batch with the end they start from: differences never mix batch shapes."""

    def __init__(self, engine: Engine, action: str) -> None:
        self.engine, self.action = engine, action
        reads_answers(engine)
        # A few kept heads are close to none, a few masked heads close to all: variants enter the decoder where they
        # leave their baseline, which saves the layers before it.
        ends = [np.zeros(engine.layout.shape), ones(engine.layout.shape)]
        self.baseline, self._other_end = ends if action == "keep" else ends[::-1]
        self.ends: tuple[np.ndarray, np.ndarray] | None = None
        """At the baseline and at the other end, each `[E, M]`; measured with the first points."""

    def points(self, head_sets: Sequence[Sequence[Order]]) -> list[np.ndarray]:
        """For each curve `[K, E, M]`: the metric with each of its sets of heads and, where the same logits tell, the
        number of the most likely answer. All in one call of the engine."""
        layout = self.engine.layout
        total = len(layout.listed())
        make = keep_gates if self.action == "keep" else mask_gates
        inner = [
            (curve, point)
            for curve, sets in enumerate(head_sets)
            for point, heads in enumerate(sets)
            if 0 < len(heads) < total
        ]
        gates = [make(head_sets[curve][point], layout) for curve, point in inner]
        gates += [self._other_end] if self.ends is None else []
        if gates:
            values, base = self._measured(
                np.stack(gates)
            )  # V, E, M: under the gates, at the baseline beside them
            if self.ends is None:
                self.ends = base[-1], values[-1]
            # The metric is read against the baseline in the same batch; an answer is a number of a candidate.
            values[..., 0] += self.ends[0][:, 0] - base[..., 0]
        assert self.ends is not None
        start, end = self.ends
        # Nothing changed is the start and everything changed is the end, exactly: no rounding of other batches.
        curves = [np.stack([end if heads else start for heads in sets]) for sets in head_sets]
        for variant, (curve, point) in enumerate(inner):
            curves[curve][point] = values[variant]
        return curves

    def _measured(self, gates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = self.engine.measure(gates, baseline=self.baseline)
        both = [first] if first.second is None else [first, first.second]
        values, base = (np.stack([getattr(one, of) for one in both], axis=-1) for of in ("values", "full"))
        return values, base

    def sweep(self, k: Sequence[int], points: np.ndarray, order: Order, seed: int) -> Sweep:
        """The curve through points `[K, E, M]`."""
        assert self.ends is not None, "points come first"
        none, full = self.ends if self.action == "keep" else self.ends[::-1]
        return Sweep.of(
            self.engine,
            k=np.array(k),
            values=points[..., 0],
            none=none[:, 0],
            full=full[:, 0],
            agrees=None if len(self.engine.metrics) == 1 else (points[..., 1] == full[:, 1]).astype(float),
            families=self.engine.task.families(),
            order=order,
            series="",
            action=self.action,
            reference=self.engine.reference,
            total=len(self.engine.layout.listed()),
            seed=seed,
        )


def _refined(measured: Curves, curve: Sweep, threshold: float, points: int) -> Sweep:
    """A curve of a few points, with more near the knee, measured in two rounds: at most `points` in all."""
    for rounds_left in (2, 1):
        shares = stats.ratio_interval(curve.gains.T, curve.effects, groups=curve.groups).value
        further = knee_points(curve.k, shares, threshold, (points - len(curve.k)) // rounds_left)
        if not further:
            break
        (points_of,) = measured.points([[curve.order[:k] for k in further]])
        more = measured.sweep(further, points_of, curve.order, curve.seed)
        ascending = np.argsort(np.concatenate([curve.k, more.k]))
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(curve, name), getattr(more, name)])[ascending]
            for name in ("k", "values", *(() if curve.agrees is None else ("agrees",)))
        }
        curve = replace(curve, **arrays)
    return curve


def _ranked(
    model: str,
    layout: Layout,
    order: Scores | Head | str | Sequence[Head | str] | None,
    by: str,
    only: Any = None,
) -> tuple[Order, str, str]:
    """The heads of an order (of those in `only`, where it is given), how they are ranked, and its name."""
    if order is None:
        raise HeadwiseError("a sweep needs an order: scores of hw.score, or ablate=['L3H2', …]")
    if isinstance(order, Scores):
        heads, (ranked_by, name) = order.order(by), ranking(order.method, order.signed, by)
    else:
        heads, ranked_by, name = head_list(order), "given", "order"
    if only is not None:
        chosen = head_list(only)
        missing = [head for head in chosen if head not in heads]
        if missing:
            raise HeadwiseError(
                f"heads names {missing[0]}, which the order does not have; give heads of the order"
            )
        heads = [head for head in heads if head in chosen]
    components = set(layout.listed())
    for index, head in enumerate(heads):
        if head not in components:
            layers, width = layout.shape
            size = (
                f"{layers} layers × {width} heads"
                if layout.components == HEADS
                else f"{len(components)} components"
            )
            raise HeadwiseError(
                f"the order names {head}, which {model} does not have ({size}); give an order of this model's "
                f"{', '.join(layout.components)}"
            )
        if head in heads[:index]:
            raise HeadwiseError(f"the order names {head} twice; every head has one rank in an order")
    if not heads:
        raise HeadwiseError("the order is empty; a sweep needs at least one head")
    return heads, ranked_by, name


def _checked(k: Sequence[int], most: int) -> list[int]:
    try:
        wrong = [number for number in k if int(number) != number or not 0 <= number <= most]
    except (TypeError, ValueError, OverflowError):
        raise HeadwiseError(
            f"k is {quoted(k)}; give a list of whole numbers of heads, such as [0, 1, 2, 4]"
        ) from None
    if wrong or not len(k):
        mistake = f"has {wrong[0]}" if wrong else "is empty"
        raise HeadwiseError(f"the grid {mistake}; k are whole numbers of heads from 0 to the order's {most}")
    return sorted({int(number) for number in k})


sweep.mib = checked(mib)
