"""Tables of each study, small enough to be worked out on paper."""

from __future__ import annotations

from itertools import product

import pandas as pd

SHAPE = (2, 3)
HEADS = list(product(range(SHAPE[0]), range(SHAPE[1])))


def score_rows(model, task, method, values, **further):
    """Rows of `scores`, one for each head; intervals reach 0.1 to both sides."""
    return [
        {"model": model, "task": task, "method": method, "layer": layer, "head": head}
        | {"score": value, "stderr": 0.05, "lo": value - 0.1, "hi": value + 0.1, "n": 5, "p": 0.5, "q": 0.6}
        | {"metric": "logprob", "signed": True}
        | {name: column[place] for name, column in further.items()}
        for place, ((layer, head), value) in enumerate(zip(HEADS, values, strict=True))
    ]


def curve_rows(model, task, series, action, metric, points, **further):
    """Rows of `curves`, `points` being k -> (value, lo, hi)."""
    return [
        {"model": model, "task": task, "series": series, "action": action, "k": k, "metric": metric}
        | {"value": value, "lo": lo, "hi": hi, "n": 8, "draw": float("nan")}
        | further
        for k, (value, lo, hi) in points.items()
    ]


# ---- roles ---------------------------------------------------------------------------------------------

ROLE_POINTS = {
    ("big", "syntax", "facilitation"): {0: (0.0, 0.0, 0.0), 2: (-1.5, -1.75, -1.25), 4: (-4.0, -4.5, -3.5)},
    ("big", "syntax", "irrelevance"): {0: (0.0, 0.0, 0.0), 2: (-0.125, -0.25, 0.0), 4: (-0.3, -0.5, -0.1)},
    ("big", "syntax", "interference"): {0: (0.0, 0.0, 0.0), 2: (2.0, 1.5, 2.5), 4: (1.0, 0.5, 1.5)},
    ("small", "syntax", "facilitation"): {0: (0.0, 0.0, 0.0), 2: (-0.2, -0.9, 0.5), 4: (-0.4, -1.0, 0.2)},
    ("small", "syntax", "irrelevance"): {0: (0.0, 0.0, 0.0), 2: (-0.1, -0.4, 0.2), 4: (-0.6, -0.9, -0.3)},
    ("small", "syntax", "interference"): {0: (0.0, 0.0, 0.0), 2: (-0.3, -0.6, 0.0), 4: (-0.8, -1.1, -0.5)},
}
SEED_LABELS = {
    "big": [
        ["facilitating", "facilitating", "interfering", "irrelevant", "irrelevant", "undecided"],
        ["facilitating", "interfering", "interfering", "irrelevant", "facilitating", "anomalous"],
    ],
    "small": [
        ["irrelevant", "irrelevant", "irrelevant", "irrelevant", "irrelevant", "facilitating"],
        ["interfering", "irrelevant", "irrelevant", "irrelevant", "irrelevant", "facilitating"],
    ],
}
"""Of each seed, of each head in the order of `HEADS`."""
ROLE_SCORES = {
    "facilitation": [0.9, 0.75, 0.1, 0.2, 0.5, 0.3],
    "irrelevance": [0.05, 0.2, 0.15, 0.8, 0.4, 0.35],
    "interference": [0.02, 0.1, 0.95, 0.1, 0.05, 0.4],
}


