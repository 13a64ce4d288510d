"""The card of one head, its scores, and `card`, which makes it without a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from headwise import stats
from headwise.cards.measured import STEPS, TABLES, HeadTables, measure_heads
from headwise.charts.card import PATTERNS, answer_row, by_source, sentences, signed_number, strongest
from headwise.charts.section import section_of
from headwise.display import counted, joined_tokens
from headwise.errors import HeadwiseError, unknown
from headwise.files import user_path
from headwise.heads import Head, head_list
from headwise.metrics import metric as metric_named
from headwise.model.model import Model
from headwise.names import ablation_name, method_name
from headwise.progress import Progress, reporting
from headwise.runs.reader import RunReader
from headwise.scores.run import score
from headwise.tables.frames import Tables, groups, table_of
from headwise.tasks import Task
from headwise.tasks import task as task_of

COLUMNS = ["study", "task", "measure", "score", "lo", "hi", "n", "q", "rank", "heads"]


def run_scores(path: str | Path, model: str, head: Head) -> pd.DataFrame:
    """The rows of one head in a run's table of heads; rank 1 is the largest absolute score of a task and measure."""
    run = RunReader(user_path(path))
    path = run.path
    with run.explained():
        rows = section_of(run.study, run.info["plugins"]).heads(run.tables)
        if rows is None or rows.empty:
            raise HeadwiseError(f"the run {path} has no scores of heads; leave the run out to compute them")
        if model not in set(rows["model"]):
            names = ", ".join(map(str, rows["model"].unique()))
            raise HeadwiseError(
                f"the run {path} has scores of {names}, not of {model}; give a run of this model"
            )
        of_model = rows[rows["model"] == model]
        grouped = of_model.groupby(["task", "measure"], sort=False)["score"]
        ranks = grouped.transform(lambda column: column.abs().rank(ascending=False, method="min"))
        of_model = of_model.assign(study=run.study, rank=ranks, heads=grouped.transform("size"))
        mine = (of_model["layer"] == head.layer) & (of_model["head"] == head.head)
        if not mine.any():
            raise HeadwiseError(f"the run {path} has no score of {head}; leave the run out to compute one")
        return of_model.loc[mine, COLUMNS].reset_index(drop=True)


def quick_scores(
    model: Model, task: Task, head: Head, measured: HeadTables, options: Mapping[str, Any]
) -> pd.DataFrame:
    """The head's exact ablation score, and its attribution score with the rank among all heads.

    Ablation of the one head has no rank and no q-value: these need all heads.
    """
    (effects,) = measured.effects
    lo, hi = stats.effect_interval(effects[:, None], groups=task.shared_groups(), metric=measured.metric)
    exact = {"score": float(effects.mean()), "lo": float(lo[0]), "hi": float(hi[0]), "n": len(effects)}
    names = {"study": "card", "task": task.name}
    rows: list[Any] = [{**names, "measure": method_name("ablation", measured.reference), **exact}]
    if metric_named(measured.metric).first_order:
        table = score(model, task, "attribution", progress=False, **options).table()
        rank = table["score"].abs().rank(ascending=False, method="min")
        names["measure"] = method_name("attribution", measured.reference)
        table = table.assign(rank=rank, heads=len(table), **names)
        rows += table[(table["layer"] == head.layer) & (table["head"] == head.head)].to_dict("records")
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


_PARTS = ("scores", *(name.removeprefix("card_") for name in TABLES))


