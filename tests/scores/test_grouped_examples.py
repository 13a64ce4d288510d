"""Groups of examples on their way to the tables: copies of examples, grouped, change no interval and no test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.scores.adaptive.sample import design_effect
from headwise.studies.masking.texts import Judge, Written, intervention_rows
from headwise.studies.prompts.study import summary_tables
from headwise.studies.roles.curves import curve_rows
from headwise.sweeps.edge_curve import EdgeCurve
from headwise.sweeps.readings import ratio_row
from headwise.sweeps.sweep import sweep
from helpers import word_task

COPIES = 3


def copied(task, copies=COPIES):
    """Every example several times, as one group."""
    return hw.Task(
        task.name,
        tuple(replace(e, group=f"g{i}") for i, e in enumerate(task) for _ in range(copies)),
        task.metric,
    )


@pytest.fixture(scope="module")
def tasks():
    task = word_task(8)
    return task, copied(task)


@pytest.mark.parametrize("method", ["ablation", "attribution", "sensitivity"])
def test_a_score_counts_groups_once(tiny, tasks, method, tmp_path):
    alone, together = (hw.score(tiny, task, method) for task in tasks)
    assert alone.groups is None
    columns = ["score", "stderr", "lo", "hi", "p", "q"]
    np.testing.assert_allclose(
        together.table()[columns].to_numpy(float),
        alone.table()[columns].to_numpy(float),
        rtol=1e-4,
        atol=1e-6,
    )
    assert (together.table()["n"] == COPIES * 8).all()
    naive = replace(together, groups=None).table()
    assert (
        (together.table()["hi"] - together.table()["lo"]) > 1.3 * (naive["hi"] - naive["lo"])
    ).mean() > 0.9
    together.save(tmp_path / "scores.npz")
    assert hw.Scores.load(tmp_path / "scores.npz").table().equals(together.table())
    agreement = hw.compare([together, alone], k=3).stability["resamples"]
    assert agreement.iloc[0] == pytest.approx(agreement.iloc[1])


def test_the_examples_of_a_table_carry_their_group(tiny, tasks):
    alone, together = (hw.score(tiny, task, "attribution").example_table() for task in tasks)
    assert "group" not in alone
    assert (together["group"] == "g" + (together["example"] // COPIES).astype(str)).all()


def test_a_curve_counts_groups_once(tiny, tasks):
    alone, together = (sweep(tiny, task, tiny.heads(), k=[0, 4, 9, 16], draws=2) for task in tasks)
    columns = ["value", "lo", "hi"]
    np.testing.assert_allclose(
        together.table()[columns].to_numpy(float),
        alone.table()[columns].to_numpy(float),
        rtol=1e-3,
        atol=1e-4,
    )
    np.testing.assert_allclose(together.k_at(0.5), alone.k_at(0.5))
    np.testing.assert_allclose([*together.cpr(), *together.effect], [*alone.cpr(), *alone.effect], rtol=1e-3)
    assert (
        together.example_table()["group"] == "g" + (together.example_table()["example"] // 3).astype(str)
    ).all()
    assert "group" not in alone.example_table()


def assert_alike(grouped, alone, value):
    """The same values; intervals of shares are a little wider with groups, which have t for the normal quantile."""
    np.testing.assert_allclose(grouped[value].to_numpy(float), alone[value].to_numpy(float))
    wider = [(alone["lo"] - grouped["lo"]).to_numpy(float), (grouped["hi"] - alone["hi"]).to_numpy(float)]
    assert np.min(wider) > -1e-9
    assert np.max(wider) < 0.09


def points_written(judge, variants, task):
    """The result of a step of masking, with the targets as the full model's texts."""
    full = [example.target for example in task]
    values = [judge.values(texts, full, task) for texts in variants]
    by_metric = {name: np.stack([one[name] for one in values]) for name in values[0]}
    return Written(variants, by_metric, task.numbers, task.shared_groups())


