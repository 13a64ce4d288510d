"""The study `prompts`: what do inserted tokens do to a model's answers and to a head's attention?

The same problems are asked under each condition and compared in pairs (arXiv 2510.01032 reports gains of a few
points without a test). Tables beside the contract's: `answers`, `accuracy`, `comparisons`, and from inside the
model `profiles`, `moved`, `affine`, `activations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pandas as pd

from headwise.constraints import Constraints, NotEmpty, Number, OneOf, Passes, check_settings
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.metrics.text.registry import text_metric, text_metrics
from headwise.model.arm.arm import MODES, arm
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.prompts.answers import answer_rows, answers_fingerprint, summary_tables
from headwise.studies.prompts.attention import chosen_heads, inner_tables
from headwise.studies.prompts.charts import charts
from headwise.studies.prompts.findings import significance
from headwise.studies.prompts.problems import ProblemSet, problem_set
from headwise.studies.settings.resolve import TASKS, StudySettings
from headwise.studies.workbench import Workbench
from headwise.tasks.conditions import ARM, PLACES, Condition, conditions

QUICK = {"n": 20, "attention_prompts": 2, "samples": 1}
"""Most of each with `quick`."""


@dataclass(frozen=True, kw_only=True)
class ArmSettings:
    """Of the condition `arm`; the paper tunes c and p1 for each model and task."""

    CONSTRAINTS: ClassVar[Constraints] = {
        "c": Number(above=0),
        "p1": Number(least=0, most=100),
        "mode": OneOf("mode of arm", lambda: MODES),
        "seed": Number(least=0),
    }

    c: float = 0.13
    """How far from 0 an activation counts as small, in units of the spread."""
    p1: float = 99.5
    """Percentile of the activations up to which new values are drawn."""
    mode: str = "replace"
    """`replace` (the authors' code) or `add` (their paper)."""
    seed: int = 0
    """Of the new values."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class PromptsSettings(StudySettings):
    """Settings of the study `prompts`."""

    CONSTRAINTS: ClassVar[Constraints] = {
        "tasks": TASKS,
        "n": Number(least=1),
        "conditions": NotEmpty("condition"),
        "lengths": Number(least=1),
        "place": OneOf("place", lambda: PLACES),
        "shots": Number(least=0),
        "max_new_tokens": Number(least=1),
        "temperature": Number(least=0),
        "top_p": Number(above=0, most=1),
        "samples": Number(least=1),
        "metric": OneOf("text metric", text_metrics),
        "heads": Passes(Head.parse),
        "attention_prompts": Number(least=0),
        "profile_prompts": Number(least=1),
    }

    tasks: tuple[str, ...] = ()
    """Built-in names or files (GSM8K, MATH-500, your own); `word_problems` by default."""
    data: str | None = None
    """A task file, beside `tasks` or instead."""
    n: int = 60
    """Problems of each task."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of the tasks or of their files (columns, mapping)."""
    conditions: tuple[str, ...] = ("none", "meaningless", "meaningful")
    """`none`, `meaningless`, `meaningful`, `arm`, names of `fillers`; `meaningless:20` for 20 copies. The others are
    compared with `none`, or else with the first."""
    fillers: dict[str, str] = field(default_factory=dict)
    """Texts of your own by name; with the gap {question} a text stands around the question."""
    lengths: tuple[int, ...] = ()
    """Ask under each filler once for each of these numbers of copies."""
    place: str = "between"
    """Of the filler: `between` system prompt (and solved examples) and question, `before` everything, at the `end`."""
    joint: str = "\n"
    """What separates the filler from its neighbour; counts as inserted."""
    chat: bool | None = None
    """Use the model's chat template, solved examples as turns; by default where it has one and there are no solved
    examples."""
    system: str | None = None
    """System prompt; by default none, or for GSM8K and MATH-500 a request for steps and a boxed result."""
    shots: int | None = None
    """Solved examples before each problem; by default 8 for word_problems, none for files in a chat, else 4."""
    working: bool | None = None
    """Solved examples show their working; by default those of GSM8K and MATH-500 do, word_problems' do not."""
    template: str = "Q: {prompt}\nA:{target}"
    """Of problem and answer in plain text."""
    separator: str = "\n\n"
    """Between solved examples in plain text."""
    stop: tuple[str, ...] | None = None
    """Texts that end an answer; by default the separator in plain text, none in a chat."""
    max_new_tokens: int | None = None
    """By default twice the longest solved example and 16, or 512."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Tokens are drawn from the likeliest ones that have this probability together."""
    samples: int = 1
    """Answers to each problem, each with a seed of its own; needs a temperature above 0."""
    metric: str = "math"
    """How answers are judged: `math`, `contains`, `exact`."""
    heads: tuple[str, ...] = ()
    """Heads whose profile is drawn; by default the one that the insertion moves most."""
    attention_prompts: int = 8
    """Problems on which attention, outputs and activations are looked at; 0 for none."""
    profile_prompts: int = 1
    """Profiles are those of the first problem, or the mean over so many."""
    arm: ArmSettings = field(default_factory=ArmSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        conditions(self.conditions, self.fillers, self.lengths)
        if self.place == "end" and self.profile_prompts > 1:
            raise HeadwiseError(
                "with place=end every problem has its inserted tokens elsewhere, so profiles cannot be averaged by "
                "position; use profile_prompts=1"
            )


@register(
    "prompts",
    question="What do inserted tokens do to a model's answers and to a head's attention?",
    settings=PromptsSettings,
)
def carry_out(settings: PromptsSettings, bench: Workbench, folder: RunFolder) -> None:
    settings = _checked(settings)
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


def _checked(settings: PromptsSettings) -> PromptsSettings:
    """The settings as they are meant, or an error before anything is loaded."""
    if settings.quick:
        settings = settings.at_most(**QUICK)
    if settings.samples > 1 and settings.temperature == 0:
        raise HeadwiseError(
            f"samples is {settings.samples}, but greedy decoding gives the same answer each time; set a temperature, "
            "such as temperature=0.7"
        )
    text_metric(settings.metric).ready()
    return settings


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
