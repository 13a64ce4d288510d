"""Texts that a model generates with gated heads, and their numbers: what is judged, and the points of a curve.

Heads can also be made stronger instead of taken away (`intervene`): does the model then answer better? `amplify` sets
the gates of chosen heads above 1. `shift` adds α·σ·direction to their outputs, the direction being mean output on right
texts minus mean output on wrong ones (inference-time intervention, Li et al. 2023, arXiv 2306.03341, as Cognitive
Mirrors, arXiv 2512.10978, uses it). Directions come from one half of the examples, accuracy from the other.

V variants (draws of heads; or S strengths × R sets of heads), E examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Head, head_list, mask_gates
from headwise.metrics import text_metric
from headwise.model.generation.generate import generate
from headwise.model.model import Model
from headwise.model.outputs.answers import Directions, directions
from headwise.runs import Job, step
from headwise.runs.step import NEW_TOKEN
from headwise.studies.masking.settings import ANSWERS, AUTO, STRENGTHS
from headwise.tables.codec import stored
from headwise.tables.frames import long_table
from headwise.tasks import Task

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*(?=\s|$)|\n")
_NUMBER = re.compile(r"[-−+]?[$€£]?\d[\d,]*(\.\d+)?\s*%?")
Sets = Sequence[Sequence[Head]]
REFERENCE = "zero"
"""What replaces a masked head, as in Cognitive Mirrors."""
ACCURACY = "accuracy"
"""What the accuracy is called in the tables, whichever text metric decides it."""

# ---- answers ---------------------------------------------------------------------------------------


def golds(task: Task) -> list[list[str]]:
    """The right answers of each example."""
    return [[answer.strip() for answer in (example.target, *example.also)] for example in task]


def accuracy_metric(name: str, task: Task) -> str:
    """`contains`, or `math` where every right answer is a number; anything else as given."""
    if name != AUTO:
        return name
    numbers = all(_NUMBER.fullmatch(answer) for answers in golds(task) for answer in answers)
    return "math" if numbers else "contains"


def answer_part(text: str, judged: str) -> str:
    """What of a text is the answer: its first `sentence` (or line), or the whole `text`.

    >>> answer_part(" 8. She buys 9 more.", "sentence")
    '8.'
    >>> answer_part("\\n3.5 kg\\nQ: And then?", "sentence")
    '3.5 kg'
    """
    if judged not in ANSWERS:
        raise unknown("answer", judged, ANSWERS)
    text = text.strip()
    end = _SENTENCE_END.search(text) if judged == "sentence" else None
    return text[: end.end()].strip() if end else text


@dataclass(frozen=True)
class Judge:
    """How texts become numbers: the accuracy against the gold answers, the similarity with the full model's texts."""

    accuracy: str
    """A text metric, resolved for the task."""
    similarity: str
    answer: str = "sentence"

    def values(self, texts: Sequence[str], full: Sequence[str], task: Task) -> dict[str, np.ndarray]:
        """Each `[E]`: `accuracy`, and the similarity under its own name."""
        metric, gold = text_metric(self.similarity), [answers[0] for answers in golds(task)]
        against = "full" if "full" in metric.against else None
        similar = metric.values(list(texts), gold=gold, full=full, against=against)
        return {ACCURACY: self.right(texts, full, task), self.similarity: similar}

    def right(self, texts: Sequence[str], full: Sequence[str], task: Task) -> np.ndarray:
        """`[E]`: which texts answer rightly; the full model's texts matter to `agreement` alone."""
        measure = text_metric(self.accuracy)
        return measure.values(
            [answer_part(text, self.answer) for text in texts],
            gold=golds(task),
            full=[answer_part(text, self.answer) for text in full],
            against="gold" if "gold" in measure.against else None,
        )


# ---- texts -----------------------------------------------------------------------------------------


