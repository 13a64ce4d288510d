"""The logit lens: what the model would answer if it ended after each of its blocks (nostalgebraist 2020).

`model/outputs/stream.py` gives the logits. Early blocks write for later ones to read, not for the unembedding: a low
number there does not say that nothing is known yet.

S stages (the embeddings, then every block), E examples, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from headwise import stats
from headwise.display import html_table
from headwise.metrics import metric as metric_named
from headwise.model.forward.run import Pass
from headwise.model.forward.schedule import batches
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.outputs.stream import stage_logits
from headwise.model.tokens.encode import pad_right
from headwise.tasks.opening import TaskLike, as_task

INPUT_LAYER = -1
"""The layer of the first stage in tables: the embeddings, before any block."""


@dataclass(frozen=True, repr=False)
class Lens:
    """A metric read from the residual stream after each block, with its value on every example."""

    values: np.ndarray
    """`[S, E]`: the first row of the embeddings, the last of the whole model."""
    tokens: list[list[str]] = field(repr=False)
    """`[S][E]`: the token with the largest logit, at the first scored position."""
    found: np.ndarray = field(repr=False)
    """`[S, E]`: whether that token is the target's."""
    model: str
    task: str
    metric: str
    groups: Sequence[str | None] | None = field(default=None, repr=False)

    def table(self) -> pd.DataFrame:
        """One row per stage (layer −1: the embeddings): the metric's mean with its 95 % interval, the share of examples
        with the target on top, and the tokens that are on top most often."""
        lo, hi = stats.metric_interval(self.values.T, groups=self.groups)
        layers = np.arange(INPUT_LAYER, len(self.values) - 1)
        numbers = {"value": self.values.mean(1), "lo": lo, "hi": hi, "target_on_top": self.found.mean(1)}
        tops = [", ".join(f"{token!r} ×{n}" for token, n in Counter(of).most_common(3)) for of in self.tokens]
        columns = {"n": self.values.shape[1], "metric": self.metric, "top_tokens": tops}
        return pd.DataFrame({"layer": layers, **numbers, **columns})

    def plot(self, **options: Any) -> Any:
        """The metric against the layer, with its interval; returns the matplotlib figure."""
        from headwise.charts.chart import Axis, Chart, Line, Panel, Rule, whole_ticks
        from headwise.charts.static import figure

        rows = self.table()
        line = Line(x=rows["layer"], y=rows["value"], lo=rows["lo"], hi=rows["hi"], marker="circle", size=3)
        ticks = [INPUT_LAYER, *whole_ticks(len(rows) - 1, 8)[1:]]
        x = Axis(label="After layer", ticks=ticks, names=["input", *map(str, ticks[1:])])
        y = Axis(label=f"{self.metric}, 95 % interval", grid=True)
        panel = Panel(marks=[Rule(at=0.0), line], x=x, y=y)
        words = {"title": f"Logit lens on {self.task}, {self.model}, n = {self.values.shape[1]}"}
        return figure(Chart(panels=[panel], **{**words, **options}))

    def _lines(self) -> list[tuple[str, str, str, str]]:
        """Stage, metric, share with the target on top and tokens on top, in words."""
        lines = []
        for row in self.table().to_dict("records"):
            value = f"{row['value']:+.3f} [{row['lo']:+.3f}, {row['hi']:+.3f}]"
            lines.append((_stage(row["layer"]), value, f"{row['target_on_top']:.0%}", row["top_tokens"]))
        return lines

    def _title(self) -> str:
        n = self.values.shape[1]
        return f"{self.metric} on {self.task}, {self.model}, n = {n}, mean with 95 % interval"

    def __repr__(self) -> str:
        lines = ["{:>8}  {}  target on top {:>4}: {}".format(*line) for line in self._lines()]
        return "\n  ".join([f"Lens({self._title()}:", *lines]) + ")"

    def _repr_html_(self) -> str:
        columns = ["after", self.metric, "target on top", "on top most often"]
        return html_table(self._title(), columns, self._lines())


