"""Scores on heads, their files and tables. Nothing here knows what a model is.

L layers, H heads, E examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import HeadwiseError
from headwise.heads.components import HEADS, KINDS, existing, kinds_of
from headwise.heads.head import Head, Order, head_columns, head_list, ranked
from headwise.names import component_kind, method_name
from headwise.tables.codec import Saved, stored

if TYPE_CHECKING:
    import pandas as pd


@stored
@dataclass(frozen=True)
class Scores(Saved):
    """One number per head, with the per-example values behind it.

    For a signed causal method positive means that the head helps: metric with the head minus metric
    without it. `values[L, H]` is the mean of `examples[E, L, H]`, `stderr[L, H]` its standard error; heads
    that the model does not have (layers without attention) are NaN. A method that does not run every example
    brings estimates instead: `examples` is NaN where none was run, and `own` has what the table then shows.
    """

    values: np.ndarray
    stderr: np.ndarray
    examples: np.ndarray
    model: str
    task: str
    method: str
    signed: bool = True
    metric: str = ""
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Further information from the method: settings, chunk size, completeness gap, forward rows."""
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Columns of the table that the method computes itself, each `[L, H]`: `lo`, `hi`, `n`, `p`."""
    exists: np.ndarray | None = None
    """`[L, H]`: which heads the model has. By default those with a value or an example that is a number; with it, a
    head with only NaN values stays in the tables."""
    groups: Sequence[str | None] | None = None
    """The group of every example, where some share one: intervals and tests then count groups, not examples."""
    numbers: Sequence[int] | None = None
    """Of the examples behind the rows, in their task; None where rows are seeds, or counted from 0."""
    components: Sequence[str] = HEADS
    """What is scored: heads, mlps, input, or kv_heads. With MLPs or the input arrays are `[L, H + 2]`, of key/value
    heads `[L, KV]` (`heads/components.py`)."""

    @classmethod
    def from_examples(cls, examples: np.ndarray, **fields: Any) -> Scores:
        """Scores whose value is the plain mean of `examples[E, L, H]`."""
        from headwise.stats.resampling import group_codes, standard_error

        codes = group_codes(fields.get("groups"), len(examples))
        return cls(examples.mean(axis=0), standard_error(examples, codes), examples, **fields)

    def _checked(self) -> Scores:
        """These scores, if their arrays belong together."""
        arrays = {"values": self.values, "stderr": self.stderr, **self.own}
        if self.exists is not None:
            arrays["exists"] = self.exists.astype(int)
        for name, array in {**arrays, "examples": self.examples}.items():
            if array.dtype.kind not in "fiu":
                raise ValueError(f"{name} holds no numbers but {array.dtype}")
        shapes = {array.shape for array in arrays.values()}
        if self.values.ndim != 2 or len(shapes) > 1:
            raise ValueError(f"arrays of shapes {sorted(shapes)}, expected one [L, H]")
        if self.examples.ndim != 3 or self.examples.shape[1:] != self.values.shape:
            raise ValueError(f"examples of shape {self.examples.shape} for values of {self.values.shape}")
        for name in ("model", "task", "method", "metric"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is no text")
        if not set(self.components) <= set(KINDS):
            raise ValueError(f"components are {list(self.components)}")
        if self.groups is not None and (
            not isinstance(self.groups, list | tuple)
            or len(self.groups) != len(self.examples)
            or not all(name is None or isinstance(name, str) for name in self.groups)
        ):
            raise ValueError(f"groups are no list of {len(self.examples)} names")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def n(self) -> int:
        return len(self.examples)

    @property
    def reference(self) -> str:
        """The ablation type: what replaces a head. Empty for a method that ablates nothing."""
        return str(self.details.get("reference") or "")

    def __getitem__(self, head: Head | str) -> float:
        (chosen,) = head_list([head])
        layers, width = self.shape
        if not 0 <= chosen.layer < layers or not -2 <= chosen.cell[1] < width:
            raise HeadwiseError(
                f"these scores have no {chosen}; they are of {layers} layers × {width} heads, counted from 0"
            )
        (kind,) = kinds_of([chosen])
        if kind not in self.components:
            scored = ", ".join(self.components) if len(self.components) > 1 else f"{self.components[0]} alone"
            raise HeadwiseError(
                f"these scores are of {scored}, which {chosen} is not; score it with components=['{kind}']"
            )
        return float(self.values[chosen.cell])

    def __sub__(self, other: Scores) -> Scores:
        """This score minus another one of the same examples, head by head: paired, with intervals and q-values.

        The two may differ in model, method, reference or positions. The difference is positive where the head helps
        more here than in `other`.

        >>> (hw.score(tuned, task) - hw.score(base, task)).table()      # doctest: +SKIP
        """
        if not isinstance(other, Scores):
            return NotImplemented
        _check_paired(self, other)
        exists = self._existing() & other._existing()
        return Scores.from_examples(
            np.where(exists, self.examples - other.examples, np.nan),
            **_difference_names(self, other),
            task=self.task,
            metric=self.metric,
            details={"reference": _difference(self.reference, other.reference)}
            | {"minuend": dict(self.details), "subtrahend": dict(other.details)},
            exists=exists,
            groups=self.groups,
            components=self.components,
        )

    def heads(self) -> list[Head]:
        """Every head (or other component) there is, layer by layer; those whose score is NaN included."""
        return existing(self._existing(), self.components)

    def _existing(self) -> np.ndarray:
        if self.exists is not None:
            return np.asarray(self.exists, bool)
        existing: np.ndarray = ~np.isnan(self.values) | ~np.isnan(self.examples).all(axis=0)
        return existing

    def order(self, by: str = "signed") -> Order:
        """All heads, most important first. `by`: `signed` (helps most first), `absolute`, `hinders`.

        Equal scores keep the order of layer and head, so an order is the same on every machine; heads whose score
        is NaN come last.
        """
        heads = self.heads()
        return ranked(heads, [self.values[head.cell] for head in heads], by)

    def top(self, k: int, by: str = "signed") -> Order:
        """The first k heads of the order."""
        return self.order(by)[:k]

    def table(self, seed: int = 0) -> pd.DataFrame:
        """The score table: one row per head, with interval, p-value and q-value."""
        import pandas as pd

        from headwise import stats
        from headwise.stats.resampling import independent

        heads, exists = self.heads(), self._existing()
        n: Any = self.n
        if self.own:
            lo, hi, n, p = (self.own[name][exists] for name in ("lo", "hi", "n", "p"))
        else:
            columns = np.ascontiguousarray(self.examples[:, exists])  # E, heads
            lo, hi = stats.effect_interval(columns, groups=self.groups, metric=self.metric)
            # An unsigned score cannot be centred on zero, so asking whether its mean is zero has no meaning.
            p = np.full(len(heads), np.nan)
            if self.signed:
                p = stats.sign_flip(columns, groups=self.groups, seed=seed)
        q = stats.benjamini_hochberg(p) if self.signed else p
        names = {"model": self.model, "task": self.task, "method": self.method}
        of_head = head_columns(heads)
        if tuple(self.components) != HEADS:
            of_head["component"] = [component_kind(h.head) for h in heads]
        score = {"score": self.values[exists], "stderr": self.stderr[exists]}
        tests = {"lo": lo, "hi": hi, "n": n, "p": p, "q": q}
        if self.signed and not self.own:
            tests["skewness"] = stats.skewness(columns, groups=self.groups)
        if self.groups is not None:
            tests["units"] = independent(self.groups, self.n)
        meaning = {"metric": self.metric, "signed": self.signed, "reference": self.reference}
        return pd.DataFrame({**names, **of_head, **score, **tests, **meaning})

    def example_table(self) -> pd.DataFrame:
        """The values behind the scores: one row per example and head, with the number of the example in its task.

        A row is a seed where the method has one value per seed, and a held-out example of a probe. Where a method
        chose not to run an example there is no row.
        """
        import pandas as pd

        layers, heads = np.array(self.heads()).T
        numbers = np.arange(self.n) if self.numbers is None else np.asarray(self.numbers)
        values = self.examples[:, self._existing()]  # E, heads
        columns: dict[str, Any] = {
            name: getattr(self, name) for name in ("model", "task", "method", "metric")
        }
        columns["example"] = np.repeat(numbers.astype(np.int32), len(heads))
        columns |= {"layer": np.tile(layers, self.n), "head": np.tile(heads, self.n), "value": values.ravel()}
        if self.groups is not None:
            columns["group"] = np.repeat(np.array(self.groups, dtype=object), len(heads))
        table = pd.DataFrame(columns)
        return table.dropna(subset=["value"]).reset_index(drop=True) if self.own else table

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        """What must be finite: the scores, and the values behind them; none where all are."""
        import pandas as pd

        score = self.values[self._existing()]
        expected = self.examples[:, self._existing()]
        if np.isfinite(score).all() and (self.own or np.isfinite(expected).all()):
            return {}
        scores = pd.DataFrame(head_columns(self.heads()) | {"score": score})
        return {"scores": scores, "examples": self.example_table()}

    def plot(self, **options: Any) -> Any:
        """Draw the layer × head map; returns the matplotlib figure."""
        from headwise.charts.heatmap import score_chart
        from headwise.charts.static import figure

        return figure(score_chart(self.table(), signed=self.signed, **options))

    def __repr__(self) -> str:
        layers, heads = self.shape
        components = tuple(self.components) != HEADS
        of = f"{len(self.heads())} components" if components else f"{layers} × {heads}"
        first = ", ".join(f"{h} {self[h]:+.3g}" for h in self.top(3, "absolute"))
        name = method_name(self.method, self.reference)
        return f"Scores({name} on {self.task}, {self.model}: {of}, n = {self.n}; largest: {first})"

    def _repr_png_(self) -> bytes:
        """In a notebook, the map."""
        from headwise.charts.style import png

        return png(self.plot())


def _check_paired(a: Scores, b: Scores) -> None:
    """Refuse two scores whose rows are not the same examples, or whose numbers have different units."""
    for what, pair in (("task", (a.task, b.task)), ("metric", (a.metric, b.metric))):
        if pair[0] != pair[1]:
            raise HeadwiseError(
                f"the scores have different {what}s ({pair[0]!r} and {pair[1]!r}); a difference needs the same {what} "
                "for both"
            )
    if tuple(a.components) != tuple(b.components):
        raise HeadwiseError(
            f"the scores are of different components ({', '.join(a.components)} and {', '.join(b.components)}); score "
            "both with the same components"
        )
    if a.shape != b.shape:
        raise HeadwiseError(
            f"{a.model} has {a.shape[0]} layers × {a.shape[1]} heads and {b.model} {b.shape[0]} × {b.shape[1]}; heads "
            "can be compared only between models of the same shape"
        )
    if any(scores.own or scores.details.get("replicates") == "seeds" for scores in (a, b)):
        raise HeadwiseError(
            "a paired difference needs the value of every head on every example; score both without precision and "
            "top, by a method whose rows are examples, such as ablation"
        )
    rows = [(scores.n, scores.details.get("held_out"), list(scores.groups or ())) for scores in (a, b)]
    fingerprints = {scores.details.get("examples") for scores in (a, b)}
    fingerprints.discard(None)  # scores that a user made have none
    if rows[0] != rows[1] or len(fingerprints) > 1:
        raise HeadwiseError(
            f"the scores are of different examples of {a.task!r} (n = {a.n} and {b.n}); score both on the same task "
            "object, so that the difference is paired"
        )


def _difference_names(a: Scores, b: Scores) -> dict[str, str]:
    """Model and method of a difference, which name what differs.

    Two scores of one model by one method are named by the first option that differs.
    """
    model, method = (_difference(getattr(a, x), getattr(b, x)) for x in ("model", "method"))
    if (a.model, a.method) == (b.model, b.method):
        pairs = [
            (a.details.get(option), b.details.get(option)) for option in ("reference", "positions", "seed")
        ]
        one, other = next((pair for pair in pairs if pair[0] != pair[1]), ("same", "same"))
        method = f"{method} ({one} − {other})"
    return {"model": model, "method": method}


def _difference(one: str, other: str) -> str:
    """What two scores have in common, or both."""
    return one if one == other else f"{one} − {other}"