def roles():
    curves, scores, shares, order = [], [], [], []
    for (model, task, role), points in ROLE_POINTS.items():
        curves += curve_rows(model, task, role, "mask", "logprob", points)
    for model, by_seed in SEED_LABELS.items():
        scores += score_rows(model, "syntax", "gating", ROLE_SCORES["facilitation"], **ROLE_SCORES)
        for label in ("facilitating", "irrelevant", "interfering", "undecided", "anomalous"):
            has = pd.DataFrame(by_seed) == label
            shares.append(
                {"model": model, "task": "syntax", "label": label, "always": int(has.all().sum())}
                | {"ever": int(has.any().sum()), "mean": has.sum(axis=1).mean(), "heads": 6, "seeds": 2}
                | {"share": has.to_numpy().mean()}
            )
    order = [
        {"model": "big", "task": "syntax", "k": 4, "facilitation": -4.0, "irrelevance": -0.3, "below": True}
        | {"peak": 2, "interference_at_peak": 2.0, "irrelevance_at_peak": -0.125, "above": True},
        {
            "model": "small",
            "task": "syntax",
            "k": 4,
            "facilitation": -0.4,
            "irrelevance": -0.6,
            "below": False,
        }
        | {"peak": 2, "interference_at_peak": -0.3, "irrelevance_at_peak": -0.1, "above": False},
    ]
    order = [row | {"reference": "zero"} for row in order]
    joint = [
        {"model": "big", "task": "syntax", "heads": "L0H0 L0H1", "effect": 3.25, "lo": 2.5, "hi": 4.0}
        | {"larger_than": 0.975, "sets": 40, "random_mean": 0.5, "facilitation_correlation": 0.625}
    ]
    tables = {"curves": curves, "scores": scores, "shares": shares, "order": order, "joint": joint}
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


# ---- circuits ------------------------------------------------------------------------------------------

EXPLAINED = {
    ("plain", "ioi"): {0: 0.0, 1: 0.3, 2: 0.7, 4: 0.95, 6: 1.0},
    ("thin", "ioi"): {0: 0.0, 1: 0.5, 2: 0.92, 4: 0.97, 6: 1.0},
    ("plain", "docstring"): {0: 0.0, 1: 0.95, 2: 1.1, 4: 1.2, 6: 1.0},
    ("thin", "docstring"): {0: 0.0, 1: 0.4, 2: 0.6, 4: 0.91, 6: 1.0},
}
RANDOM_DRAWS = ({0: 0.0, 2: 0.1, 6: 1.0}, {0: 0.0, 2: 0.3, 6: 1.0})
CIRCUIT_SCORES = [0.1, -0.9, 0.8, 0.3, -0.2, 0.5]


def circuits(by="signed", action="keep"):
    """One order under one ablation type."""
    series = "integrated" if by == "signed" else f"integrated {by}"
    curves, scores, members, sizes, ratios = [], [], [], [], []
    about = {"order": series, "reference": "patch", "chosen": True}
    for (model, task), points in EXPLAINED.items():
        banded = {k: (value, value - 0.05, value + 0.05) for k, value in points.items()}
        curves += curve_rows(model, task, series, action, "explained_effect", banded, by=by, **about)
        curves += curve_rows(model, task, series, action, "logit_diff", banded, by=by, **about)
        for draw, wandering in enumerate(RANDOM_DRAWS):
            bare = {k: (value, value, value) for k, value in wandering.items()}
            control = curve_rows(model, task, "random", action, "explained_effect", bare, by="given", **about)
            curves += [row | {"draw": float(draw)} for row in control]
        scores += [
            row | {"reference": "patch"} for row in score_rows(model, task, "integrated", CIRCUIT_SCORES)
        ]
        members.append(
            {"pair": 0, "task": task, "role": "dense" if model == "plain" else "sparse", "model": model}
        )
        needed = min(k for k, value in points.items() if value >= 0.9)
        sizes.append(
            {"model": model, "task": task, "series": series, "by": by, "action": action, "threshold": 0.9}
            | {"k": float(needed), "k_lo": needed - 1.0, "k_hi": needed + 1.0, "of": 6}
            | {"stays": float(needed), "stays_lo": needed - 1.0, "stays_hi": needed + 1.0}
            | {"metric": "logit_diff", "n": 8, "r2": float("nan"), "defined": True, "effect": 2.0}
            | about
        )
    for task, k, other_k, lo, hi in (("ioi", 4.0, 2.0, 1.5, 2.5), ("docstring", 1.0, 4.0, 0.2, 0.4)):
        for chosen in (False, True):
            ratios.append(
                {"pair": 0, "task": task, "series": series, "by": by, "compared": "dense/sparse"}
                | {"model": "plain", "other": "thin", "k": k, "other_k": other_k, "ratio": k / other_k}
                | {
                    "stays": k,
                    "other_stays": other_k,
                    "stays_ratio": k / other_k,
                    "stays_lo": lo,
                    "stays_hi": hi,
                }
                | {"lo": lo, "hi": hi, "threshold": 0.9, "other_series": series, "reference": "patch"}
                | {"chosen": chosen}
            )
    attention = [
        {"model": "plain", "task": "ioi", "series": series, "reference": "patch", "rank": 0, "layer": 0}
        | {"head": 2, "query": query, "key": key, "token": "abc"[key], "attention": 1 / (query + 1)}
        for query in range(3)
        for key in range(query + 1)
    ]
    tables = {"curves": curves, "scores": scores, "members": members, "circuits": sizes, "ratios": ratios}
    tables |= {"choices": sizes, "attention": attention}
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