@stored
@dataclass(frozen=True)
class Written:
    """What the variants of a model have written, and how good it is."""

    texts: list[list[str]]
    """`[V][E]`."""
    values: dict[str, np.ndarray]
    """By metric: `[V, E]`."""
    numbers: Sequence[int]
    """Of the examples, `[E]`."""
    groups: Sequence[str | None] | None = None
    """Of the examples, `[E]`, if some share one."""

    def curve_table(self, columns: dict[str, Any]) -> pd.DataFrame:
        """Rows of `curves`: mean over draws and examples with its interval over both, and each of several draws."""
        rows: list[dict[str, Any]] = []
        for metric, values in self.values.items():
            shared = {**columns, "metric": metric, "n": values.shape[1]}
            lo, hi = stats.crossed_interval(values, groups=self.groups)
            mean = {"value": values.mean(), "lo": lo, "hi": hi, "draw": None, "draws": len(values)}
            rows.append(shared | mean)
            lows, highs = stats.metric_interval(values.T, groups=self.groups)
            points = enumerate(zip(values.mean(axis=1), lows, highs, strict=True) if len(values) > 1 else ())
            for draw, (value, lo, hi) in points:
                rows.append(shared | {"value": value, "lo": lo, "hi": hi, "draw": draw, "draws": 1})
        return pd.DataFrame(rows).astype({"draw": "Int32"})

    def example_table(self, columns: dict[str, Any]) -> pd.DataFrame:
        """Rows of `examples`."""
        example: dict[str, Any] = {"example": self.numbers}
        if self.groups is not None:
            example["group"] = np.array(self.groups, dtype=object)
        axes = [{"draw": range(len(self.texts))}, example]
        parts = [
            long_table({**columns, "metric": name}, axes, {"value": v}) for name, v in self.values.items()
        ]
        return pd.concat(parts, ignore_index=True)

    def text_table(self, columns: dict[str, Any], variant: int | None = None) -> pd.DataFrame:
        """Rows of `texts`, of all variants or of one."""
        rows = [
            {**columns, "draw": draw, "example": number, "text": text}
            for draw, texts in enumerate(self.texts if variant is None else [self.texts[variant]])
            for number, text in zip(self.numbers, texts, strict=True)
        ]
        return pd.DataFrame(rows)

    def measured_tables(self) -> dict[str, pd.DataFrame]:
        return {"examples": self.example_table({})}


@dataclass(frozen=True, eq=False)
class Case:
    """One model on one ability: its examples, and how text is generated and judged."""

    model: Model
    find: Task
    """The half of the examples that ranks the heads."""
    test: Task
    """The half from which text is generated."""
    judge: Judge
    max_new_tokens: int = 16
    chat: bool = False
    positions: str = "all"
    ks: tuple[int, ...] = field(default=(), compare=False)
    """How many heads are masked."""
    middle_k: int = field(default=0, compare=False)
    """The K of everything that is measured at one K only."""
    columns: dict[str, Any] = field(default_factory=dict, compare=False)
    """What the tables call it: `model` and `task`."""
    batch_tokens: int | None = field(default=None, compare=False)

    def write(self, job: Job, task: Task, **options: Any) -> list[list[str]]:
        """What each variant of gates or shifts writes on from the prompts of a task: `[V][E]`."""
        return generate(
            self.model,
            [example.prompt for example in task],
            max_new_tokens=self.max_new_tokens,
            chat=self.chat,
            batch_tokens=self.batch_tokens,
            progress=lambda texts: job.advance(texts * self.max_new_tokens),
            **{"positions": self.positions, **options},
        ).texts


# ---- stronger heads --------------------------------------------------------------------------------


def intervene(
    model: Model,
    task: Task,
    heads: Head | str | Sequence[Head | str],
    kind: str = "amplify",
    strengths: Sequence[float] = (),
    *,
    max_new_tokens: int = 16,
    accuracy: str = AUTO,
    answer: str = "sentence",
) -> pd.DataFrame:
    """Accuracy before and after the given heads are made stronger, a row for each strength.

    kind: `amplify` (strengths are gates) or `shift` (strengths are α). accuracy (a text metric) and answer (`sentence`
    or `text`): as in the study's settings. The first half of the task's examples (`task.halves()`) gives the
    directions, the second is used for generation. `change` is after minus before with its interval over examples; above
    0 the intervention helps.
    """
    if kind not in STRENGTHS:
        raise unknown("intervention", kind, STRENGTHS)
    find, test = task.halves()
    judge = Judge(accuracy_metric(accuracy, test), "chrf", answer)
    case = Case(model, find, test, judge, max_new_tokens)
    strengths = tuple(strengths) or STRENGTHS[kind]
    (full,) = case.write(Job(), test)
    before, after = strengthened(Job(), case, kind, [head_list(heads)], strengths, full)
    return intervention_rows(kind, strengths, before, after, test.shared_groups())


