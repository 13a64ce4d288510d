"""The result of `hw.edges`: parts of it, its table, its file, and how edges are written."""

from __future__ import annotations

import numpy as np
import pytest

import headwise as hw
from headwise.charts.interactive import page_chart
from headwise.charts.static import figure
from headwise.charts.wiring import wiring_chart
from headwise.heads.edges import MOST_RESAMPLED, Edge, Edges, Receiver

NAMES = ["L0H1->L1H0.Q", "L0H1->L1KV0.K", "L0H2->L1KV1.V", "MLP0->L1H3.Q", "input->MLP1", "L1H3->logits"]


def made(values=(3.0, -2.0, 0.5, 0.1, 1.0, -0.2), n=20):
    draw = np.random.default_rng(0)
    examples = np.array(values) + 0.1 * draw.normal(size=(n, len(values)))
    return Edges(
        [Edge.parse(name) for name in NAMES], examples, "m", "t", "exact", "logit_diff", {0: 2, 1: 2}
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_edge_reads_back_as_it_is_written(name):
    assert str(Edge.parse(name)) == name
    assert Edge.parse(name.replace("->", "→") + " @ S2").span == "S2"


@pytest.mark.parametrize("bad", ["L0H1", "L0H1->L1H0", "L0H1->L1H0.K", "L0H1->L1KV0.Q", "x->logits", 3])
def test_what_is_not_an_edge_is_refused_with_an_example(bad):
    with pytest.raises(hw.HeadwiseError, match=r"L23H3\.Q|L12H3"):
        Edge.parse(bad)


def test_into_a_head_lists_its_query_and_the_key_and_value_of_its_group():
    assert [str(edge) for edge in made().into("L1H0")] == ["L0H1->L1H0.Q", "L0H1->L1KV0.K"]
    assert [str(edge) for edge in made().into("L1H3")] == ["L0H2->L1KV1.V", "MLP0->L1H3.Q"]
    assert made().table().set_index("receiver")["heads"]["L1KV1.V"] == "L1H2 L1H3"


def test_parts_keep_the_q_values_of_the_whole():
    edges = made()
    q = edges.table().set_index("sender")["q"]
    part = edges.out_of("L1H3")
    assert part.table()["q"].tolist() == [q["L1H3"]]
    assert [str(edge) for edge in edges.top(2)] == NAMES[:2]
    assert [str(edge) for edge in edges.top(1, "hinders")] == [NAMES[1]]
    assert len(edges.significant()) == (edges.table()["q"] < 0.05).sum()


def test_no_edge_of_that_kind_says_which_there_are():
    with pytest.raises(hw.HeadwiseError, match="no edge into L5H0"):
        made().into("L5H0")
    with pytest.raises(hw.HeadwiseError, match="was not scored"):
        made()["L0H0->logits"]


def test_edges_save_and_load_with_their_tests(tmp_path):
    for edges in (made(), made().top(3)):
        edges.save(tmp_path / "edges.npz")
        again = Edges.load(tmp_path / "edges.npz")
        assert again.edges == edges.edges
        assert again.table().equals(edges.table())
    (tmp_path / "other.npz").write_bytes(b"nothing")
    with pytest.raises(hw.HeadwiseError, match=r"not a file written by Edges\.save"):
        Edges.load(tmp_path / "other.npz")


def test_very_many_edges_are_tested_by_t_and_agree_with_resampling():
    draw = np.random.default_rng(1)
    few = draw.normal(0.3, 1, size=(40, 30))
    many = np.concatenate([few, draw.normal(size=(40, MOST_RESAMPLED))], axis=1)
    names = [Edge(hw.Head(0, n), Receiver(1, 0, "Q")) for n in range(many.shape[1])]
    resampled = Edges(names[:30], few, "m", "t", "x").table()
    student = Edges(names, many, "m", "t", "x").table()[:30]
    assert student["p"].to_numpy() == pytest.approx(resampled["p"].to_numpy(), abs=0.03)
    assert student["lo"].to_numpy() == pytest.approx(resampled["lo"].to_numpy(), abs=0.06)


def test_the_graph_has_each_significant_edge_and_component_once_on_paper_and_page():
    chart = wiring_chart(made().table())
    shown = made().significant()
    page = page_chart(chart)["panels"][0]
    hovers = [t["hovertext"][0] for t in page["traces"] if "→" in "".join(t.get("hovertext", ()))]
    assert sum("L0H1 → L1H0.Q" in text for text in hovers) == 1
    assert sum("L0H1 → L1KV0.K" in text for text in hovers) == 2  # ends at both heads of the group
    named = next(t["ids"] for t in page["traces"] if "ids" in t)
    assert len(named) == len(set(named))
    axes = figure(chart).axes[0]
    drawn = [
        line for line in axes.lines if np.isfinite(line.get_ydata()).any()
    ]  # entries of the legend are not
    lines = [line for line in drawn if len(line.get_xdata()) > 1 and line.get_marker() != "o"]
    assert len(lines) == len(hovers) >= len(shown)


def test_levels_of_the_graph_are_evenly_spaced_and_the_legend_explains_colours_and_dashes():
    table = made().table().assign(q=0.01)
    drawn = figure(wiring_chart(table[~table["sender"].str.startswith("L0")])).axes[0]
    (nodes,) = (line for line in drawn.lines if line.get_marker() == "o")
    assert sorted(set(nodes.get_ydata())) == [0, 1, 2, 3, 4]  # input, MLP0, layer 1, MLP1, logits
    named = {text.get_text() for text in drawn.figure.legends[0].get_texts()}
    assert "hinders" in named
    assert {"read as query", "read by an MLP", "to logits"} == named - {"hinders"}
    solid = {line.get_label(): line.get_linestyle() for line in drawn.lines if len(line.get_xdata()) == 1}
    assert solid == {name: "--" if name == "hinders" else "-" for name in solid}
