"""Control draws: sizes, layers and what they must not touch, for random shapes and orders."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.heads.controls import (
    control_sets,
    layer_matched_heads,
    random_heads,
)


@st.composite
def _orders(draw):
    layers, heads = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    every = [Head(layer, head) for layer in range(layers) for head in range(heads)]
    return every, draw(st.permutations(every))


@given(_orders(), st.integers(0, 99), st.sampled_from(["random", "random_layer"]))
def test_a_control_never_holds_the_first_k_heads_of_its_order_at_any_k(made, seed, kind):
    every, order = made
    ks = list(range(len(every) // 2 + 1))
    drawn = control_sets(kind, every, order, ks, seed)
    per_layer = len(every) // len({h.layer for h in every})
    for k, (heads, moved) in zip(ks, drawn, strict=True):
        assert len(set(heads)) == len(heads) == k
        assert not set(heads) & set(order[:k])
        if kind == "random_layer":
            wanted = Counter(h.layer for h in order[:k])
            assert moved == sum(max(0, 2 * count - per_layer) for count in wanted.values())
            if not moved:
                assert Counter(h.layer for h in heads) == wanted
    assert drawn == control_sets(kind, every, order, ks, seed)
    with pytest.raises(HeadwiseError, match="are left"):
        control_sets(kind, every, order, [len(every) // 2 + 1], seed)


@given(_orders(), st.integers(0, 99))
def test_a_random_control_grows_with_k_and_loses_a_head_only_to_the_order(made, seed):
    every, order = made
    drawn = control_sets("random", every, order, range(len(every) // 2 + 1), seed)
    for k, (before, after) in enumerate(pairwise(drawn)):
        assert set(before.heads) - set(after.heads) <= {order[k]}


@given(_orders(), st.data())
def test_drawn_heads_are_as_many_as_the_top_and_none_of_them(made, data):
    every, order = made
    top = order[: data.draw(st.integers(0, len(every) // 2))]
    for draw in (random_heads, layer_matched_heads):
        heads, _ = draw(every, top, 7)
        assert len(set(heads)) == len(heads) == len(top)
        assert not set(heads) & set(top)


@given(_orders(), st.data())
def test_a_matched_draw_leaves_a_layer_only_where_it_has_too_few_free_heads(made, data):
    every, order = made
    top = order[: data.draw(st.integers(0, len(every) // 2))]
    heads, moved = layer_matched_heads(every, top, 3)
    per_layer = len(every) // len({h.layer for h in every})
    wanted = Counter(h.layer for h in top)
    shortfall = sum(max(0, 2 * count - per_layer) for count in wanted.values())
    assert moved == shortfall
    if not shortfall:
        assert Counter(h.layer for h in heads) == wanted


def test_draws_follow_their_seed_and_differ_between_seeds():
    every = [Head(layer, head) for layer in range(8) for head in range(8)]
    assert random_heads(every, every[:8], 1) == random_heads(every, every[:8], 1)
    assert len({tuple(random_heads(every, every[:8], seed).heads) for seed in range(20)}) > 15


def test_the_shortfall_comes_from_the_nearest_layer():
    every = [Head(layer, head) for layer in range(4) for head in range(2)]
    heads, moved = layer_matched_heads(every, [Head(3, 0), Head(3, 1)], 0)
    assert moved == 2
    assert {h.layer for h in heads} == {2}


def test_too_few_free_heads_is_said():
    with pytest.raises(HeadwiseError, match="only 1 are left"):
        random_heads([Head(0, 0), Head(0, 1), Head(0, 2)], [Head(0, 0), Head(0, 1)], 0)