@dataclass(frozen=True, repr=False)
class Card:
    """What is known of one head: it displays itself in a terminal and in a notebook; `plot` draws it.

    Logits are what the head itself adds, relative to the mean over the vocabulary, without anything that later layers
    make of its output.
    """

    model: str
    task: str
    head: Head
    n: int
    """Number of examples."""
    metric: str
    reference: str
    """The ablation type of the ablation score and of the examples."""
    tables: Mapping[str, pd.DataFrame]
    """`scores`, `examples`, `attention`, `tokens` and `patterns`; a part that the model does not allow is missing."""
    notes: tuple[str, ...] = ()
    """Why a part is missing."""

    def table(self, part: str = "scores") -> pd.DataFrame:
        """One of the card's tables: `scores`, `examples`, `attention`, `tokens` or `patterns`."""
        if part not in _PARTS:
            raise unknown("table of a card", part, _PARTS)
        return self.tables.get(part, pd.DataFrame())

    def plot(self) -> Any:
        """Draw attention and tokens of the strongest example, and the attention patterns; the matplotlib figure."""
        from headwise.charts.card import card_chart
        from headwise.charts.static import figure

        return figure(
            card_chart(
                f"{self.title} (effects: {ablation_name(self.reference)})",
                *(self.table(name) for name in ("attention", "tokens", "patterns")),
            )
        )

    @property
    def title(self) -> str:
        """Head, model and task."""
        return f"{self.head} of {self.model} on {self.task}"

    @property
    def lead(self) -> str:
        """How it was measured: examples, metric and reference."""
        return f"{counted(self.n, 'example')}, {self.metric}, {ablation_name(self.reference)}"

    @property
    def _heading(self) -> str:
        return f"{self.title} ({self.lead})"

    def __repr__(self) -> str:
        return as_text(self._heading, self.tables, self.notes)

    def _repr_html_(self) -> str:
        """In a notebook, the card with coloured prompts and tables."""
        return as_html(self._heading, self.tables, self.notes)


def card(
    model: Model,
    head: Head | str,
    task: Task | Any = None,
    *,
    n: int = 32,
    run: str | Path | None = None,
    examples: int = 3,
    progress: Progress = True,
    **options: Any,
) -> Card:
    """What one head does on a task: attention, tokens that it promotes and suppresses, patterns, scores, examples.

    head: "L23H3". task: a `Task`, or what `hw.task` takes (`n` examples of it). run: a run folder; the card then has
    the head's scores in that run. Without one, its ablation score and its attribution score on the task are computed.
    examples: how many examples are shown in each list. options: metric, reference, positions, seed, batch_tokens of the
    ablation, as in `hw.score`.

    >>> hw.card(model, "L23H3", task="ioi")     # doctest: +SKIP
    """
    if task is None:
        raise HeadwiseError(
            "a card needs a task to run the head on, such as hw.card(model, 'L23H3', task='ioi')"
        )
    heads = head_list(head)
    if len(heads) != 1:
        raise HeadwiseError(
            f"a card is of one head, such as 'L23H3', not of {len(heads)}; make one card for each"
        )
    model.check_heads(heads)
    (chosen,) = heads
    chosen_task = (
        task if isinstance(task, Task) else task_of(task, n, model=model, seed=options.get("seed", 0))
    )
    # A run that does not have this head is refused before anything is computed.
    scores = None if run is None else run_scores(run, model.name, chosen)
    steps = STEPS + (scores is None)
    with reporting(f"Card of {chosen}", steps, progress) as advance:
        measured = measure_heads(model, chosen_task, [chosen], examples=examples, advance=advance, **options)
        if scores is None:
            scores = quick_scores(model, chosen_task, chosen, measured, options)
            advance(1)
    tables = {"scores": scores, **{n.removeprefix("card_"): table for n, table in measured.tables.items()}}
    source = (len(chosen_task), measured.metric, measured.reference)
    return Card(model.name, chosen_task.name, chosen, *source, tables, tuple(measured.notes))


# ---- as text and as HTML ---------------------------------------------------------------------------------

_WIDTH = 14
_ATTENDED = 5
"""Tokens listed as attended to most."""


def as_text(title: str, tables: Tables, notes: Sequence[str]) -> str:
    """The card in about thirty lines; the tables are those of `Card.tables`."""
    lines = [title]
    lines += _block("scores", [_score(row) for row in table_of(tables, "scores").to_dict("records")])
    lines += _block("in words", sentences(table_of(tables, "tokens"), table_of(tables, "patterns")))
    lines += _block("patterns", [_pattern(row) for row in table_of(tables, "patterns").to_dict("records")])
    for example, attention in groups(table_of(tables, "attention"), "example"):
        tokens = table_of(tables, "tokens")
        listed = tokens[tokens["example"] == example] if len(tokens) else tokens
        inside = [f"{joined_tokens(answer_row(attention)['token'])!r}", f"attends to  {_attended(attention)}"]
        inside += [f"{words}  {_tokens(rows)}" for words, rows in _lists(listed)]
        lines += _block(f"example {example + 1}", inside)
    for source, rows in by_source(table_of(tables, "tokens")):
        inside = [f"{words}  {_tokens(part)}" for words, part in _lists(rows)]
        lines += _block("OV weights", [f"attending to {source!r}", *inside])
    for kind, rows in groups(table_of(tables, "examples"), "kind"):
        lines += _block(f"{kind} most", [_example(row) for row in rows.to_dict("records")])
    return "\n".join([*lines, *_block("note", list(notes))])


