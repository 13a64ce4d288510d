"""The studies besides `score` that store cards of their strongest heads, for the head pages of the report."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch

import headwise as hw
from headwise.heads import heads_of
from headwise.runs import read_table
from headwise.tables.frames import by_size
from helpers import run_on, word_model
from planted import told_apart, written

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def base():
    return word_model("llama", name="base", max_position_embeddings=512)


@pytest.fixture(scope="module")
def file(base, tmp_path_factory):
    return written(told_apart([base], 24), tmp_path_factory.mktemp("data") / "apart.jsonl")


def carded(folder):
    """The heads with a card, by model and task."""
    rows = read_table(folder.path, "card_patterns").drop_duplicates(["model", "task", "layer", "head"])
    return {key: set(heads_of(part)) for key, part in rows.groupby(["model", "task"])}


def head_pages(folder):
    """The names of the heads that have a page in the report."""
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="cards">(.*?)</script>', page, re.S)
    return {card["name"] for card in json.loads(data)}


def test_functions_has_pages_of_each_abilitys_largest_heads(base, file, tmp_path):
    folder = run_on("functions", tmp_path / "run", base, tasks=[file], methods=["attribution"])
    scores = read_table(folder.path, "scores")
    largest = heads_of(by_size(scores).head(2))
    assert carded(folder) == {("base", "apart"): set(largest)}
    assert head_pages(folder) == set(map(str, largest))


def test_diff_has_pages_of_the_changed_heads_for_both_models(base, file, tmp_path):
    top = hw.score(base, hw.task(file, model=base)).top(1)[0]
    weak = weakened(base, top)
    folder = run_on("diff", tmp_path / "run", base, weak, tasks=[file], n=24, cards=3)
    table = read_table(folder.path, "diff")
    changed = set(heads_of(table[table["q"] < 0.05][:3]))
    assert top in changed
    assert carded(folder) == {("base", "apart"): changed, ("weak", "apart"): changed}
    assert head_pages(folder) == set(map(str, changed))


def weakened(model, head):
    hf = copy.deepcopy(model.hf)
    size = hf.config.head_dim
    with torch.no_grad():
        hf.model.layers[head.layer].self_attn.o_proj.weight[:, size * head.head : size * (head.head + 1)] *= (
            0.3
        )
    return hw.load(hf, tokenizer=model.text.tokenizer, name="weak")


@pytest.mark.parametrize("study", ["functions", "diff"])
def test_without_cards_there_are_no_such_tables(study, base, file, tmp_path):
    models = (base, weakened(base, hw.Head(1, 1))) if study == "diff" else (base,)
    folder = run_on(study, tmp_path / "run", *models, tasks=[file], methods=["attribution"], cards=0)
    assert not [name for name in folder.written if name.startswith("card_")]


def largest(folder, most=2):
    """The heads with the largest scores of each method, by task."""
    scores = read_table(folder.path, "scores")
    if "reference" in scores:
        scores = scores[scores["reference"] == scores["reference"].iloc[0]]
    return {
        task: {head for _, rows in part.groupby("method") for head in heads_of(by_size(rows).head(most))}
        for task, part in scores.groupby("task")
    }


OWN = {
    "circuits": {"orders": ["attribution"], "references": ["mean"], "n": 12},
    "roles": {"n": 24, "seeds": 1, "random_sets": 0, "fit": {"updates": 2, "first_updates": 2}},
    "masking": {"n": 8, "k": [2], "draws": 1, "cross": False, "intervene": [], "max_new_tokens": 2},
    "functions": {"methods": ["attribution"], "n": 6},
}


@pytest.mark.parametrize("study", OWN)
def test_the_largest_heads_of_every_table_of_scores_have_pages_significant_or_not(
    study, base, file, tmp_path
):
    folder = run_on(study, tmp_path / "run", base, tasks=[file], **OWN[study])
    expected = largest(folder)
    found = carded(folder)
    assert {task: found["base", task] for task in expected} == expected
    assert {str(head) for heads in expected.values() for head in heads} <= head_pages(folder)
