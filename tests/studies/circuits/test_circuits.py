"""The study `circuits` on planted models: a dense one with six heads that matter, a sparse one with three of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.runs import read_table
from headwise.studies import steps
from headwise.studies.circuits import study as circuits_study
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.settings.resolve import resolve
from helpers import assert_figures, assert_same_again, every_format, resumed, run_on
from planted import DENSE, SPARSE, planted_model, told_apart, written

TABLES = ("scores", "choices", "curves", "examples", "circuits", "ratios", "members", "attention")
N = 20


@pytest.fixture(scope="module")
def models(word_tokenizer):
    heads = {"dense": DENSE, "sparse": SPARSE, "control": DENSE[:5]}
    return {name: planted_model(word_tokenizer, kept, name) for name, kept in heads.items()}


@pytest.fixture(scope="module")
def task(models):
    return told_apart(models.values(), N)


@pytest.fixture(scope="module")
def data(task, tmp_path_factory):
    return written(task, tmp_path_factory.mktemp("data") / "apart.jsonl")


def carried_out(loaded, out, /, **settings):
    one = {"orders": ["integrated"], "references": ["patch"]}
    return run_on("circuits", out, *loaded.values(), **{"n": N, "by": ["absolute"], **one, **settings})


@pytest.fixture(scope="module")
def finished(models, data, tmp_path_factory):
    """One whole run of a pair, with its figures."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with every_format():
        return carried_out(models, out, models=["dense", "sparse"], tasks=[data])


def test_every_table_and_figure_is_there(finished):
    tables = {name: read_table(finished.path, name) for name in TABLES}
    curves = tables["curves"]
    assert list(curves.columns[:11]) == "model task series action k metric value lo hi n draw".split()
    assert set(curves["metric"]) == {"explained_effect", "logit_diff"}
    assert set(curves["series"]) == {"integrated absolute", "random", "random_layer"}
    assert set(curves["task"]) == {"apart"}
    assert list(tables["circuits"]["model"]) == ["dense", "sparse"]
    assert list(tables["members"]["role"]) == ["dense", "sparse"]
    assert list(tables["ratios"]["compared"]) == ["dense/sparse"] * 2  # by the order, and by the chosen order
    assert list(tables["choices"]["chosen"]) == [True, True]
    assert_figures(finished.path, "circuits", "heads-apart-patch")
    (row,) = tables["ratios"].query("chosen").to_dict("records")
    ratio = f"dense {row['stays']:.0f} heads, sparse {row['other_stays']:.0f} heads (ratio {row['stays_ratio']:.1f}"
    assert any(ratio in sentence for sentence in finished.findings)


def test_heads_are_ranked_and_swept_on_disjoint_halves(finished, models, task):
    examples = read_table(finished.path, "examples")
    ranking = set(examples.loc[examples["series"].isna(), "example"])
    testing = set(examples.loc[examples["series"].notna(), "example"])
    assert ranking == set(range(0, N, 2))
    assert testing == set(range(1, N, 2))
    found, tested = task.take(sorted(ranking)), task.take(sorted(testing))
    for name, model in models.items():
        if name == "control":
            continue
        scores = hw.score(model, found, "integrated", reference="patch")
        own = read_table(finished.path, "scores").query("model == @name")
        np.testing.assert_allclose(own["score"], scores.values.ravel())
        swept = hw.sweep(model, tested, scores, by="absolute", points=21, controls=(), reference="patch")
        curve = read_table(finished.path, "curves").query(
            "model == @name and series == 'integrated absolute' and metric == 'explained_effect'"
        )
        np.testing.assert_array_equal(curve["k"], swept.k)
        np.testing.assert_allclose(curve["value"], swept.explained()["value"], atol=1e-9)
        row = read_table(finished.path, "circuits").query("model == @name").iloc[0]
        assert row["k"] == swept.k_at().k
        assert row["cpr"] == pytest.approx(swept.cpr().value)


