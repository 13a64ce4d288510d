"""What the explorer reads of a run folder: maps to colour heads by, presets, and the rows that name one head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.section import section_of
from headwise.errors import HeadwiseError, flag, visible
from headwise.explorer.live import listed
from headwise.files import named_source
from headwise.heads import Head, heads_of, ranked
from headwise.model.model import Model
from headwise.runs.reader import RunReader
from headwise.tables.frames import by_size, cell_text, grid, groups, rows_where, table_of

NAMED = {
    "edges": "Edges into and out of this head (K and V belong to its group of query heads)",
    "interactions": "Joint effects with other heads",
    "backups": "As a backup: its effect alone, and with the primary set removed",
    "groups": "Groups of heads that back each other up",
}
"""Tables that name heads, with their titles."""
_COLUMNS = {
    "edges": ["task", "method", "sender", "receiver", "span", "score", "lo", "hi", "q", "n"],
    "interactions": ["task", "a", "b", "effect_a", "effect_b", "joint", "interaction", "lo", "hi", "q", "n"],
    "backups": ["task", "backup", "single", "conditional", "difference", "lo", "hi", "q", "n"],
    "groups": ["task", "heads", "joint", "sum", "excess", "excess_lo", "excess_hi", "q", "n"],
}
"""What is shown of each of them."""
_MOST_ROWS = 40
_SCORE_COLUMNS = ["task", "measure", "score", "lo", "hi", "q", "n"]


class RunData:
    """One run, as far as it is about the loaded model."""

    def __init__(self, path: Path, model: Model) -> None:
        self.run, self.model = RunReader(path), model
        with self.run.explained():
            heads = section_of(self.run.study, self.run.info["plugins"]).heads(self.run.tables)
            self.scores = self._mine(pd.DataFrame() if heads is None else heads)
            self._named = {name: self._mine(table_of(self.run.tables, name)) for name in NAMED}

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.run.made_with["settings"])

    def _mine(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the loaded model, where a table has several."""
        if "model" not in table or self.model.name not in set(table["model"]):
            return table if "model" not in table else table.iloc[:0]
        return table[table["model"] == self.model.name]

    def maps(self) -> list[dict[str, Any]]:
        """One map of scores per task and measure."""
        maps = []
        for (task, measure), part in groups(self.scores, "task", "measure"):
            values = self._grid(part)
            unit = str(part["unit"].iloc[0]) if "unit" in part and part["unit"].iloc[0] else ""
            names = {"name": f"{measure}, {task}", "task": str(task), "measure": str(measure), "unit": unit}
            maps.append({**names, "signed": bool((values < 0).any()), "values": listed(values)})
        return maps

    def _grid(self, part: pd.DataFrame) -> np.ndarray:
        """The scores as the map shows them: what is not a finite number of a head of the model is a gap."""
        numbers = part[["layer", "head", "score"]].apply(pd.to_numeric, errors="coerce").astype(float)
        places = numbers[["layer", "head"]]
        inside = numbers[((places >= 0) & (places < self.model.shape) & (places % 1 == 0)).all(axis=1)]
        heads = inside.drop_duplicates(["layer", "head"]).astype({"layer": int, "head": int})
        return grid(heads.replace([np.inf, -np.inf], np.nan), shape=self.model.shape)

    # ---- presets ---------------------------------------------------------------------------------------

    def presets(self) -> list[dict[str, Any]]:
        """Circuits (only these heads are kept), roles, and primary sets with their backups (these are switched off)."""
        return [*self._circuits(), *self._roles(), *self._backups()]

    def _circuits(self) -> Iterator[dict[str, Any]]:
        sizes, scores = (self._mine(table_of(self.run.tables, name)) for name in ("circuits", "scores"))
        needed = {"task", "series", "by", "k", "threshold", "defined"}
        for row in sizes.to_dict("records") if needed <= set(sizes.columns) else []:
            series, by = str(row["series"]), str(row["by"])
            of_task = rows_where(scores, task=row["task"], method=series.removesuffix(f" {by}"))
            if not row["defined"] or of_task.empty or not 0 <= row["k"] <= len(of_task):
                continue
            order = ranked(
                heads_of(of_task), of_task["score"].to_numpy(), "signed" if by == "unsigned" else by
            )
            heads = [str(head) for head in order[: int(row["k"])]]
            name = f"circuit of {row['task']}: keep {len(heads)} heads ({series}, {row['threshold']:.0%})"
            yield {"name": name, "action": "keep", "heads": heads}

    def _roles(self) -> Iterator[dict[str, Any]]:
        rows = self._mine(table_of(self.run.tables, "roles"))
        if not {"task", "layer", "head", "label"} <= set(rows.columns):
            return
        for task, part in groups(rows, "task"):
            # A head has the role that most seeds give it.
            labels = part.groupby(["layer", "head"])["label"].agg(lambda column: column.mode().iloc[0])
            for label in ("facilitating", "interfering", "irrelevant"):
                pairs = labels.index[labels == label]
                heads = [str(Head(int(layer), int(head))) for layer, head in pairs]
                if heads:
                    name = f"role on {task}: {label} ({len(heads)} heads off)"
                    yield {"name": name, "action": "off", "heads": heads}

    def _backups(self) -> Iterator[dict[str, Any]]:
        primary, tested = (self._mine(table_of(self.run.tables, name)) for name in ("primary", "backups"))
        if not {"task", "accepted"} <= set(primary.columns) or not {"task", "backup"} <= set(tested.columns):
            return
        for task, part in groups(primary, "task"):
            heads = [str(head) for head in heads_of(part[part["accepted"]])]
            if not heads:
                continue
            yield {"name": f"primary set of {task} ({len(heads)} heads off)", "action": "off", "heads": heads}
            found = [str(head) for head in heads_of(tested[(tested["task"] == task) & tested["backup"]])]
            both = [*heads, *(head for head in found if head not in heads)]
            if found:
                name = f"primary set of {task} and its backups ({len(both)} heads off)"
                yield {"name": name, "action": "off", "heads": both}

    # ---- one head --------------------------------------------------------------------------------------

    def rows_of(self, head: Head) -> list[dict[str, Any]]:
        """The rows of the run that are about one head: its scores, then tables that name it (edges, backups)."""
        tables = []
        if len(self.scores):
            mine = self.scores[(self.scores["layer"] == head.layer) & (self.scores["head"] == head.head)]
            tables.append(_table("Scores in this run", mine.reindex(columns=_SCORE_COLUMNS)))
        for name, title in NAMED.items():
            table = self._named[name]
            if len(table):
                shown = [column for column in _COLUMNS[name] if column in table]
                tables.append(_table(title, _largest_first(table[_names_head(table, head)])[shown]))
        return [table for table in tables if table["rows"]]

    # ---- tasks -----------------------------------------------------------------------------------------

    def tasks(self) -> list[str]:
        """The tasks of the run that can be opened again by their name."""
        settings = self.settings
        named = settings.get("tasks") or settings.get("task") or []
        return [visible(str(name)) for name in (named if isinstance(named, list | tuple) else [named])]


