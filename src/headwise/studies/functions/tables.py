"""From scores to tables: maps and elbows, how far abilities share heads, how far methods agree."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Scores, heads_of, ranked
from headwise.stats.elbow import elbow_count
from headwise.studies.score.tables import example_table
from headwise.tasks import Task

EVERY = "all"
"""What the task of a cell or a row is called where it is about all abilities together."""


def elbow_heads(part: pd.DataFrame) -> set[Head]:
    """The heads before the elbow, from the score rows of one map; largest absolute score first, ties by place."""
    scores = part["score"].to_numpy()
    return set(ranked(heads_of(part), scores, "absolute")[: elbow_count(np.abs(scores))])


def significant_heads(part: pd.DataFrame) -> int | None:
    """How many heads of one map have q < .05; None for a score without a sign, which has no test."""
    q = part["q"].to_numpy(dtype=float)
    return None if np.isnan(q).all() else int((q < 0.05).sum())


def map_tables(scores: Scores, seed: int, places: np.ndarray) -> dict[str, pd.DataFrame]:
    """Scores, the examples behind them (numbered by `places` in the ability's list), and the elbow."""
    heads = scores.heads()
    signs = scores.details.get("signs")
    table = scores.table(seed)
    table["signed"] = scores.signed
    # The probe's number is a size; its own sign is kept beside it.
    table["sign"] = pd.array(
        [signs[h.layer][h.head] for h in heads] if signs else [pd.NA] * len(heads), dtype="Int8"
    )
    examples = example_table(scores)
    examples["example"] = places.astype(np.int32)[examples["example"].to_numpy()]
    count = elbow_count(scores.values)
    stable = float("nan")
    if count:
        stable = stats.stability(scores.examples, count, groups=scores.groups, seed=seed, absolute=True)
    elbow = {
        "model": scores.model,
        "task": scores.task,
        "method": scores.method,
        "heads": count,
        "of": len(heads),
        "significant": significant_heads(table),
        "stability": stable,
        "n": scores.n,
    }
    return {
        "scores": table,
        "examples": examples,
        "elbows": pd.DataFrame([elbow]).astype({"significant": "Int32"}),
    }


def places(scores: Scores, tasks: dict[str, Task], label: str) -> np.ndarray:
    """The held-out examples' numbers in their own ability's list, as the causal methods count them."""
    before = 0
    for other, task in tasks.items():
        if other == label:
            break
        before += len(task)
    return np.array(scores.details["held_out"]) - before


def probe_rows(found: dict[str, Scores], model: str) -> pd.DataFrame:
    """How well the probe tells abilities apart: over all of them, then each ability's own accuracy."""
    report = next(iter(found.values())).details
    shared = ("chance", "shuffled", "shuffled_lo", "shuffled_hi", "bag_of_words")
    first = {"model": model, "task": EVERY, "accuracy": report["accuracy"]}
    first |= {name: report[name] for name in ("lo", "hi", *shared)} | {"n": report["tested_on"]}
    first |= {name: report[name] for name in ("trained_on", "stopped_by", "classes", "epochs")}
    rest = [
        {"model": model, "task": label, "accuracy": scores.details["own_accuracy"], "n": scores.n}
        for label, scores in found.items()
    ]
    rows = pd.DataFrame([first, *rest])
    whole = ["n", "trained_on", "stopped_by", "classes", "epochs"]
    floats = [name for name in rows.columns if name not in ("model", "task", *whole)]
    return rows.astype(dict.fromkeys(whole, "Int32") | dict.fromkeys(floats, "float64"))


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
