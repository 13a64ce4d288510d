"""What a model answers under one condition, and which answers are right. Tables out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.metrics.text.mathematics import boxed, result
from headwise.metrics.text.registry import text_metric
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.stats.paired import answer_interval, compare_paired
from headwise.studies.prompts.problems import ProblemSet, applied
from headwise.studies.prompts.settings import PromptsSettings
from headwise.studies.tables import fingerprint
from headwise.tasks.conditions import Condition


def answer_rows(
    model: Model,
    problems: ProblemSet,
    condition: Condition,
    settings: PromptsSettings,
    seed: int,
    advance: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """A row per problem: the text, whether it is right, whether it was cut off, the result read from it."""
    prompts = problems.prompts(model, condition)
    with applied(condition, model, settings):
        written = generate(
            model,
            [prompt.ids for prompt in prompts],
            max_new_tokens=problems.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=seed,
            stop=problems.stop,
            batch_tokens=settings.batch_tokens,
            progress=advance,
        )
    texts, truncated = written.texts[0], written.truncated[0]
    right, parsed = judged(texts, truncated, problems.gold, settings.metric)
    counts = {
        "tokens": [len(prompt.ids) for prompt in prompts],
        "inserted": [prompt.inserted.sum() for prompt in prompts],
        "straddling": [prompt.straddling for prompt in prompts],
        "written": [len(ids) for ids in written.tokens[0]],
    }
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
            **{name: np.array(count, dtype=np.int32) for name, count in counts.items()},
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
    return fingerprint(answers[columns].to_csv(index=False))


def summary_tables(answers: pd.DataFrame, baseline: str, seed: int) -> dict[str, pd.DataFrame]:
    """Accuracy of each condition and its comparison with the baseline, for one model on one set of problems."""
    groups = None
    if _grouped(answers):
        by_problem = answers.drop_duplicates("problem").sort_values("problem")["group"]
        groups = [None if pd.isna(name) else name for name in by_problem]
    right: dict[str, np.ndarray] = {}  # problems, samples
    accuracy, curves = [], []
    for name, part in answers.groupby("condition", sort=False):
        values = part.pivot(index="problem", columns="seed", values="right").to_numpy(dtype=float)
        lo, hi = answer_interval(values, groups)
        interval = {"lo": lo, "hi": hi, "n": len(values)}
        cut = {"truncated": int(part["truncated"].sum())}
        cut["unparsed"] = int((part["parsed"].isna() & ~part["truncated"]).sum())
        samples = {"samples": values.shape[1]}
        accuracy.append({"condition": name, "accuracy": values.mean(), **interval, **samples, **cut})
        about = {"series": str(name).partition(":")[0], "action": "insert", "k": int(part["copies"].iloc[0])}
        curves.append({**about, "metric": "accuracy", "value": values.mean(), **interval, "draw": 0})
        right[str(name)] = values
    tables = {"accuracy": pd.DataFrame(accuracy), "curves": pd.DataFrame(curves)}
    others = [name for name in right if name != baseline]
    if baseline in right and others:
        how: dict[str, Any] = {"groups": groups, "comparisons": len(others), "seed": seed}
        rows = []
        for name in others:
            row = {"condition": name, "baseline": baseline}
            row |= compare_paired(right[baseline], right[name], **how)._asdict()
            row["only_baseline"], row["only_condition"] = row.pop("only_a"), row.pop("only_b")
            rows.append(row)
        table = pd.DataFrame(rows)
        tables["comparisons"] = table.assign(p_holm=stats.holm(table["p"].to_numpy()))
    return tables


def _grouped(answers: pd.DataFrame) -> bool:
    """Whether problems share groups; another task of the run may have brought the column along, empty here."""
    return "group" in answers and bool(answers["group"].notna().any())
