"""The graph of edges: where its lines run, what it says where no edge is significant; the log axis of the curve."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from headwise.charts.chart import GREY, Axis, Line
from headwise.charts.interactive import _axis
from headwise.charts.wiring import SLOT_COLOURS, wiring_chart
from headwise.heads import Edges
from headwise.heads.edges import edge_list
from headwise.studies.wiring.section import findings


def edge_table(examples: int) -> pd.DataFrame:
    """Three edges; the values of all examples have one sign, so that p is as small as it can be."""
    values = np.random.default_rng(0).uniform(1, 2, (examples, 3))
    named = edge_list(["L0H0->L1H0.Q", "L0H1->L1H0.Q", "L1H0->logits"])
    return Edges(named, values, "m", "ioi", "exact", "logit_diff").table()


def said(chart) -> str:
    """What the chart says below its graph."""
    return " ".join(chart.note.split())


def drawn_edges(chart) -> list[Line]:
    (panel,) = chart.panels
    return [mark for mark in panel.marks if isinstance(mark, Line) and mark.hover and not mark.heads]


def test_where_no_edge_is_significant_the_largest_are_grey_and_the_chart_and_the_finding_say_why():
    table = edge_table(4)
    assert (table["q"] >= 0.125).all()
    chart = wiring_chart(table)
    assert [line.colour for line in drawn_edges(chart)] == [GREY] * 3
    assert said(chart) == (
        "None of 3 edges is significant (q < 0.05); all of them in grey: with 4 examples no edge reaches q < .05 "
        "however large its effect; a lone edge needs 7 examples"
    )
    (finding,) = findings({"edges": table})
    assert finding.sentence.endswith(
        "0 of 3 edges differ from 0 at q < .05 on held-out examples (with 4 examples no edge reaches "
        "q < .05 however large its effect; a lone edge needs 7 examples)."
    )


def test_of_many_edges_without_a_significant_one_twelve_are_drawn_the_largest():
    values = np.random.default_rng(0).normal(np.arange(1, 31), 0.1, (4, 30))
    named = edge_list([f"L0H{head}->L1H0.Q" for head in range(30)])
    chart = wiring_chart(Edges(named, values, "m", "ioi", "exact", "logit_diff").table())
    starts = [line.hover[0].split()[0] for line in drawn_edges(chart)]
    assert starts == [f"L0H{head}" for head in range(29, 17, -1)]
    assert said(chart).startswith("None of 30 edges is significant (q < 0.05); the 12 largest in grey: ")
    assert sorted(chart.table["sender"]) == sorted(starts)
    (panel,) = chart.panels
    assert {mark.name for mark in panel.marks if isinstance(mark, Line) and mark.name} == {"not significant"}


def test_with_enough_examples_neither_mentions_a_smallest_p():
    table = edge_table(12)
    assert (table["q"] < 0.05).all()
    (finding,) = findings({"edges": table})
    assert finding.sentence.endswith("3 of 3 edges differ from 0 at q < .05 on held-out examples.")
    assert {line.colour for line in drawn_edges(wiring_chart(table))} == {
        SLOT_COLOURS["Q"],
        SLOT_COLOURS["logits"],
    }
    assert said(wiring_chart(table)) == "3 of 3 edges, q < 0.05"
    assert said(wiring_chart(table.assign(q=0.5, p=0.4))).endswith(
        "use more examples, or fewer senders and receivers"
    )


def test_p_values_without_a_bound_are_not_explained_by_the_number_of_examples():
    chart = wiring_chart(edge_table(4).assign(p=0.001, q=0.9))
    assert said(chart).endswith("use more examples, or fewer senders and receivers")


@pytest.mark.parametrize("limits", [(1, 40), (40, 1)])
def test_a_log_axis_on_the_page_has_whole_numbers_at_its_ticks(limits):
    axis = _axis(Axis(scale="log", limits=limits))
    assert axis["tickvals"] == [1, 2, 5, 10, 20]
    assert axis["ticktext"] == ["1", "2", "5", "10", "20"]


def lines(names, values=1.0):
    """The line of each edge, and the places of the components by name."""
    table = Edges(
        edge_list(names), np.full((8, len(names)), values), "m", "ioi", "exact", "logit_diff"
    ).table()
    (panel,) = wiring_chart(table.assign(q=0.0)).panels
    marks = [mark for mark in panel.marks if isinstance(mark, Line)]
    (nodes,) = (mark for mark in marks if mark.heads)
    places = dict(zip(nodes.heads, zip(nodes.x, nodes.y, strict=True), strict=True))
    return [np.array([mark.x, mark.y]).T for mark in marks if mark.hover and not mark.heads], places


def test_the_edges_of_one_pair_are_lines_apart():
    paths, places = lines(["L0H0->L1H0.Q", "L0H0->L1KV0.K", "L0H0->L1KV0.V"])
    middles = [path[len(path) // 2] for path in paths]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(middles, 2)) > 0.05
    for path in paths:
        np.testing.assert_allclose(path[[0, -1]], [places["L0H0"], places["L1H0"]])


def test_no_edge_runs_behind_a_component_that_it_does_not_touch():
    chain = [f"L{layer}H0->L{layer + 1}H0.Q" for layer in range(6)]
    paths, places = lines([*chain, "L0H0->logits", "L6H0->logits", "L1H0->L5KV0.V"])
    for path in paths:
        ends = [name for name, place in places.items() if any(np.allclose(place, path[at]) for at in (0, -1))]
        assert len(ends) == 2
        others = np.array([place for name, place in places.items() if name not in ends])
        assert np.linalg.norm(path[:, None] - others, axis=2).min() > 0.2
