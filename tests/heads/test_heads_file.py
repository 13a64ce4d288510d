"""Heads files: lists, saved scores, and the tables of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores, save_order
from headwise.heads.heads_file import read_heads

VALUES = np.array([[0.1, -3.0], [2.0, 0.5]])


def scores(values=VALUES, **about):
    about = {"model": "m", "task": "t", "method": "ablation", **about}
    return Scores.from_examples(np.stack([values, values]), **about)


def test_a_list_is_taken_in_its_order(tmp_path):
    save_order([Head(3, 1), Head(0, 2), Head(1, 1)], tmp_path / "heads.json")
    assert read_heads(tmp_path / "heads.json") == [Head(3, 1), Head(0, 2), Head(1, 1)]
    assert read_heads(tmp_path / "heads.json", 2) == [Head(3, 1), Head(0, 2)]
    with pytest.raises(HeadwiseError, match="has 3 heads, fewer than the 4 asked for"):
        read_heads(tmp_path / "heads.json", 4)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_scores_give_their_first_heads(tmp_path, kind):
    path = tmp_path / f"scores.{kind}"
    if kind == "npz":
        scores().save(path)
    else:
        scores().table().to_parquet(path)
    assert read_heads(path, 2) == [Head(1, 0), Head(1, 1)]
    assert read_heads(path, 1, by="absolute") == read_heads(path, 1, by="hinders") == [Head(0, 1)]
    with pytest.raises(HeadwiseError, match="--top 16"):
        read_heads(path)
    with pytest.raises(HeadwiseError, match="has 4 heads, fewer"):
        read_heads(path, 5)


def test_of_several_maps_one_must_be_named(tmp_path):
    import pandas as pd

    path = tmp_path / "scores.parquet"
    pd.concat([scores().table(), scores(-VALUES, task="u").table()]).to_parquet(path)
    assert read_heads(path, 1, task="u") == [Head(0, 1)]
    with pytest.raises(HeadwiseError, match=r"has 2 maps that fit.*t by ablation \(m\); u by ablation \(m\)"):
        read_heads(path, 1)
    with pytest.raises(HeadwiseError, match="has 0 maps that fit"):
        read_heads(path, 1, method="probe")


def test_the_command_writes_a_checkpoint_and_says_what_it_did(tiny, tmp_path, monkeypatch):
    import headwise.model.load.load as load_module

    monkeypatch.setattr(load_module, "load", lambda name, **_: tiny)
    (tmp_path / "heads.json").write_text(json.dumps(["L1H2", "L0H0", "L3H3"]))
    command = ["export", "tiny", "--heads", str(tmp_path / "heads.json"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--top", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "tiny with 2 heads at 0, float32" in done.output
    assert json.loads((tmp_path / "out/headwise.json").read_text())["heads"] == ["L1H2", "L0H0"]
    assert (tmp_path / "out/model.safetensors").is_file()


def test_of_several_models_the_one_at_hand_is_meant(tmp_path):
    import pandas as pd

    path = tmp_path / "scores.parquet"
    pd.concat([scores().table(), scores(-VALUES, model="other").table()]).to_parquet(path)
    assert read_heads(path, 1, model="other") == [Head(0, 1)]
    assert read_heads(path, 1, model="m") == [Head(1, 0)]
    with pytest.raises(HeadwiseError, match=r"has 2 maps that fit.*\(m\).*\(other\)"):
        read_heads(path, 1, model="a third")
    scores().table().to_parquet(path)
    assert read_heads(path, 1, model="a copy of m") == [Head(1, 0)]  # a single map fits whoever asks
    save_order([Head(0, 1)], tmp_path / "heads.json")
    with pytest.raises(HeadwiseError, match="holds one list of heads"):
        read_heads(tmp_path / "heads.json", task="t")