def model_of_run(path: Path, wanted: str | None) -> str:
    """The model that a run names; where it names several, the first, or the `wanted` one."""
    run = RunReader(path)
    settings = run.made_with["settings"]
    names = settings.get("models") or settings.get("model") or run.models
    names = [str(name) for name in (names if isinstance(names, list | tuple) else [names])]
    if wanted is not None:
        return next((name for name in names if named_source(name)[0] == wanted), wanted)
    if not names:
        raise HeadwiseError(
            f"the run {path} does not say which model it is about; give it with {flag('model')}"
        )
    return names[0]


def _names_head(table: pd.DataFrame, head: Head) -> pd.Series:
    """Which rows are about a head: by layer and head, or by a name such as L20H0, L20H0.Q or L20H0 L20H1."""
    if {"layer", "head"} <= set(table.columns):
        return (table["layer"] == head.layer) & (table["head"] == head.head)
    name = rf"(?:^|\s){head}(?:$|[\s.])"
    texts = table.select_dtypes(exclude=["number", "bool"]).astype(str)
    return texts.apply(lambda column: column.str.contains(name, regex=True)).any(axis=1)


def _largest_first(table: pd.DataFrame) -> pd.DataFrame:
    for column in ("score", "interaction", "difference", "excess"):
        if column in table:
            return by_size(table, column)
    return table


def _table(title: str, rows: pd.DataFrame) -> dict[str, Any]:
    rows = rows.replace("", None).dropna(axis=1, how="all").head(_MOST_ROWS)
    cells = [[_cell(value) for value in row] for row in rows.itertuples(index=False)]
    return {"title": title, "columns": [str(column) for column in rows.columns], "rows": cells}


def _cell(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return cell_text(value)
