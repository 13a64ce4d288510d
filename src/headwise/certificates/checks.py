"""The checks of a certificate: from the metric of every example under a few sets of heads to numbers and states.

C is the set of heads. EE is the explained effect (m(only C) − m(none)) / (m(full) − m(none)), a ratio of means. A check
passes if its whole interval is on the right side of the threshold, fails if the whole interval is on the wrong side,
and is undecided otherwise; with fewer than `FEWEST` examples nothing passes.

E examples, D random draws, S subsets of C, N heads of C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from headwise import stats
from headwise.settings import Settings, Share
from headwise.sweeps.explained import CLOSE, FEWEST, levels_of, tracking

PASS, FAIL, UNDECIDED, NOT_TESTED, REPORTED = "pass", "fail", "undecided", "not tested", "reported"
SUFFICIENT, FAMILIES, TRACKS, NECESSARY, COMPLETE, MINIMAL = range(1, 7)
SPECIFIC, STABLE, ABLATIONS, ALTERNATIVES, BESIDE = range(7, 12)
NAMES = {
    SUFFICIENT: "sufficient",
    FAMILIES: "in every family",
    TRACKS: "tracks",
    NECESSARY: "necessary",
    COMPLETE: "complete",
    MINIMAL: "minimal",
    SPECIFIC: "specific",
    STABLE: "stable",
    ABLATIONS: "across ablation types",
    ALTERNATIVES: "alternatives",
    BESIDE: "beside other methods",
}
"""By number, which are those of docs/certify.md."""
NOTHING, SOMETHING = "nothing", "something"
"""What a head adds to the set; or undecided."""
Groups = Sequence[str | None] | None


class Thresholds(Settings):
    """What each check asks for."""

    sufficient: Annotated[float, Field(gt=0)] = 0.1
    """Check 1: largest |1 − EE|."""
    family: Annotated[float, Field(gt=0)] = 0.2
    """Check 2: largest |1 − EE| at any level of any facet."""
    r2: float = 0.5
    """Check 3: smallest R² between the model and the circuit, over examples."""
    within: Share = 0.9
    """Check 3, in place of R² where the model's metric varies by less than a fifth of the effect: smallest share of
    examples within a fifth."""
    agreement: Share = 0.9
    """Check 3: smallest share of examples whose answer is that of the whole model."""
    necessary: Share = 0.5
    """Check 4: smallest share of the effect that is lost when the set is ablated in the whole model."""
    p: Share = 0.05
    """Check 4: largest p against layer-matched random sets."""
    complete: Annotated[float, Field(gt=0)] = 0.2
    """Check 5: largest mean |difference| between model and circuit when both lose the same heads."""
    idle: Annotated[float, Field(gt=0)] = 0.05
    """Check 6: a head whose removal surely changes EE by less adds nothing."""


@dataclass(frozen=True)
class Followed:
    """The metric of every example `[E]` with all heads, with none, and with only the set kept; and who wins."""

    full: np.ndarray
    none: np.ndarray
    kept: np.ndarray
    same_answer: np.ndarray | None
    """1 where the set's most likely answer is the whole model's; None without foils."""
    families: Mapping[str, Mapping[str, Sequence[int]]]
    groups: Groups = None

    @property
    def effects(self) -> np.ndarray:
        return self.full - self.none

    @property
    def n(self) -> int:
        return len(self.full)


def judged(lo: float, hi: float, n: int, *, least: float = -np.inf, most: float = np.inf) -> str:
    """The state of a number whose interval is [lo, hi] and which should be between `least` and `most`.

    >>> judged(0.95, 1.05, 40, least=0.9, most=1.1), judged(0.95, 1.2, 40, least=0.9, most=1.1)
    ('pass', 'undecided')
    >>> judged(0.2, 0.4, 40, least=0.9), judged(0.95, 1.05, 8, least=0.9)
    ('fail', 'undecided')
    """
    if np.isnan(lo) or np.isnan(hi):
        return UNDECIDED
    if hi < least or lo > most:
        return FAIL
    return PASS if least <= lo and hi <= most and n >= FEWEST else UNDECIDED


def share(gains: np.ndarray, effects: np.ndarray, groups: Groups) -> tuple[float, float, float]:
    """mean(gains) / mean(effects) with its interval; NaN where the mean effect is not clear of 0."""
    value, lo, hi = stats.ratio_interval(gains, effects, groups=groups)
    return float(value), float(lo), float(hi)


def overall(states: Iterable[str]) -> str:
    """The state of a check of several parts: it fails if one fails; a part that was not tested decides nothing."""
    found = set(states)
    return next((state for state in (FAIL, UNDECIDED, PASS, REPORTED) if state in found), NOT_TESTED)


def row(check: int, measure: str, value: float, ends: Sequence[float], **more: Any) -> dict[str, Any]:
    """One line of a certificate."""
    lo, hi = map(float, ends)
    empty = {"threshold": np.nan, "state": REPORTED, "note": ""}
    numbers: dict[str, Any] = {"value": float(value), "lo": lo, "hi": hi}
    at = float(more.get("threshold", np.nan))
    sign = "1 ±" if "explained effect" in measure else "≤" if measure.startswith(("p ", "mean |")) else "≥"
    numbers["needed"] = "" if np.isnan(at) else f"{sign} {at:g}"
    return {"check": check, "name": NAMES[check], "measure": measure} | numbers | empty | more


def untested(check: int, measure: str, note: str, n: int = 0) -> dict[str, Any]:
    """A line that says why a part of a check was not tested."""
    return row(check, measure, np.nan, (np.nan, np.nan), n=n, state=NOT_TESTED, note=note)


# ---- 1 to 3: does the set do what the model does? --------------------------------------------------------------------


def sufficient(found: Followed, thresholds: Thresholds) -> dict[str, Any]:
    """Check 1: the explained effect of the set is 1."""
    value, lo, hi = share(found.kept - found.none, found.effects, found.groups)
    state = judged(lo, hi, found.n, least=1 - thresholds.sufficient, most=1 + thresholds.sufficient)
    note = "the interval of m(full) − m(none) includes 0: no effect to explain" if np.isnan(value) else ""
    more: dict[str, Any] = {"threshold": thresholds.sufficient, "n": found.n, "state": state, "note": note}
    return row(SUFFICIENT, "explained effect", value, (lo, hi), **more)


def levels(found: Followed, thresholds: Thresholds) -> pd.DataFrame:
    """Check 2, a row per level of each facet; the intervals hold together."""
    rows = []
    for one in levels_of((found.kept - found.none)[None], found.effects, found.families, found.groups):
        value, lo, hi = (float(end[0]) for end in (one.value, one.lo, one.hi))
        state = judged(lo, hi, one.n, least=1 - thresholds.family, most=1 + thresholds.family)
        state = NOT_TESTED if one.left_out else state
        rows.append((one.facet, one.level, one.n, value, lo, hi, state, one.left_out))
    return pd.DataFrame(rows, columns=["facet", "level", "n", "value", "lo", "hi", "state", "note"])


def in_families(table: pd.DataFrame, thresholds: Thresholds) -> dict[str, Any]:
    """Check 2: the line of the level that is farthest from 1, among those with the worst state."""
    measure = "explained effect of the family farthest from 1"
    tested = table[table["state"] != NOT_TESTED]
    if not len(tested):
        why = (
            f"no facet has two levels of at least {FEWEST} examples"
            if len(table)
            else "the examples name no families"
        )
        return untested(FAMILIES, measure, why)
    state = overall(tested["state"])
    among = tested[tested["state"] == state]
    farthest = among.iloc[int((among["value"] - 1).abs().to_numpy().argmax())]
    left_out = table[table["state"] == NOT_TESTED]
    which = f"the farthest of {len(tested)} families"
    if len(tested) == 1:
        measure, which = (
            "explained effect of one family",
            f"the only one of {len(table)} that could be judged",
        )
    note = f"{farthest['facet']} = {farthest['level']}, {which}"
    if len(left_out):
        note += f"; {len(left_out)} left out ({left_out.iloc[0]['note']})"
    more: dict[str, Any] = {
        "threshold": thresholds.family,
        "n": int(farthest["n"]),
        "state": state,
        "note": note,
    }
    return row(FAMILIES, measure, farthest["value"], (farthest["lo"], farthest["hi"]), **more)


def tracks(found: Followed, thresholds: Thresholds, seed: int = 0) -> list[dict[str, Any]]:
    """Check 3: the set follows the model from example to example, and gives its answers.

    Where the model's own metric hardly differs between examples, R² would ask for differences that are too small to
    matter; the share of examples within a fifth of the mean effect is then judged instead.
    """
    options: dict[str, Any] = {"groups": found.groups, "seed": seed}
    followed = tracking(0, found.kept, found.full, float(found.effects.mean()), **options)
    if all_alike(found.full, found.effects):
        measure, value, least = "within a fifth of the mean effect", followed.within, thresholds.within
        ends = followed.within_lo, followed.within_hi
        spread = found.full.std() / abs(found.effects.mean())
        note = (
            f"all examples are alike: the metric varies by {spread:.0%} of the effect; R² {followed.r2:.2f}"
        )
    else:
        measure, value, least = "R² over examples", followed.r2, thresholds.r2
        ends = followed.r2_lo, followed.r2_hi
        note = f"{followed.within:.0%} of the examples within a fifth of the mean effect"
    state = judged(*ends, found.n, least=least)
    more: dict[str, Any] = {"threshold": least, "n": found.n, "state": state, "note": note}
    lines = [row(TRACKS, measure, value, ends, **more)]
    if found.same_answer is None:
        return [*lines, untested(TRACKS, "same answer", "an example has no foils", found.n)]
    lo, hi = map(float, stats.share_interval(found.same_answer, groups=found.groups))
    state = judged(lo, hi, found.n, least=thresholds.agreement)
    more = {"threshold": thresholds.agreement, "n": found.n, "state": state}
    return [*lines, row(TRACKS, "same answer", found.same_answer.mean(), (lo, hi), **more)]


def all_alike(full: np.ndarray, effects: np.ndarray) -> bool:
    """Whether m(full) varies less between examples than what counts as followed: a standard deviation below a fifth of
    the mean effect."""
    return bool(full.std() < CLOSE * abs(effects.mean()))


def first_three(found: Followed, thresholds: Thresholds) -> dict[int, str]:
    """The states of checks 1 to 3 alone."""
    return {
        SUFFICIENT: str(sufficient(found, thresholds)["state"]),
        FAMILIES: overall(levels(found, thresholds)["state"]),
        TRACKS: overall(str(line["state"]) for line in tracks(found, thresholds)),
    }


# ---- 4 to 6: does the model need it, is anything missing, is anything too much? -----------------------


def necessary(
    found: Followed, without: np.ndarray, draws: np.ndarray, unmatched: str, thresholds: Thresholds
) -> list[dict[str, Any]]:
    """Check 4: ablating the set costs much of the effect, and more than ablating layer-matched random sets.

    without `[E]`: the model without the set. draws `[D, E]`: without each random set; empty where the layers of the
    set cannot be matched, and `unmatched` says why.
    """
    value, lo, hi = share(found.full - without, found.effects, found.groups)
    state = judged(lo, hi, found.n, least=thresholds.necessary)
    more: dict[str, Any] = {"threshold": thresholds.necessary, "n": found.n, "state": state}
    lines = [row(NECESSARY, "share of the effect lost without it", value, (lo, hi), **more)]
    measure = "p against layer-matched random sets"
    if not len(draws):
        return [*lines, untested(NECESSARY, measure, unmatched, found.n)]
    costs = (found.full - draws).mean(axis=1)
    as_large = int((costs >= (found.full - without).mean()).sum())
    p = (as_large + 1) / (len(draws) + 1)
    median = float(np.median(costs) / found.effects.mean())
    note = f"the median of {len(draws)} random sets loses {median:.0%} of the effect"
    decided = found.n >= FEWEST and 1 / (len(draws) + 1) <= thresholds.p  # with few draws no p is small
    state = (PASS if p <= thresholds.p else FAIL) if decided else UNDECIDED
    more = {"threshold": thresholds.p, "n": len(draws), "state": state, "note": note}
    return [*lines, row(NECESSARY, measure, p, (np.nan, np.nan), **more)]


def complete(
    found: Followed, model_without: np.ndarray, set_without: np.ndarray, thresholds: Thresholds, seed: int = 0
) -> dict[str, Any]:
    """Check 5: model and circuit lose the same when the same heads K of the set are ablated in both (`[S, E]` each).

    D(K) = (m(full without K) − m(C without K)) / (m(full) − m(none)); after Wang et al. 2022 (arXiv 2211.00593).
    """
    measure = "mean |difference| when both lose the same heads"
    if not len(model_without):
        return untested(COMPLETE, measure, "a set of one head has no smaller part", found.n)
    gaps = (model_without - set_without).T  # E, S
    shares = np.abs(gaps.mean(axis=0) / found.effects.mean())
    resampled = stats.resampled_ratio(gaps, found.effects, groups=found.groups, seed=seed)
    ends = stats.resampled_interval(np.abs(resampled).mean(axis=1), found.n, groups=found.groups)
    state = judged(*ends, found.n, most=thresholds.complete)
    note = f"the largest of {len(shares)} is {shares.max():.2f}"
    more: dict[str, Any] = {"threshold": thresholds.complete, "n": found.n, "state": state, "note": note}
    return row(COMPLETE, measure, shares.mean(), ends, **more)


def head_changes(found: Followed, set_without_head: np.ndarray, thresholds: Thresholds) -> pd.DataFrame:
    """For each head of the set: the explained effect that the set loses without it, and whether it adds nothing.

    set_without_head `[N, E]`. The intervals hold for all heads together (Bonferroni). A passenger is a head whose whole
    interval is within ±`idle` (an equivalence test); one whose interval crosses an end of it is undecided. A head whose
    removal raises EE by more writes against the answer, as the model does, and is no passenger.
    """
    losses = (found.kept - set_without_head).T  # E, N
    together = 1 - 0.05 / max(1, len(set_without_head))
    ratio = stats.ratio_interval(losses, found.effects, groups=found.groups, level=together)
    ends = zip(ratio.lo, ratio.hi, strict=True)
    states = [judged(*one, found.n, least=-thresholds.idle, most=thresholds.idle) for one in ends]
    adds = [{PASS: NOTHING, FAIL: SOMETHING}.get(state, state) for state in states]
    return pd.DataFrame({"change": ratio.value, "lo": ratio.lo, "hi": ratio.hi, "adds": adds})


def minimal(
    found: Followed,
    smaller: Followed | None,
    passengers: Sequence[str],
    unsure: Sequence[str],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """Check 6: no smaller set does the same.

    smaller: the set without its passengers, or, if it has none, without the undecided heads; None where there are
    neither, or no others. The check fails if that set, without passengers, passes each of checks 1 to 3 that the set
    itself passes; it passes if that set fails one of them.
    """
    more: dict[str, Any] = {"n": found.n}
    states = {check: state for check, state in first_three(found, thresholds).items() if state == PASS}
    if SUFFICIENT not in states:
        return untested(MINIMAL, "passengers", "the set is not shown to be sufficient", found.n)
    if smaller is None:
        return row(MINIMAL, "passengers", len(passengers), (np.nan, np.nan), state=PASS, **more)
    again = first_three(smaller, thresholds)
    left = {again[check] for check in states}
    state = PASS if FAIL in left else FAIL if passengers and left == {PASS} else UNDECIDED
    word = {FAIL: "do", PASS: "do not do", UNDECIDED: "may do"}[state]
    dropped = passengers or unsure
    listed = ", ".join(dropped[:12]) + (" …" if len(dropped) > 12 else "")
    without = "them" if passengers else "heads that may add nothing"
    note = f"the others {word} as well without {without}: {listed}"
    return row(MINIMAL, "passengers", len(passengers), (np.nan, np.nan), state=state, note=note, **more)
