"""Exact scores from as few examples as the question needs. Arrays and one function in, arrays out.

Attribution, known for every example, is the control variate: with y = exact − slope · attribution, a head's
score is slope · mean(attribution) + mean(y), and only mean(y) has to be sampled.

**The rule.** All heads share one random order of the examples. The first of it, the pilot, fix each head's
slope and how many further examples it needs; these fresh ones alone estimate the part that is not known yet:

    estimate = slope · mean of attribution over all N + (sum of y over the pilot + (N − m) · mean of fresh y) / N

Nothing that the fresh values say decides anything, so the estimate has no bias, whatever the distribution. A
rule that stops when the interval looks narrow enough would stop too early exactly where the interval is too
narrow; a confidence sequence, valid at any time, is wide enough for the worst time and covers far more often
than it claims. The width is the pilot's too (Stein 1945, Annals of Mathematical Statistics 16): t with m − 1
degrees of freedom times the pilot's spread of y, so it keeps what was asked by construction. That spread is
taken example by example from a slope fitted without it, and drawn towards what the variance of attribution
lets expect (`control.moderated`); the degrees of freedom this is worth are not claimed, which pays for tails
heavier than normal. With the mean over the given examples as target the variance is
((N − m)/N)² · (1/n − 1/(N − m)) · S²(y): nothing once every example is run. For the population S²(exact)/N
comes on top.

**Top k.** The pilot plans what each head needs to be told from the k-th place; the intervals then hold for all
heads at once (Bonferroni). Heads still undecided are planned anew from all that is known of them, then run on
every example, where nothing is left to doubt.

N examples, K heads, m pilot examples, n fresh ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headwise.errors import HeadwiseError
from headwise.scores.adaptive.control import left_out_spread, moderated, slopes
from headwise.scores.adaptive.race import KEYS, Race, distance_to_place, key_interval

Exact = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From head numbers `[k]` and example numbers `[e]` to exact values `[e, k]`."""

PILOT = 8
LEAST_FRESH = 1
"""Examples of the pilot, and the fewest fresh ones: the width comes from the pilot, so one can be enough."""
LEVEL = 0.95
"""Of the intervals in every table."""
PLANNED_LOOKS = 2
"""How often undecided heads of a top k are planned before they are run on every example."""


@dataclass(frozen=True)
class Adaptive:
    """What was found, a number per head `[K]`, and what it took."""

    values: np.ndarray
    stderr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    """The 95 % interval of the target."""
    p: np.ndarray
    """Two-sided, of the mean over examples like these being 0."""
    n: np.ndarray
    """Examples run for the head."""
    slopes: np.ndarray
    examples: np.ndarray
    """Exact values `[N, K]`; NaN where none was run."""
    top: np.ndarray | None = None
    """The heads of the top k, largest first."""

    @property
    def pairs(self) -> int:
        """(head, example) pairs run."""
        return int(self.n.sum())


def to_precision(
    exact: Exact,
    attribution: np.ndarray | None,
    shape: tuple[int, int],
    precision: float,
    *,
    confidence: float = LEVEL,
    population: bool = False,
    crowding: float = 1.0,
    seed: int = 0,
    call_cost: float = 0.0,
) -> Adaptive:
    """Every head's score to ± `precision` at `confidence`, over `shape` = (N examples, K heads).

    attribution: `[N, K]`, or None for none. population: the interval is that of the mean over all examples
    like these; it cannot be narrower than N examples make it, and such heads are run on all of them.
    crowding: where examples come in groups, Σ size² / N: the most by which groups can widen the variance over
    examples like these (`crowding_of`). The mean over the given examples is not concerned.
    call_cost: what one call of `exact` costs besides its pairs, in pairs; it changes no number, only the time.
    """
    if not precision >= 0:
        raise HeadwiseError(f"the precision is {precision}; expected 0 or more, in the metric's unit")
    _check_confidence(confidence)
    ledger = _Ledger(exact, attribution, shape, seed, call_cost)
    ledger.extend(np.full(ledger.K, min(PILOT, ledger.N)))
    basis = ledger.basis()
    extra = crowding * basis.spread_exact / ledger.N if population else np.zeros(ledger.K)
    allowed = np.maximum((precision / _t(confidence, basis.df)) ** 2 - extra, 0)
    ledger.extend(basis.known + _fresh_for(allowed, basis, ledger.N))
    return _result(ledger, ledger.estimate(basis), basis.slopes, population, crowding)


