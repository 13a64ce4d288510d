"""The study `functions` on a tiny model, from a labelled file to tables, figures and a resumed run."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Scores
from headwise.runs import read_table
from headwise.stats.orders import elbow_count
from headwise.studies import steps
from headwise.studies.abilities import score_labels
from headwise.studies.functions.study import agreement_rows, overlap_rows
from headwise.studies.steps import Scored
from helpers import (
    assert_figures,
    assert_same_again,
    every_format,
    labelled_file,
    resumed,
    run_on,
    word_model,
)

LABELS = ("animals", "colours", "verbs")
TABLES = ("scores", "examples", "elbows", "overlap", "agreement", "probe")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Eight examples of each of three made-up abilities, in turn."""
    answers = {
        "animals": ("cat", "dog", "bird"),
        "colours": ("red", "blue", "small"),
        "verbs": ("ran", "sat", "saw"),
    }
    path = tmp_path_factory.mktemp("data") / "kinds.jsonl"
    return labelled_file(path, answers, 24, lambda i: 4 + i % 2)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """One whole run, with its figures; drawing them is most of the work, so it is done once."""
    model = word_model("llama", name="tiny", max_position_embeddings=512)
    with every_format():
        return carried_out(model, tmp_path_factory.mktemp("runs") / "run", data)


def carried_out(model, out, data, **settings):
    return run_on("functions", out, model, data=data, **settings)


def test_every_table_and_figure_is_there_and_they_agree_with_one_another(finished):
    folder = finished
    scores, examples, elbows, overlap, agreement, probe = (read_table(folder.path, name) for name in TABLES)
    assert list(scores.columns[:12]) == "model task method layer head score stderr lo hi n p q".split()
    assert scores.groupby(["task", "method"]).size().to_dict() == {
        (task, name): 16 for task in LABELS for name in ("attribution", "probe")
    }
    keys = ["task", "method", "layer", "head"]
    means = examples.groupby(keys)["value"].mean()
    np.testing.assert_allclose(means[scores.set_index(keys).index], scores["score"], atol=1e-9)
    assert (scores.loc[scores["method"] == "probe", "score"] >= 0).all()
    assert set(scores.loc[scores["method"] == "probe", "sign"]) <= {-1, 1}
    assert scores.loc[scores["method"] == "probe", "p"].isna().all()
    assert scores.loc[scores["method"] == "attribution", "signed"].all()
    for row in elbows.itertuples():
        own = scores[(scores["task"] == row.task) & (scores["method"] == row.method)]
        assert row.heads == elbow_count(own["score"].to_numpy())
        assert row.of == 16
        told = own["q"].lt(0.05).sum() if row.method == "attribution" else pd.NA
        assert row.significant is told or row.significant == told
        shared = overlap[(overlap["task"] == row.task) & (overlap["method"] == row.method)]
        assert shared["significant"].isna().all() if told is pd.NA else (shared["significant"] == told).all()
    assert len(overlap) == 2 * 3 * 3
    assert len(agreement) == 3
    assert list(probe["task"]) == ["all", *LABELS]
    first = probe.iloc[0]
    assert first["n"] == probe["n"][1:].sum() == 6
    assert first["accuracy"] == pytest.approx((probe["accuracy"] * probe["n"])[1:].sum() / 6)
    assert first["chance"] == pytest.approx(1 / 3)
    assert_figures(folder.path, "functions-tiny-attribution", "functions-tiny-probe", "overlap-tiny")
    assert any("not what the head does" in finding for finding in folder.findings)


def test_the_maps_are_those_of_the_methods_themselves(tiny, data, finished):
    scores = read_table(finished.path, "scores").set_index(["method", "task", "layer", "head"])["score"]
    from headwise.scores.probe import probe
    from headwise.tasks.files.load_task import load_task

    task = load_task(data)
    in_order = task.take(sorted(range(24), key=lambda i: LABELS.index(task.examples[i].label)))
    for label, expected in probe(tiny, in_order).items():
        np.testing.assert_allclose(scores["probe", label].to_numpy(), expected.values.ravel())
    animals = task.take([i for i in range(24) if task.examples[i].label == "animals"])
    expected = hw.score(tiny, animals, "attribution")
    np.testing.assert_allclose(scores["attribution", "animals"].to_numpy(), expected.values.ravel())


def test_held_out_examples_are_numbered_as_the_causal_methods_number_them(finished):
    examples = read_table(finished.path, "examples")
    by_probe = examples[examples["method"] == "probe"].groupby("task")["example"].unique()
    for label in LABELS:
        assert len(by_probe[label]) == 2
        assert by_probe[label].max() < 8


def test_a_run_cut_short_resumes_and_ends_with_the_same_tables(
    tiny, data, finished, tmp_path, monkeypatch, undrawn
):
    cut = tmp_path / "cut"
    carry_out = partial(carried_out, tiny, cut, data)
    calls = resumed(monkeypatch, steps, "score", 3, carry_out, cut, finished.path, stored=2)
    assert [args[1].name for args, _ in calls] == ["animals", "colours", "verbs", "verbs"]


