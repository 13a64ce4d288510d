"""`hw.patch` against two passes with plain hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.errors import HeadwiseError
from helpers import HeadsByHook, plain_logits, recorded, word_task

PAIRS = [
    ("the dog met a bird", "the cat saw two birds"),
    ("he liked red and blue then", "she ran big and small it"),
]


def by_hooks(model, clean, corrupted, heads, positions):
    """Last logits of the clean prompt with heads taken from a first, recorded pass over the corrupted one."""
    seen = recorded(model, corrupted)

    def edit(layer, z):
        z = z.clone()
        for head in map(hw.Head.parse, heads):
            if head.layer == layer:
                z[:, positions, head.head] = seen[layer][None, positions, head.head]
        return z

    with HeadsByHook(model, edit):
        return plain_logits(model, model.tokens(clean))[-1]


@pytest.mark.parametrize("heads", [["L1H2"], ["L0H3", "L0H1", "L2H0"]])
@pytest.mark.parametrize("positions", [[-1], [1, 3], "all", "last"])
def test_it_equals_two_passes_with_hooks(tiny, heads, positions):
    clean, corrupted = zip(*PAIRS, strict=True)
    result = hw.patch(tiny, clean, corrupted, heads, positions=positions)
    at = (
        {"all": slice(None), "last": [-1]}.get(positions, positions)
        if isinstance(positions, str)
        else positions
    )
    for e, (a, b) in enumerate(PAIRS):
        expected = by_hooks(tiny, a, b, heads, at)
        np.testing.assert_allclose(result.patched[e], expected, atol=1e-5)
        np.testing.assert_allclose(result.clean[e], plain_logits(tiny, tiny.tokens(a))[-1], atol=1e-5)
        np.testing.assert_allclose(result.corrupted[e], plain_logits(tiny, tiny.tokens(b))[-1], atol=1e-5)
    assert not np.allclose(result.patched, result.clean, atol=1e-4)


def test_one_pair_of_texts_is_a_pair_of_lists(tiny):
    (a, b), _ = PAIRS
    one, listed, ids = (
        hw.patch(tiny, *given, "L1H2") for given in ((a, b), ([a], [b]), (tiny.tokens(a), tiny.tokens(b)))
    )
    np.testing.assert_array_equal(one.patched, listed.patched)
    np.testing.assert_array_equal(one.patched, ids.patched)
    assert repr(one).startswith(
        "Patched(L1H2 at position 0–4 of 'the dog met a bird': most likely next token "
    )


def test_all_heads_at_all_positions_of_the_same_prompt_change_nothing(tiny):
    (a, _), _ = PAIRS
    result = hw.patch(tiny, a, a, tiny.heads())
    np.testing.assert_array_equal(result.patched, result.clean)


def test_the_logit_difference_is_the_one_that_measure_has(tiny):
    task = word_task(4)
    clean = [example.prompt for example in task]
    corrupted = [example.counterfactual for example in task]
    result = hw.patch(tiny, clean, corrupted, ["L1H2", "L2H0"])
    table = result.logit_diff([e.target for e in task], [e.foils[0] for e in task])
    measured = hw.measure(tiny, task, ablate=["L1H2", "L2H0"], reference="patch")
    np.testing.assert_allclose(table["patched"], measured.values, atol=1e-5)
    np.testing.assert_allclose(table["clean"], measured.full, atol=1e-5)
    np.testing.assert_allclose(table["effect"], measured.effects, atol=1e-5)  # positive: the heads help
    np.testing.assert_allclose(
        table["share"], (table["patched"] - table["clean"]) / (table["corrupted"] - table["clean"])
    )


def test_restoring_runs_the_corrupted_prompt_and_keeps_the_sign(tiny):
    """Every head at every position restored leaves nothing of the corrupted prompt but what its own tokens write."""
    task = word_task(4)
    clean, corrupted = [e.prompt for e in task], [e.counterfactual for e in task]
    answers = [e.target for e in task], [e.foils[0] for e in task]
    restored = hw.patch(tiny, clean, corrupted, ["L1H2"], restore=True)
    swapped = hw.patch(tiny, corrupted, clean, ["L1H2"])
    np.testing.assert_array_equal(restored.patched, swapped.patched)
    np.testing.assert_array_equal(restored.clean, swapped.corrupted)
    np.testing.assert_array_equal(restored.corrupted, swapped.clean)
    assert restored.prompts == corrupted
    one, other = restored.logit_diff(*answers), swapped.logit_diff(*answers)
    np.testing.assert_allclose(one["effect"], -other["effect"])
    np.testing.assert_allclose(one["effect"], one["patched"] - one["corrupted"])
    np.testing.assert_allclose(one["share"], one["effect"] / (one["clean"] - one["corrupted"]))


def test_one_position_may_be_a_number_of_numpy(tiny):
    (a, b), _ = PAIRS
    one, other = (hw.patch(tiny, a, b, "L1H2", positions=at) for at in (np.int64(2), [2]))
    assert one.positions == other.positions == [[2]]
    np.testing.assert_array_equal(one.patched, other.patched)


def test_the_table_has_the_likely_tokens_with_and_without(tiny):
    (a, b), _ = PAIRS
    result = hw.patch(tiny, a, b, "L1H2", positions=-1)
    table = result.table(2)
    before = torch.from_numpy(result.clean[0]).softmax(-1)
    top = tiny.text.tokenizer.decode([int(before.argmax())])
    assert table.loc[table["token"] == top, "plain"].item() == pytest.approx(float(before.max()), rel=1e-5)
    assert top in result._repr_html_()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("the dog", "the", "L0H0"), "the clean prompt has 2 tokens and the corrupted one 1"),
        ((["the dog"], ["a", "b"], "L0H0"), "1 clean and 2 corrupted"),
        (("the dog", "a cat", []), "no heads are given"),
        (("the dog", "a cat", "L9H0"), "has no head L9H0"),
        ((word_task(2), word_task(2), "L0H0"), "prompt 1 is a Example; expected a text"),
    ],
)
def test_mistakes_are_named(tiny, given, message):
    with pytest.raises(HeadwiseError, match=message):
        hw.patch(tiny, *given)


def test_wrong_positions_and_answers_are_named(tiny):
    with pytest.raises(HeadwiseError, match="positions 0 to 1"):
        hw.patch(tiny, "the dog", "a cat", "L0H0", positions=[2])
    with pytest.raises(HeadwiseError, match="'all', 'last' or token positions"):
        hw.patch(tiny, "the dog", "a cat", "L0H0", positions="end")
    with pytest.raises(HeadwiseError, match="positions is None"):
        hw.patch(tiny, "the dog", "a cat", "L0H0", positions=None)
    with pytest.raises(HeadwiseError, match=r"positions is \[\]"):
        hw.patch(tiny, "the dog", "a cat", "L0H0", positions=[])
    result = hw.patch(tiny, "the dog", "a cat", "L0H0")
    with pytest.raises(HeadwiseError, match="not one token after its prompt"):
        result.logit_diff(" red bird", " blue")
    with pytest.raises(HeadwiseError, match="2 texts for 1 pairs"):
        result.logit_diff([" red", " blue"], " blue")