def followed(tables):
    """Curves that also say how far single examples and families are followed: beside the explained effect alone."""
    curves = tables["curves"]
    mean = curves["value"].where((curves["metric"] == "explained_effect") & (curves["series"] != "random"))
    columns = {
        "r2": 2 * mean - 1,
        "within": mean / 2,
        "agreement": mean.clip(0, 1),
        "lowest_family": 0.8 * mean,
    }
    for name, values in columns.items():
        ends = {name: values, f"{name}_lo": values - 0.05, f"{name}_hi": values + 0.05}
        curves = curves.assign(**ends)
    return tables | {"curves": curves.assign(family="order = BAB")}


def circuit_orders():
    """Two orders under two ablation types: nested is chosen, integrated rises later."""
    one = circuits()
    tables = {name: [] for name in ("curves", "scores", "circuits", "choices", "ratios", "attention")}
    for reference in ("mean", "patch"):
        for series, power in (("integrated", 2), ("nested", 1)):
            chosen = series == "nested"
            about = {"reference": reference, "chosen": chosen}
            curves = one["curves"][(one["curves"]["series"] != "random") | chosen]
            curves = curves.replace({"series": {"integrated": series}}).assign(order=series, **about)
            curves[["value", "lo", "hi"]] **= power
            tables["curves"].append(curves)
            tables["scores"].append(one["scores"].assign(method=series, reference=reference))
            needed = curves[curves["value"] >= 0.9].query(
                "series == @series and metric == 'explained_effect'"
            )
            stays = needed.groupby(["model", "task"])["k"].min().astype(float)
            sizes = one["circuits"].assign(series=series, order=series, **about)
            sizes["stays"] = [stays[row.model, row.task] for row in sizes.itertuples()]
            sizes = sizes.assign(stays_lo=sizes["stays"] - 1, stays_hi=sizes["stays"] + 1)
            tables["circuits"].append(sizes)
            tables["choices"].append(sizes)
            rows = one["ratios"] if chosen else one["ratios"].query("not chosen")
            rows = rows.assign(series=series, other_series=series, reference=reference)
            for column, model in (("stays", "plain"), ("other_stays", "thin")):
                rows[column] = [stays[model, task] for task in rows["task"]]
            tables["ratios"].append(rows.assign(stays_ratio=rows["stays"] / rows["other_stays"]))
        tables["attention"].append(one["attention"].assign(series="nested", reference=reference))
    overshoot = [
        {
            "model": "plain",
            "task": "docstring",
            "series": "nested",
            "reference": "patch",
            "k": k,
            "heads": head,
        }
        | {"rise": rise, "before": 1.0, "after": 1 + rise, "peak": 1.25, "peak_k": 4}
        for k, head, rise in ((4, "L1H0 L0H0", 0.15), (2, "L1H2", 0.1))
    ]
    made = {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}
    return {**made, "members": one["members"], "overshoot": pd.DataFrame(overshoot)}


# ---- masking -------------------------------------------------------------------------------------------