@dataclass(frozen=True, repr=False)
class PromptLens:
    """The token with the largest logit after each block, at every position of one prompt."""

    prompt: list[str]
    """The prompt's tokens."""
    tokens: list[list[str]]
    """`[S][T]`: the likeliest next token."""
    probabilities: np.ndarray  # S, T
    """Its probability."""
    model: str

    def table(self) -> pd.DataFrame:
        """One row per stage, one column per position: the likeliest next token. The index is the layer."""
        columns = [f"{position}: {token}" for position, token in enumerate(self.prompt)]
        layers = pd.Index([_stage(layer) for layer in range(INPUT_LAYER, len(self.tokens) - 1)], name="after")
        return pd.DataFrame(self.tokens, index=layers, columns=columns)

    def __repr__(self) -> str:
        rows = zip(self.table().index, self.tokens, strict=True)
        lines = [f"{stage:>8}  " + " ".join(map(repr, row)) for stage, row in rows]
        title = f"PromptLens({self.model}, {''.join(self.prompt)!r}, likeliest next token:"
        return "\n  ".join([title, *lines]) + ")"

    def _repr_html_(self) -> str:
        table = self.table()
        rows = ([stage, *row] for stage, row in zip(table.index, self.tokens, strict=True))
        return html_table(f"Likeliest next token, {self.model}", ["after", *table.columns], rows)


def lens(
    model: Model, task: TaskLike, *, metric: str | None = None, batch_tokens: int | None = None
) -> Lens | list[PromptLens]:
    """The logit lens: what the residual stream says after the embeddings and after each block.

    task: a task, or what `hw.task` makes one of, for the metric after each block with its intervals; or a list of
        texts, for the likeliest next token after each block at every position, a result for each text.
    metric: by default that of the task.

    >>> hw.lens(model, "ioi").plot()                                          # doctest: +SKIP
    >>> hw.lens(model, ["The cat sat on the"])[0].table()                     # doctest: +SKIP
    """
    if isinstance(task, list | tuple) and task and all(isinstance(text, str) for text in task):
        return _of_prompts(model, list(task), batch_tokens or model.batch_tokens)
    opened = as_task(task, model, {})
    chosen = metric_named(metric or opened.metric)
    engine = Engine(model, opened, chosen, batch_tokens=batch_tokens)
    stages = len(model.hooks.blocks) + 1
    values = np.full((stages, len(engine.rows)), np.nan)
    top = np.zeros(values.shape, dtype=int)
    for numbers, block in engine.blocks():
        ids, positions = block.tensors["ids"], block.tensors["positions"]
        with torch.inference_mode():
            full = model.run_whole(Pass(ids=ids, scored=positions)).logits if chosen.compares else None
            for stage, logits in enumerate(stage_logits(model, ids, positions)):
                values[stage, numbers] = chosen.per_row(block.scored(logits, full)).double().cpu().numpy()
                top[stage, numbers] = logits[:, 0].argmax(-1).cpu().numpy()
    first = [next(n for n, row in enumerate(engine.rows) if row.example == e) for e in range(len(opened))]
    tokens = [[model.text.readable_token(int(token)) for token in of_stage[first]] for of_stage in top]
    found = top[:, first] == np.array([engine.rows[n].tokens[0] for n in first])
    combined = chosen.combine(engine.rows, values, len(opened))
    return Lens(combined, tokens, found, model.name, opened.name, chosen.name, opened.shared_groups())


def _of_prompts(model: Model, prompts: list[str], batch_tokens: int) -> list[PromptLens]:
    ids = model.text.encode_whole(prompts)
    results: dict[int, PromptLens] = {}
    for numbers in batches([len(of_prompt) for of_prompt in ids], batch_tokens):
        batch = pad_right([ids[n] for n in numbers]).to(model.device)
        positions = torch.arange(batch.shape[1], device=model.device).expand_as(batch)
        with torch.inference_mode():
            likeliest = [of.softmax(-1).max(-1) for of in stage_logits(model, batch, positions)]
        for row, n in enumerate(numbers):
            length = len(ids[n])
            words = [
                [model.text.readable_token(int(t)) for t in of.indices[row, :length]] for of in likeliest
            ]
            share = np.stack([of.values[row, :length].double().cpu().numpy() for of in likeliest])
            results[n] = PromptLens(model.text.readable(ids[n]), words, share, model.name)
    return [results[n] for n in range(len(prompts))]


def _stage(layer: int) -> str:
    return "input" if layer == INPUT_LAYER else f"layer {layer}"