def test_the_points_of_masking_and_roles_count_groups_once(tasks):
    random = np.random.default_rng(0)
    written = [[random.choice(["a dog", "cat", e.target]) for e in tasks[0]] for _ in range(3)]
    texts = (written, [[text for text in one for _ in range(COPIES)] for one in written])
    judge = Judge("contains", "chrf")
    alone, together = (
        points_written(judge, variants, task) for variants, task in zip(texts, tasks, strict=True)
    )
    assert_alike(together.curve_table({}), alone.curve_table({}), "value")
    assert "group" not in alone.example_table({})
    assert set(together.example_table({})["group"]) == {f"g{i}" for i in range(8)}
    before, after = random.integers(0, 2, 8).astype(float), random.integers(0, 2, (2, 3, 8)).astype(float)
    groups = tasks[1].shared_groups()
    one = intervention_rows("amplify", [1.5, 2.0], before, after)
    more = intervention_rows("amplify", [1.5, 2.0], before.repeat(3), after.repeat(3, axis=2), groups)
    assert_alike(more, one, "after")
    for column in ("change", "change_lo", "change_hi"):
        np.testing.assert_allclose(more[column], one[column])
    y = random.normal(size=(4, 3, 2, 8))
    one = curve_rows(y, [0, 3])
    more = curve_rows(y.repeat(3, axis=3), [0, 3], groups)
    np.testing.assert_allclose(more[["both_lo", "both_hi"]], one[["both_lo", "both_hi"]])


def test_scores_that_stop_early_assume_the_worst_of_groups(tiny, tasks):
    assert design_effect(tasks[1].shared_groups()) == COPIES
    alone, together = (
        hw.score(tiny, task, "ablation", metric="logprob", precision=0.0).table() for task in tasks
    )
    # With every example run, the copies' variance has N − 1 in place of G − 1 examples below it: a little smaller.
    np.testing.assert_allclose(together["p"], alone["p"], atol=0.05)
    naive = hw.score(
        tiny,
        hw.Task("t", tuple(replace(e, group=None) for e in tasks[1])),
        "ablation",
        metric="logprob",
        precision=0.0,
    ).table()
    assert (together["p"] > naive["p"]).mean() > 0.9


def test_the_ratio_of_a_pair_counts_groups_once():
    random = np.random.default_rng(5)
    ks = [0, 2, 5, 9, 16]
    growth = np.array([0, 0.4, 0.7, 1.1, 1.0])

    def curve(slower):
        whole = 2 + random.normal(0, 0.8, 8)
        values = growth[:, None] ** slower * whole + random.normal(0, 0.2, (5, 8)) * (growth > 0)[:, None]
        names = {"model": "m", "task": "t", "series": "s", "metric": "logit_diff"}
        return EdgeCurve(k=np.array(ks), values=values, tokens=np.array(ks), **names)

    def repeated(curve):
        groups = [f"g{i}" for i in range(8) for _ in range(COPIES)]
        return replace(curve, values=np.repeat(curve.values, COPIES, axis=1), groups=groups)

    curves = [curve(1.0), curve(1.6)]
    options = {"threshold": 0.8, "paired": True}
    alone = ratio_row(*curves, **options)
    together = ratio_row(*map(repeated, curves), **options)
    for name in ("ratio", "lo", "hi", "stays_lo", "stays_hi"):
        assert together[name] == pytest.approx(alone[name], abs=1e-9, nan_ok=True)


def test_the_answers_to_prompts_count_groups_of_problems_once():
    random = np.random.default_rng(6)
    rows = [
        {
            "condition": condition,
            "copies": 0,
            "seed": 0,
            "problem": problem,
            "right": float(random.integers(0, 2)),
        }
        for condition in ("none", "meaningless")
        for problem in range(10)
    ]
    alone = pd.DataFrame(rows).assign(truncated=False, parsed="1")
    several = [
        alone.assign(problem=alone["problem"] * 3 + copy, group=alone["problem"].astype(str))
        for copy in range(3)
    ]
    together = pd.concat(several, ignore_index=True)
    first, second = (summary_tables(answers, "none", 0) for answers in (alone, together))
    assert_alike(second["accuracy"], first["accuracy"], "accuracy")
    np.testing.assert_allclose(second["comparisons"][["lo", "hi"]], first["comparisons"][["lo", "hi"]])
    assert (first["comparisons"]["test"].item(), second["comparisons"]["test"].item()) == (
        "McNemar",
        "sign flip",
    )
