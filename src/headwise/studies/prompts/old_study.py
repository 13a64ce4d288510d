"""The study `prompts`: what do inserted tokens do to a model's answers and to a head's attention?

The same problems are asked under each condition and compared in pairs (arXiv 2510.01032 reports gains of a few
points without a test): a cell for the answers under each condition, one for a look inside the model, one for the
summary. Tables beside the common ones: `answers`, `accuracy`, `comparisons`, and from inside the model `profiles`,
`moved`, `affine`, `activations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from headwise.charts.section import Tables, table_of
from headwise.errors import HeadwiseError
from headwise.model.arm.arm import arm
from headwise.runs import Cell, CellResult
from headwise.studies.abilities import sources
from headwise.studies.base import Study, register
from headwise.studies.context import Context
from headwise.studies.prompts.answers import answer_rows, answers_fingerprint, summary_tables
from headwise.studies.prompts.attention import chosen_heads, inner_tables
from headwise.studies.prompts.charts import section
from headwise.studies.prompts.findings import significance
from headwise.studies.prompts.problems import ProblemSet, baseline_of, problem_set
from headwise.studies.prompts.settings import PromptsSettings
from headwise.tasks.conditions import ARM, Condition, conditions


def conditions_by_name(context: Context[PromptsSettings]) -> dict[str, Condition]:
    s = context.settings
    return {condition.name: condition for condition in conditions(s.conditions, s.fillers, s.lengths)}


def problems(context: Context[PromptsSettings], model: str, task: str) -> ProblemSet:
    """The problems of one task as one model is asked them."""
    return problem_set(context.settings, task, context.model(model))


def _answers(context: Context[PromptsSettings], model: str, task: str) -> pd.DataFrame:
    """All answers of one model to one task."""
    return context.table("answers", model=model, task=task)


def stages(context: Context[PromptsSettings]) -> Iterator[Sequence[Cell]]:
    s = context.settings
    pairs = [(model, task) for model in s.models for task in sources(s, "word_problems")]
    _check(context, pairs)
    yield [cell for pair in pairs for cell in _cells(context, *pair)]
    yield [_summary_cell(context, *pair) for pair in pairs]


def _check(context: Context[PromptsSettings], pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse a chat template that fails, a model on which `arm` cannot act and tasks of one name before the run."""
    s, asked = context.settings, context.once(conditions_by_name).values()
    if any(condition.kind == ARM for condition in asked):
        for name in s.models:
            with arm(context.model(name), **vars(s.arm)):
                pass
    names: set[tuple[str, str]] = set()
    for model, task in pairs:
        chosen_heads(context.model(model), s.heads)
        problem = context.once(problems, model, task)
        for condition in asked:
            problem.prompts(context.model(model), condition, 1)
        if (model, problem.name) in names:
            raise HeadwiseError(
                f"two of the given tasks are called {problem.name!r}; give one of them, or rename its file"
            )
        names.add((model, problem.name))


def _cells(context: Context[PromptsSettings], model: str, task: str) -> Iterator[Cell]:
    s, asked = context.settings, context.once(conditions_by_name).values()
    prints = {"model": context.model(model).fingerprint}
    prints |= {"task": context.once(problems, model, task).fingerprint}
    dtype = {"dtype": context.dtype(model)}
    sampling = {"temperature": s.temperature, "top_p": s.top_p, "metric": s.metric}
    for condition in asked:
        for sample in range(s.samples):
            about = _about(s, condition) | dtype | {"seed": s.seed + sample} | sampling
            part = f"answers under {condition.name}" + (f", sample {sample}" if s.samples > 1 else "")
            yield context.cell("answers", model, task, part, about, prints)
    if s.attention_prompts:
        about = {"conditions": [_about(s, condition) for condition in asked], "heads": s.heads} | dtype
        about |= {"prompts": s.attention_prompts, "shown": s.profile_prompts, "seed": s.seed}
        yield context.cell("attention", model, task, "attention", about, prints)


def _about(settings: PromptsSettings, condition: Condition) -> dict[str, Any]:
    about: dict[str, Any] = {"condition": condition.name, "text": condition.text}
    return about | ({"arm": vars(settings.arm)} if condition.kind == ARM else {})


def _summary_cell(context: Context[PromptsSettings], model: str, task: str) -> Cell:
    prints = {"answers": answers_fingerprint(context.once(_answers, model, task))}
    about = {"baseline": baseline_of(context.once(conditions_by_name)), "seed": context.settings.seed}
    return context.cell("summary", model, task, "summary", about, prints)


def answer(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """What the model answers under one condition."""
    problem = context.once(problems, cell.model, cell.task)
    condition = context.once(conditions_by_name)[cell.settings["condition"]]
    model, seed = context.model(cell.model), int(cell.settings["seed"])
    with context.progress(f"{problem.name}, {condition.name}", len(problem.questions)) as advance:
        rows = answer_rows(model, problem, condition, context.settings, seed, advance)
    return _labelled(context, cell, {"answers": rows})


def look_inside(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """What the conditions do to attention, outputs and activations."""
    s, problem = context.settings, context.once(problems, cell.model, cell.task)
    problem = problem.first(s.attention_prompts)
    with context.progress(f"attention on {problem.name}", len(problem.questions)) as advance:
        asked = context.once(conditions_by_name)
        tables = inner_tables(context.model(cell.model), problem, asked, s, advance)
    return _labelled(context, cell, tables)


def summarise(context: Context[PromptsSettings], cell: Cell) -> CellResult:
    """Accuracy of each condition, and its comparison with the baseline."""
    answers = context.once(_answers, cell.model, cell.task)
    tables = summary_tables(answers, str(cell.settings["baseline"]), int(cell.settings["seed"]))
    return _labelled(context, cell, tables)


def _labelled(context: Context[PromptsSettings], cell: Cell, tables: dict[str, pd.DataFrame]) -> CellResult:
    """Every table begins with the display names of model and task."""
    about = {"model": context.display_name(cell.model)}
    about["task"] = context.once(problems, cell.model, cell.task).name
    return CellResult({name: pd.DataFrame(about | dict(table.items())) for name, table in tables.items()})


def notices(context: Context[PromptsSettings], tables: Tables) -> Iterator[str]:
    """Each accuracy in one sentence, then each comparison."""
    for row in tables["accuracy"].to_dict("records"):
        lost = f", {row['truncated']} cut off, {row['unparsed']} without a result"
        yield (
            f"{row['model']} on {row['task']}, {row['condition']}: {row['accuracy']:.1%} right "
            f"[{row['lo']:.1%}, {row['hi']:.1%}], {row['n']} problems"
            f"{lost if row['truncated'] or row['unparsed'] else ''}"
        )
    for row in table_of(tables, "comparisons").to_dict("records"):
        yield significance(row)


register(
    Study(
        name="prompts",
        question="What do inserted tokens do to a model's answers and to a head's attention?",
        settings=PromptsSettings,
        stages=stages,
        stage_names=lambda settings: ("answers and attention", "summary"),
        compute={"answers": answer, "attention": look_inside, "summary": summarise},
        section=section,
        notices=notices,
    )
)
