"""Checks 8, 10 and 11 on models whose mechanisms were made by hand: what is found again, and what else would do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import headwise as hw
from headwise.certificates.refits import RankingFit, RefitPlan, half_samples
from planted import CHAINS, EITHER, cats_and_dogs, chain_model

SHORT = {"seeds": 1, "rows": 1000}
QUIET = {"progress": False, "draws": 3, "subsets": 2}
FIRST, SECOND = ([str(head) for head in sorted(chain)] for chain in EITHER)


@pytest.fixture(scope="module")
def either(word_tokenizer):
    return chain_model(word_tokenizer, either=True)


@pytest.fixture(scope="module")
def both(word_tokenizer):
    return chain_model(word_tokenizer)


def sides(n=60, **options):
    return cats_and_dogs(n, **options).halves()


def test_each_of_two_mechanisms_is_enough_and_parts_of_both_are_not(either):
    task = cats_and_dogs(24, mirrored=True)
    for heads, share in ((FIRST, 1), (SECOND, 1), ([FIRST[0], SECOND[1]], 0), ([SECOND[0], FIRST[1]], 0)):
        curve = hw.sweep(either, task, heads, k=[0, 2], controls=(), progress=False)
        assert curve.explained()["value"].iloc[-1] == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize(("known", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_the_second_mechanism_is_found_when_the_first_is_paid_for(either, known, other):
    find, test = sides(48, mirrored=True)
    found = hw.certify(
        either, test, known, found_on=find, method_options=SHORT, stable=0, beside=(), alternatives=2, **QUIET
    )
    assert [set(map(str, heads)) for heads in found.alternatives] == [set(other)]
    line = found.line(10)
    assert line["value"] == 1
    assert line["state"] == "reported"
    assert line["n"] == 2  # the third is no circuit: there are two mechanisms


def test_a_single_mechanism_has_no_alternative(both):
    find, test = sides()
    options = {"found_on": find, "method_options": SHORT, "stable": 0, "beside": ()}
    found = hw.certify(both, test, sorted(CHAINS), **options, **QUIET)
    assert found.alternatives == []
    assert found.line(10)["value"] == 0
    assert "not counted" in found.line(10)["note"]


def test_heads_to_avoid_must_exist(both):
    with pytest.raises(hw.HeadwiseError, match="no head L9H9"):
        hw.score(both, cats_and_dogs(8), "nested", avoid=["L9H9"], rows=40, progress=False)


def test_core_and_shell_are_counted_on_half_samples_and_a_passenger_is_in_neither(both):
    find, test = sides(80, mirrored=True)
    short = {"seeds": 1, "rows": 800}
    scores = hw.score(both, find, "nested", **short, progress=False)
    assert set(scores.order()[:4]) == CHAINS
    found = hw.certify(both, test, scores, k=6, found_on=find, stable=4, alternatives=0, beside=(), **QUIET)
    # The same by hand: the first six of four more rankings.
    halves = list(half_samples(find, 4, 0))
    again = [
        hw.score(both, half, "nested", seed=i, seeds=1, rows=400, progress=False).order()[:6]
        for i, half in enumerate(halves, 1)
    ]
    shares = {head: sum(head in order for order in again) / 4 for head in scores.order()[:6]}
    assert set(found.core) == {head for head, share in shares.items() if share == 1} >= CHAINS
    assert set(found.shell) == {head for head, share in shares.items() if 0.5 <= share < 1}
    assert found.changes["refits"].tolist() == list(shares.values())
    lines = found.lines[found.lines["check"] == 8]
    assert lines["value"].tolist() == [
        len(found.core),
        len(found.shell),
        6 - len(found.core) - len(found.shell),
    ]
    assert set(lines["n"]) == {4}
    assert "core" in repr(found)


def test_half_samples_come_in_pairs_that_share_nothing_and_all_differ():
    task = cats_and_dogs(20)
    halves = [set(half.numbers) for half in half_samples(task, 6, 0)]
    assert [len(half) for half in halves] == [10] * 6
    for one, other in zip(halves[::2], halves[1::2], strict=True):
        assert one | other == set(range(20))
    assert len({frozenset(half) for half in halves}) == 6


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({}, dict.fromkeys((8, 10, 11), "given without the examples that found it")),
        (
            {"found_on": True, "stable": 3, "alternatives": 0, "beside": ()},
            {8: "how the set was ranked is not known", 10: "alternatives=0", 11: "beside"},
        ),
        (
            {"found_on": True, "method": "attribution", "stable": 0, "alternatives": 0, "beside": "random"},
            {8: "stable=0"},
        ),
    ],
)
def test_what_is_not_ranked_again_says_why(both, options, reasons):
    find, test = sides(40)
    options = options | ({"found_on": find} if "found_on" in options else {})
    found = hw.certify(both, test, sorted(CHAINS), **options, **QUIET)
    for check, reason in reasons.items():
        assert found.states[check] == "not tested"
        assert reason in found.line(check)["note"]
    assert found.core == found.shell == []


def test_the_plan_counts_the_rows_of_every_fit_and_the_call_says_them_first(both, capsys):
    find, test = sides(40)
    plan = RefitPlan(
        finding=find,
        chosen=sorted(CHAINS),
        method="nested",
        options=SHORT,
        stable=3,
        alternatives=2,
        beside=("random",),
    )
    fits: list[RankingFit] = []
    plan.carried_out(lambda some: fits.extend(some) or [sorted(CHAINS)] * len(some))
    assert Counter(fit.method for fit in fits) == {"nested": 5, "random": 1}
    trained = 3 * SHORT["seeds"] * SHORT["rows"]  # a backward pass is worth two forward ones
    assert [fit.options["rows"] for fit in fits[:3]] == [500] * 3  # half of the examples, each seen as often
    assert plan.rows(both, "mean") == pytest.approx((3 / 2 + 2) * trained, abs=3 * len(find))
    assert [len(fit.options.get("avoid", ())) for fit in fits[-2:]] == [4, 4]
    options = {"found_on": find, "stable": 2, "alternatives": 0, "beside": (), "draws": 2, "subsets": 1}
    hw.certify(both, test, hw.score(both, find, "attribution", progress=False), k=4, **options)
    assert "2 half-samples" in capsys.readouterr().err


def test_other_methods_stand_beside_the_set(both):
    find, test = sides(40)
    found = hw.certify(
        both,
        test,
        sorted(CHAINS),
        found_on=find,
        alternatives=0,
        stable=0,
        beside=("attribution", "random"),
        **QUIET,
    )
    lines = found.lines[found.lines["check"] == 11]
    order = hw.score(both, find, "attribution", progress=False).order()[:4]
    curve = hw.sweep(both, test, order, k=[0, 4], controls=(), progress=False)
    assert lines["value"].iloc[0] == pytest.approx(curve.explained()["value"].iloc[-1], abs=1e-4)
    assert len(lines) == 2
    assert np.isfinite(lines["value"]).all()
