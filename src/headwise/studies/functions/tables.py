"""From a table of scores to how far abilities share heads, and how far methods agree. Tables in, tables out."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, heads_of, ranked
from headwise.stats.elbow import elbow_count


def elbow_heads(part: pd.DataFrame) -> set[Head]:
    """The heads before the elbow, from the score rows of one map; largest absolute score first, ties by place."""
    scores = part["score"].to_numpy()
    return set(ranked(heads_of(part), scores, "absolute")[: elbow_count(np.abs(scores))])


def significant_heads(part: pd.DataFrame) -> int | None:
    """How many heads of one map have q < .05; None for a score without a sign, which has no test."""
    q = part["q"].to_numpy(dtype=float)
    return None if np.isnan(q).all() else int((q < 0.05).sum())


def overlap_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per method and pair of abilities: Jaccard index of their elbow heads, beside that of chance."""
    rows = []
    for (model, method), table in scores.groupby(["model", "method"], sort=False):
        sets = {task: elbow_heads(part) for task, part in table.groupby("task", sort=False)}
        tested = {task: significant_heads(part) for task, part in table.groupby("task", sort=False)}
        total = len(table) // len(sets)
        for a in sets:
            for b in sets:
                shared = len(sets[a]) * len(sets[b]) / total
                together = len(sets[a]) + len(sets[b]) - shared
                rows.append(
                    {
                        "model": model,
                        "method": method,
                        "task": a,
                        "other": b,
                        # Two abilities without an elbow have nothing to share, which is not the same as sharing it all.
                        "jaccard": stats.jaccard(sets[a], sets[b]) if sets[a] or sets[b] else np.nan,
                        # Of two sets of these sizes drawn at random; with itself, an ability is always the same.
                        "by_chance": np.nan if a == b or not together else shared / together,
                        "heads": len(sets[a]),
                        "other_heads": len(sets[b]),
                        "significant": tested[a],
                        "of": total,
                    }
                )
    return pd.DataFrame(rows).astype({"significant": "Int32"}) if rows else pd.DataFrame(rows)


def agreement_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per ability and pair of methods: rank correlation over heads, and Jaccard index of the elbow heads.

    `rank_correlation` compares sizes (absolute scores), because a probe's number has no sign that means help;
    `signed_correlation` compares the numbers as they are where both methods are signed.
    """
    rows = []
    for (model, task), table in scores.groupby(["model", "task"], sort=False):
        maps = {
            name: part.sort_values(["layer", "head"]) for name, part in table.groupby("method", sort=False)
        }
        for a, b in combinations(maps, 2):
            x, y = maps[a]["score"].to_numpy(), maps[b]["score"].to_numpy()
            signed = bool(maps[a]["signed"].iloc[0]) and bool(maps[b]["signed"].iloc[0])
            rows.append(
                {
                    "model": model,
                    "task": task,
                    "method": a,
                    "other": b,
                    "rank_correlation": stats.rank_correlation(np.abs(x), np.abs(y)),
                    "signed_correlation": stats.rank_correlation(x, y) if signed else np.nan,
                    "jaccard": stats.jaccard(elbow_heads(maps[a]), elbow_heads(maps[b])),
                    "heads": len(x),
                    "n": int(maps[a]["n"].iloc[0]),
                    "other_n": int(maps[b]["n"].iloc[0]),
                }
            )
    return pd.DataFrame(rows)


def scores_fingerprint(scores: pd.DataFrame) -> str:
    """A hash of every map in the table."""
    keys = scores[["task", "method", "layer", "head"]].to_csv(index=False)
    digest = hashlib.sha256(keys.encode())
    digest.update(np.ascontiguousarray(scores["score"].to_numpy(dtype=np.float64)).tobytes())
    return digest.hexdigest()[:16]
