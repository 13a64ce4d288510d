"""The study `prompts`: what do inserted tokens do to a model's answers and to a head's attention?

The same problems are asked under each condition and compared in pairs (arXiv 2510.01032 reports gains of a few
points without a test). Tables beside the contract's: `answers`, `accuracy`, `comparisons`, and from inside the
model `profiles`, `moved`, `affine`, `activations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.model.arm.arm import arm
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.prompts.answers import answer_rows, answers_fingerprint, summary_tables
from headwise.studies.prompts.attention import chosen_heads, inner_tables
from headwise.studies.prompts.charts import charts
from headwise.studies.prompts.findings import significance
from headwise.studies.prompts.problems import ProblemSet, problem_set
from headwise.studies.prompts.settings import PromptsSettings
from headwise.studies.workbench import Workbench
from headwise.tasks.conditions import ARM, Condition, conditions

QUICK = {"n": 20, "attention_prompts": 2, "samples": 1}
"""Most of each with `quick`."""


@register(
    "prompts",
    question="What do inserted tokens do to a model's answers and to a head's attention?",
    settings=PromptsSettings,
)
def carry_out(settings: PromptsSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = settings.at_most(**QUICK)
    asked = conditions(settings.conditions, settings.fillers, settings.lengths)
    baseline = next((c.name for c in asked if c.name == "none"), asked[0].name)
    if any(c.kind == ARM for c in asked):
        for name in settings.models:
            with arm(bench.model(name), **vars(settings.arm)):
                pass  # a model without a place for it should end the run before it begins
    work = _Work(settings, bench, asked, baseline)
    cells = [cell for name, source in work.pairs() for cell in work.cells(name, source)]
    execute(folder, cells, work.compute, progress=bench.progress)
    answers = read_table(folder, "answers")
    summaries = [work.summary_cell(name, source, answers) for name, source in work.pairs()]
    execute(folder, summaries, partial(work.summary, answers), progress=False)
    save_figures(folder, charts)
    _tell(folder)


class _Work:
    """What the cells of a run share: settings, models, problems as each model is asked them."""

    def __init__(
        self, settings: PromptsSettings, bench: Workbench, asked: list[Condition], baseline: str
    ) -> None:
        self.settings, self.bench, self.conditions, self.baseline = settings, bench, asked, baseline
        self.by_name = {condition.name: condition for condition in asked}
        self.problems: dict[tuple[str, str], ProblemSet] = {}
        for name, source in self.pairs():
            chosen_heads(bench.model(name), settings.heads)
            problems = problem_set(settings, source, bench.model(name))
            self.problems[name, source] = problems
            for condition in asked:  # a template that refuses should end the run before it begins
                problems.prompts(bench.model(name), condition, 1)
            if sum(other.name == problems.name for (n, _), other in self.problems.items() if n == name) > 1:
                raise HeadwiseError(
                    f"two of the given tasks are called {problems.name!r}; give one of them, or rename its file"
                )

    def pairs(self) -> Iterator[tuple[str, str]]:
        given = self.settings
        sources = (*given.tasks, *((given.data,) if given.data is not None else ())) or ("word_problems",)
        for name in given.models:
            for source in sources:
                yield name, source

    def _about(self, condition: Condition) -> dict[str, Any]:
        about: dict[str, Any] = {"condition": condition.name, "text": condition.text}
        about["dtype"] = self.settings.dtype or "default"
        return about | ({"arm": vars(self.settings.arm)} if condition.kind == ARM else {})

    def _prints(self, name: str, source: str) -> dict[str, str]:
        return {"model": self.bench.model(name).fingerprint, "task": self.problems[name, source].fingerprint}

    def cells(self, name: str, source: str) -> list[Cell]:
        given, prints = self.settings, self._prints(name, source)
        made = []
        for condition in self.conditions:
            for sample in range(given.samples):
                about = self._about(condition) | {
                    "seed": given.seed + sample,
                    "temperature": given.temperature,
                    "top_p": given.top_p,
                    "metric": given.metric,
                }
                part = f"answers under {condition.name}" + (f", sample {sample}" if given.samples > 1 else "")
                made.append(Cell("prompts", name, source, part, about, prints))
        if given.attention_prompts:
            inside = {
                "conditions": [self._about(condition) for condition in self.conditions],
                "heads": given.heads,
                "prompts": given.attention_prompts,
                "shown": given.profile_prompts,
                "seed": given.seed,
            }
            made.append(Cell("prompts", name, source, "attention", inside, prints))
        return made

    def compute(self, cell: Cell) -> CellResult:
        tables = self._attention(cell) if cell.part == "attention" else {"answers": self._answers(cell)}
        return CellResult({name: self._labelled(table, cell) for name, table in tables.items()})

    def _labelled(self, table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
        """Every table begins with model and task, as they are shown."""
        table = table.copy()
        table.insert(0, "model", self.bench.shown(self.settings.models)[cell.model])
        table.insert(1, "task", self.problems[cell.model, cell.task].name)
        return table

    def _answers(self, cell: Cell) -> pd.DataFrame:
        given, problems = self.settings, self.problems[cell.model, cell.task]
        condition = self.by_name[str(cell.settings["condition"])]
        label = f"{problems.name}, {condition.name}"
        with progress(label, len(problems.questions), show=self.bench.progress) as advance:
            return answer_rows(
                self.bench.model(cell.model),
                problems,
                condition,
                seed=int(cell.settings["seed"]),
                temperature=given.temperature,
                top_p=given.top_p,
                metric=given.metric,
                arm_options=vars(given.arm),
                batch_tokens=given.batch_tokens,
                advance=advance,
            )

    def _attention(self, cell: Cell) -> dict[str, pd.DataFrame]:
        given, problems = self.settings, self.problems[cell.model, cell.task]
        model = self.bench.model(cell.model)
        most = min(given.attention_prompts, len(problems.questions))
        with progress(f"attention on {problems.name}", most, show=self.bench.progress) as advance:
            return inner_tables(
                model,
                self.conditions,
                {c.name: problems.prompts(model, c, most) for c in self.conditions},
                baseline=self.baseline,
                heads=given.heads,
                profile_prompts=given.profile_prompts,
                arm_options=vars(given.arm),
                groups=None if problems.groups is None else problems.groups[:most],
                seed=given.seed,
                batch_tokens=given.batch_tokens,
                advance=advance,
            )

    def _own(self, name: str, source: str, table: pd.DataFrame) -> pd.DataFrame:
        shown = self.bench.shown(self.settings.models)[name]
        return table[(table["model"] == shown) & (table["task"] == self.problems[name, source].name)]

    def summary_cell(self, name: str, source: str, answers: pd.DataFrame) -> Cell:
        own = self._own(name, source, answers)
        prints = {"answers": answers_fingerprint(own)}
        about = {"baseline": self.baseline, "seed": self.settings.seed}
        return Cell("prompts", name, source, "summary", about, prints)

    def summary(self, answers: pd.DataFrame, cell: Cell) -> CellResult:
        tables = summary_tables(
            self._own(cell.model, cell.task, answers), self.baseline, int(cell.settings["seed"])
        )
        return CellResult({name: self._labelled(table, cell) for name, table in tables.items()})


def _tell(folder: RunFolder) -> None:
    """What was found, and what could have been, in a sentence per comparison."""
    accuracy = read_table(folder, "accuracy")
    for row in accuracy.to_dict("records"):
        lost = (
            f", {row['truncated']} cut off, {row['unparsed']} without a result"
            if (row["truncated"] or row["unparsed"])
            else ""
        )
        folder.notice(
            f"{row['model']} on {row['task']}, {row['condition']}: {row['accuracy']:.1%} right "
            f"[{row['lo']:.1%}, {row['hi']:.1%}], {row['n']} problems{lost}"
        )
    if "comparisons" in folder.written:
        for row in read_table(folder, "comparisons").to_dict("records"):
            folder.notice(significance(row))
