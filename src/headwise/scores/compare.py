"""Do two ways of scoring heads agree, and would each say the same again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError
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
        from headwise.charts.agreement import agreement_chart
        from headwise.charts.static import figure

        tables = (self.signed, self.absolute, self.jaccard, self.stability)
        return figure(agreement_chart(*tables, k=self.k, **options))

    def _repr_html_(self) -> str:
        parts = {
            "rank correlation, signed": self.signed,
            "rank correlation, absolute": self.absolute,
            f"Jaccard of the top {self.k}": self.jaccard,
            "stability": self.stability,
        }
        return "".join(f"<p>{name}</p>{table.round(2).to_html()}" for name, table in parts.items())


def compare(scores: Sequence[Scores], *, k: int | None = None, seed: int = 0) -> Agreement:
    """The agreement of several scores of the same heads.

    k: how many heads count as found; by default a tenth of them. Scores made alike but with another seed, or on
    other examples of the same task, are taken as repetitions of one another.
    """
    scores = list(scores)
    if len(scores) < 2:
        raise HeadwiseError(f"compare needs at least two scores, not {len(scores)}")
    shapes = sorted({s.shape for s in scores})
    if len(shapes) > 1:
        listed = " and ".join(f"{layers} × {heads}" for layers, heads in shapes)
        raise HeadwiseError(f"compare needs scores of the same heads; these have {listed} layers × heads")
    heads = min(len(s.heads()) for s in scores)
    k = max(1, heads // 10) if k is None else k
    if not 1 <= k <= heads:
        raise HeadwiseError(f"the top k of {heads} heads needs a k from 1 to {heads}, not {k}")
    names = _labels(scores)
    tops = [s.top(k, by="absolute") for s in scores]

    def matrix(value: Any) -> pd.DataFrame:
        cells = [[value(i, j) for j in range(len(scores))] for i in range(len(scores))]
        return pd.DataFrame(cells, index=names, columns=names, dtype=float)

    def signed(i: int, j: int) -> float:
        if scores[i].signed != scores[j].signed:
            return float("nan")
        return stats.rank_correlation(scores[i].values, scores[j].values)

    return Agreement(
        matrix(signed),
        matrix(lambda i, j: stats.rank_correlation(np.abs(scores[i].values), np.abs(scores[j].values))),
        matrix(lambda i, j: stats.jaccard(tops[i], tops[j])),
        pd.DataFrame(
            {
                "n": [s.n for s in scores],
                "resamples": [_over_resamples(s, k, seed) for s in scores],
                "seeds": _over_seeds(scores, tops),
            },
            index=names,
        ),
        k,
    )


def _over_resamples(scores: Scores, k: int, seed: int) -> float:
    """NaN where heads were run on different examples: there is no resample of examples that all of them have."""
    if np.isnan(scores.examples[:, np.isfinite(scores.values)]).any():
        return float("nan")
    return stats.stability(scores.examples, k, groups=scores.groups, seed=seed, absolute=True)


def _over_seeds(scores: Sequence[Scores], tops: Sequence[Any]) -> list[float]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, s in enumerate(scores):
        groups.setdefault(tuple(_about(s).values()), []).append(i)
    agreement = [float("nan")] * len(scores)
    for members in groups.values():
        # The very same score given twice is no repetition.
        distinct = {(scores[i].details.get("seed"), scores[i].examples.tobytes()): i for i in members}
        mean = stats.agreement_of_orders([tops[i] for i in distinct.values()])
        for i in members:
            agreement[i] = mean
    return agreement


def _about(s: Scores) -> dict[str, str]:
    """What says how a score was made, its seed aside."""
    options = s.details.get("options") or {}
    return {
        "method": s.method,
        "options": ", ".join(f"{name}={value}" for name, value in sorted(options.items())),
        "reference": str(s.details.get("reference", "")),
        "positions": str(s.details.get("positions", "")),
        "metric": s.metric,
        "task": s.task,
        "model": s.model,
    }


def _labels(scores: Sequence[Scores]) -> list[str]:
    """The method and its options, task and model where they differ, and only as much more as is needed to tell
    one method's scores apart."""
    about = [{**_about(s), "seed": f"seed {s.details.get('seed', '?')}"} for s in scores]
    everywhere = [part for part in ("task", "model") if len({one[part] for one in about}) > 1]
    labels = [[one[part] for part in ("method", "options", *everywhere)] for one in about]
    for part in ("reference", "positions", "metric", "seed"):
        crowded = [i for i, label in enumerate(labels) if labels.count(label) > 1]
        rivals = {i: [j for j in crowded if labels[j] == labels[i]] for i in crowded}
        for i, others in rivals.items():
            if len({about[j][part] for j in others}) > 1:
                labels[i] = [*labels[i], about[i][part]]
    named = [", ".join(filter(None, label)) for label in labels]
    # What is left is the same score twice, or one on other examples.
    return [f"{name} ({i + 1})" if named.count(name) > 1 else name for i, name in enumerate(named)]
