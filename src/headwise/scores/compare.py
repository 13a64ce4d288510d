"""Do two ways of scoring heads agree, and would each say the same again?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError, quoted
from headwise.heads import Scores


@dataclass(frozen=True)
class Agreement:
    """How far scores agree with one another and with themselves; tables with one row per score."""

    signed: pd.DataFrame
    """Rank correlation of the scores as they are; NaN between a signed and an unsigned score."""
    absolute: pd.DataFrame
    """Rank correlation of the absolute scores: do both find the same heads important, whatever the sign?"""
    jaccard: pd.DataFrame
    """Shared part of the top k heads by absolute score: 0 none, 1 the same heads."""
    stability: pd.DataFrame
    """Per score: n, `resamples` = mean Jaccard of its top k over bootstrap resamples of its examples, `seeds` =
    mean Jaccard over the same score's seeds or sets of examples (NaN where there is only one)."""
    k: int

    def plot(self, **options: Any) -> Any:
        """Draw the matrices and the stability; returns the matplotlib figure."""
        from headwise.charts.comparison import agreement_chart
        from headwise.charts.static import figure

        tables = (self.signed, self.absolute, self.jaccard, self.stability)
        return figure(agreement_chart(*tables, k=self.k, **options))

    def _parts(self) -> dict[str, pd.DataFrame]:
        return {
            "rank correlation, signed": self.signed,
            "rank correlation, absolute": self.absolute,
            f"Jaccard index of the top {self.k}": self.jaccard,
            f"stability of the top {self.k}": self.stability,
        }

    def __repr__(self) -> str:
        return "\n".join(f"{name}\n{table.round(2).to_string()}" for name, table in self._parts().items())

    def _repr_html_(self) -> str:
        return "".join(f"<p>{name}</p>{table.round(2).to_html()}" for name, table in self._parts().items())


def agreement(scores: Sequence[Scores], *, k: int | None = None, seed: int = 0) -> Agreement:
    """The agreement of several scores of the same heads; k: as for `hw.compare`."""
    if len(scores) < 2:
        raise HeadwiseError(f"compare needs at least two scores, not {len(scores)}")
    for one in scores:
        if not isinstance(one, Scores):
            raise HeadwiseError(f"compare is given {quoted(one)}; expected results of hw.score, or runs")
    shapes = sorted({s.shape for s in scores})
    if len(shapes) > 1:
        listed = " and ".join(f"{layers} × {heads}" for layers, heads in shapes)
        raise HeadwiseError(f"compare needs scores of the same heads; these have {listed} layers × heads")
    heads = min(len(s.heads()) for s in scores)
    k = max(1, heads // 10) if k is None else k
    if not isinstance(k, int | np.integer) or not 1 <= k <= heads:
        raise HeadwiseError(f"the top k of {heads} heads needs a k from 1 to {heads}, not {quoted(k)}")
    names = _labels(scores)
    tops = [s.top(k, by="absolute") for s in scores]

    def matrix(value: Callable[[Any, Any], float], items: Sequence[Any]) -> pd.DataFrame:
        cells = [[value(a, b) for b in items] for a in items]
        return pd.DataFrame(cells, index=names, columns=names, dtype=float)

    def signed(a: Scores, b: Scores) -> float:
        return stats.rank_correlation(a.values, b.values) if a.signed == b.signed else float("nan")

    stability = {
        "n": [s.n for s in scores],
        "resamples": [_over_resamples(s, k, seed) for s in scores],
        "seeds": _over_seeds(scores, tops),
    }
    return Agreement(
        matrix(signed, scores),
        matrix(stats.rank_correlation, [np.abs(s.values) for s in scores]),
        matrix(stats.jaccard, tops),
        pd.DataFrame(stability, index=names),
        k,
    )


def _over_resamples(scores: Scores, k: int, seed: int) -> float:
    """NaN where heads were run on different examples: there is no resample of examples that all of them have."""
    if np.isnan(scores.examples[:, np.isfinite(scores.values)]).any():
        return float("nan")
    return stats.stability(scores.examples, k, groups=scores.groups, seed=seed, absolute=True)


def _over_seeds(scores: Sequence[Scores], tops: Sequence[Any]) -> list[float]:
    """For each score the agreement of its repetitions; the same score given twice is no repetition."""
    repetitions: dict[Any, dict[Any, Any]] = {}  # settings -> seed and examples -> top k
    settings = [tuple(_about(s).values()) for s in scores]
    for key, s, top in zip(settings, scores, tops, strict=True):
        repetitions.setdefault(key, {})[s.details.get("seed"), s.examples.tobytes()] = top
    return [stats.agreement_of_orders(list(repetitions[key].values())) for key in settings]


def _about(s: Scores) -> dict[str, str]:
    """How a score was computed, except its seed."""
    options = sorted((s.details.get("options") or {}).items())
    names = {name: getattr(s, name) for name in ("method", "metric", "task", "model")}
    names |= {name: str(s.details.get(name, "")) for name in ("reference", "positions")}
    return names | {"options": ", ".join(f"{name}={value}" for name, value in options)}


def _labels(scores: Sequence[Scores]) -> list[str]:
    """The method and its options, task and model where they differ, and only as much more as is needed to tell
    one method's scores apart."""
    all_parts = [{**_about(s), "seed": f"seed {s.details.get('seed', '?')}"} for s in scores]
    differing = [part for part in ("task", "model") if len({parts[part] for parts in all_parts}) > 1]
    labels = [[parts[part] for part in ("method", "options", *differing)] for parts in all_parts]
    for part in ("reference", "positions", "metric", "seed"):
        values: dict[tuple[str, ...], set[str]] = {}
        for label, parts in zip(labels, all_parts, strict=True):
            values.setdefault(tuple(label), set()).add(parts[part])
        for label, parts in zip(labels, all_parts, strict=True):
            label += [parts[part]] if len(values[tuple(label)]) > 1 else []
    names = [", ".join(filter(None, label)) for label in labels]
    # Equal names are left where a score is given twice, or for other examples.
    return [f"{name} ({i + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]