MASKED = {
    ("Recall", "full"): {0: (0.8, 0.7, 0.9)},
    ("Recall", "top"): {2: (0.6, 0.5, 0.7), 4: (0.1, 0.0, 0.2)},
    ("Recall", "random"): {2: (0.7, 0.6, 0.8), 4: (0.75, 0.65, 0.85)},
    ("Recall", "random_layer"): {4: (0.7, 0.5, 0.8)},
    ("Logic", "full"): {0: (0.5, 0.4, 0.6)},
    ("Logic", "top"): {2: (0.3, 0.1, 0.5), 4: (0.35, 0.2, 0.5)},
    ("Logic", "random"): {2: (0.45, 0.3, 0.6), 4: (0.4, 0.3, 0.5)},
}
MASK_ORDER = [(1, 1), (0, 2), (1, 0), (0, 0)]
"""Not the order of the signed scores: the study was told to rank otherwise."""


def masking():
    curves, orders, scores, cross = [], [], [], []
    for (task, series), points in MASKED.items():
        curves += curve_rows("tiny", task, series, "mask", "accuracy", points)
        near = {k: (1 - value / 2, 0.4, 0.95) for k, (value, _, _) in points.items()}
        curves += curve_rows("tiny", task, series, "mask", "chrf", near)
        if series == "random":  # single draws, which no chart shows
            curves += [
                row | {"draw": 1.0} for row in curve_rows("tiny", task, series, "mask", "accuracy", points)
            ]
    for task in ("Recall", "Logic"):
        scores += score_rows("tiny", task, "attribution", CIRCUIT_SCORES)
        for k in (2, 4):
            orders += [
                {"model": "tiny", "task": task, "series": "top", "action": "mask", "k": k, "draw": 0}
                | {"place": place, "layer": layer, "head": head, "moved": 0}
                for place, (layer, head) in reversed(list(enumerate(MASK_ORDER[:k])))
            ]
        for other, change in (("Recall", -0.6 if task == "Recall" else -0.1), ("Logic", -0.25)):
            cross.append(
                {"model": "tiny", "heads_of": task, "task": other, "k": 4, "metric": "accuracy"}
                | {"value": 0.2, "lo": 0.1, "hi": 0.3, "full": 0.8, "change": change}
                | {"change_lo": change - 0.1, "change_hi": change + 0.1, "n": 8}
            )
    samples = [{"model": "tiny", "task": "Recall", "example": 0, "prompt": "a", "full": "b", "k": 4}]
    tables = {"curves": curves, "orders": orders, "scores": scores, "cross": cross, "samples": samples}
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


# ---- prompts -------------------------------------------------------------------------------------------

RIGHT = {
    "none": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1],
    "meaningless": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1],
    "meaningful": [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1],
}
"""Of sixteen problems, which were answered rightly."""
INSERTED = {"none": [], "meaningless": [2, 3], "meaningful": [2, 3, 6]}
"""Places of inserted tokens; the second filler stands around a token of the question."""
ORIGINAL = ["Q", ":", "two", "plus", "two"]


def prompts():
    from headwise.studies.prompts.study import summary_tables

    answers = pd.DataFrame(
        [
            {"condition": name, "copies": len(INSERTED[name]), "seed": 0, "problem": problem}
            | {"question": "?", "gold": "4", "text": " 4", "parsed": "4", "right": float(good)}
            | {"truncated": False}
            for name, marks in RIGHT.items()
            for problem, good in enumerate(marks)
        ]
    )
    tables = summary_tables(answers, "none", 0) | {"answers": answers}
    profiles, moved = [], []
    for name, places in INSERTED.items():
        original = iter(enumerate(ORIGINAL))
        for position in range(len(ORIGINAL) + len(places)):
            inserted = position in places
            aligned, token = (float("nan"), "/") if inserted else next(original)
            profiles.append(
                {"condition": name, "layer": 0, "head": 2, "position": position, "token": token}
                | {"inserted": inserted, "aligned": aligned, "attention": 0.01 * (position + 1), "n": 1}
            )
        if places:
            moved += [
                {"condition": name, "layer": layer, "head": head, "moved": (layer + 1) * (head + 1) / 10}
                | {"moved_lo": 0.05, "moved_hi": 0.7, "n": 4}
                for layer, head in HEADS
            ]
    tables |= {"profiles": pd.DataFrame(profiles), "moved": pd.DataFrame(moved)}
    return {
        name: table.assign(model="tiny", task="sums")[["model", "task", *table.columns]]
        for name, table in tables.items()
    }


