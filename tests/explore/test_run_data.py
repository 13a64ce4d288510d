"""What the explorer shows of a run folder: maps, presets, scores, edges and backups of a head."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from explore.conftest import PROMPT, ask
from headwise.explorer.explorer import Explorer
from headwise.explorer.run_data import RunData, model_of_run
from headwise.heads import Head
from report.conftest import finished_run, score_table


def edges(model="tiny"):
    """A table of edges as a study of wiring writes it: keys and values belong to a group of query heads."""
    rows = [
        ("L0H1", "L2H3.Q", "Q", "L2H3", 0.5),
        ("L1H2", "L2KV1.V", "V", "L2H2 L2H3", -1.5),
        ("L2H3", "L3KV0.K", "K", "L3H0 L3H1", 0.9),
        ("L0H0", "L1H1.Q", "Q", "L1H1", 3.0),
        ("L0H0", "L2H33.Q", "Q", "L2H33", 4.0),
    ]
    table = pd.DataFrame(rows, columns=["sender", "receiver", "slot", "heads", "score"])
    return table.assign(model=model, lo=table["score"] - 0.1, hi=table["score"] + 0.1, q=0.01)


@pytest.fixture
def run(tmp_path):
    scores = score_table("tiny", "words", "ablation", (4, 4))
    both = pd.concat([scores, score_table("another", "words", "ablation", (4, 4), seed=2)])
    about = {"model": "tiny", "task": "words", "by": "signed", "threshold": 0.9}
    circuits = pd.DataFrame(
        [
            {**about, "series": "ablation", "k": 3.0, "defined": True},
            {**about, "series": "random", "k": np.nan, "defined": False},
        ]
    )
    labels = {(0, 0): "facilitating", (1, 1): "facilitating", (2, 2): "interfering", (3, 3): "undecided"}
    disagreeing = ("facilitating", "irrelevant", "facilitating")  # of three seeds, on the first head
    roles = [
        {"model": "tiny", "task": "words", "seed": seed, "layer": layer, "head": head}
        | {"label": disagreeing[seed] if (layer, head) == (0, 0) else label}
        for (layer, head), label in labels.items()
        for seed in range(3)
    ]
    tables = {"scores": both, "circuits": circuits, "roles": pd.DataFrame(roles), "edges": edges()}
    return finished_run(tmp_path / "run", "score", tables)


def test_a_map_holds_the_scores_of_the_loaded_model_alone(tiny, run):
    data = RunData(run, tiny)
    (shown,) = data.maps()
    table = score_table("tiny", "words", "ablation", (4, 4))
    assert shown["signed"]
    assert shown["name"] == "ablation, words"
    for row in table.to_dict("records"):
        assert shown["values"][row["layer"]][row["head"]] == pytest.approx(row["score"], rel=1e-5)


def test_presets_are_the_circuit_and_the_majority_roles(tiny, run):
    circuit, facilitating, interfering = RunData(run, tiny).presets()
    table = score_table("tiny", "words", "ablation", (4, 4)).nlargest(3, "score")
    assert circuit["action"] == "keep"
    assert circuit["heads"] == [f"L{row.layer}H{row.head}" for row in table.itertuples()]
    assert (facilitating["action"], facilitating["heads"]) == ("off", ["L0H0", "L1H1"])
    assert interfering["heads"] == ["L2H2"]


def test_the_rows_of_a_head_have_its_scores_and_its_edges_the_largest_first(tiny, run):
    scores, wired = RunData(run, tiny).rows_of(Head(2, 3))
    assert scores["columns"][:3] == ["task", "measure", "score"]
    assert wired["title"].startswith("Edges into and out of this head")
    place = wired["columns"].index("score")
    assert [row[place] for row in wired["rows"]] == ["-1.5", "0.9", "0.5"]
    assert "L0H0" not in str(wired["rows"])


@pytest.fixture
def backups(tmp_path):
    """A run with the tables of a study of backups."""
    of = {"model": "tiny", "task": "words"}
    pairs = pd.DataFrame(
        {"model": "tiny", "a": ["L0H0", "L1H1"], "b": ["L2H2", "L2H3"], "interaction": [0.1, -0.7]}
    )
    primary = pd.DataFrame([{**of, "layer": 1, "head": 0, "accepted": True}])
    primary.loc[1] = {**of, "layer": 0, "head": 3, "accepted": False}
    tested = [(2, 3, 0.25, True), (3, 3, 0.5, False)]
    rows = [
        {**of, "layer": i, "head": j, "difference": size, "backup": is_one} for i, j, size, is_one in tested
    ]
    found = pd.DataFrame(
        [{**of, "heads": "L0H1 L2H3", "joint": 2.0}, {**of, "heads": "L0H2 L1H3", "joint": 1.0}]
    )
    tables = {"interactions": pairs, "primary": primary, "backups": pd.DataFrame(rows), "groups": found}
    return finished_run(tmp_path / "backups", "score", tables)


def test_joint_effects_backups_and_groups_of_a_head_are_shown(tiny, backups):
    pairs, backup, group = RunData(backups, tiny).rows_of(Head(2, 3))
    assert pairs["rows"] == [["L1H1", "L2H3", "-0.7"]]
    assert (backup["columns"], backup["rows"]) == (
        ["task", "backup", "difference"],
        [["words", "yes", "0.25"]],
    )
    assert group["rows"] == [["words", "L0H1 L2H3", "2"]]


def test_presets_of_a_backups_run_are_the_primary_set_alone_and_with_its_backups(tiny, backups):
    alone, together = RunData(backups, tiny).presets()
    assert (alone["action"], alone["heads"]) == ("off", ["L1H0"])
    assert (together["action"], together["heads"]) == ("off", ["L1H0", "L2H3"])


def test_the_model_of_a_run_is_the_first_it_names_or_the_one_that_is_asked_for(run):
    assert model_of_run(run, None) == "tiny"
    assert model_of_run(run, "other") == "other"


def test_the_page_of_a_run_begins_with_its_maps(tiny, run, serve):
    start = Explorer(tiny, run).start()
    assert start["run"] == {"name": "run", "study": "score"}
    assert len(start["maps"]) == 1
    assert start["shape"] == [4, 4]
    explorer = serve(tiny, run)
    events = ask(explorer, "head", head="L2H3", prompt=PROMPT)
    assert [event["event"] for event in events] == ["attention", "promoted", "rows"]
    assert len(events[-1]["tables"]) == 2


def test_a_folder_that_is_no_run_is_refused(tiny, tmp_path):
    with pytest.raises(hw.HeadwiseError, match=r"run\.json"):
        Explorer(tiny, tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "gaps"),
    [("score", np.inf, 1), ("score", -np.inf, 1), ("score", np.nan, 1), ("layer", -1, 1), ("head", 99, 1)],
)
def test_a_value_that_no_map_can_hold_is_a_gap_in_it(tiny, tmp_path, column, value, gaps):
    table = score_table("tiny", "words", "ablation", (4, 4))
    table.loc[5, column] = value
    data = RunData(finished_run(tmp_path / "run", "score", {"scores": table}), tiny)
    (shown,) = json.loads(json.dumps(data.maps(), allow_nan=False))
    flat = [number for row in shown["values"] for number in row]
    assert flat.count(None) == gaps
    whole = score_table("tiny", "words", "ablation", (4, 4))["score"].drop(5)
    assert sorted(number for number in flat if number is not None) == pytest.approx(sorted(whole), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores", {"layer": "first"}),
        ("scores", {"score": "high"}),
        ("circuits", {"k": np.inf}),
        ("circuits", {"k": -3.0}),
        ("circuits", {"threshold": "all"}),
        ("roles", {"layer": "first"}),
        ("roles", {"layer": -1}),
        ("edges", {"score": "high"}),
    ],
)
def test_a_run_with_strange_tables_opens_with_gaps_or_is_refused_in_a_sentence(tiny, run, name, change):
    table = pd.read_parquet(run / f"tables/{name}.parquet").assign(**change)
    table.to_parquet(run / f"tables/{name}.parquet", index=False)
    explorer = None
    try:
        explorer = Explorer(tiny, run)
        explorer.serve()
        assert (
            not [one for one in explorer.start()["presets"] if one["name"].startswith("circuit")]
            or name != "circuits"
        )
    except hw.HeadwiseError as error:
        assert "are not those that the study" in str(error) or "head" in str(error)  # noqa: PT017
    finally:
        if explorer is not None:
            explorer.stop()
