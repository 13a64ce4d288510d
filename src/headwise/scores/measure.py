"""`hw.measure`: a metric under any gates, per example, beside the same examples with all heads.

V variants (one array of gates each), E examples, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from headwise import stats
from headwise.display import html_table
from headwise.metrics import metric as metric_named
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.names import ablation_name
from headwise.progress import Progress, reporting
from headwise.tasks.examples import Task
from headwise.tasks.opening import as_task

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MeasureOptions(TypedDict, total=False):
    """How heads are ablated; see `headwise.model.measure.rows.MeasureSettings`."""

    reference: str | None
    window: int
    sink: int
    positions: str | int | Sequence[int] | Sequence[str]
    seed: int
    reference_task: Task | None
    batch_tokens: int | None


@dataclass(frozen=True)
class Measurement:
    """A metric under gates, with its value on every example."""

    values: np.ndarray
    """`[E]`, or `[V, E]` where several sets of gates were given."""
    full: np.ndarray
    """The same examples with all heads, in the same shape."""
    model: str
    task: str
    metric: str
    reference: str
    groups: Sequence[str | None] | None = field(default=None, repr=False)
    """The group of every example, where some share one: intervals then resample groups."""
    seed: int = 0

    @property
    def n(self) -> int:
        """The number of examples."""
        return int(self.values.shape[-1])

    @property
    def mean(self) -> Any:
        """The mean over the examples: a number, or one per variant `[V]`."""
        return self.values.mean(-1)

    @property
    def effects(self) -> np.ndarray:
        """Metric with all heads minus metric under the gates: positive where what was removed helps."""
        return self.full - self.values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def table(self) -> pd.DataFrame:
        """One row per variant: the mean with its interval, the mean with all heads, and the paired effect with
        interval, p (sign flip over examples) and q (Benjamini–Hochberg over the variants)."""
        values, full, effects = (np.atleast_2d(x).T for x in (self.values, self.full, self.effects))  # E, V
        lo, hi = stats.metric_interval(values, groups=self.groups)
        effect_lo, effect_hi = stats.difference_interval(
            np.broadcast_to(full, values.shape), values, groups=self.groups
        )
        p = stats.sign_flip(effects, groups=self.groups, seed=self.seed)
        paired = {"effect": effects.mean(0), "effect_lo": effect_lo, "effect_hi": effect_hi}
        tests = {"p": p, "q": stats.benjamini_hochberg(p), "n": self.n}
        tests |= {"metric": self.metric, "reference": self.reference}
        numbers = {"mean": values.mean(0), "lo": lo, "hi": hi, "full": full.mean(0)}
        return pd.DataFrame({"variant": np.arange(values.shape[1]), **numbers, **paired, **tests})

    def _lines(self) -> list[list[str]]:
        """Mean, mean with all heads and effect of each variant, in words."""
        lines = []
        for row in self.table().itertuples(index=False):
            effect = f"{row.effect:+.4g} [{row.effect_lo:+.4g}, {row.effect_hi:+.4g}]"
            lines.append([f"{row.mean:.4g} [{row.lo:.4g}, {row.hi:.4g}]", f"{row.full:.4g}", effect])
        return lines

    def __repr__(self) -> str:
        head = f"{self.metric} on {self.task}, {self.model}, {ablation_name(self.reference)}, n = {self.n}"
        lines = ["{}; all heads {}; effect {}".format(*line) for line in self._lines()]
        if len(lines) == 1:
            return f"Measurement({head}: {lines[0]})"
        more = [f"… {len(lines)} variants in all"] if len(lines) > _MOST_SHOWN else []
        shown = [f"Measurement({head}, mean with 95 % interval:", *lines[:_MOST_SHOWN], *more]
        return "\n  ".join(shown) + ")"

    def _repr_html_(self) -> str:
        described = f"{ablation_name(self.reference)}, n = {self.n}, 95 % intervals"
        title = f"{self.metric} on {self.task}, {self.model} ({described})"
        columns = ["variant", "mean", "all heads", "effect (all heads − this)"]
        return html_table(title, columns, ([number, *line] for number, line in enumerate(self._lines())))


_MOST_SHOWN = 10
"""Variants that a repr shows."""


def measure(
    model: Model,
    task: Any,
    gates: Any = None,
    *,
    ablate: Any = None,
    keep: Any = None,
    metric: str | None = None,
    progress: Progress = True,
    **options: Unpack[MeasureOptions],
) -> Measurement:
    """The metric under gates, per example, beside the same examples with all heads.

    task: a task, or what `hw.task` makes one of.
    gates: `[L, H]`, or `[V, L, H]` for several at once: 0 removes a head, 1 leaves it, above 1 amplifies it. Or name
        heads to `ablate`, or the only heads to `keep`: `ablate=["L3H2", "L5H0"]`. By default all heads are left.
    metric: by default that of the task.
    options: `reference` (what replaces an ablated head: zero, mean, position_mean, resample, patch, window), `window`
        and `sink` (with the reference `window`, how many of the last and first tokens the head still sees: by default
        64 and 4), `positions` (where gates act: all, or from the last prompt token on), `seed`, `reference_task`,
        `batch_tokens`.

    >>> hw.measure(model, task, ablate=["L3H2"], reference="mean")            # doctest: +SKIP
    """
    arrays = model.gates(gates, ablate=ablate, keep=keep)
    task = as_task(task, model, {})
    options["reference"] = options.get("reference") or "mean"
    variants = arrays if arrays.ndim == 3 else arrays[None]
    chosen = metric_named(metric or task.metric)
    with reporting(f"measuring {task.name}", len(variants) * len(task), progress) as advance:
        engine = Engine(model, task, chosen, advance=advance, **options)
        measured = engine.measure(variants)
    values, full = measured.values, measured.full
    if arrays.ndim == 2:
        values, full = values[0], full[0]
    names = (
        model.name,
        task.name,
        chosen.name,
        engine.reference,
        task.shared_groups(),
        options.get("seed", 0),
    )
    return Measurement(values, full, *names)