def crowding_of(groups: Sequence[Hashable] | None) -> float:
    """Σ size² / N over the groups of N examples: how much wider the variance of a mean is if groups are all alike.

    >>> crowding_of(["a", "a", "b", "b"]), crowding_of(["a", None, None]), crowding_of(None)
    (2.0, 1.0, 1.0)
    """
    if groups is None:
        return 1.0
    sizes = Counter((place,) if name is None else name for place, name in enumerate(groups)).values()
    return sum(size**2 for size in sizes) / len(groups)


def top_k(
    exact: Exact,
    attribution: np.ndarray | None,
    shape: tuple[int, int],
    k: int,
    *,
    confidence: float = LEVEL,
    order: str = "signed",
    population: bool = False,
    crowding: float = 1.0,
    seed: int = 0,
    call_cost: float = 0.0,
) -> Adaptive:
    """The k heads whose mean over the given examples is largest, all k right with at least `confidence`.

    order: largest by value (`signed`), by size (`absolute`), or most negative (`hinders`). population: only
    what the standard errors are of; the ranking is that of the given examples.
    """
    _check_confidence(confidence)
    if order not in KEYS:
        raise HeadwiseError(f"the order is {order!r}; expected one of {', '.join(KEYS)}")
    ledger = _Ledger(exact, attribution, shape, seed, call_cost)
    if not 1 <= k < ledger.K:
        raise HeadwiseError(f"a top k of {ledger.K} heads needs k from 1 to {ledger.K - 1}, not {k}")
    ledger.extend(np.full(ledger.K, min(PILOT, ledger.N)))
    first = basis = ledger.basis()
    level = 1 - (1 - confidence) / (ledger.K * PLANNED_LOOKS)
    found = ledger.known_so_far(basis)
    race = Race(k, ledger.K)
    undecided = np.ones(ledger.K, bool)
    for look in range(PLANNED_LOOKS + 1):
        if look < PLANNED_LOOKS:
            half_gap = distance_to_place(KEYS[order](found.values), k) / 2
            fresh = np.full(ledger.K, LEAST_FRESH)
            for _ in range(3):  # the spread of the fresh examples will count, so more of them need less
                allowed = (half_gap / _t(level, basis.df + fresh)) ** 2
                # What does not vary is known already, however near the k-th place it is.
                fresh = _fresh_for(np.where(basis.spread > 0, allowed, np.inf), basis, ledger.N)
            # Beyond two thirds of the rest a fallback to all of it would cost little more than the attempt.
            fresh = np.where(fresh > 2 / 3 * (ledger.N - basis.known), ledger.N - basis.known, fresh)
        else:
            fresh = ledger.N - basis.known
        ledger.extend(np.where(undecided, basis.known + fresh, ledger.counts))
        found = found.where(undecided, ledger.estimate(basis, pooled=True))
        half = _t(level, found.df) * found.stderr
        undecided = race.decide(*key_interval(order, found.values, half)) & (found.stderr > 0)
        if not undecided.any():
            break
        basis = ledger.basis(first.slopes)
    keys = KEYS[order](found.values)
    chosen = np.array(sorted(race.inside(keys), key=lambda head: (-keys[head], head)), dtype=int)
    return _result(ledger, found, first.slopes, population, crowding, chosen)


def joined(needed: np.ndarray, lengths: np.ndarray, call_cost: float) -> list[tuple[int, int]]:
    """Which of S neighbouring stretches are run in one call: first and one past the last of each group.

    needed `[S, K]`: the heads of each stretch; lengths `[S]`: its examples. A group runs all of its heads on all of its
    examples; the cut with the least pairs plus `call_cost` per group.

    >>> joined(np.array([[True, True, True], [True, True, False], [False, False, True]]), np.array([1, 1, 50]), 5)
    [(0, 2), (2, 3)]
    """
    count = len(lengths)
    cost, cut = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    for end in range(1, count + 1):
        heads = np.logical_or.accumulate(needed[:end][::-1], axis=0)[::-1].sum(
            axis=1
        )  # of a group from each start
        options = cost[:end] + heads * np.cumsum(lengths[:end][::-1])[::-1] + call_cost * (heads > 0)
        # Of equal cuts the one with the smallest groups.
        cut[end] = end - 1 - int(options[::-1].argmin())
        cost[end] = options.min()
    groups, end = [], count
    while end:
        groups.append((int(cut[end]), end))
        end = int(cut[end])
    return groups[::-1]


