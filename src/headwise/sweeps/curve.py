"""A curve over the first k heads or edges of an order, and what it says: explained effect, heads needed, areas.

`Curve` is what every curve shares, `Sweep` the one over heads; that over edges is in `edge_curve.py`. `readings.py`
compares two curves.

K points of a curve, E examples, B resamples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from typing_extensions import Self

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.heads import Order
from headwise.names import ablation_name
from headwise.sweeps.explained import (
    EXPLAINED,
    Estimate,
    Families,
    HeadsNeeded,
    Tracking,
    areas,
    followed,
    heads_needed,
    lowest_family,
    resampled_needs,
)
from headwise.tables.codec import Saved, stored

if TYPE_CHECKING:
    from headwise.model.measure.engine import Engine

THRESHOLD = 0.9


@dataclass(frozen=True, kw_only=True)
class Curve(Saved, ABC):
    """A metric of every example against the number of heads, or edges, that are kept or masked."""

    k: np.ndarray  # K, ascending
    values: np.ndarray  # K, E: the metric itself
    model: str
    task: str
    series: str
    """The order's name, or the kind of control."""
    metric: str
    groups: Sequence[str | None] | None = None
    """The group of every example, where some share one: intervals then resample groups."""
    numbers: Sequence[int] | None = None
    """Of the examples, in their task; None to count them from 0."""
    seed: int = 0
    """Of the resamples of examples, and of what the measurement draws."""
    details: dict[str, Any] = field(default_factory=dict, compare=False)
    """What the curve cost, and what a subclass says it holds."""

    examples_name: ClassVar[str]
    """The table of a run that `example_table` goes to."""

    @classmethod
    def of(cls, engine: Engine, **fields: Any) -> Self:
        """The curve of what this engine measured."""
        task = engine.task
        names: dict[str, Any] = {"model": engine.model.name, "task": task.name, "metric": engine.metric.name}
        return cls(**names, groups=task.shared_groups(), numbers=task.numbers, **fields)

    @property
    @abstractmethod
    def gains(self) -> np.ndarray:
        """What the first k bring back (kept) or take away (masked), per example `[K, E]`."""

    @property
    @abstractmethod
    def effects(self) -> np.ndarray:
        """m(full) − m(none): what all of them together do, per example `[E]`."""

    @abstractmethod
    def example_table(self) -> pd.DataFrame:
        """The metric of every example at every k."""

    def _checked(self) -> Curve:
        """This curve, if its arrays belong together."""
        for name in ("k", "values"):
            self._check_numbers(name)
        points, examples = self.k.shape, self.values.shape[1:]
        if len(points) != 1 or not points[0]:
            raise ValueError(f"k of shape {points}, expected [K]")
        if len(examples) != 1 or len(self.values) != points[0]:
            raise ValueError(f"values of shape {self.values.shape} for {points[0]} points, expected [K, E]")
        for name in ("groups", "numbers"):
            listed = getattr(self, name)
            if listed is not None and len(listed) != self.n:
                raise ValueError(f"{name} are no list of {self.n}")
        return self

    def _check_numbers(self, name: str) -> None:
        array = getattr(self, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name} holds no numbers")

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.values.shape[1]

    @property
    def effect(self) -> Estimate:
        """The mean of `effects`, in the metric's unit."""
        lo, hi = stats.mean_interval(self.effects, groups=self.groups)
        return Estimate(float(self.effects.mean()), float(lo), float(hi))

    @property
    def defined(self) -> bool:
        """Whether there is an effect to explain: its interval leaves out 0."""
        _, lo, hi = self.effect
        return lo > 0 or hi < 0

    @property
    def shares(self) -> np.ndarray:
        """The explained effect at each k `[K]`, also where it is undefined."""
        return np.asarray(self.gains.mean(1) / self.effects.mean())

    def explained(self) -> pd.DataFrame:
        """The explained effect at each k with its interval (columns k, value, lo, hi); NaN where undefined."""
        ratio = stats.ratio_interval(self.gains.T, self.effects, groups=self.groups)
        return pd.DataFrame({"k": self.k, **ratio._asdict()})

    def k_at(self, threshold: float = THRESHOLD) -> HeadsNeeded:
        """How many heads (or edges) reach this explained effect, and from how many on it stays there.

        Between measured points the curve is taken as straight, and heads are rounded up; a sweep on the default
        grid has measured the points beside the answer. NaN where the explained effect is undefined.
        """
        check_threshold(threshold)
        if not self.defined:
            return HeadsNeeded(*[float("nan")] * 6)
        k, gains = self._with_ends()
        found: list[float] = []
        for stays in (False, True):
            needed = heads_needed(k, gains.mean(1) / self.effects.mean(), threshold, stays=stays)
            options: dict[str, Any] = {"groups": self.groups, "seed": self.seed}
            resampled = resampled_needs(k, gains, self.effects, threshold, stays, **options)
            found += [float(needed), *stats.resampled_interval(resampled, self.n, groups=self.groups)]
        return HeadsNeeded(*found)

    def _with_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """k and gains `[K, E]` from none to all, as far as both ends are known."""
        return self.k, self.gains

    def _example_points(self) -> dict[str, np.ndarray]:
        """The columns k, example and value of `example_table`."""
        numbers = np.arange(self.n) if self.numbers is None else np.asarray(self.numbers)
        points = {"k": np.repeat(self.k, self.n), "example": np.tile(numbers, len(self.k))}
        return points | {"value": self.values.ravel()}

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must be finite: the metric at every point; none where all are."""
        return {} if np.isfinite(self.values).all() else {self.examples_name: self.example_table()}


@stored
@dataclass(frozen=True, kw_only=True)
class Sweep(Curve):
    """A curve over the first k heads of an order, with the per-example values behind every point."""

    none: np.ndarray  # E: with every head replaced by the reference
    full: np.ndarray  # E: with all heads
    order: Order
    action: str
    reference: str
    total: int
    """Heads of the model."""
    by: str = "given"
    """How the scores were ranked: signed, absolute, hinders; `given` for a list of heads."""
    draw: int | None = None
    """Which of several draws of a control."""
    sets: tuple[Order, ...] = ()
    """Of a control: the heads at each k, none of them among the first k of the order it is compared with."""
    moved: tuple[int, ...] | None = None
    """Of a layer-matched control: how many heads at each k came from another layer, because theirs had too few."""
    agrees: np.ndarray | None = (
        None  # K, E: 1 where the most likely of target and foils is that of the whole model
    )
    """None without foils, and where it would have taken further passes."""
    families: Families = field(default_factory=dict)
    """Facet -> level -> indices of the examples with it."""
    controls: tuple[Sweep, ...] = ()

    examples_name = "examples"

    def _checked(self) -> Sweep:
        super()._checked()
        for name in ("none", "full"):
            self._check_numbers(name)
            shape = getattr(self, name).shape
            if shape != (self.n,):
                raise ValueError(f"{name} of shape {shape} for {self.n} examples")
        return self

    def __repr__(self) -> str:
        k = self.k_at().k
        reached = f"{k:.0f} heads reach {THRESHOLD:.0%}" if k == k else f"{THRESHOLD:.0%} is not reached"
        reached = reached if self.defined else "no effect to explain"
        found = self.tracking()  # what the mean leaves out
        if not np.isnan(found.r2):
            reached += (
                f"; {found.k:.0f} kept: R² {found.r2:.2f}, {found.within:.0%} of the examples within a fifth"
            )
            reached += "" if np.isnan(found.agreement) else f", same answer in {found.agreement:.0%}"
        if not np.isnan(found.lowest_family):
            reached += f", lowest family {found.lowest_family:.2f} ({found.family})"
        return (
            f"Sweep({self.action} by {self.series} on {self.task}, {self.model}, "
            f"{ablation_name(self.reference)}: {len(self.k)} points up to "
            f"{self.k[-1]} of {self.total} heads, n = {self.n}; {reached})"
        )

    @property
    def gains(self) -> np.ndarray:
        """What the first k heads bring back (kept) or take away (masked), per example `[K, E]`."""
        return self.values - self.none if self.action == "keep" else self.full - self.values

    @property
    def effects(self) -> np.ndarray:
        """m(full) − m(none): what all heads together do, per example `[E]`."""
        return self.full - self.none

    def _with_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """k and gains `[K, E]` with both ends: they are known without measuring.

        An order that leaves heads out says nothing of the way from its last head to all of them.
        """
        k, gains = self.k, self.gains
        if k[0] > 0:
            k, gains = np.concatenate([[0], k]), np.concatenate([np.zeros((1, self.n)), gains])
        if k[-1] < self.total and len(self.order) == self.total:
            k, gains = np.append(k, self.total), np.concatenate([gains, self.effects[None]])
        return k, gains

    def cpr(self) -> Estimate:
        """∫ explained effect over the fraction of heads: more is better; above 1 if some heads do better than all."""
        return self._area(0)

    def cmd(self) -> Estimate:
        """∫ |1 − explained effect| over the fraction of heads: how far the curve is from the whole model, 0 is best."""
        return self._area(1)

    def _area(self, which: int) -> Estimate:
        if not self.defined or len(self.order) < self.total:
            return Estimate(*[float("nan")] * 3)
        k, gains = self._with_ends()
        area = areas(k, gains.mean(1) / self.effects.mean(), self.total)[which]
        shares = stats.resampled_ratio(gains.T, self.effects, groups=self.groups, seed=self.seed)
        resampled = areas(k, shares, self.total)[which]
        return Estimate(float(area), *stats.resampled_interval(resampled, self.n, groups=self.groups))

    def explained(self) -> pd.DataFrame:
        """The explained effect at each k with its interval (columns k, value, lo, hi); NaN where undefined.

        Where heads are kept, what a mean leaves out stands beside it, with intervals (`r2_lo`, `r2_hi`, …): `r2`,
        `within` (see `Tracking`), `agreement` (share of examples whose most likely answer is that of the whole model;
        NaN where it was not measured), `lowest_family` (the lowest explained effect of a family; its name is `family`).
        """
        shares = super().explained()
        return shares if self.action == "mask" else pd.concat([shares, self._followed()], axis=1)

    def _followed(self, points: slice = slice(None)) -> pd.DataFrame:
        """How far the kept heads follow the model in each example and in each family, a row for each of these k."""
        kept, effect = self.values[points], float(self.effects.mean())
        columns: dict[str, Any] = {**followed(kept, self.full, effect, groups=self.groups, seed=self.seed)}
        same = (np.full_like(self.values, np.nan) if self.agrees is None else self.agrees)[points].T
        lo, hi = stats.share_interval(same, groups=self.groups)
        columns |= {"agreement": same.mean(axis=0), "agreement_lo": lo, "agreement_hi": hi}
        return pd.DataFrame(
            columns | lowest_family(self.gains[points], self.effects, self.families, self.groups)
        )

    def tracking(self, k: float | None = None) -> Tracking:
        """How far the first k heads, kept alone, follow the whole model in each example and in each family.

        k: by default the number from which on 90 % of the effect is explained; the measured point at or above it is
        taken. NaN where heads are masked, and where there is no such number.
        """
        wanted = self.k_at().stays if k is None else float(k)
        at = int(np.searchsorted(self.k, wanted))
        if self.action != "keep" or np.isnan(wanted) or at == len(self.k):
            nothing: list[Any] = [float("nan")] * 7
            return Tracking(*nothing)
        (row,) = self._followed(slice(at, at + 1)).to_dict("records")
        return Tracking(k=float(self.k[at]), **{str(name): value for name, value in row.items()})

    # ---- tables ----------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The curve table: the explained effect, then the metric itself; controls after the order.

        Of each kind of control first the mean of its draws, with an interval over draws and examples (`draw` is
        empty), then every draw.
        """
        shares = self.explained()
        lo, hi = stats.metric_interval(self.values.T, groups=self.groups)
        raw = pd.DataFrame({"k": self.k, "value": self.values.mean(1), "lo": lo, "hi": hi})
        frames = [self._rows(shares.assign(metric=EXPLAINED)), self._rows(raw.assign(metric=self.metric))]
        for kind in dict.fromkeys(control.series for control in self.controls):
            draws = [control for control in self.controls if control.series == kind]
            frames += [_mean_of_draws(draws), *(control.table() for control in draws)]
        return pd.concat(frames, ignore_index=True)

    def example_table(self) -> pd.DataFrame:
        """The metric of every example at every k; controls after the order."""
        points = pd.DataFrame(self._example_points())
        points.insert(1, "metric", self.metric)
        if self.groups is not None:
            points["group"] = np.tile(np.array(self.groups, dtype=object), len(self.k))
        table = self._rows(points).drop(columns="n")
        return pd.concat([table, *(control.example_table() for control in self.controls)], ignore_index=True)

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        draw = pd.array([self.draw] * len(frame), dtype="Int32")
        if self.moved is not None:
            moved = dict(zip(self.k.tolist(), self.moved, strict=True))
            frame = frame.assign(moved=pd.array([moved[k] for k in frame["k"]], dtype="Int32"))
        names = {"model": self.model, "task": self.task, "series": self.series, "action": self.action}
        draws = {"n": self.n, "draw": draw, "order": self.details.get("order", self.series), "by": self.by}
        return frame.assign(**names, **draws, reference=self.reference)

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        finite = all(np.isfinite(curve.values).all() for curve in (self, *self.controls))
        return {} if finite else {self.examples_name: self.example_table()}

    def summary(self, threshold: float = THRESHOLD) -> dict[str, Any]:
        """One row: heads needed, areas, effect, and how far the circuit follows single examples, with intervals."""
        names = ("model", "task", "series", "by", "action")
        needed = ("k", "k_lo", "k_hi", "stays", "stays_lo", "stays_hi")
        row: dict[str, Any] = {name: getattr(self, name) for name in names} | {"threshold": threshold}
        found = self.k_at(threshold)
        row |= dict(zip(needed, found, strict=True)) | {"of": self.total}
        row |= {
            ("kept" if name == "k" else name): x for name, x in self.tracking(found.stays)._asdict().items()
        }
        for name, estimate in (("cpr", self.cpr()), ("cmd", self.cmd()), ("effect", self.effect)):
            row |= {name: estimate.value, f"{name}_lo": estimate.lo, f"{name}_hi": estimate.hi}
        row |= {"defined": self.defined, "metric": self.metric, "reference": self.reference}
        return row | {"n": self.n}

    def plot(self, threshold: float = THRESHOLD) -> Any:
        """Draw the curve with its band; returns the matplotlib figure."""
        from headwise.charts.explained_effect import explained_chart
        from headwise.charts.static import figure

        chart = explained_chart(self.table(), threshold=threshold)
        return figure(replace(chart, heading=ablation_name(self.reference).capitalize()))

    def _repr_png_(self) -> bytes:
        """In a notebook, the curve."""
        from headwise.charts.style import png

        return png(self.plot())


def _mean_of_draws(draws: Sequence[Sweep]) -> pd.DataFrame:
    """The curve of one kind of control: the mean of its draws, with an interval over draws and examples."""
    first, defined = draws[0], draws[0].defined
    values = np.stack([draw.values for draw in draws], axis=1)  # K, R, E
    gains = np.stack([draw.gains for draw in draws], axis=1)
    explained, raw = [], []
    for k, at_k, gained in zip(first.k, values, gains, strict=True):
        share = (np.nan, np.nan, np.nan)
        if defined:
            band = stats.crossed_interval(gained, denominator=first.effects, groups=first.groups)
            share = (gained.mean() / first.effects.mean(), *band)
        explained.append((k, *share, EXPLAINED))
        raw.append((k, at_k.mean(), *stats.crossed_interval(at_k, groups=first.groups), first.metric))
    table = pd.DataFrame([*explained, *raw], columns=["k", "value", "lo", "hi", "metric"])
    return replace(first, draw=None)._rows(table).assign(draws=len(draws))


def check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise HeadwiseError(
            f"the threshold of the explained effect is {threshold}; expected a number above 0, at most 1"
        )
