"""The study `masking` on a tiny model: from a labelled file to curves, texts, cross table and a resumed run."""

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
from headwise.heads import Head
from headwise.model.verify.tiny import tiny_model
from headwise.runs import read_table
from headwise.studies.masking import texts as masking_texts
from headwise.studies.masking.study import ABILITIES, default_ks, mask_sets
from headwise.studies.masking.texts import Judge, accuracy_metric, answer_part
from headwise.tasks import Example, Task
from headwise.tasks.files.load_task import load_task
from helpers import (
    REPOSITORY,
    HeadsByHook,
    assert_figures,
    assert_same_again,
    every_format,
    labelled_file,
    plain_logits,
    replacing,
    resumed,
    run_on,
)

COGQA = REPOSITORY.parent / "shared/data/cogqa/test.json"
pytestmark = pytest.mark.usefixtures("undrawn")
LABELS = ("animals", "colours")
ANSWERS = {"animals": ("cat", "dog", "bird"), "colours": ("red", "blue", "small")}
TABLES = (
    "scores",
    "examples",
    "curves",
    "texts",
    "orders",
    "samples",
    "cross",
    "cross_texts",
    "interventions",
)
SETTINGS = {
    "answer": "text",
    "cross": True,
    "intervene": ["amplify", "shift"],
    "max_new_tokens": 4,
    "k": [1, 2, 4],
    "n": 5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Ten examples of each of two made-up abilities, in turn, each with a foil."""
    path = tmp_path_factory.mktemp("data") / "kinds.jsonl"
    return labelled_file(path, ANSWERS, 20, lambda i: 4 + i % 3, foils=[" the"])


@pytest.fixture(scope="module")
def model(word_tokenizer):
    hf = tiny_model("llama", vocab_size=len(word_tokenizer), max_position_embeddings=512)
    hf.generation_config.eos_token_id = None
    return hw.load(hf, tokenizer=word_tokenizer, name="tiny")


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    """One whole run with everything that is optional, and its figures."""
    with every_format():
        return carried_out(model, tmp_path_factory.mktemp("runs") / "run", data, **SETTINGS)


def carried_out(model, out, data, **settings):
    return run_on("masking", out, model, data=data, **settings)


def halves(data, label):
    return Task(label, tuple(example for example in load_task(data) if example.label == label)).halves()


def written_slowly(model, prompt, off, count):
    """Greedy decoding without batch or cache, heads zeroed by hooks on the output projections."""
    ids = model.tokens(prompt)
    start = len(ids)
    tokenizer = model.text.tokenizer
    for _ in range(count):
        with HeadsByHook(model, replacing(off)):
            chosen = int(plain_logits(model, ids)[-1].argmax())
        if chosen == tokenizer.eos_token_id:
            break
        ids = [*ids, chosen]
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


def masked_heads(orders, **wanted):
    for name, value in wanted.items():
        orders = orders[orders[name] == value]
    return [Head(int(row.layer), int(row.head)) for row in orders.sort_values("place").itertuples()]


def test_every_table_and_figure_is_there(finished):
    curves = read_table(finished.path, "curves")
    assert list(curves.columns[:11]) == "model task series action k metric value lo hi n draw".split()
    points = curves[curves["draw"].isna()].groupby(["task", "series"])["k"].unique().map(sorted).to_dict()
    for label in LABELS:
        assert points[label, "full"] == [0]
        assert points[label, "top"] == points[label, "random"] == [1, 2, 4]
        assert points[label, "random_layer"] == [4]
    assert set(curves["metric"]) == {"accuracy", "chrf"}
    assert set(curves["n"]) == {5}
    assert ((curves["lo"] <= curves["value"]) & (curves["value"] <= curves["hi"])).all()
    for name in TABLES:
        assert len(read_table(finished.path, name))
    assert_figures(finished.path, "masking-tiny", "masking-cross-tiny", "interventions-tiny")


def test_the_order_comes_from_one_half_and_the_texts_from_the_other(model, data, finished):
    orders, texts = read_table(finished.path, "orders"), read_table(finished.path, "texts")
    samples = read_table(finished.path, "samples")
    for label in LABELS:
        find, test = halves(data, label)
        expected = hw.score(model, find, "attribution", metric="logprob", reference="zero").order()
        for k in (1, 2, 4):
            assert masked_heads(orders, task=label, series="top", k=k) == expected[:k]
        assert samples.loc[samples["task"] == label, "prompt"].tolist() == [e.prompt for e in test]
        assert set(texts[texts["task"] == label]["example"]) == set(test.numbers)
        assert not set(test.numbers) & set(find.numbers)


def test_texts_are_those_of_a_slow_loop_with_the_heads_zeroed_by_hooks(model, data, finished):
    orders, texts = read_table(finished.path, "orders"), read_table(finished.path, "texts")
    for label, (series, k, draw) in itertools.product(LABELS, [("top", 4, 0), ("random", 2, 3)]):
        _, test = halves(data, label)
        off = masked_heads(orders, task=label, series=series, k=k, draw=draw)
        own = texts[(texts["task"] == label) & (texts["series"] == series) & (texts["k"] == k)]
        own = own[own["draw"] == draw].sort_values("example")["text"].tolist()
        slow = [written_slowly(model, example.prompt, off, 4) for example in test]
        assert [text.split() for text in own] == [text.split() for text in slow]


def test_the_numbers_of_the_curves_are_those_of_the_texts(data, finished):
    texts, curves = read_table(finished.path, "texts"), read_table(finished.path, "curves")
    examples = read_table(finished.path, "examples")
    chrf = pytest.importorskip("sacrebleu.metrics.chrf").CHRF()
    for label in LABELS:
        _, test = halves(data, label)
        own = texts[texts["task"] == label]
        full = own[own["series"] == "full"].set_index("example")["text"]
        targets = {number: example.target.strip() for number, example in zip(test.numbers, test, strict=True)}
        for row in curves[(curves["task"] == label) & curves["draw"].isna()].itertuples():
            there = own[(own["series"] == row.series) & (own["k"] == row.k)]
            if row.metric == "accuracy":
                values = [targets[t.example] in t.text.split() for t in there.itertuples()]
            else:
                values = [
                    chrf.sentence_score(t.text, [full[t.example]]).score / 100 for t in there.itertuples()
                ]
            assert row.value == pytest.approx(np.mean(values)), row
    points = examples[examples["series"].notna()]
    means = points.groupby(["task", "series", "k", "metric"])["value"].mean()
    pooled = curves[curves["draw"].isna()].set_index(["task", "series", "k", "metric"])["value"]
    np.testing.assert_allclose(means.to_numpy(), pooled[means.index].to_numpy())


def test_controls_never_touch_the_masked_heads_and_layer_matched_ones_keep_the_layers(finished):
    orders = read_table(finished.path, "orders")
    for label, k in itertools.product(LABELS, (1, 2, 4)):
        top = set(masked_heads(orders, task=label, series="top", k=k))
        draws = [set(masked_heads(orders, task=label, series="random", k=k, draw=draw)) for draw in range(5)]
        assert all(len(draw) == k and not draw & top for draw in draws)
        assert len({frozenset(draw) for draw in draws}) > 1
    for label in LABELS:
        top = masked_heads(orders, task=label, series="top", k=4)
        for draw in range(5):
            matched = orders[(orders["task"] == label) & (orders["series"] == "random_layer")]
            matched = matched[matched["draw"] == draw]
            assert not set(masked_heads(matched)) & set(top)
            layers = pd.Series([head.layer for head in top]).value_counts()
            moved = int(matched["moved"].iloc[0])
            kept = sum(min(layers.get(layer, 0), n) for layer, n in matched["layer"].value_counts().items())
            assert 4 - kept == moved


def test_the_cross_table_masks_one_ability_and_measures_the_other(model, data, finished):
    cross, orders = read_table(finished.path, "cross"), read_table(finished.path, "orders")
    assert len(cross) == 2 * 2 * 2
    texts = read_table(finished.path, "cross_texts")
    off = masked_heads(orders, task="animals", series="top", k=4)
    _, test = halves(data, "colours")
    own = texts[(texts["task"] == "colours") & (texts["heads_of"] == "animals")].sort_values("example")
    slow = [written_slowly(model, example.prompt, off, 4) for example in test]
    assert [text.split() for text in own["text"]] == [text.split() for text in slow]
    accuracy = cross[cross["metric"] == "accuracy"].set_index(["heads_of", "task"])
    right = [e.target.strip() in text.split() for e, text in zip(test, slow, strict=True)]
    assert accuracy.loc[("animals", "colours"), "value"] == pytest.approx(np.mean(right))
    curves = read_table(finished.path, "curves")
    top = curves[(curves["series"] == "top") & (curves["k"] == 4) & (curves["metric"] == "accuracy")]
    for label in LABELS:
        same = top.loc[top["task"] == label, "value"].iloc[0]
        assert accuracy.loc[(label, label), "value"] == pytest.approx(same)


def test_a_run_cut_short_resumes_and_ends_with_the_same_tables(model, data, finished, tmp_path, monkeypatch):
    cut = tmp_path / "cut"
    carry_out = partial(carried_out, model, cut, data, **SETTINGS)
    # Stored: two scores, and eight steps of text.
    calls = resumed(monkeypatch, masking_texts, "generate", 9, carry_out, cut, finished.path, stored=2 + 8)
    whole = 2 + 2 * 7 + 2 + 4  # full; top and random at three K, layer-matched at one; cross; interventions
    assert len(calls) == whole + 1


def test_all_draws_of_a_point_are_written_in_one_call(model, data, tmp_path, monkeypatch):
    real, calls = masking_texts.generate, []

    def counted(*args, **options):
        calls.append(len(options.get("gates", [0])))
        return real(*args, **options)

    monkeypatch.setattr(masking_texts, "generate", counted)
    settings = {
        "n": 3,
        "k": [2],
        "draws": 6,
        "max_new_tokens": 2,
        "abilities": ["colours"],
        "layer_matched": [],
    }
    carried_out(model, tmp_path / "run", data, **settings)
    assert calls == [1, 1, 6]


def test_another_scale_or_place_of_the_gates_gives_other_texts(model, data, tmp_path, monkeypatch):
    small = {"n": 3, "k": [4], "draws": 1, "max_new_tokens": 3, "abilities": ["colours"], "method": "random"}
    folder = carried_out(model, tmp_path / "run", data, **small)
    before = read_table(folder.path, "texts")
    folder = carried_out(model, tmp_path / "run", data, scale=1.0, **small)
    texts = read_table(folder.path, "texts")
    full = texts[texts["series"] == "full"]["text"].tolist()
    assert texts[texts["series"] == "top"]["text"].tolist() == full  # a gate of 1 masks nothing
    assert before[before["series"] == "top"]["text"].tolist() != full
    folder = carried_out(model, tmp_path / "run", data, positions="last", **small)
    last = read_table(folder.path, "texts")
    assert (
        last[last["series"] == "top"]["text"].tolist() != before[before["series"] == "top"]["text"].tolist()
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"abilities": ["animal"]}, "did you mean 'animals'"),
        ({"k": [9]}, "16 heads: a random control needs as many heads again, so mask 1 to 8"),
        ({"cross": True, "cross_k": 9}, "mask 1 to 8"),
        ({"intervene": ["amplify"], "intervene_k": 9}, "mask 1 to 8"),
        ({"layer_matched": [12]}, "mask 1 to 8"),
    ],
)
def test_a_mistake_ends_the_run_before_it_begins(model, data, tmp_path, settings, said, monkeypatch):
    monkeypatch.setattr(
        "headwise.studies.run.compute", lambda *_, **__: pytest.fail("something was computed")
    )
    with pytest.raises(HeadwiseError, match=said):
        carried_out(model, tmp_path / "run", data, **settings)


def test_a_missing_package_is_told_before_anything_is_written(model, data, tmp_path, monkeypatch):
    real = __import__("importlib").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sacrebleu" else real(name))
    monkeypatch.setattr(
        "headwise.studies.run.compute", lambda *_, **__: pytest.fail("something was computed")
    )
    with pytest.raises(HeadwiseError, match="the metric 'chrf' needs sacrebleu"):
        carried_out(model, tmp_path / "run", data)


def test_the_reader_is_told_of_a_low_start_and_of_few_examples(finished, data, model, tmp_path, monkeypatch):
    assert any("answers few examples correctly" in finding for finding in finished.findings)
    folder = carried_out(model, tmp_path / "run", data, k=[1], draws=1, max_new_tokens=1, layer_matched=[])
    assert "animals has 10 examples, so text is generated from 5 of them instead of 40" in folder.notices


@pytest.mark.parametrize("name", ["probe", "ablation", "sensitivity", "random"])
def test_any_score_can_give_the_order(model, data, tmp_path, monkeypatch, name):
    from headwise.scores.probe import probe

    settings = {"k": [2], "draws": 1, "max_new_tokens": 1, "layer_matched": [], "method": name}
    folder = carried_out(model, tmp_path / "run", data, **settings)
    orders = read_table(folder.path, "orders")
    finds = [halves(data, label)[0] for label in LABELS]
    if name == "probe":
        every = probe(model, Task("both", tuple(e for find in finds for e in find)))
        expected = [every[label].top(2, "absolute") for label in LABELS]
    else:
        maps = [hw.score(model, find, name, metric="logprob", reference="zero") for find in finds]
        expected = [one.top(2, "signed" if one.signed else "absolute") for one in maps]
    for label, heads in zip(LABELS, expected, strict=True):
        assert masked_heads(orders, task=label, series="top") == heads


@pytest.mark.skipif(not COGQA.is_file(), reason="no folder shared/data beside the repository")
def test_cogqa_works_end_to_end_with_its_four_abilities(model, tmp_path):
    settings = {"n": 3, "k": [2], "draws": 2, "max_new_tokens": 3, "limit": 200, "layer_matched": []}
    folder = carried_out(model, tmp_path / "run", str(COGQA), accuracy="rouge1", **settings)
    curves = read_table(folder.path, "curves")
    assert list(dict.fromkeys(curves["task"])) == list(ABILITIES)
    assert set(curves["series"]) == {"full", "top", "random"}
    asked = set(read_table(folder.path, "samples")["prompt"])
    assert asked < {example.prompt for example in load_task(str(COGQA))}
    assert len(asked) == 4 * 3


@pytest.mark.parametrize(
    ("heads", "ks"),
    [(1024, (16, 32, 64, 128)), (512, (16, 32, 64, 128)), (270, (4, 8, 16, 32)), (16, (1, 2)), (2, (1,))],
)
def test_the_grid_keeps_its_shares_in_small_models(heads, ks):
    assert default_ks(heads) == ks


def test_sets_depend_on_seed_and_k_alone():
    order = [Head(layer, head) for layer in range(4) for head in range(4)]
    first, again, other = (mask_sets(order, (2, 4), (4,), 5, seed) for seed in (0, 0, 1))
    assert first == again
    assert [one.draws for one in first if one.series == "random"] != [
        one.draws for one in other if one.series == "random"
    ]
    gates = first[-1].gates((4, 4), scale=0.001)
    assert gates.shape == (5, 4, 4)
    assert np.isclose(gates, 0.001).sum(axis=(1, 2)).tolist() == [4] * 5
    assert first[-1].moved == 5 * 4  # the order's first four heads are a whole layer, so all come from others


@pytest.mark.parametrize(
    ("text", "judged", "part"),
    [
        (" 8. She buys 9 more.", "sentence", "8."),
        (" 8. She buys 9 more.", "text", "8. She buys 9 more."),
        ("\n\n3.5 kg\nQ: And?", "sentence", "3.5 kg"),
        (' mother." Then', "sentence", 'mother."'),
        ("", "sentence", ""),
    ],
)
def test_the_answer_is_the_first_sentence_or_everything(text, judged, part):
    assert answer_part(text, judged) == part


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        ((" 8", " 1,200"), "math"),
        ((" $33", " -4.5 %"), "math"),
        ((" 8", " eight"), "contains"),
        ((" 3 kg",), "contains"),
    ],
)
def test_numbers_are_compared_as_numbers(answers, name):
    task = Task("t", tuple(Example("p", answer) for answer in answers))
    assert accuracy_metric("auto", task) == name
    assert accuracy_metric("exact", task) == "exact"


def test_a_text_that_equals_the_full_one_is_wholly_similar_even_if_empty():
    task = Task("t", (Example("p", " cat"), Example("p", " dog")))
    values = Judge("contains", "chrf").values(["", "a cat"], ["", "a dog"], task)
    assert values["chrf"][0] == 1
    assert 0 < values["chrf"][1] < 1
    assert values["accuracy"].tolist() == [0, 0]


def test_steps_computed_again_are_the_same_to_the_bit(model, finished):
    assert_same_again(finished, model, steps=4)


def test_a_file_without_labels_is_one_ability_named_like_the_file(model, data, tmp_path):
    plain = [json.loads(line) for line in Path(data).read_text().splitlines()]
    for row in plain:
        del row["label"]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, plain)))
    few = {"n": 5, "k": [2], "draws": 1, "max_new_tokens": 2, "layer_matched": []}
    unlabelled = carried_out(model, tmp_path / "a", str(path), **few)
    path.write_text("\n".join(json.dumps(row | {"label": "mine"}) for row in plain))
    labelled = carried_out(model, tmp_path / "b", str(path), **few)
    assert set(read_table(unlabelled.path, "curves")["task"]) == {"mine"}
    for name in ("scores", "curves", "texts"):
        assert read_table(unlabelled.path, name).equals(read_table(labelled.path, name))
