"""The examples behind a number of a chart: the value of each, its prompt and target, and what the model wrote.

A mark of a chart says which rows of the run's per-example tables are behind it (`Line.examples`). These rows make a
*set*; a set has a *point* for each head, k or model that a reader can click. A page holds a part of a large run, and
says which.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from headwise.charts.interactive import json_numbers
from headwise.tables.frames import Tables, groups, head_names, rows_where, table_of

HEADS = 60
"""Most heads of a map with examples: those with the largest mean values."""
EXAMPLES = 64
"""Most examples of a point: half of them with the highest values, half with the lowest."""
LETTERS = 500
"""Most characters of a prompt (its end) and of a written text (its beginning)."""
MOST = 4_000_000
"""Characters of all values and texts of a page; later sets are left out."""
_TEXTS = ("prompt", "target", "foils")


class ExampleSets:
    """The sets of a page, each added when a chart first refers to it."""

    def __init__(self) -> None:
        self.sets: list[dict[str, Any]] = []
        self.inputs: list[dict[int, list[str]]] = []
        self._numbers: dict[Hashable, int | None] = {}
        self._inputs: dict[Hashable, int | None] = {}
        self._size = 0

    def add(self, run: int, tables: Tables, columns: Mapping[str, str]) -> int | None:
        """The number of the set with these values in these columns; None where the run has no such rows."""
        key = (run, *columns.items())
        if key not in self._numbers:
            entry = (
                self._answers(tables, columns) if "condition" in columns else self._set(run, tables, columns)
            )
            self._numbers[key] = None
            if entry is not None:
                self._numbers[key] = len(self.sets)
                self.sets.append(
                    {"run": run, "columns": dict(columns), **entry, **self._within_budget(entry["points"])}
                )
        return self._numbers[key]

    def _within_budget(self, points: dict[str, Any]) -> dict[str, Any]:
        self._size += sum(len(str(point)) for point in points.values())
        return {} if self._size <= MOST else {"points": {}, "omitted": len(points)}

    def _set(self, run: int, tables: Tables, columns: Mapping[str, str]) -> dict[str, Any] | None:
        """Values of the table `examples`: of every head where the columns name a method, else of every k."""
        rows = _matching(table_of(tables, "examples"), columns)
        if rows.empty:
            return None
        of_heads = "method" in columns
        rows = rows.assign(
            point=head_names(rows.astype({"layer": int, "head": int})) if of_heads else rows["k"]
        )
        names, left = list(dict.fromkeys(rows["point"])), 0
        if of_heads and len(names) > HEADS:
            means = rows.groupby("point", sort=False)["value"].mean().abs()
            names, left = (
                list(means.sort_values(ascending=False, kind="stable").index[:HEADS]),
                len(names) - HEADS,
            )
        texts = table_of(tables, "texts") if not of_heads else pd.DataFrame()
        texts = _matching(texts, columns)
        written = {name: _first_draw(part) for name, part in groups(texts, "k")}
        by_point = dict(groups(rows, "point"))
        points = {_key(name): _point(by_point[name], written.get(name)) for name in names}
        kind, part = ("head", "scores") if of_heads else ("k", "curves")
        entry = {
            "label": _label(columns),
            "unit": str(rows["metric"].iloc[0]),
            "left": left,
            "points": points,
        }
        entry |= {"kind": kind, "inputs": self._input(run, tables, columns, part)}
        if len(texts):
            full = _first_draw(_matching(table_of(tables, "texts"), {**_pair(columns), "series": "full"}))
            entry["full"] = dict(zip(full.index.tolist(), map(_start, full), strict=True))
        return entry

    def _answers(self, tables: Tables, columns: Mapping[str, str]) -> dict[str, Any] | None:
        """Rows of the table `answers`, a point for each model; a problem asked with several seeds has several rows."""
        rows = _matching(table_of(tables, "answers"), columns)
        if rows.empty:
            return None
        rows = rows.rename(columns={"problem": "example", "right": "value"})
        points = {str(model): _point(part, _first_draw(part)) for model, part in groups(rows, "model")}
        questions = rows.drop_duplicates("example")
        self.inputs.append(
            {
                int(number): [_end(question), str(gold), ""]
                for number, question, gold in zip(
                    questions["example"], questions["question"], questions["gold"], strict=True
                )
            }
        )
        answers = {"label": _label(columns), "unit": "right", "left": 0, "points": points}
        return answers | {"kind": "model", "inputs": len(self.inputs) - 1}

    def _input(self, run: int, tables: Tables, columns: Mapping[str, str], part: str) -> int | None:
        """The number of the prompts and targets behind these rows; None where the run has not stored them."""
        key = (run, *_pair(columns).items(), part)
        if key not in self._inputs:
            rows = _matching(table_of(tables, "inputs"), {**_pair(columns), "part": part})
            self._inputs[key] = len(self.inputs) if len(rows) else None
            if len(rows):
                texts = rows.drop_duplicates("example")[["example", *_TEXTS]].itertuples(index=False)
                self.inputs.append({int(e): [_end(p), str(t), _end(f)] for e, p, t, f in texts})
        return self._inputs[key]


def _pair(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: columns[name] for name in ("model", "task") if name in columns}


def _matching(table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The rows with these values; a column that the table does not have restricts nothing."""
    return rows_where(table, **{name: value for name, value in columns.items() if name in table})


def _label(columns: Mapping[str, str]) -> str:
    return ", ".join(
        columns[name] for name in ("task", "method", "series", "condition", "model") if name in columns
    )


def _key(point: Any) -> str:
    """As the chart calls the point: a head's name, or k."""
    return point if isinstance(point, str) else f"{point:g}"


def _point(rows: pd.DataFrame, texts: pd.Series | None) -> dict[str, Any]:
    """Examples and values (means over draws or seeds), the highest first; texts of the first draw."""
    values = rows.groupby("example")["value"].mean().sort_values(ascending=False, kind="stable")
    total = len(values)
    if total > EXAMPLES:
        values = pd.concat([values[: EXAMPLES // 2], values[-EXAMPLES // 2 :]])
    entry: dict[str, Any] = {
        "e": [int(number) for number in values.index],
        "v": json_numbers(values, 4),
        "n": total,
    }
    if texts is not None:
        entry["t"] = [_start(texts.get(number, "")) for number in values.index]
    return entry


def _first_draw(texts: pd.DataFrame) -> pd.Series:
    """What was written on each example in the first draw."""
    return texts.drop_duplicates("example").set_index("example")["text"]


def _end(text: Any) -> str:
    return str(text) if len(str(text)) <= LETTERS else "…" + str(text)[1 - LETTERS :]


def _start(text: Any) -> str:
    return str(text) if len(str(text)) <= LETTERS else str(text)[: LETTERS - 1] + "…"