def test_examples_keep_their_numbers_where_a_group_stays_together(models, task, tmp_path, undrawn):
    data = written(task, tmp_path / "grouped.jsonl")
    lines = [json.loads(line) for line in Path(data).read_text().splitlines()]
    for number in (0, 3, 5):
        lines[number]["group"] = "one"
    Path(data).write_text("\n".join(map(json.dumps, lines)))
    folder = carried_out({"dense": models["dense"]}, tmp_path / "run", models=["dense"], tasks=[data])
    examples = read_table(folder.path, "examples")
    ranking = set(examples.loc[examples["series"].isna(), "example"])
    testing = set(examples.loc[examples["series"].notna(), "example"])
    assert {0, 3, 5} <= ranking
    assert sorted(ranking | testing) == list(range(N))
    assert not ranking & testing
    alone = hw.score(models["dense"], task.take([5]), "integrated", reference="patch").values
    own = examples[examples["series"].isna() & (examples["example"] == 5)].sort_values(["layer", "head"])
    np.testing.assert_allclose(own["value"], alone.ravel(), atol=1e-6)


def test_rows_that_are_seeds_are_counted(models, data, tmp_path, undrawn):
    run = {"models": ["dense"], "tasks": [data], "orders": ["gating"], "n": 8}
    run["method_options"] = {"updates": 3, "batch": 4, "stop": None, "seeds": 7}
    folder = carried_out({"dense": models["dense"]}, tmp_path / "run", **run)
    examples = read_table(folder.path, "examples")
    assert set(examples.loc[examples["series"].isna(), "example"]) == set(range(7))
    assert set(examples.loc[examples["series"].notna(), "example"]) == {1, 3, 5, 7}


def test_the_curves_find_the_planted_numbers(finished):
    curves = read_table(finished.path, "curves").query("metric == 'explained_effect'")
    for name, planted in (("dense", len(DENSE)), ("sparse", len(SPARSE))):
        own = curves[(curves["model"] == name) & (curves["series"] == "integrated absolute")].set_index("k")[
            "value"
        ]
        np.testing.assert_allclose(own[planted:], 1, atol=1e-5)
        assert abs(own[planted - 1] - 1) > 1e-3


