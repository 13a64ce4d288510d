"""What computes each kind of cell of the study `backups`: engines of both halves in, tables out.

E examples, K numbers of removed heads, R draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise import stats
from headwise.heads import Head, Order, head_list, mask_gates, ones, ranked
from headwise.heads.controls import control_sets
from headwise.model.measure.engine import Engine
from headwise.runs import Cell, CellResult
from headwise.scores.interactions.estimate import agreement_with_estimate, estimated_interactions
from headwise.scores.interactions.freezing import freezing, freezing_table
from headwise.scores.interactions.groups import group_table
from headwise.scores.interactions.pairs import Unit, all_pairs, pair_effects
from headwise.scores.interactions.result import Interactions
from headwise.scores.interactions.sets import (
    backup_table,
    candidates_after,
    conditional_effects,
    effects_given,
    greedy_order,
    primary_set,
)
from headwise.studies.backups.tables import GREEDY, RANDOM, SINGLE, agreement_row, curve_rows, matrix_heads
from headwise.studies.tables import long_table

MOST_GROUPS = 6
"""Groups that are tested, the strongest of the finding half."""


class Setting(NamedTuple):
    """What a cell is measured with."""

    find: Engine
    test: Engine
    single: np.ndarray
    """Effects of single heads on the finding half `[E, heads]`."""
    test_numbers: np.ndarray
    """Of the examples of the testing half in the task."""
    seed: int

    @property
    def heads(self) -> list[Head]:
        return self.find.model.heads()


def _metric(engine: Engine) -> str:
    return engine.metric.name


def _groups(engine: Engine) -> Any:
    return engine.task.shared_groups()


def find_primary(s: Setting, cell: Cell) -> CellResult:
    """The greedy primary set on the finding half, or the heads that the settings name."""
    given = head_list(cell.settings["primary"])
    if not given:
        most = cell.settings["primary_heads"]
        table = primary_set(s.find, s.single, s.heads, most=most, groups=_groups(s.find))
        return CellResult({"primary": table.assign(metric=_metric(s.find))})
    rows = []
    for step, head in enumerate(given):
        (effect,) = conditional_effects(s.find, given[:step], [head])
        lo, hi = stats.effect_interval(effect, groups=_groups(s.find))
        p = float(stats.sign_flip(effect[:, None], groups=_groups(s.find), seed=s.seed)[0])
        single = s.single[:, s.heads.index(head)].mean()
        row = {"step": step + 1, "layer": head.layer, "head": head.head, "single": single}
        row |= {"conditional": effect.mean(), "lo": float(lo), "hi": float(hi), "p": p, "q": p}
        rows.append(row | {"candidates": 1, "accepted": True, "n": len(effect)})
    return CellResult({"primary": pd.DataFrame(rows).assign(metric=_metric(s.find))})


def find_order(s: Setting, cell: Cell) -> CellResult:
    """Heads in the order of greedy joint removal, on the finding half."""
    order = greedy_order(s.find, s.single, s.heads, cell.settings["length"])
    rows = {"series": GREEDY, "place": range(len(order)), "layer": [h.layer for h in order]}
    return CellResult({"orders": pd.DataFrame(rows | {"head": [h.head for h in order]})})


def find_backups(s: Setting, cell: Cell) -> CellResult:
    """Each candidate's effect alone and given the primary set, on the testing half."""
    removed = head_list(cell.settings["primary"])
    candidates = _screened(s, removed, candidates_after(s.heads, removed), cell.settings["candidates"])
    effects = effects_given(s.test, removed, candidates)
    how: dict[str, Any] = {"groups": _groups(s.test), "seed": s.seed}
    table = backup_table(effects, candidates, least=cell.settings["least"], **how)
    tables = {"backups": table.assign(metric=_metric(s.test))}
    axes: list[dict[str, Any]] = [
        {"example": s.test_numbers},
        {"layer": [h.layer for h in candidates], "head": [h.head for h in candidates]},
    ]
    about = {"method": "backup", "metric": _metric(s.test)}
    tables["examples"] = long_table(about, axes, {"value": effects.interaction})
    if s.test.metric.first_order:
        estimate = _estimate_given(s.test, removed, candidates)
        found = agreement_with_estimate(effects.interaction.mean(axis=0), estimate)
        tables["agreement"] = pd.DataFrame([agreement_row(found, "backups")])
        estimates = pd.DataFrame(
            {"layer": [h.layer for h in candidates], "head": [h.head for h in candidates]}
        )
        tables["backups"] = tables["backups"].merge(estimates.assign(estimate=estimate), on=["layer", "head"])
    return CellResult(tables)