def strengthened(
    job: Job, case: Case, kind: str, sets: Sets, strengths: Sequence[float], full: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Right answers before `[E]`, in the full model's texts, and with each set of heads made stronger `[S, R, E]`."""
    texts = case.write(job, case.test, **variants(job, case, kind, sets, strengths))
    before, *after = (case.judge.right(written, full, case.test) for written in (full, *texts))
    return before, np.stack(after).reshape(len(strengths), len(sets), len(case.test))


def variants(job: Job, case: Case, kind: str, sets: Sets, strengths: Sequence[float]) -> dict[str, Any]:
    """What `generate` is given: gates or shifts `[S·R, …]`, strength by strength, and where they act."""
    if kind == "amplify":
        gates = [mask_gates(heads, case.model.shape, strength) for strength in strengths for heads in sets]
        return {"gates": np.stack(gates)}
    right_from_wrong = contrast(case.model, case.find, case.judge, lambda: case.write(job, case.find)[0])
    shifts = [right_from_wrong.shifts(heads, strength) for strength in strengths for heads in sets]
    # As in the source: the prompt is read undisturbed, what is written is pushed.
    return {"shifts": np.stack(shifts), "positions": "last"}


def contrast(model: Model, find: Task, judge: Judge, write: Callable[[], list[str]]) -> Directions:
    """Directions from wrong to right, from examples that are not tested.

    With foils: the prompt with its right answer against the prompt with its wrong ones, at the answer's last
    token. Without: prompts that the model answers rightly against those that it does not, at their last token.
    """
    if all(example.foils for example in find):
        right = [example.prompt + example.target for example in find]
        wrong = [example.prompt + foil for example in find for foil in example.foils]
        return directions(model, right, wrong)
    texts = write()
    sides: tuple[list[str], list[str]] = [], []
    for example, answered in zip(find, judge.right(texts, texts, find) > 0, strict=True):
        sides[not answered].append(example.prompt)
    right, wrong = sides
    if not right or not wrong:
        raise HeadwiseError(
            f"the examples of {find.name!r} have no foils, and {model.name} answers "
            f"{'all' if right else 'none'} of {len(find)} correctly, so there is no direction from wrong to correct "
            "answers; give foils or other examples"
        )
    return directions(model, right, wrong)


def intervention_rows(
    kind: str,
    strengths: Sequence[float],
    before: np.ndarray,
    after: np.ndarray,
    groups: Sequence[str | None] | None = None,
) -> pd.DataFrame:
    """Rows from right answers before `[E]` and after `[S, R, E]`; groups `[E]` of the examples, if some share one."""
    low, high = stats.metric_interval(before[:, None], groups=groups)
    rows = []
    for strength, values in zip(strengths, after, strict=True):
        lo, hi = stats.crossed_interval(values, groups=groups)
        less, more = stats.crossed_interval(values, before=before, groups=groups)
        row = {"kind": kind, "strength": float(strength)}
        row |= {"before": before.mean(), "before_lo": low[0], "before_hi": high[0]}
        row |= {"after": values.mean(), "lo": lo, "hi": hi, "change": values.mean() - before.mean()}
        row |= {"change_lo": less, "change_hi": more, "n": len(before), "draws": len(values)}
        rows.append(row)
    return pd.DataFrame(rows)


@step(
    unit=NEW_TOKEN,
    cost=lambda case, sets, strengths, **_: len(sets) * len(strengths) * len(case.test) * case.max_new_tokens,
    label="{kind} on {case.test.name} with {case.model.name}",
)
def strengthen(
    job: Job, case: Case, kind: str, sets: Sets, strengths: list[float], full: list[str]
) -> pd.DataFrame:
    """Accuracy before and after, of the order's first heads and of random ones: rows of `interventions`."""
    before, after = strengthened(job, case, kind, sets, strengths, full)
    tables = []
    for series, values in (("top", after[:, :1]), ("random", after[:, 1:])):
        rows = intervention_rows(kind, strengths, before, values, case.test.shared_groups())
        first = {"model": case.model.name, "task": case.test.name, "series": series, "k": len(sets[0])}
        tables.append(pd.DataFrame(first, index=rows.index).join(rows))
    return pd.concat(tables, ignore_index=True).assign(metric=ACCURACY, reference=REFERENCE)