def test_the_ratio_and_its_interval_are_those_of_a_plain_paired_bootstrap(finished):
    row = read_table(finished.path, "ratios").iloc[0]
    examples = read_table(finished.path, "examples").query("series == 'integrated absolute'")
    values = {
        name: examples[examples["model"] == name]
        .pivot(index="k", columns="example", values="value")
        .to_numpy()
        for name in ("dense", "sparse")
    }

    def needed(name, rows):
        """The first k, head by head, that explains nine tenths; every k was measured."""
        own = values[name][:, rows].mean(1)
        share = (own - own[0]) / (own[-1] - own[0])
        return next(k for k, height in enumerate(share) if height >= 0.9)

    everyone = np.arange(N // 2)
    assert row["resampling"] == "paired"
    assert row["n"] == row["other_n"] == N // 2
    assert (row["k"], row["other_k"]) == (needed("dense", everyone), needed("sparse", everyone))
    assert row["ratio"] == row["k"] / row["other_k"]
    draw = np.random.default_rng(5)
    drawn = [draw.integers(0, N // 2, N // 2) for _ in range(3000)]
    ratios = [needed("dense", rows) / needed("sparse", rows) for rows in drawn]
    for tail, bound in ((0.025, row["lo"]), (0.975, row["hi"])):
        # Ratios of small whole numbers lie in steps: the bound is one of those near the tail.
        assert np.quantile(ratios, max(tail - 0.015, 0)) <= bound <= np.quantile(ratios, min(tail + 0.015, 1))


def test_a_ratio_below_one_is_told_as_what_it_is(models, data, finished, tmp_path, undrawn):
    swapped = carried_out(models, tmp_path / "run", models=["sparse", "dense"], tasks=[data])
    (row,) = read_table(swapped.path, "ratios").query("chosen").to_dict("records")
    before = read_table(finished.path, "ratios").iloc[0]
    assert row["ratio"] == pytest.approx(1 / before["ratio"])
    assert (row["lo"], row["hi"]) == (pytest.approx(1 / before["hi"]), pytest.approx(1 / before["lo"]))
    assert row["ratio"] < 1
    assert row["stays_ratio"] < 1
    assert any(f"ratio {row['stays_ratio']:.1f}" in sentence for sentence in swapped.findings)


def test_other_examples_are_resampled_each_on_their_own(models, data, task, tmp_path, undrawn):
    from headwise.sweeps.readings import ratio_row

    carried_out(models, tmp_path / "run", models=["dense", "sparse"], tasks=[data], maps=0)
    found = hw.open_run(tmp_path / "run").curves(series="integrated absolute")
    first, second = (next(c for c in found if c.model == n and c.controls) for n in ("dense", "sparse"))
    same = ratio_row(first, first, threshold=0.9, paired=True)
    apart = ratio_row(first, first, threshold=0.9, paired=False)
    assert same["lo"] == same["hi"] == 1  # a model beside itself, resampled alike
    assert apart["lo"] < 1 < apart["hi"]
    assert ratio_row(first, second, threshold=0.9, paired=False)["resampling"] == "independent"
    nothing = replace(second, full=second.none)
    undefined = ratio_row(first, nothing, threshold=0.9, paired=True)
    assert np.isnan([undefined["ratio"], undefined["lo"], undefined["stays_ratio"]]).all()


def test_a_dense_control_is_a_third_curve_between_the_two(models, data, tmp_path):
    folder = carried_out(
        models, tmp_path / "run", models=["dense", "sparse", "control"], tasks=[data], maps=1
    )
    ratios = read_table(folder.path, "ratios").query("chosen").set_index("compared")
    assert list(ratios.index) == ["dense/control", "dense/sparse", "control/sparse"]
    product = ratios.loc["dense/control", "ratio"] * ratios.loc["control/sparse", "ratio"]
    assert ratios.loc["dense/sparse", "ratio"] == pytest.approx(product)
    assert (folder.path / "figures/circuits.png").exists()


def test_a_run_cut_short_resumes_and_ends_with_the_same_tables(
    models, data, finished, tmp_path, undrawn, monkeypatch
):
    cut = tmp_path / "cut"
    carry_out = partial(carried_out, models, cut, models=["dense", "sparse"], tasks=[data])
    # Stored: two orders, a curve each on the finding half, a held-out curve and its maps.
    calls = resumed(monkeypatch, circuits_study, "sweep", 4, carry_out, cut, finished.path, stored=6)
    assert [args[0].name for args, _ in calls] == ["dense", "sparse", "dense", "sparse", "sparse"]


def test_two_pairs_have_tasks_of_their_own_and_share_what_they_share(models, task, data, tmp_path, undrawn):
    other = written(task.take(range(N - 4)), tmp_path / "other.jsonl")
    pairs = [
        {"dense": "dense", "sparse": "sparse", "tasks": [data]},
        {"dense": "control", "sparse": "sparse", "tasks": [data, other]},
        {"dense": "dense", "tasks": [other]},
    ]
    folder = carried_out(models, tmp_path / "run", pairs=pairs, n=N - 4, maps=0, controls=[])
    members = read_table(folder.path, "members")
    assert members.groupby(["pair", "task"], sort=False)["model"].apply(list).to_dict() == {
        (0, "apart"): ["dense", "sparse"],
        (1, "apart"): ["control", "sparse"],
        (1, "other"): ["control", "sparse"],
        (2, "other"): ["dense"],
    }
    summary = read_table(folder.path, "circuits")
    assert len(members) == 7
    assert len(summary) == 6  # sparse on the task that two pairs share is measured once
    assert list(read_table(folder.path, "ratios").query("chosen")["pair"]) == [0, 1, 1]
    assert set(read_table(folder.path, "curves")["series"]) == {"integrated absolute"}


def test_several_orders_and_rankings_are_told_apart(models, data, tmp_path, undrawn):
    chosen = {"orders": ["ablation", "sensitivity"], "by": ["signed", "absolute"], "n": 8}
    folder = carried_out(models, tmp_path / "run", models=["dense"], tasks=[data], **chosen)
    summary = read_table(folder.path, "circuits")
    assert dict(zip(summary["series"], summary["by"], strict=True)) == {
        "ablation": "signed",
        "ablation absolute": "absolute",
        "sensitivity": "unsigned",
    }
    curves = read_table(folder.path, "curves")
    drawn = curves[curves["series"] != curves["order"]][["order", "series"]].drop_duplicates()
    (chosen,) = summary.loc[summary["chosen"], "series"]
    # None of the order's own first heads, so a control belongs to one order: the chosen one.
    assert sorted(map(tuple, drawn.to_numpy().tolist())) == [(chosen, "random"), (chosen, "random_layer")]


def test_an_effect_that_may_be_nothing_is_said_to_be_undefined(models, task, tmp_path):
    swap = [
        hw.Example(e.prompt, e.foils[0], (e.target,), e.counterfactual) if i % 4 < 2 else e
        for i, e in enumerate(task)
    ]
    data = written(hw.Task("either", tuple(swap)), tmp_path / "either.jsonl")
    folder = carried_out(models, tmp_path / "run", models=["dense", "sparse"], tasks=[data], maps=0)
    summary = read_table(folder.path, "circuits")
    assert not summary["defined"].any()
    assert summary["k"].isna().all()
    assert read_table(folder.path, "ratios")["ratio"].isna().all()
    assert any("undefined" in sentence and "may be 0" in sentence for sentence in folder.findings)
    raw = read_table(folder.path, "curves").query("metric != 'explained_effect'")
    assert raw["value"].notna().all()


def test_a_random_order_is_not_mistaken_for_the_random_control(models, data, tmp_path, undrawn):
    chosen = {"models": ["dense", "sparse"], "tasks": [data], "points": 4, "draws": 2, "by": ["signed"]}
    folder = carried_out(models, tmp_path / "run", orders=["random"], **chosen)
    curves = read_table(folder.path, "curves")
    assert set(curves["series"]) == {"random order", "random", "random_layer"}
    order = curves[curves["series"] == "random order"]
    assert order["draw"].isna().all()
    assert not order.duplicated(["model", "metric", "k"]).any()
    assert set(read_table(folder.path, "ratios")["series"]) == {"random order"}


def test_a_method_that_leaves_heads_without_a_score_gives_no_order(models, data, tmp_path, monkeypatch):
    real = steps.score

    def holey(*args, **options):
        scores = real(*args, **options)
        scores.values[1, 2] = np.nan
        return scores

    monkeypatch.setattr(steps, "score", holey)
    with pytest.raises(HeadwiseError, match="no finite score for 1 heads of dense"):
        carried_out(models, tmp_path / "run", models=["dense"], tasks=[data])


def test_the_maps_are_those_of_the_first_heads_of_the_order(finished, models, task):
    maps = read_table(finished.path, "attention")
    scores = read_table(finished.path, "scores")
    for name in ("dense", "sparse"):
        own = scores[scores["model"] == name]
        largest = own.reindex(own["score"].abs().sort_values(ascending=False, kind="stable").index)[:4]
        shown = maps[maps["model"] == name].drop_duplicates("rank")
        assert shown[["layer", "head"]].to_numpy().tolist() == largest[["layer", "head"]].to_numpy().tolist()
        head = hw.Head(*map(int, shown.iloc[0][["layer", "head"]]))
        seen = hw.attention(models[name], task.examples[1].prompt, [head], maps=True)
        part = maps[(maps["model"] == name) & (maps["rank"] == 0)]
        for row in itertools.islice(part.itertuples(), 10):
            assert row.attention == pytest.approx(float(seen.maps[0, row.query, row.key]))
        assert part.groupby("query")["attention"].sum().to_numpy() == pytest.approx(1, abs=1e-5)


def test_models_on_the_command_line_are_a_pair_and_its_control():
    assert CircuitsSettings().pairs[0].members == {"dense": "smollm2"}
    two = resolve(CircuitsSettings, None, {"models": ["a", "b"]})
    assert two.pairs[0].members == {"dense": "a", "sparse": "b"}
    three = resolve(CircuitsSettings, None, {"models": ["a", "b", "c"]})
    assert three.pairs[0].members == {"dense": "a", "sparse": "b", "control": "c"}
    assert resolve(CircuitsSettings, None, three.model_dump()) == three  # as the run folder writes it down


def test_more_heads_than_the_model_has_are_refused(models, data, tmp_path):
    with pytest.raises(HeadwiseError, match="dense has 16 heads, so k runs from 0 to 16"):
        carried_out(models, tmp_path / "run", models=["dense"], tasks=[data], k=[4, 17])


def test_steps_computed_again_are_the_same_to_the_bit(models, finished, undrawn):
    assert_same_again(finished, *models.values(), steps=4)
