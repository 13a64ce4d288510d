"""The study `prompts`: what do inserted tokens do to a model's answers and to a head's attention?

The same problems are asked under each condition and compared in pairs (arXiv 2510.01032 reports gains of a few
points without a test). Tables: `answers`, `accuracy`, `comparisons` and `curves`, and from inside the model
(`attention.py`) `profiles`, `moved`, `affine` and `activations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import head_list
from headwise.metrics.text import boxed, result, text_metric
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.runs import Call, Job, step
from headwise.runs.step import NEW_TOKEN
from headwise.stats.paired import answer_interval, compare_paired
from headwise.studies.abilities import sources as sources_of
from headwise.studies.base import study
from headwise.studies.prompts.attention import look_inside
from headwise.studies.prompts.problems import Problems, applied, baseline_of, open_problems
from headwise.studies.prompts.section import section
from headwise.studies.prompts.settings import ArmSettings, PromptsSettings
from headwise.studies.run import Pair, Run
from headwise.tasks.conditions import ARM, Condition, conditions


def _opened(run: Run, s: PromptsSettings) -> tuple[list[Pair[Problems]], tuple[Condition, ...]]:
    sources = list(product(s.models, sources_of(s, "word_problems")))
    pairs = run.pairs(sources, lambda source, model: open_problems(s, source, model))
    return pairs, tuple(conditions(s.conditions, s.fillers, s.lengths))


def _calls(
    s: PromptsSettings, pairs: list[Pair[Problems]], chosen: tuple[Condition, ...]
) -> dict[Any, Call[Any]]:
    """Answers by model and problems, condition and seed; what happens inside by model and problems."""
    seeds = range(s.seed, s.seed + s.samples)
    sampling: dict[str, Any] = {"metric": s.metric, "temperature": s.temperature, "top_p": s.top_p}
    calls: dict[Any, Call[Any]] = {
        (pair, condition, seed): answer(
            pair.model, pair.task, condition, arm_of(s, condition), seed=seed, **sampling
        )
        for pair, condition, seed in product(pairs, chosen, seeds)
    }
    for pair in pairs if s.attention_prompts else ():
        first, inside = pair.task.first(s.attention_prompts), {"profile_prompts": s.profile_prompts}
        heads = head_list(s.heads)
        calls[pair] = look_inside(pair.model, first, chosen, arm_of(s, *chosen), heads, **inside)
    return calls


def plan(run: Run, s: PromptsSettings) -> Iterable[Call[Any]]:
    return _calls(s, *_opened(run, s)).values()


@study(
    "What do inserted tokens do to a model's answers and to a head's attention?",
    PromptsSettings,
    section,
    plan,
)
def prompts(run: Run, s: PromptsSettings) -> None:
    pairs, chosen = _opened(run, s)
    heads = head_list(s.heads)
    for pair, condition in product(pairs, chosen):  # what cannot be asked is refused before the first step
        pair.model.check_heads(heads)
        with applied(condition, pair.model, s.arm):
            pair.task.first(1).prompts(pair.model, condition)
    seeds = range(s.seed, s.seed + s.samples)
    results = run.all(_calls(s, pairs, chosen), "answers and attention")
    for pair in pairs:
        answers = pd.concat([results[(pair, *of)] for of in product(chosen, seeds)], ignore_index=True)
        tables = {"answers": answers, **summary_tables(answers, baseline_of(chosen), s.seed)}
        for name, frame in (tables | results.get(pair, {})).items():
            run.table(name, pd.DataFrame(pair.columns | dict(frame.items())))  # model and task come first


def arm_of(s: PromptsSettings, *chosen: Condition) -> ArmSettings | None:
    """The settings of the condition `arm`, where it is one of these."""
    return s.arm if any(condition.kind == ARM for condition in chosen) else None


# ---- answers ----------------------------------------------------------------------------------------------


@step(
    unit=NEW_TOKEN,
    cost=lambda problems, **_: len(problems.task) * problems.max_new_tokens,
    label="answers to {problems.name} under {condition.name} with {model.name}, seed {seed}",
)
def answer(
    job: Job,
    model: Model,
    problems: Problems,
    condition: Condition,
    arm: ArmSettings | None,
    *,
    metric: str,
    temperature: float,
    top_p: float,
    seed: int,
) -> pd.DataFrame:
    """A row per problem: the text, whether it is right, whether it was cut off, the result read from it."""
    located = problems.prompts(model, condition)
    with applied(condition, model, arm):
        written = generate(
            model,
            [prompt.ids for prompt in located],
            max_new_tokens=problems.max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=problems.stop,
            batch_tokens=problems.batch_tokens,
            progress=lambda texts: job.advance(texts * problems.max_new_tokens),
        )
    texts, truncated = written.texts[0], written.truncated[0]
    right, parsed = judged(texts, truncated, problems.gold, metric)
    table = pd.DataFrame(
        {
            "condition": condition.name,
            "copies": condition.copies,
            "seed": np.int64(seed),
            "problem": problems.task.numbers,
            "question": problems.questions,
            "gold": [answers[0] for answers in problems.gold],
            "text": texts,
            "parsed": parsed,
            "right": right,
            "truncated": truncated,
            "tokens": [len(prompt.ids) for prompt in located],
            "inserted": [prompt.inserted.sum() for prompt in located],
            "straddling": [prompt.straddling for prompt in located],
            "written": [len(ids) for ids in written.tokens[0]],
        }
    )
    counts = ("copies", "problem", "tokens", "inserted", "straddling", "written")
    groups = problems.task.shared_groups()
    named = {} if groups is None else {"group": np.array(groups, dtype=object)}
    return table.astype(dict.fromkeys(counts, np.int32)).assign(**named)


def judged(
    texts: list[str], truncated: np.ndarray, gold: Sequence[tuple[str, ...]], metric: str
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


def summary_tables(answers: pd.DataFrame, baseline: str, seed: int) -> dict[str, pd.DataFrame]:
    """Accuracy of each condition and its comparison with the baseline, for one model on one set of problems."""
    groups = None
    if "group" in answers:
        by_problem = answers.drop_duplicates("problem").sort_values("problem")["group"]
        groups = [None if pd.isna(name) else name for name in by_problem]
    right: dict[str, np.ndarray] = {}  # problems, samples
    accuracy, curves = [], []
    for name, part in answers.groupby("condition", sort=False):
        values = part.pivot(index="problem", columns="seed", values="right").to_numpy(dtype=float)
        lo, hi = answer_interval(values, groups)
        interval = {"lo": lo, "hi": hi, "n": len(values)}
        unparsed = int((part["parsed"].isna() & ~part["truncated"]).sum())
        counts = {"samples": values.shape[1], "truncated": int(part["truncated"].sum()), "unparsed": unparsed}
        accuracy.append({"condition": name, "accuracy": values.mean(), **interval, **counts})
        point = {"series": str(name).partition(":")[0], "action": "insert", "k": int(part["copies"].iloc[0])}
        curves.append({**point, "metric": "accuracy", "value": values.mean(), **interval, "draw": 0})
        right[str(name)] = values
    tables = {"accuracy": pd.DataFrame(accuracy), "curves": pd.DataFrame(curves)}
    rows = []
    others = [name for name in right if name != baseline]
    for name in others:
        paired = compare_paired(
            right[baseline], right[name], groups=groups, comparisons=len(others), seed=seed
        )._asdict()
        paired |= {"only_baseline": paired.pop("only_a"), "only_condition": paired.pop("only_b")}
        rows.append({"condition": name, "baseline": baseline, **paired})
    if rows:
        table = pd.DataFrame(rows)
        tables["comparisons"] = table.assign(p_holm=stats.holm(table["p"].to_numpy()))
    return tables