def as_html(title: str, tables: Tables, notes: Sequence[str]) -> str:
    """The card for a notebook: every text is escaped."""
    parts = [f"<h4>{escape(title)}</h4>"]
    shown_sentences = sentences(table_of(tables, "tokens"), table_of(tables, "patterns")) + list(notes)
    parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in shown_sentences) + "</ul>")
    parts.append(_html_table("Scores", table_of(tables, "scores")))
    shown = ["prompts", "pattern", "attention", "rank", "heads", "n"]
    parts.append(_html_table("Attention patterns", table_of(tables, "patterns").reindex(columns=shown)))
    for example, attention in groups(table_of(tables, "attention"), "example"):
        tokens = table_of(tables, "tokens")
        listed = tokens[tokens["example"] == example] if len(tokens) else tokens
        parts.append(
            f"<h5>Example {example + 1}: attention of the answer's position</h5>{_shaded(attention)}"
        )
        parts += [f"<p>{words}: {escape(_tokens(rows))}</p>" for words, rows in _lists(listed)]
    for source, rows in by_source(table_of(tables, "tokens")):
        parts += [
            f"<p>OV weights, {escape(repr(source))} {words}: {escape(_tokens(part))}</p>"
            for words, part in _lists(rows)
        ]
    shown = ["kind", "value", "prompt", "target", "foils"]
    parts.append(_html_table("Examples", table_of(tables, "examples").reindex(columns=shown)))
    return "".join(parts)


def _block(name: str, lines: list[str]) -> list[str]:
    """Lines with the name of the block before the first."""
    return [f"  {'' if place else name:<{_WIDTH}}{line}" for place, line in enumerate(lines)]


def _score(row: dict[Any, Any]) -> str:
    rank = f", rank {row['rank']:.0f} of {row['heads']:.0f}" if row["rank"] == row["rank"] else ""
    q = f", q = {row['q']:.2g}" if row["q"] == row["q"] else ""
    interval = f" [{signed_number(row['lo'])}, {signed_number(row['hi'])}]" if row["lo"] == row["lo"] else ""
    return f"{row['measure']} on {row['task']} {signed_number(row['score'])}{interval}{q}{rank}"


def _pattern(row: dict[Any, Any]) -> str:
    name = f"{PATTERNS.get(row['pattern'], row['pattern'])}, {row['prompts']}"
    return f"{name:<42}{row['attention']:.3f}  rank {row['rank']} of {row['heads']}"


def _attended(attention: pd.DataFrame) -> str:
    most = answer_row(attention).nlargest(_ATTENDED, "attention")
    tokens = ", ".join(f"{row['token']!r} {row['attention']:.2f}" for row in most.to_dict("records"))
    return f"{tokens} (from the position that predicts the answer)"


def _tokens(rows: pd.DataFrame) -> str:
    return ", ".join(f"{row['token']!r} {signed_number(row['logit'])}" for row in rows.to_dict("records"))


def _lists(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The promoted and the suppressed tokens, the strongest first."""
    for kind, words in (("promoted", "promotes  "), ("suppressed", "suppresses")):
        if len(part := strongest(rows, kind)):
            yield words, part


def _example(row: dict[Any, Any]) -> str:
    foils = f", not {row['foils']}" if row["foils"] else ""
    return f"{signed_number(row['value'])}  {row['prompt']!r} → {row['target']}{foils}"


def _shaded(attention: pd.DataFrame) -> str:
    """The prompt, each token shaded by the attention that it gets."""
    tokens = [
        f'<span style="background:rgba(31,95,168,{min(1.0, row["attention"]):.2f})" '
        f'title="{row["attention"]:.3f}">{escape(row["token"])}</span>'
        for row in answer_row(attention).to_dict("records")
    ]
    return f'<p style="white-space:pre-wrap">{"".join(tokens)}</p>'


def _html_table(title: str, table: pd.DataFrame) -> str:
    if not len(table):
        return ""
    return f"<h5>{title}</h5>" + table.to_html(
        index=False, float_format="{:.3g}".format, na_rep="–", border=0
    )
