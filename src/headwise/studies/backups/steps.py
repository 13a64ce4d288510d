"""How many rows each kind of cell of the study `backups` runs: the total of its progress bar.

A variant of the gates on a row of an example is one step; so is a row of a backward pass.
"""

from __future__ import annotations

from headwise.heads import head_list
from headwise.model.measure.engine import Engine
from headwise.runs import Cell
from headwise.scores.interactions.sets import POOL, candidates_after
from headwise.studies.backups.measures import Setting


def primary_steps(s: Setting, cell: Cell) -> int:
    """At most: the greedy search ends where no head is significant."""
    named = len(cell.settings["primary"])
    greedy = sum(min(POOL, len(s.heads)) - taken for taken in range(1, cell.settings["primary_heads"]))
    return max(named or greedy, 0) * len(s.find.rows)


def order_steps(s: Setting, cell: Cell) -> int:
    heads, backward = len(s.heads), int(s.find.metric.differentiable)
    taken = range(1, min(cell.settings["length"], heads))
    return sum(min(POOL, heads - count) + backward for count in taken) * len(s.find.rows)


def backups_steps(s: Setting, cell: Cell) -> int:
    candidates = len(candidates_after(s.heads, head_list(cell.settings["primary"])))
    most = cell.settings["candidates"] or candidates
    screening = _estimate(s.find) if most < candidates else 0
    return screening + min(most, candidates) * len(s.test.rows) + _estimate(s.test)


def matrix_steps(s: Setting, cell: Cell) -> int:
    first = min(cell.settings["first"], len(s.heads))
    estimate = _estimate(s.find) if cell.settings["primary"] else 0
    return first * (first - 1) // 2 * len(s.find.rows) + estimate


def curve_steps(s: Setting, cell: Cell) -> int:
    return (2 + cell.settings["draws"]) * (len(cell.settings["order"]) + 1) * len(s.test.rows)


def freezing_steps(s: Setting, cell: Cell) -> int:
    """Nothing, the backups, all other heads and each draw frozen; the set with its backups."""
    return (4 + cell.settings["draws"]) * len(s.find.rows)


def groups_steps(s: Setting, cell: Cell) -> int:
    """Of each group and of each draw beside it: all heads together, and each alone."""
    variants = sum(1 + len(group) for group in cell.settings["groups"])
    return variants * (1 + cell.settings["draws"]) * len(s.test.rows)


def _estimate(engine: Engine) -> int:
    """Two backward passes, where the metric has a gradient at all gates 1."""
    return 2 * len(engine.rows) * int(engine.metric.first_order)
