"""The study `contrast` on a tiny model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.runs import read_table
from helpers import run_on, word_model, word_task


@pytest.fixture
def pairs(tmp_path):
    """Three pairs of files: the same sentences asked in two ways."""
    made = {}
    for number in range(3):
        own = {}
        for side, options in (("keep", " then"), ("lose", " and")):
            path = tmp_path / f"{number}-{side}.jsonl"
            some = word_task(12).examples[number::3]
            rows = [{"prompt": e.prompt + options, "target": e.target} for e in some]
            path.write_text("\n".join(map(json.dumps, rows)))
            own[side] = str(path)
        made[f"pair {number}"] = own
    return made


def carried_out(model, out, pairs, **settings):
    chosen = {"seeds": 2, "fit": {"updates": 5, "batch": 4}, **settings}
    return run_on("contrast", out, model, pairs=pairs, **chosen)


def test_held_out_pairs_are_measured_and_drawn_and_no_gate_has_seen_them(tiny, pairs, tmp_path):
    folder = carried_out(tiny, tmp_path / "run", pairs, held_out=["pair 1"])
    table = read_table(folder.path, "contrast")
    assert set(table["pair"]) == {"pair 1"}
    assert set(table["seed"]) == {-1, 0, 1}
    assert (folder.path / "figures/contrast-tiny.png").stat().st_size > 5_000
    means = table.groupby(["side", table["seed"] >= 0])["mean_logprob"].mean()
    for side in ("keep", "lose"):
        ends = [f"{means[side, gated]:.2f}".replace("-", "−") for gated in (False, True)]
        assert " to ".join(ends) in folder.findings[0]
    gates = read_table(folder.path, "gates")
    last = gates[gates["step"] == 5].groupby(["layer", "head"])["gate"].mean().to_numpy()
    np.testing.assert_allclose(read_table(folder.path, "scores")["score"], last)
    # Other words in the held-out pair change no gate.
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"prompt": "red blue big", "target": " cat"}))
    changed = pairs | {"pair 1": {"keep": str(path), "lose": str(path)}}
    again = carried_out(tiny, tmp_path / "again", changed, held_out=["pair 1"])
    assert read_table(again.path, "gates")["logit"].equals(gates["logit"])


@pytest.mark.parametrize(("family", "reference"), [("llama", "zero"), ("gemma3_text", "mean")])
def test_gates_close_on_zero_or_on_the_mean_where_a_norm_follows_the_heads(
    family, reference, pairs, tmp_path
):
    model = word_model(family, load={"bos": False, "device": "cpu"})
    folder = carried_out(model, tmp_path / "run", pairs)
    assert set(read_table(folder.path, "scores")["reference"]) == {reference}
    if reference == "mean":
        with pytest.raises(HeadwiseError, match="has a norm after its heads"):
            carried_out(model, tmp_path / "zero", pairs, reference="zero")
