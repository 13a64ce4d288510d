"""Options of `hw.edges`: what they choose, and the sentences about wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from helpers import word_task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": ["blocks"]}, "unknown component 'blocks'"),
        ({"components": []}, "component"),
        ({"into": 3}, r"receivers are given as a list such as \['L23H3.Q'\], not as 3"),
        ({"mlps": None}, "mlps"),
        ({"method": "integrated", "steps": 0}, "steps is 0"),
        ({"method": "integrated", "steps": "many"}, "'steps' is 'many'"),
        ({"method": "integrated", "tolerance": -1}, "tolerance is -1"),
        ({"reference": "mean", "reference_task": "ioi"}, "'ioi' was given; expected a task"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, message, tiny):
    with pytest.raises(hw.HeadwiseError, match=message):
        hw.edges(tiny, word_task(2), progress=False, **options)


def test_several_receivers_and_senders_of_a_result_are_those_of_each(tiny):
    found = hw.edges(tiny, word_task(3), "attribution", components=["heads", "mlps"], progress=False)
    receivers, senders = ["L3H1.Q", "MLP2", "logits"], ["L1H2", "MLP0"]
    for some, each in (
        (found.into(receivers), [found.into(one) for one in receivers]),
        (found.out_of(senders), [found.out_of(one) for one in senders]),
    ):
        assert set(some) == {edge for one in each for edge in one}
        assert len(some) == sum(map(len, each))
        assert (np.diff(np.abs(some.values)) <= 0).all()


def test_a_drawing_of_no_edges_is_refused(tiny):
    found = hw.edges(tiny, word_task(2), "attribution", into="L3H1", progress=False)
    assert len(found.significant()) == 0  # two examples cannot show anything
    with pytest.raises(hw.HeadwiseError, match="no edge to draw"):
        found.significant().plot()


@pytest.mark.parametrize("precision", [-1, "small"])
def test_a_precision_of_interactions_that_is_none_is_refused(precision, tiny):
    with pytest.raises(hw.HeadwiseError, match=r"precision'? is"):
        hw.interactions(tiny, word_task(2), ["L0H1", "L1H1"], precision=precision, progress=False)


def test_a_sender_that_cannot_reach_the_receiver_is_named(tiny, caplog):
    found = hw.edges(
        tiny, word_task(3), "attribution", into="L2H1.Q", out_of=["L1H0", "L2H3", "L3H0"], progress=False
    )
    assert {str(edge.sender) for edge in found} == {"L1H0"}
    assert "L2H3, L3H0 have no edge into these receivers" in caplog.text
    caplog.clear()
    hw.edges(tiny, word_task(3), "attribution", into=["L2H1.Q", "logits"], out_of=["L2H3"], progress=False)
    assert "no edge" not in caplog.text
