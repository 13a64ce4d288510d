"""The cells of the study `prompts`: answers under each condition, a look inside the model, then what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.model.arm.arm import arm
from headwise.runs import Cell, CellResult
from headwise.studies.context import Context
from headwise.studies.prompts.answers import answer_rows, answers_fingerprint, summary_tables
from headwise.studies.prompts.attention import chosen_heads, inner_tables
from headwise.studies.prompts.problems import ProblemSet, problem_set
from headwise.studies.prompts.settings import PromptsSettings
from headwise.tasks.conditions import ARM, Condition, conditions


@dataclass(frozen=True)
class Asked:
    """The conditions of the study."""

    conditions: tuple[Condition, ...]
    baseline: str
    """The condition that the others are compared with."""

    def named(self, name: str) -> Condition:
        return next(one for one in self.conditions if one.name == name)


def asked(context: Context[PromptsSettings]) -> Asked:
    s = context.settings
    found = tuple(conditions(s.conditions, s.fillers, s.lengths))
    return Asked(found, next((c.name for c in found if c.name == "none"), found[0].name))


def problems(context: Context[PromptsSettings], name: str, source: str) -> ProblemSet:
    """The problems of one task as one model is asked them."""
    return problem_set(context.settings, source, context.model(name))


def stages(context: Context[PromptsSettings]) -> Iterator[Sequence[Cell]]:
    _check(context)
    yield [cell for pair in _pairs(context.settings) for cell in _cells(context, *pair)]
    yield [_summary_cell(context, *pair) for pair in _pairs(context.settings)]


def _pairs(settings: PromptsSettings) -> list[tuple[str, str]]:
    """Every model with every task."""
    given = (*settings.tasks, *((settings.data,) if settings.data is not None else ()))
    return [(name, source) for name in settings.models for source in given or ("word_problems",)]


def _check(context: Context[PromptsSettings]) -> None:
    """A template that refuses, or a model without a place for `arm`, should end the run before it begins."""
    s, every = context.settings, context.once(asked).conditions
    if any(condition.kind == ARM for condition in every):
        for name in s.models:
            with arm(context.model(name), **vars(s.arm)):
                pass
    called: set[tuple[str, str]] = set()
    for name, source in _pairs(s):
        model = context.model(name)
        chosen_heads(model, s.heads)
        own = context.once(problems, name, source)
        for condition in every:
            own.prompts(model, condition, 1)
        if (name, own.name) in called:
            raise HeadwiseError(
                f"two of the given tasks are called {own.name!r}; give one of them, or rename its file"
            )
        called.add((name, own.name))


def _cells(context: Context[PromptsSettings], name: str, source: str) -> Iterator[Cell]:
    s, every = context.settings, context.once(asked).conditions
    prints = {"model": context.model(name).fingerprint}
    prints |= {"task": context.once(problems, name, source).fingerprint}
    for condition in every:
        for sample in range(s.samples):
            about = _about(s, condition) | {
                "seed": s.seed + sample,
                "temperature": s.temperature,
                "top_p": s.top_p,
                "metric": s.metric,
            }
            part = f"answers under {condition.name}" + (f", sample {sample}" if s.samples > 1 else "")
            yield context.cell("answers", name, source, part, about, prints)
    if s.attention_prompts:
        inside = {
            "conditions": [_about(s, condition) for condition in every],
            "heads": s.heads,
            "prompts": s.attention_prompts,
            "shown": s.profile_prompts,
            "seed": s.seed,
        }
        yield context.cell("attention", name, source, "attention", inside, prints)


def _about(settings: PromptsSettings, condition: Condition) -> dict[str, Any]:
    about: dict[str, Any] = {"condition": condition.name, "text": condition.text}
    about["dtype"] = settings.dtype or "default"
    return about | ({"arm": vars(settings.arm)} if condition.kind == ARM else {})


def _summary_cell(context: Context[PromptsSettings], name: str, source: str) -> Cell:
    prints = {"answers": answers_fingerprint(context.once(_answers, name, source))}
    about = {"baseline": context.once(asked).baseline, "seed": context.settings.seed}
    return context.cell("summary", name, source, "summary", about, prints)


def _answers(context: Context[PromptsSettings], name: str, source: str) -> pd.DataFrame:
    """All answers of one model to one task."""
    return context.table("answers", model=name, task=source)


def answer(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """What the model answers under one condition."""
    s, own = context.settings, context.once(problems, cell.model, cell.task)
    condition = context.once(asked).named(str(cell.settings["condition"]))
    with context.progress(f"{own.name}, {condition.name}", len(own.questions)) as advance:
        rows = answer_rows(
            context.model(cell.model),
            own,
            condition,
            seed=int(cell.settings["seed"]),
            temperature=s.temperature,
            top_p=s.top_p,
            metric=s.metric,
            arm_options=vars(s.arm),
            batch_tokens=s.batch_tokens,
            advance=advance,
        )
    return _labelled(context, cell, {"answers": rows})


def look_inside(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """What the conditions do to attention, outputs and activations."""
    s, own, model = context.settings, context.once(problems, cell.model, cell.task), context.model(cell.model)
    every = context.once(asked)
    most = min(s.attention_prompts, len(own.questions))
    with context.progress(f"attention on {own.name}", most) as advance:
        tables = inner_tables(
            model,
            every.conditions,
            {c.name: own.prompts(model, c, most) for c in every.conditions},
            baseline=every.baseline,
            heads=s.heads,
            profile_prompts=s.profile_prompts,
            arm_options=vars(s.arm),
            groups=None if own.groups is None else own.groups[:most],
            seed=s.seed,
            batch_tokens=s.batch_tokens,
            advance=advance,
        )
    return _labelled(context, cell, tables)


def summarise(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """Accuracy of each condition, and its comparison with the baseline."""
    own = context.once(_answers, cell.model, cell.task)
    return _labelled(
        context, cell, summary_tables(own, context.once(asked).baseline, int(cell.settings["seed"]))
    )


def _labelled(context: Context[PromptsSettings], cell: Cell, tables: dict[str, pd.DataFrame]) -> CellResult:
    """Every table begins with model and task, as they are shown."""
    tables = {name: table.copy() for name, table in tables.items()}
    for table in tables.values():
        table.insert(0, "model", context.display_name(cell.model))
        table.insert(1, "task", context.once(problems, cell.model, cell.task).name)
    return CellResult(tables)
