"""From written texts to numbers: what is judged, the values per example, and the points of a curve.

R draws, E examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import unknown
from headwise.metrics import text_metric
from headwise.tasks import Example, Task

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*(?=\s|$)|\n")
_NUMBER = re.compile(r"[-−+]?[$€£]?\d[\d,]*(\.\d+)?\s*%?")
AUTO = "auto"
ACCURACY = "accuracy"
"""What the accuracy is called in the tables, whichever text metric decides it."""
ANSWERS = ("sentence", "text")


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
        return {ACCURACY: self.right(texts, task, full), self.similarity: similar}

    def right(self, texts: Sequence[str], task: Task, full: Sequence[str] | None = None) -> np.ndarray:
        """`[E]`: which texts answer rightly; the full model's texts matter to `agreement` alone."""
        measure = text_metric(self.accuracy)
        return measure.values(
            [answer_part(text, self.answer) for text in texts],
            gold=golds(task),
            full=[answer_part(text, self.answer) for text in full] if full is not None else None,
            against="gold" if "gold" in measure.against else None,
        )


def point_tables(
    texts: Sequence[Sequence[str]],
    full: Sequence[str],
    task: Task,
    judge: Judge,
    about: dict[str, object],
) -> dict[str, pd.DataFrame]:
    """The tables of one point: texts `[R][E]` as rows of `texts`, `examples` and `curves`.

    `about`: model, task, series, action, k. A curve's row has the mean over draws and examples and its
    interval over both; with several draws, each has a row of its own beneath.
    """
    groups = task.shared_groups()
    judged = [judge.values(written, full, task) for written in texts]
    curves, examples = [], []
    for metric in judged[0]:
        values = np.stack([one[metric] for one in judged])  # R, E
        lo, hi = stats.crossed_interval(values, groups=groups)
        shared = {**about, "metric": metric, "n": values.shape[1]}
        mean = {"value": values.mean(), "lo": lo, "hi": hi, "draw": None, "draws": len(values)}
        curves.append(shared | mean)
        lows, highs = stats.metric_interval(values.T, groups=groups)
        for draw, drawn in enumerate(values):
            if len(values) > 1:
                point = {"value": drawn.mean(), "lo": lows[draw], "hi": highs[draw], "draw": draw, "draws": 1}
                curves.append(shared | point)
            examples += [
                {**about, "draw": draw, "metric": metric, "example": e, "value": value}
                | ({} if groups is None else {"group": groups[e]})
                for e, value in enumerate(drawn)
            ]
    written = [
        {**about, "draw": draw, "example": e, "text": text}
        for draw, several in enumerate(texts)
        for e, text in enumerate(several)
    ]
    table = pd.DataFrame(curves)
    table["draw"] = table["draw"].astype("Int32")
    return {"curves": table, "examples": pd.DataFrame(examples), "texts": pd.DataFrame(written)}


def prompts(task: Task) -> list[str]:
    return [example.prompt for example in task]


def gold_text(example: Example) -> str:
    """The gold answer as people read it."""
    return " / ".join(answer.strip() for answer in (example.target, *example.also))