# ---- backups -------------------------------------------------------------------------------------------

BACKED = {(1, 0): (0.1, 1.5), (1, 1): (0.2, 0.25), (1, 2): (-0.1, 0.75)}
"""Effect of each later head alone, and with L0H1 removed."""


def backups():
    about = {"model": "tiny", "task": "ioi", "metric": "logit_diff"}
    step = {
        "step": 1,
        "layer": 0,
        "head": 1,
        "single": 2.0,
        "conditional": 2.0,
        "lo": 1.5,
        "hi": 2.5,
        "q": 0.01,
    }
    primary = [about | step | {"p": 0.01, "candidates": 3, "accepted": True, "n": 8}]
    table = [
        about
        | {"layer": layer, "head": head, "single": single, "conditional": given, "difference": given - single}
        | {
            "conditional_lo": given - 0.2,
            "conditional_hi": given + 0.2,
            "lo": given - single - 0.2,
            "p": 0.01,
        }
        | {
            "hi": given - single + 0.2,
            "q": 0.01 if given > 0.5 else 0.5,
            "ratio": given / 0.5,
            "share": given / 2,
        }
        | {"backup": given > 0.5, "n": 8, "set_effect": 2.0, "set_lo": 1.5, "set_hi": 2.5}
        for (layer, head), (single, given) in BACKED.items()
    ]
    names = [f"L{layer}H{head}" for layer, head in HEADS[:4]]
    pairs = [
        about
        | {
            "a": a,
            "b": b,
            "interaction": 0.25 * (i - j),
            "lo": -1.0,
            "hi": 1.0,
            "n": 8,
            "q": 0.01 if i else 0.5,
        }
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i < j
    ]
    frozen = {"none": (2.0, 0.0), "backups": (3.5, 0.75), "random": (2.1, 0.05), "all": (4.0, 1.0)}
    freezing = [
        about
        | {"frozen": name, "effect": effect, "lo": effect - 0.2, "hi": effect + 0.2, "gone": effect - 2}
        | {"gone_lo": effect - 2.2, "gone_hi": effect - 1.8, "share": share, "share_lo": share - 0.1}
        | {"share_hi": share + 0.1, "repaired": 0.5, "repaired_lo": 0.4, "repaired_hi": 0.6, "heads": 2}
        | {"repair": 2.0, "repair_lo": 1.5, "repair_hi": 2.5, "draws": 5 if name == "random" else 1, "n": 8}
        for name, (effect, share) in frozen.items()
    ]
    group = {"group": 1, "heads": "L0H1 L1H0", "size": 2, "joint": 3.5, "lo": 3.0, "hi": 4.0, "sum": 2.1}
    group |= {"excess": 1.4, "excess_lo": 1.0, "excess_hi": 1.8, "p": 0.01, "q": 0.01, "random_excess": 0.02}
    group |= {"random_largest": 0.1, "p_random": 0.04, "draws": 24, "moved": 0, "n": 8}
    curves = []
    for series, fall in (("greedy", 2.0), ("single", 1.0), ("random", 0.1)):
        points = {k: (4 - fall * k, 3.5 - fall * k, 4.5 - fall * k) for k in (0, 1, 2)}
        curves += curve_rows("tiny", "ioi", series, "mask", "logit_diff", points)
    scores = score_rows("tiny", "ioi", "ablation", [0.1, 2.0, 0.3, 0.1, 0.2, -0.1])
    tables = {"primary": primary, "backups": table, "interactions": pairs, "freezing": freezing}
    tables |= {"groups": [about | group], "curves": curves, "scores": scores}
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}
