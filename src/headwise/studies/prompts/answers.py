"""What a model answers under one condition, and which answers are right. Tables out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.metrics.text.mathematics import boxed, result
from headwise.metrics.text.registry import text_metric
from headwise.model.arm.arm import arm
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.stats.paired import compare_paired
from headwise.studies.prompts.problems import ProblemSet
from headwise.tasks.conditions import ARM, Condition


def answer_rows(
    model: Model,
    problems: ProblemSet,
    condition: Condition,
    *,
    seed: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    metric: str = "math",
    arm_options: dict[str, Any] | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """A row per problem: the text, whether it is right, whether it was cut off, the result read from it."""
    prompts = problems.prompts(model, condition)
    with arm(model, **(arm_options or {})) if condition.kind == ARM else nullcontext():
        written = generate(
            model,
            [prompt.ids for prompt in prompts],
            max_new_tokens=problems.max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=problems.stop,
            batch_tokens=batch_tokens,
            advance=advance,
        )
    texts, truncated = written.texts[0], written.truncated[0]
    right, parsed = judged(texts, truncated, problems.gold, metric)
    table = pd.DataFrame(
        {
            "condition": condition.name,
            "copies": np.int32(condition.copies),
            "seed": np.int64(seed),
            "problem": np.arange(len(texts), dtype=np.int32),
            "question": problems.questions,
            "gold": [answers[0] for answers in problems.gold],
            "text": texts,
            "parsed": parsed,
            "right": right,
            "truncated": truncated,
            "tokens": np.array([len(prompt.ids) for prompt in prompts], dtype=np.int32),
            "inserted": np.array([prompt.inserted.sum() for prompt in prompts], dtype=np.int32),
            "straddling": np.array([prompt.straddling for prompt in prompts], dtype=np.int32),
            "written": np.array([len(ids) for ids in written.tokens[0]], dtype=np.int32),
        }
    )
    if problems.groups is not None:
        table["group"] = np.array(problems.groups, dtype=object)
    return table


def judged(
    texts: list[str], truncated: np.ndarray, gold: tuple[tuple[str, ...], ...], metric: str
) -> tuple[np.ndarray, list[str | None]]:
    r"""Whether each text is right, and the result that was read from it (None: none could be).

    Under `math` a text that was cut off before it gave a \boxed{} result has no result: its last number is a
    step on the way, and is not taken for the answer.
    """
    values = text_metric(metric).values(texts, gold=gold)
    if metric != "math":
        return values, [text.strip() or None for text in texts]
    no_result = [bool(cut) and not boxed(text) for text, cut in zip(texts, truncated, strict=True)]
    parsed = [None if none else result(text) for text, none in zip(texts, no_result, strict=True)]
    return np.where(no_result, 0.0, values), parsed


def answers_fingerprint(answers: pd.DataFrame) -> str:
    """A hash of everything that accuracy and comparisons are computed from."""
    columns = ["condition", "copies", "seed", "problem", "right", "truncated", "parsed"]
    columns += ["group"] if _grouped(answers) else []
    return hashlib.sha256(answers[columns].to_csv(index=False).encode()).hexdigest()[:16]


def summary_tables(answers: pd.DataFrame, baseline: str, seed: int) -> dict[str, pd.DataFrame]:
    """Accuracy of each condition and its comparison with the baseline, for one model on one set of problems."""
    names = list(dict.fromkeys(answers["condition"]))
    groups = None
    if _grouped(answers):
        by_problem = answers.drop_duplicates("problem").sort_values("problem")["group"]
        groups = [None if pd.isna(name) else name for name in by_problem]
    right = {name: _right(answers[answers["condition"] == name]) for name in names}
    accuracy, curves = [], []
    for name in names:
        part = answers[answers["condition"] == name]
        lo, hi = stats.bootstrap_mean(right[name].mean(1), groups=groups, seed=seed)
        accuracy.append(
            {
                "condition": name,
                "accuracy": right[name].mean(),
                "lo": float(lo),
                "hi": float(hi),
                "n": len(right[name]),
                "samples": right[name].shape[1],
                "truncated": int(part["truncated"].sum()),
                "unparsed": int((part["parsed"].isna() & ~part["truncated"]).sum()),
            }
        )
        curves.append(
            {
                "series": name.partition(":")[0],
                "action": "insert",
                "k": int(part["copies"].iloc[0]),
                "metric": "accuracy",
                "value": right[name].mean(),
                "lo": float(lo),
                "hi": float(hi),
                "n": len(right[name]),
                "draw": 0,
            }
        )
    tables = {"accuracy": pd.DataFrame(accuracy), "curves": pd.DataFrame(curves)}
    others = [name for name in names if name != baseline]
    if baseline in right and others:
        tables["comparisons"] = _comparisons(right, baseline, others, groups, seed)
    return tables


def _right(part: pd.DataFrame) -> np.ndarray:
    """`[problems, samples]`."""
    return part.pivot(index="problem", columns="seed", values="right").to_numpy(dtype=float)


def _grouped(answers: pd.DataFrame) -> bool:
    """Whether problems share groups; another task of the run may have brought the column along, empty here."""
    return "group" in answers and bool(answers["group"].notna().any())


def _comparisons(
    right: dict[str, np.ndarray],
    baseline: str,
    others: list[str],
    groups: Sequence[str | None] | None,
    seed: int,
) -> pd.DataFrame:
    rows = []
    for name in others:
        found = compare_paired(
            right[baseline], right[name], groups=groups, comparisons=len(others), seed=seed
        )
        row = {"condition": name, "baseline": baseline} | found._asdict()
        row["only_baseline"], row["only_condition"] = row.pop("only_a"), row.pop("only_b")
        rows.append(row)
    table = pd.DataFrame(rows)
    table["p_holm"] = stats.holm(table["p"].to_numpy())
    return table
