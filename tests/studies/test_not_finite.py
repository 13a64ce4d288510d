"""A metric that is NaN or infinite for some example: the example is named, the run says so, and a run whose scores
are all NaN has failed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import Head, Scores
from headwise.model.verify.tiny import tiny_model
from headwise.runs.info import read_info
from headwise.studies.workbench import Workbench
from helpers import WORDS


@pytest.fixture
def bench(word_tokenizer):
    """A model for which one word is poison: its embedding is not a number."""
    hf = tiny_model("llama", vocab_size=len(word_tokenizer))
    model = hw.load(hf, tokenizer=word_tokenizer, name="tiny")
    with torch.no_grad():
        hf.model.embed_tokens.weight[word_tokenizer.convert_tokens_to_ids("bird")] = float("nan")
    made = Workbench(progress=False)
    made.add(model)
    return made


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "words.jsonl"
    prompts = ["the cat saw", "the bird saw", "a dog met", "she liked it"]
    path.write_text(
        "".join(f'{{"prompt": "{p}", "target": " {WORDS[i + 2]}"}}\n' for i, p in enumerate(prompts))
    )
    return path


@pytest.mark.parametrize("method", ["ablation", "attribution"])
def test_scores_that_one_example_makes_nan_fail_the_run_which_names_it_and_keeps_the_rest(
    bench, data, tmp_path, method
):
    message = rf"{method} on .* every value of scores\.score is NaN or infinite \(example 1\), so there is no result"
    with pytest.raises(HeadwiseError, match=message):
        hw.run(
            "score",
            tmp_path / "run",
            workbench=bench,
            models=["tiny"],
            tasks=[str(data)],
            methods=[method, "random"],
            reference="zero",  # a mean over all examples would be NaN for each of them
        )
    path = tmp_path / "run"
    info = read_info(path)
    assert info["status"] == "failed"
    (notice,) = [notice for notice in info["notices"] if "not finite" in notice]
    assert f"{method} on" in notice
    assert "(example 1)" in notice
    opened = hw.open_run(path)
    (bad,), (good,) = opened.scores(method), opened.scores("random")
    assert len(bad.heads()) == len(good.heads()) == 16  # every head keeps its row
    assert np.isnan(bad.values).all()
    assert np.isfinite(good.values).all()
    mine = bad.example_table()
    assert set(mine[mine["value"].isna()]["example"]) == {1}
    assert mine[mine["example"] != 1]["value"].notna().all()


def test_a_head_whose_score_went_wrong_stays_in_the_table_and_comes_last_in_the_order(tmp_path):
    examples = np.ones((3, 2, 2))
    examples[1, 0, 1] = np.nan
    examples[:, 1, 1] = np.nan
    scores = Scores.from_examples(
        examples, model="m", task="t", method="x", exists=np.array([[True, True], [True, False]])
    )
    assert scores.heads() == [Head(0, 0), Head(0, 1), Head(1, 0)]
    assert scores.order() == [Head(0, 0), Head(1, 0), Head(0, 1)]
    table = scores.table()
    assert len(table) == 3
    assert table["score"].isna().tolist() == [False, True, False]
    scores.save(tmp_path / "s.npz")
    assert Scores.load(tmp_path / "s.npz").heads() == scores.heads()
