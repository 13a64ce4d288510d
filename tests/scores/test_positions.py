"""Where heads are ablated: token positions, spans, and every position, against plain hooks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import PositionScores
from headwise.stats import benjamini_hochberg, mean_interval, sign_flip
from helpers import HeadsByHook, plain_difference, word_task


def spanned_task(n=4):
    """The second word of every prompt is the span `second`, the last two are `end`."""
    examples = []
    for example in word_task(n, equal_length=False):
        words, start = example.prompt.split(), len(example.prompt.split()[0]) + 1
        last = len(example.prompt)
        spans = {"second": (start, start + len(words[1])), "end": (last - len(" ".join(words[-2:])), last)}
        examples.append(replace(example, spans=spans))
    return hw.Task("spanned", tuple(examples), "logit_diff")


def by_hooks(model, task, where, head=(1, 2)):
    """m(all heads) − m(the head is 0 at the positions `where(tokens)`), per example."""
    effects = []
    for example in task:
        places = where(len(model.tokens(example.prompt)))

        def edit(layer, z, places=places):
            z = z.clone()
            if layer == head[0]:
                z[:, places, head[1]] = 0
            return z

        full = plain_difference(model, example)
        with HeadsByHook(model, edit):
            effects.append(full - plain_difference(model, example))
    return np.array(effects)


PLACES = {
    "2": (2, lambda tokens: [2]),
    "[0, 3]": ([0, 3], lambda tokens: [0, 3]),
    "text": ("0, 3", lambda tokens: [0, 3]),
    "from the end": ([-2], lambda tokens: [tokens - 2]),
    "last": ("last", lambda tokens: [tokens - 1]),
    "second": ("second", lambda tokens: [1]),
    "end": ("end", lambda tokens: [tokens - 2, tokens - 1]),
    "two spans": (["second", "end"], lambda tokens: [1, tokens - 2, tokens - 1]),
    "two spans as text": ("second, end", lambda tokens: [1, tokens - 2, tokens - 1]),
    "rest": ("rest", lambda tokens: [0, *range(2, tokens - 2)]),
}


@pytest.mark.parametrize("name", PLACES)
def test_numbers_and_spans_say_where_a_head_is_ablated(tiny, name):
    positions, where = PLACES[name]
    task = spanned_task()
    expected = by_hooks(tiny, task, where)
    scores = hw.score(tiny, task, heads="L1H2", positions=positions, reference="zero")
    np.testing.assert_allclose(scores.examples[:, 1, 2], expected, atol=1e-5)
    measured = hw.measure(tiny, task, ablate="L1H2", positions=positions, reference="zero")
    np.testing.assert_allclose(measured.effects, expected, atol=1e-5)


def test_gradients_kept_heads_and_curves_take_positions_too(tiny):
    task = spanned_task()
    attribution = hw.score(tiny, task, "attribution", positions=[1], reference="mean")
    each = hw.score(tiny, task, "attribution", positions="each", reference="mean")
    np.testing.assert_allclose(attribution.values[1, 2], each["L1H2", 1], atol=1e-6)
    keep, integrated = (
        hw.score(tiny, task, m, positions="second", reference="patch") for m in ("keep", "integrated")
    )
    none = hw.measure(tiny, task, keep=[], positions="second", reference="patch")
    assert integrated.details["full_minus_none"] == pytest.approx(none.effects.mean(), abs=1e-5)
    alone = hw.measure(tiny, task, keep=["L1H2"], positions=1, reference="patch")
    np.testing.assert_allclose(keep.examples[:, 1, 2], alone.values - none.values, atol=1e-5)
    curve = hw.sweep(tiny, task, tiny.heads(), action="mask", k=[16], positions="second", reference="patch")
    np.testing.assert_allclose(curve.none, none.values, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, t: hw.score(m, t, positions="secnd"), "unknown positions 'secnd'.*second"),
        (lambda m, t: hw.score(m, t, positions=["end", "secnd"]), "unknown positions 'secnd'.*second"),
        (lambda m, t: hw.score(m, t, positions=["end", 3]), "or the names of spans"),
        (
            lambda m, t: hw.score(m, t, positions=[4]),
            "prompt of example 1 has 4 tokens, which are positions 0 to 3",
        ),
        (lambda m, t: hw.score(m, t, positions=[]), "token positions such as"),
        (lambda m, t: hw.score(m, t, positions=1.5), "positions is 1.5; give 'all', 'last', token positions"),
        (lambda m, t: hw.score(m, t, "pattern", positions=[1]), "'pattern' ablates nothing"),
        (lambda m, t: hw.score(m, t, "keep", positions="each"), "'each' works with ablation and attribution"),
        (
            lambda m, t: hw.score(m, t, positions="each", top=2),
            "top cannot be combined with positions='each'",
        ),
        (lambda m, t: hw.measure(m, t, ablate="L0H0", positions="each"), "only hw.score and the study score"),
        (lambda m, t: hw.generate(m, "the cat", positions=[1]), r"unknown positions \[1\].*all, last"),
    ],
)
def test_positions_that_cannot_be_are_refused_with_a_sentence(tiny, call, said):
    with pytest.raises(HeadwiseError, match=said):
        call(tiny, spanned_task())


# ---- every position --------------------------------------------------------------------------------------


@pytest.fixture
def each(tiny):
    return hw.score(tiny, spanned_task(6), positions="each", reference="mean")


def test_every_position_is_the_score_at_this_position(tiny, each):
    task = spanned_task(6)
    assert each.shape == (16, 6)
    assert each.n.tolist() == [6, 6, 6, 6, 4, 2]
    at_2 = hw.score(tiny, task, positions=[2], reference="mean")
    np.testing.assert_allclose(each.values[:, 2], at_2.values.ravel(), atol=1e-6)
    np.testing.assert_allclose(each.stderr[:, 2], at_2.stderr.ravel(), atol=1e-6)
    longer = [i for i, example in enumerate(task) if len(example.prompt.split()) > 4]
    at_4 = hw.score(tiny, task.take(longer), positions=[4], reference="mean", reference_task=task)
    np.testing.assert_allclose(each.values[:, 4], at_4.values.ravel(), atol=1e-6)
    some = hw.score(tiny, task, positions="each", reference="mean", heads=["L1H2", "L3H0"])
    np.testing.assert_allclose(some.examples, each.examples[:, [6, 12]], atol=1e-6)
    assert [str(head) for head in some.heads()] == ["L1H2", "L3H0"]


def test_the_table_has_intervals_and_tests_of_the_examples_that_have_the_position(each):
    table = each.table()
    named = [
        "layer",
        "head",
        "position",
        "token",
        "score",
        "stderr",
        "lo",
        "hi",
        "n",
        "p",
        "q",
        "metric",
        "reference",
    ]
    assert list(table.columns) == ["model", "task", "method", *named]
    row = table[(table["layer"] == 1) & (table["head"] == 2) & (table["position"] == 4)].iloc[0]
    values = each.examples[:, 6, 4]
    values = values[~np.isnan(values)]
    lo, hi = mean_interval(values[:, None])
    assert (row["n"], row["reference"], row["metric"]) == (4, "mean", "logit_diff")
    assert row[["score", "lo", "hi"]].tolist() == pytest.approx([values.mean(), lo[0], hi[0]])
    assert row["p"] == pytest.approx(sign_flip(values[:, None])[0])
    np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))
    assert len(each.example_table()) == 16 * sum(each.n)


def test_positions_that_cannot_matter_are_no_tests(tiny):
    scores = hw.score(tiny, word_task(6), positions="each", reference="patch")  # equal first words
    table = scores.table()
    # Nor do heads of the last layer reach the answer from an earlier token.
    none = (table["position"] == 0) | ((table["layer"] == 3) & (table["position"] < 5))
    assert (table.loc[none, ["score", "lo", "hi"]] == 0).all(axis=None)
    assert (table.loc[none, "q"] == 1).all()
    np.testing.assert_allclose(table.loc[~none, "q"], benjamini_hochberg(table.loc[~none, "p"].to_numpy()))


def test_it_is_shown_ranked_saved_and_drawn(each, tmp_path):
    (head, position), *_ = each.top(3)
    assert abs(each[head, position]) == np.nanmax(np.abs(each.values))
    assert each.top(1, "hinders")[0] == (
        each.heads()[int(each.values.min(1).argmin())],
        int(each.values.min(0).argmin()),
    )
    assert repr(each).startswith(
        "PositionScores(ablation (mean) on spanned, tiny: 16 heads × 6 positions, n = 6"
    )
    assert f"{head} at {position} " in repr(each)
    assert each._repr_png_().startswith(b"\x89PNG")
    each.save(tmp_path / "each.npz")
    again = PositionScores.load(tmp_path / "each.npz")
    assert repr(again) == repr(each)
    assert again.table().equals(each.table())
    (axes, *_) = each.plot(heads=5).axes
    assert len(axes.get_yticklabels()) == 5
    assert str(head) in [label.get_text() for label in axes.get_yticklabels()]
    with pytest.raises(HeadwiseError, match="positions 0 to 5"):
        each["L1H2", 6]
    with pytest.raises(HeadwiseError, match="L9H9 was not scored"):
        each["L9H9"]


def test_a_position_is_named_by_its_token_only_where_all_examples_have_it(tiny, caplog):
    prompts = ["the cat sat and", "the dog sat", "the cat ran then"]
    task = hw.task([{"prompt": prompt, "target": " red", "foils": [" blue"]} for prompt in prompts])
    each = hw.score(tiny, task, positions="each", reference="zero", heads=["L1H2"])
    assert "have 3 to 4 tokens" in caplog.text
    assert list(each.tokens) == ["the", "", "", ""]
    assert each.table()["token"].tolist() == ["the", "", "", ""]
    (axes, *_) = each.plot().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0 the", "1", "2", "3"]
    assert any(f"at {t} {each['L1H2', t]:+.3g}" in repr(each) for t in (1, 2, 3))
    alike = task.take([0])
    assert list(hw.score(tiny, alike, positions="each", reference="zero").tokens)[1:] == ["cat", "sat", "and"]


def test_mlps_have_positions_too(tiny):
    task = word_task(3)
    each = hw.score(tiny, task, positions="each", components=["heads", "mlps"])
    slopes = hw.score(tiny, task, "attribution", positions="each", components=["heads", "mlps"])
    assert each.shape == slopes.shape == (20, 6)
    at_3 = hw.score(tiny, task, positions=3, components=["heads", "mlps"])
    assert each["MLP2", 3] == pytest.approx(at_3["MLP2"], abs=1e-6)
    whole = hw.score(tiny, task, "attribution", components=["heads", "mlps"])
    assert slopes["MLP2"].sum() == pytest.approx(whole["MLP2"], abs=1e-5)
    assert set(each.table()["component"]) == {"head", "mlp"}