def test_abilities_examples_and_methods_can_be_chosen(tiny, data, tmp_path, undrawn):
    chosen = {"abilities": ["verbs", "animals"], "n": 5, "methods": ["ablation", "random"]}
    folder = carried_out(tiny, tmp_path / "run", data, **chosen)
    scores = read_table(folder.path, "scores")
    assert set(scores["task"]) == {"animals", "verbs"}
    assert set(scores["n"]) == {5}
    assert set(scores["method"]) == {"ablation", "random"}
    assert not (folder.path / "tables/probe.parquet").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"abilities": ["animal"]}, "did you mean 'animals'"),
        ({"n": 2}, "has 2 examples, but a probe needs at least 3"),
        ({"task_options": {"columns": {"label": "labels"}}}, "unknown column"),
    ],
)
def test_a_mistake_ends_the_run_before_it_begins(tiny, data, tmp_path, settings, said):
    with pytest.raises(HeadwiseError, match=said):
        carried_out(tiny, tmp_path / "run", **{"data": data, **settings})


def test_labels_of_one_group_are_refused_by_the_name_of_their_file_before_the_run_begins(
    tiny, data, tmp_path
):
    lines = [json.loads(line) | {"group": "one"} for line in Path(data).read_text().splitlines()]
    path = tmp_path / "grouped.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(HeadwiseError, match=r"of task '.*grouped.jsonl' has [01] groups? of examples"):
        carried_out(tiny, tmp_path / "run", str(path))
    assert not (tmp_path / "run" / "tables").exists()


def test_data_without_labels_are_one_ability_named_like_the_file(tiny, tmp_path):
    rows = [{"prompt": f"the cat {word}", "target": f" {word}"} for word in ("one", "two", "six")]
    path = tmp_path / "plain.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    folder = carried_out(tiny, tmp_path / "run", str(path))  # methods: the default, attribution and probe
    scores = read_table(folder.path, "scores")
    assert set(scores["task"]) == {"plain"}
    assert set(scores["method"]) == {"attribution"}
    alone = hw.score(tiny, rows, "attribution").values
    assert np.allclose(scores.sort_values(["layer", "head"])["score"], alone.ravel())
    assert any(
        "left out probe" in notice and "columns={'label': 'NAME'}" in notice for notice in folder.notices
    )
    assert not list((folder.path / "figures").glob("overlap*"))  # one ability shares its heads with none
    (finding,) = folder.findings
    assert "attribution: plain has" in finding


def test_the_probe_alone_still_needs_two_abilities(tiny, tmp_path):
    path = tmp_path / "plain.jsonl"
    path.write_text('{"prompt": "the cat", "target": " sat"}\n{"prompt": "the dog", "target": " ran"}\n')
    with pytest.raises(HeadwiseError, match=r"abilities|labels"):
        carried_out(tiny, tmp_path / "run", str(path), methods=["probe"])


def scored(method, ability, values):
    """The map of one ability, from the scores of one layer's heads."""
    names = {"model": "m", "task": ability, "method": method, "metric": "logit_diff"}
    scores = Scores.from_examples(np.tile(values, (4, 1, 1)).astype(float), **names, signed=method != "probe")
    return Scored(scores, scores.table())


def test_overlap_is_the_jaccard_index_of_the_heads_before_the_elbow():
    maps = {"a": [9, 9, 0, 0, 0, 0, 0, 0], "b": [0, -9, 9, 9, 0, 0, 0, 0], "c": [1] * 8}
    rows = overlap_rows({name: scored("probe", name, values) for name, values in maps.items()})
    rows = rows.set_index(["task", "other"])
    assert rows.loc[("a", "b"), "jaccard"] == rows.loc[("b", "a"), "jaccard"] == 1 / 4
    assert rows.loc[("a", "a"), "jaccard"] == 1
    assert rows.loc[("a", "c"), "jaccard"] == 0
    assert np.isnan(rows.loc[("c", "c"), "jaccard"])
    assert rows.loc[("a", "b"), "by_chance"] == pytest.approx(0.75 / 4.25)
    # Chance by counting: every pair of a set of two and a set of three heads out of eight.
    shared = [
        len({*x} & {*y})
        for x in itertools.combinations(range(8), 2)
        for y in itertools.combinations(range(8), 3)
    ]
    assert np.mean(shared) == pytest.approx(0.75)


def test_agreement_compares_sizes_and_where_both_are_signed_the_numbers_too():
    maps = {"attribution": [4, -3, 2, 1], "probe": [4, 3, 2, 1], "ablation": [-4, 3, -2, -1]}
    rows = agreement_rows([scored(method, "a", values) for method, values in maps.items()])
    rows = rows.set_index(["method", "other"])
    assert rows.loc[("attribution", "probe"), "rank_correlation"] == pytest.approx(1)
    assert np.isnan(rows.loc[("attribution", "probe"), "signed_correlation"])
    assert rows.loc[("attribution", "ablation"), "rank_correlation"] == pytest.approx(1)
    assert rows.loc[("attribution", "ablation"), "signed_correlation"] == pytest.approx(-1)


def test_steps_are_the_same_however_the_dtype_of_the_model_was_chosen(
    tiny, data, finished, tmp_path, undrawn
):
    named = carried_out(tiny, tmp_path / "named", data, dtype="float32")
    assert named.calls.keys() == finished.calls.keys()


def test_abilities_in_another_order_are_another_step(tiny, data):
    """A probe is trained on the examples in their order."""
    tasks = {label: hw.Task(label, (hw.Example("the", " cat"),)) for label in LABELS}
    calls = [
        score_labels(tiny, {label: tasks[label] for label in order}, "probe")
        for order in (LABELS, LABELS[::-1])
    ]
    assert calls[0].key != calls[1].key


def test_steps_computed_again_are_the_same_to_the_bit(tiny, finished, undrawn):
    assert_same_again(finished, tiny)