def _estimate_given(engine: Engine, removed: Order, candidates: Order) -> np.ndarray:
    """The mean first-order estimate of each candidate's difference where the set is removed `[C]`."""
    units = [tuple(removed), *((head,) for head in candidates)]
    pairs = np.array([[0, number] for number in range(1, len(units))])
    return estimated_interactions(engine, units, pairs, both=False).mean(axis=0)


def _screened(s: Setting, removed: Order, candidates: Order, most: int | None) -> Order:
    """At most so many candidates: those whose effect grows most by the first-order estimate on the finding half; where
    the metric has no gradient, those with the largest effect alone."""
    if most is None or len(candidates) <= most:
        return candidates
    if s.find.metric.first_order:
        values = _estimate_given(s.find, removed, candidates)
    else:
        values = np.abs([s.single[:, s.heads.index(head)].mean() for head in candidates])
    return sorted(ranked(candidates, values)[:most])


def measure_matrix(s: Setting, cell: Cell) -> CellResult:
    """Interactions of every two of the first heads, on the finding half."""
    removed, mean = head_list(cell.settings["primary"]), s.single.mean(axis=0)
    estimate = np.zeros(len(s.heads))
    if removed and s.find.metric.first_order:
        estimate = _estimate_given(s.find, removed, s.heads)
    heads = matrix_heads(s.heads, mean, estimate, removed, min(cell.settings["first"], len(s.heads)))
    units: list[Unit] = [(head,) for head in heads]
    pairs = all_pairs(len(heads))
    effects = pair_effects(s.find, units, pairs)
    places = [s.heads.index(head) for head in heads]
    about = (s.find.model.name, s.find.task.name, _metric(s.find), s.find.reference)
    found = Interactions(
        units, pairs, s.single[:, places], effects.interaction, *about, groups=_groups(s.find)
    )
    return CellResult({"interactions": found.table()})


def measure_curve(s: Setting, cell: Cell) -> CellResult:
    """The metric on the testing half as the first k heads of an order are removed together."""
    greedy, draws = head_list(cell.settings["order"]), cell.settings["draws"]
    single = ranked(s.heads, s.single.mean(axis=0))[: len(greedy)]
    ks = list(range(len(greedy) + 1))
    most = len(s.heads) // 2
    random = [
        [
            draw.heads
            for draw in control_sets("random", s.heads, greedy, [min(k, most) for k in ks], f"{s.seed}/{r}")
        ]
        for r in range(draws)
    ]
    sets = [greedy[:k] for k in ks] + [single[:k] for k in ks] + [heads for one in random for heads in one]
    shape = s.test.model.shape
    values = s.test.measure(
        np.stack([mask_gates(heads, shape) if heads else ones(shape) for heads in sets])
    ).values
    by_order = values.reshape(2 + draws, len(ks), -1)
    series = {GREEDY: by_order[:1], SINGLE: by_order[1:2], RANDOM: by_order[2:]}
    curves = curve_rows(series, ks, {"metric": _metric(s.test)}, _groups(s.test))
    axes: list[dict[str, Any]] = [{"series": [GREEDY, SINGLE]}, {"k": ks}, {"example": s.test_numbers}]
    about = {"action": "mask", "metric": _metric(s.test)}
    return CellResult({"curves": curves, "examples": long_table(about, axes, {"value": by_order[:2]})})


def freeze(s: Setting, cell: Cell) -> CellResult:
    """The proof by freezing, on the finding half: its examples did not choose the backups."""
    removed, backups = (head_list(cell.settings[name]) for name in ("primary", "backups"))
    found = freezing(s.find, removed, backups, draws=cell.settings["draws"], seed=s.seed)
    table = freezing_table(found, len(backups), groups=_groups(s.find))
    return CellResult({"freezing": table.assign(metric=_metric(s.find))})


def compare_groups(s: Setting, cell: Cell) -> CellResult:
    """The groups of the finding half, on the testing half, against random heads of the same layers."""
    groups = [head_list(group) for group in cell.settings["groups"]]
    how: dict[str, Any] = {"examples": _groups(s.test), "seed": s.seed}
    table = group_table(s.test, groups, draws=cell.settings["draws"], **how)
    return CellResult({"groups": table.assign(metric=_metric(s.test))})
