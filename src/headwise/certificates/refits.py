"""Checks 8, 10 and 11, which rank heads again: on half-samples, repelled from the set, and by other methods.

Who ranks is an argument: `hw.certify` calls `score` itself, the study `certify` makes a step of every fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headwise import stats
from headwise.certificates import checks
from headwise.certificates.checks import ALTERNATIVES, BESIDE, STABLE, Thresholds, row, untested
from headwise.certificates.reported import Bench
from headwise.heads import Head, Order, Scores
from headwise.model.model import Model
from headwise.scores.registry import method as method_named
from headwise.sweeps.explained import tracking
from headwise.sweeps.plan import duration, tokens_per_second
from headwise.tables.codec import stored
from headwise.tasks.examples import Task

STABLE_FITS, ALTERNATIVE_FITS = 10, 2
"""Half-samples of check 8, and fits of check 10."""
BESIDE_METHODS = ("attribution", "integrated", "random")
"""Score methods whose first heads stand beside the set in check 11; `ablation` can be asked for."""
CORE, SHELL = 0.9, 0.5
"""Shares of the half-samples from which on a head belongs to the core, or to the shell."""
MOST_JACCARD = 0.5
"""Overlap up to which two circuits count as different."""
REPELLED = "nested"
"""The method of check 10: it can be made to pay for heads."""


class RankingFit(NamedTuple):
    """One ranking that is needed."""

    task: Task
    method: str
    seed: int
    options: dict[str, Any]


Rank = Callable[[Sequence[RankingFit]], Sequence[Order]]
"""Gives the order of each fit; an empty one where there was no effect to rank heads by."""


@stored
@dataclass(frozen=True)
class Refits:
    """The first heads by further rankings, as many as the set has."""

    halves: list[Order] = field(default_factory=list)
    """Of half-samples of the examples that found the set."""
    repelled: list[Order] = field(default_factory=list)
    """Of fits that paid for the heads of the set and of the fits before."""
    beside: dict[str, Order] = field(default_factory=dict)
    """By other methods."""
    untested: dict[str, str] = field(default_factory=dict)
    """Why there are none: check -> reason."""


@dataclass(frozen=True, kw_only=True)
class RefitPlan:
    """Which rankings a certificate asks for."""

    finding: Task
    chosen: Order
    method: str | None
    """How the set was ranked; None where that is not known."""
    options: dict[str, Any]
    """Of the methods."""
    stable: int
    alternatives: int
    beside: Sequence[str]
    seed: int = 0

    def fits(self) -> list[RankingFit]:
        """Those that do not depend on one another: half-samples, then other methods."""
        options = self.options
        if options.get("rows"):  # half of the examples, each seen as often
            options = options | {"rows": max(1, options["rows"] // 2)}
        halves = [] if self.method is None else half_samples(self.finding, self.stable, self.seed)
        found = [
            RankingFit(half, self.method or "", self.seed + i, options) for i, half in enumerate(halves, 1)
        ]
        return found + [RankingFit(self.finding, name, self.seed, self.options) for name in self.beside]

    def repelled(self, avoid: Sequence[Head], number: int) -> RankingFit:
        """The fit that pays for these heads."""
        options = self.options | {"avoid": [str(head) for head in dict.fromkeys(avoid)]}
        return RankingFit(self.finding, REPELLED, self.seed + number, options)

    def carried_out(self, rank: Rank) -> Refits:
        """All of them."""
        size, fits = len(self.chosen), self.fits()
        orders = [order[:size] for order in rank(fits)]
        halves = len(fits) - len(self.beside)
        repelled: list[Order] = []
        for number in range(1, self.alternatives + 1):
            avoid = [*self.chosen, *(head for order in repelled for head in order)]
            repelled.append(rank([self.repelled(avoid, number)])[0][:size])
        beside = dict(zip(self.beside, orders[halves:], strict=True))
        return Refits(orders[:halves], repelled, beside, self.untested())

    def untested(self) -> dict[str, str]:
        reasons = {str(ALTERNATIVES): "left out (alternatives=0)", str(BESIDE): "left out (beside=())"}
        unknown = "how the set was ranked is not known; give scores and k, or method"
        reasons[str(STABLE)] = unknown if self.stable and self.method is None else "left out (stable=0)"
        return reasons

    def rows(self, model: Model, reference: str) -> int:
        """Forward rows of all fits, about."""
        fits = [*self.fits(), *(self.repelled(self.chosen, i) for i in range(self.alternatives))]
        return sum(method_named(fit.method).cost(model, fit.task, reference, fit.options) for fit in fits)


def announcement(bench: Bench, task: Task, rows: float, plan: RefitPlan | None) -> str:
    """What a certificate will cost: forward rows and, from a timed pass, minutes (on idle cores).

    rows: beside those of the plan.
    """
    length = float(np.mean([len(bench.model.tokens(example.prompt)) for example in task]))
    pace = tokens_per_second(bench.model, task) / length
    again = plan.rows(bench.model, bench.reference) if plan else 0
    planned = (
        f"certify: about {rows + again:,.0f} forward rows, {duration((rows + again) / pace)} on this device"
    )
    if plan is None or not again:
        return planned
    halves = len(plan.fits()) - len(plan.beside)
    return (
        f"{planned}, of which {duration(again / pace)} for checks 8, 10 and 11, which rank heads again ({halves} "
        f"half-samples, {plan.alternatives} fits that avoid the set, {len(plan.beside)} other methods); stable=0, "
        "alternatives=0 and beside=[] leave them out"
    )


def half_samples(task: Task, count: int, seed: int) -> Iterator[Task]:
    """`count` random halves of the examples, in pairs that share none."""
    for number in range(count):
        if number % 2 == 0:
            shuffled = np.random.default_rng([seed, number, 8]).permutation(len(task)).tolist()
            halves = task.take(shuffled).halves()
        yield halves[number % 2]


def order_of(scores: Scores) -> Order:
    """The order of the heads; empty where the method found nothing to rank them by."""
    return [] if scores.details.get("circuit") is False else scores.order()


# ---- what they show ------------------------------------------------------------------------------------------


def membership(chosen: Order, halves: Sequence[Order]) -> np.ndarray:
    """In which share of the half-samples each head of the set is among the first; NaN without half-samples."""
    counts = Counter(head for order in halves for head in order)
    return np.array([counts[head] / len(halves) if halves else np.nan for head in chosen])


def stable(chosen: Order, refits: Refits) -> list[dict[str, Any]]:
    """Check 8: how many heads of the set every half of the examples finds again."""
    if not (halves := refits.halves):
        return [untested(STABLE, "heads found again on half-samples", refits.untested[str(STABLE)])]
    shares = membership(chosen, halves)
    others = Counter(head for order in halves for head in order if head not in set(chosen))
    outside = sum(count >= SHELL * len(halves) for count in others.values())
    parts = {
        f"core: heads in at least {CORE:.0%} of half-samples": shares >= CORE,
        f"shell: heads in {SHELL:.0%} to {CORE:.0%}": (shares >= SHELL) & (shares < CORE),
        f"abstained from: heads in fewer than {SHELL:.0%}": shares < SHELL,
    }
    notes = ["", "", f"{outside} heads outside the set are in at least {SHELL:.0%}"]
    return [
        row(
            STABLE, measure, inside.sum(), (np.nan, np.nan), n=len(halves), note=_listed(chosen, inside, note)
        )
        for (measure, inside), note in zip(parts.items(), notes, strict=True)
    ]


def _listed(chosen: Order, inside: np.ndarray, note: str, most: int = 12) -> str:
    names = [str(head) for head, one in zip(chosen, inside, strict=True) if one]
    named = ", ".join(names[:most]) + (" …" if len(names) > most else "")
    return "; ".join(text for text in (named, note) if text)


def alternatives(
    bench: Bench, task: Task, refits: Refits, thresholds: Thresholds
) -> tuple[list[dict[str, Any]], list[Order]]:
    """Check 10: circuits of the same size that explain as much and share few heads, and the line that counts them."""
    measure = "other circuits of the same size, at least"
    tried = [order for order in refits.repelled if len(order) == len(bench.chosen)]
    if not refits.repelled:
        return [untested(ALTERNATIVES, measure, refits.untested[str(ALTERNATIVES)])], []
    found: list[Order] = []
    notes = []
    for order, value in zip(tried, _explained(bench, task, tried), strict=True):
        overlap = max(stats.jaccard(order, other) for other in (bench.chosen, *found))
        good = abs(1 - value) <= thresholds.sufficient and overlap <= MOST_JACCARD
        found += [order] if good else []
        names = _listed(order, np.ones(len(order), dtype=bool), "") if good else "not counted"
        notes.append(f"explained effect {value:.2f}, Jaccard {overlap:.2f}: {names}")
    more: dict[str, Any] = {"n": len(refits.repelled), "note": "; ".join(notes)}
    return [row(ALTERNATIVES, measure, len(found), (np.nan, np.nan), **more)], found


def _explained(bench: Bench, task: Task, sets: Sequence[Order]) -> list[float]:
    """The explained effect of each set."""
    full, (none, *kept) = bench.values(bench.engine(task), [bench.kept([]), *map(bench.kept, sets)])
    return [float((values - none).mean() / (full - none).mean()) for values in kept]


def beside(bench: Bench, task: Task, refits: Refits) -> list[dict[str, Any]]:
    """Check 11: as many heads by other methods, ranked on the examples that found the set."""
    measure = "explained effect of as many heads"
    if not (orders := refits.beside):
        return [untested(BESIDE, measure, refits.untested[str(BESIDE)])]
    gates = [bench.kept([]), *map(bench.kept, orders.values())]
    full, (none, *kept) = bench.values(bench.engine(task), gates)
    groups, effects, lines = task.shared_groups(), full - none, []
    for name, values in zip(orders, kept, strict=True):
        value, lo, hi = checks.share(values - none, effects, groups)
        followed = tracking(0, values, full, float(effects.mean()), groups=groups, seed=bench.seed)
        shared = len(set(orders[name]) & set(bench.chosen))
        note = (
            f"R² {followed.r2:.2f} [{followed.r2_lo:.2f}, {followed.r2_hi:.2f}]; {shared} heads are in both"
        )
        lines.append(row(BESIDE, f"{measure} by {name}", value, (lo, hi), n=len(task), note=note))
    return lines
