"""A run of `nested` that is stopped between seeds, and the command line."""

from __future__ import annotations

import pandas as pd
import pytest

from headwise.runs import read_table
from headwise.scores.nested import nested
from helpers import run_on
from planted import cats_and_dogs, written

OPTIONS = {"seeds": 2, "rows": 60}


def carried_out(model, out, data):
    return run_on(
        "score", out, model, tasks=[data], methods=["nested"], reference="mean", method_options=OPTIONS
    )


def test_a_run_stopped_after_the_first_seed_goes_on_with_the_second(chains, tmp_path, monkeypatch, undrawn):
    data, real, trained = written(cats_and_dogs(16), tmp_path / "data.jsonl"), nested.fit_orders, []

    def counted(problem, start, seeds, *rest):
        trained.extend(seeds)
        if trained == [0, 1]:
            raise KeyboardInterrupt
        return real(problem, start, seeds, *rest)

    monkeypatch.setattr(nested, "fit_orders", counted)
    with pytest.raises(KeyboardInterrupt):
        carried_out(chains, tmp_path / "cut", data)
    assert len(list((tmp_path / "cut/partial").glob("*-0.npz"))) == 1
    carried_out(chains, tmp_path / "cut", data)
    assert trained == [0, 1, 1]
    assert not (tmp_path / "cut/partial").exists()
    carried_out(chains, tmp_path / "whole", data)
    assert trained == [0, 1, 1, 0, 1]
    resumed, whole = (read_table(tmp_path / name, "scores") for name in ("cut", "whole"))
    pd.testing.assert_frame_equal(resumed, whole)
    assert len(whole) == 36
