"""From scores to tables: maps and elbows, how far abilities share heads, how far methods agree."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Scores, heads_of, ranked
from headwise.stats.elbow import elbow_count
from headwise.studies.tables import fingerprint, input_table, score_result
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


def map_tables(scores: Scores, seed: int, numbers: np.ndarray, task: Task) -> dict[str, pd.DataFrame]:
    """Scores, the examples behind them (with their `numbers` in the ability's list), and the elbow."""
    inputs = input_table(task, {"model": scores.model, "task": scores.task}, "scores")
    tables = score_result(scores, seed, numbers.astype(np.int32), inputs).tables
    heads, count, signs = scores.heads(), elbow_count(scores.values), scores.details.get("signs")
    # The probe's score is a size; its sign is kept beside it.
    sign = [signs[h.layer][h.head] if signs else pd.NA for h in heads]
    table = tables["scores"].assign(signed=scores.signed, sign=pd.array(sign, dtype="Int8"))
    stable = float("nan")
    if count:
        stable = stats.stability(scores.examples, count, groups=scores.groups, seed=seed, absolute=True)
    elbow: dict[str, Any] = {"model": scores.model, "task": scores.task, "method": scores.method}
    elbow |= {"heads": count, "of": len(heads), "significant": significant_heads(table)}
    elbow |= {"stability": stable, "n": scores.n}
    return {**tables, "scores": table, "elbows": pd.DataFrame([elbow]).astype({"significant": "Int32"})}


def held_out(scores: Scores, tasks: dict[str, Task], label: str) -> np.ndarray:
    """The numbers of the held-out examples in their ability's list, as the causal methods count them."""
    labels = list(tasks)
    before = sum(len(tasks[other]) for other in labels[: labels.index(label)])
    return np.array(scores.details["held_out"]) - before


def probe_rows(maps: dict[str, Scores], model: str) -> pd.DataFrame:
    """How well the probe tells abilities apart: over all of them, then each ability's own accuracy."""
    report = next(iter(maps.values())).details
    floats = ("accuracy", "lo", "hi", "chance", "shuffled", "shuffled_lo", "shuffled_hi", "bag_of_words")
    counts = ("trained_on", "stopped_by", "classes", "epochs")
    first = {"model": model, "task": EVERY, **{name: report[name] for name in floats}}
    first |= {"n": report["tested_on"], **{name: report[name] for name in counts}}
    others = [
        {"model": model, "task": label, "accuracy": scores.details["own_accuracy"], "n": scores.n}
        for label, scores in maps.items()
    ]
    types = dict.fromkeys(("n", *counts), "Int32") | dict.fromkeys(floats, "float64")
    return pd.DataFrame([first, *others]).astype(types)


def overlap_rows(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per method and pair of abilities: Jaccard index of their elbow heads, beside that of chance."""
    rows = []
    for (model, method), table in scores.groupby(["model", "method"], sort=False):
        maps = dict(iter(table.groupby("task", sort=False)))
        sets = {task: elbow_heads(part) for task, part in maps.items()}
        total = len(table) // len(sets)
        for a, b in product(sets, repeat=2):
            shared = len(sets[a]) * len(sets[b]) / total
            together = len(sets[a]) + len(sets[b]) - shared
            row: dict[str, Any] = {"model": model, "method": method, "task": a, "other": b}
            # Two abilities without an elbow have nothing to share, which is not the same as sharing it all.
            row["jaccard"] = stats.jaccard(sets[a], sets[b]) if together else np.nan
            # Of two sets of these sizes drawn at random; with itself, an ability is always the same.
            row["by_chance"] = shared / together if together and a != b else np.nan
            row |= {"heads": len(sets[a]), "other_heads": len(sets[b])}
            rows.append(row | {"significant": significant_heads(maps[a]), "of": total})
    return pd.DataFrame(rows).astype({"significant": "Int32"}) if rows else pd.DataFrame()


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
            row: dict[str, Any] = {"model": model, "task": task, "method": a, "other": b}
            row["rank_correlation"] = stats.rank_correlation(np.abs(x), np.abs(y))
            row["signed_correlation"] = stats.rank_correlation(x, y) if signed else np.nan
            row["jaccard"] = stats.jaccard(elbow_heads(maps[a]), elbow_heads(maps[b]))
            counts = {"n": int(maps[a]["n"].iloc[0]), "other_n": int(maps[b]["n"].iloc[0])}
            rows.append(row | {"heads": len(x)} | counts)
    return pd.DataFrame(rows)


def scores_fingerprint(scores: pd.DataFrame) -> str:
    """A hash of every map in the table."""
    keys = scores[["task", "method", "layer", "head"]].to_csv(index=False)
    return fingerprint(keys, scores["score"].to_numpy(dtype=np.float64))