# --- what is known, and what it says -------------------------------------------------------------------


class _Basis(NamedTuple):
    """What is fixed before fresh examples are looked at, per head."""

    known: np.ndarray  # how many examples, a prefix of the order
    slopes: np.ndarray
    spread: np.ndarray  # of exact − slope · attribution
    spread_exact: np.ndarray
    df: np.ndarray


class _Estimate(NamedTuple):
    """A number per head, its standard error over the given examples, and the degrees of freedom of that."""

    values: np.ndarray
    stderr: np.ndarray
    df: np.ndarray
    spread_exact: np.ndarray

    def where(self, mask: np.ndarray, other: _Estimate) -> _Estimate:
        return _Estimate(*(np.where(mask, b, a) for a, b in zip(self, other, strict=True)))


class _Ledger:
    """The exact values run so far: for each head a prefix of one random order of the examples."""

    def __init__(
        self,
        exact: Exact,
        attribution: np.ndarray | None,
        shape: tuple[int, int],
        seed: int,
        call_cost: float,
    ) -> None:
        self.N, self.K = shape
        self.call_cost = call_cost
        self.exact = exact
        self.order = np.random.default_rng(seed).permutation(self.N)
        self.values = np.full(shape, np.nan)  # rows in the random order
        self.counts = np.zeros(self.K, int)
        self.attribution = None if attribution is None else np.asarray(attribution, float)[self.order]

    def extend(self, counts: np.ndarray) -> None:
        """Run what is missing for each head to have its first `counts[K]` examples, in rectangles.

        Cut where a head begins or ends, every stretch of examples is run once, with all heads that need it. Stretches
        are run together where the pairs that nobody asked for cost less than another call; these are forgotten, so
        that no number depends on what a call costs.
        """
        edges = np.unique(np.concatenate([self.counts, counts]))
        stretches = list(pairwise(edges))
        needed = np.array([(self.counts <= start) & (stop <= counts) for start, stop in stretches])
        lengths = np.diff(edges)
        for first, last in joined(needed, lengths, self.call_cost):
            heads = np.flatnonzero(needed[first:last].any(axis=0))
            if len(heads):
                place = slice(edges[first], edges[last])
                run = self.exact(heads, self.order[place])
                asked = np.repeat(needed[first:last, heads], lengths[first:last], axis=0)
                self.values[place, heads] = np.where(asked, run, self.values[place, heads])
        self.counts = np.maximum(self.counts, counts)

    def basis(self, fixed: np.ndarray | None = None) -> _Basis:
        """Slope and spread from all that is known; slopes once `fixed` stay."""
        slope, spread, spread_exact = np.zeros((3, self.K))
        cheap_spread = None if self.attribution is None else self.attribution.var(axis=0)
        for count in np.unique(self.counts):
            heads = np.flatnonzero(self.counts == count)
            exact = self.values[:count, heads]
            spread_exact[heads] = left_out_spread(exact) if count > 1 else np.inf
            if self.attribution is None or cheap_spread is None:
                spread[heads] = spread_exact[heads]
            elif fixed is not None:
                slope[heads] = fixed[heads]
                spread[heads] = left_out_spread(exact - fixed[heads] * self.attribution[:count, heads])
            else:
                cheap = self.attribution[:count, heads]
                slope[heads] = slopes(exact, cheap, cheap_spread[heads])
                spread[heads] = left_out_spread(exact, cheap, cheap_spread[heads]) if count > 1 else np.inf
        df = np.maximum(self.counts - 1, 1)
        if fixed is None and np.isfinite(spread).all():
            spread = moderated(spread, int(df[0]), cheap_spread)
            if cheap_spread is not None:
                # Silent on the pilot, but its attribution is not: the spread is not 0 but unseen.
                spread = np.where((spread == 0) & (cheap_spread > 0), cheap_spread, spread)
        return _Basis(self.counts.copy(), slope, spread, spread_exact, df)

    def known_so_far(self, basis: _Basis) -> _Estimate:
        """The plain estimate from the pilot, to plan by; not to be reported."""
        rest, offset = self._rest(basis.slopes)
        stderr = np.sqrt(basis.spread * (1 / self.counts - 1 / self.N))
        return _Estimate(offset + np.nanmean(rest, axis=0), stderr, basis.df, basis.spread_exact)

    def estimate(self, basis: _Basis, pooled: bool = False) -> _Estimate:
        """From the examples after `basis.known`. pooled: let their spread count too; it decides no width."""
        rest, offset = self._rest(basis.slopes)
        position = np.arange(self.N)[:, None]
        before = position < basis.known
        fresh = ~before & (position < self.counts)
        n, left = fresh.sum(axis=0), self.N - basis.known
        complete = n == left
        mean = np.where(fresh, rest, 0).sum(axis=0) / np.maximum(n, 1)
        values = offset + (np.where(before, rest, 0).sum(axis=0) + left * mean) / self.N
        spread, df = basis.spread, basis.df
        if pooled:
            squares = np.where(fresh, (rest - mean) ** 2, 0).sum(axis=0)
            spread = (spread * df + squares) / (df + np.maximum(n - 1, 0))
            df = df + np.maximum(n - 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = (left / self.N) ** 2 * (1 / n - 1 / left) * spread
        # With every example run, the mean is the mean: no slope, no rounding of one, no error.
        values = np.where(complete, np.where(complete, self.values, 0).sum(axis=0) / self.N, values)
        exact_spread = np.where(
            complete, np.where(complete, self.values, 0).var(axis=0, ddof=self.N > 1), basis.spread_exact
        )
        df = np.where(complete, max(self.N - 1, 1), df)
        return _Estimate(values, np.sqrt(np.where(complete, 0, variance)), df, exact_spread)

    def _rest(self, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """exact − slope · attribution `[N, K]`, and what the second part's mean over all examples adds `[K]`."""
        if self.attribution is None:
            return self.values, np.zeros(self.K)
        return self.values - slope * self.attribution, slope * self.attribution.mean(axis=0)


def _fresh_for(allowed: np.ndarray, basis: _Basis, N: int) -> np.ndarray:
    """Fresh examples `[K]` so that the variance of the estimate is at most `allowed[K]`, all of them if need be."""
    left = N - basis.known
    share = left / N
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = share**2 * basis.spread / (allowed + share**2 * basis.spread / left)
    # 0/0: no spread and no width allowed. Only running everything can answer a precision of 0.
    needed = np.where(allowed > 0, np.where(basis.spread > 0, needed, 0), left)
    count = np.ceil(np.nan_to_num(np.maximum(needed, LEAST_FRESH), posinf=N)).astype(int)
    # Equal ends make full batches: from 16 on in steps of an eighth of the octave.
    step = 2 ** np.maximum(np.floor(np.log2(np.maximum(count, 1))).astype(int) - 3, 0)
    return np.minimum(-(-count // step) * step, left)


def _result(
    ledger: _Ledger,
    found: _Estimate,
    slope: np.ndarray,
    population: bool,
    crowding: float,
    chosen: np.ndarray | None = None,
) -> Adaptive:
    from scipy.special import stdtr

    beyond = np.sqrt(found.stderr**2 + crowding * found.spread_exact / ledger.N)
    stderr = beyond if population else found.stderr
    # Groups that are all alike are N / crowding examples, and leave as few degrees of freedom.
    df_beyond = np.minimum(found.df, max(ledger.N / crowding - 1, 1))
    half = _t(LEVEL, df_beyond if population else found.df) * stderr
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(df_beyond, -np.abs(np.where(found.values == 0, 0.0, found.values / beyond)))
    examples = np.empty_like(ledger.values)
    examples[ledger.order] = ledger.values
    return Adaptive(
        found.values,
        stderr,
        found.values - half,
        found.values + half,
        p,
        ledger.counts,
        slope,
        examples,
        chosen,
    )


def _t(level: float, df: np.ndarray) -> np.ndarray:
    from scipy.special import stdtrit

    return stdtrit(df, (1 + level) / 2)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise HeadwiseError(
            f"the confidence is {confidence}; expected a number between 0 and 1, such as 0.95"
        )
