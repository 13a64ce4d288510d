"""A learned ranking is fitted again, with another seed on other halves; the sentence quotes the wider interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.charts.style import without_figures
from headwise.runs import read_table
from headwise.studies.circuits.section import findings
from helpers import run_on
from planted import DENSE, planted_model, told_apart, written

N, REFITS = 40, 2
FIT = {"seeds": 1, "updates": 12, "examples": 4, "masks": 4}


@pytest.fixture(scope="module")
def model(word_tokenizer):
    return planted_model(word_tokenizer, DENSE, "dense")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    data = written(told_apart([model], N), tmp_path_factory.mktemp("data") / "apart.jsonl")
    settings = {
        "n": N,
        "orders": ["nested", "integrated"],
        "references": ["patch"],
        "tasks": [data],
        "maps": 0,
        "controls": [],
        "refits": REFITS,
        "method_options": FIT,
    }
    with without_figures():
        return run_on("circuits", tmp_path_factory.mktemp("runs") / "run", model, **settings), data


def test_only_learned_rankings_are_fitted_again_each_on_other_halves(run, model):
    folder, data = run
    refits = read_table(folder.path, "refits")
    assert list(refits["refit"]) == [1, 2]
    assert set(refits["order"]) == {"nested"}
    whole = hw.task(str(data), N, model=model, seed=0)
    for row in refits.to_dict("records"):
        shuffled = whole.take(np.random.default_rng([0, row["refit"]]).permutation(len(whole)).tolist())
        find, test = shuffled.halves()
        seed = 1_000 * row["refit"]
        scores = hw.score(model, find, "nested", reference="patch", seed=seed, progress=False, **FIT)
        curve = hw.sweep(model, test, scores, reference="patch", controls=(), progress=False)
        assert row["heads"].split() == [str(head) for head in scores.order()]
        assert row["stays"] == curve.k_at().stays
        assert row["r2"] == pytest.approx(curve.tracking().r2, abs=1e-4)
    first = read_table(folder.path, "circuits").query("order == 'nested'").iloc[0]
    assert first["heads"].split() != refits["heads"].iloc[0].split()


def circuits(**changes) -> pd.DataFrame:
    row = {"model": "m", "task": "ioi", "series": "nested", "order": "nested", "reference": "mean", "of": 270}
    row |= {"stays": 9.0, "stays_lo": 8.0, "stays_hi": 11.0, "k": 9.0, "k_lo": 8.0, "k_hi": 11.0}
    row |= {"threshold": 0.9, "action": "keep", "metric": "logit_diff", "n": 80, "chosen": True}
    row |= {"r2": -1.1, "r2_lo": -2.0, "r2_hi": -0.4, "within": 0.25, "defined": True, "effect": 2.0}
    return pd.DataFrame([row | changes])


def sentence(*sizes: float, **changes) -> str:
    refits = pd.concat([circuits(stays=size) for size in sizes]) if sizes else pd.DataFrame()
    (found,) = findings({"circuits": circuits(**changes), "refits": refits})
    return found.sentence


def test_the_sentence_is_about_means_and_says_that_prompts_are_not_followed():
    message = sentence()
    assert (
        "9 of 270 heads (MLPs intact) recover 90 % of the mean logit_diff of IOI under mean ablation"
        in message
    )
    assert "do not follow the model: a constant does better (R² −1.1 [−2, −0.4], 25 % of prompts" in message
    unsure = sentence(r2=-0.2, r2_lo=-2.0, r2_hi=0.4)
    assert "do not follow the model (R² −0.2 [−2, 0.4]" in unsure
    assert "they closely follow the model (R² 0.93" in sentence(r2=0.93, r2_lo=0.9, r2_hi=0.95)


def test_the_wider_of_the_two_intervals_is_quoted():
    assert "95 % CI 8–11" in sentence(9.0, 10.0)
    assert "9–41 over 3 fits" in sentence(12.0, 41.0)
    assert "9–never over 2 fits" in sentence(np.nan)
    assert "95 % CI 8–11" in sentence()
