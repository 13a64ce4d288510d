"""The graph of edges: what it says where no edge is significant, and the log axis of the curve on the page."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headwise.charts.chart import Axis
from headwise.charts.interactive import _axis
from headwise.charts.wiring import wiring_chart
from headwise.heads import Edges
from headwise.heads.edge import edge_list
from headwise.studies.wiring.findings import findings


def edge_table(examples: int) -> pd.DataFrame:
    """Three edges; the values of all examples have one sign, so that p is as small as it can be."""
    values = np.random.default_rng(0).uniform(1, 2, (examples, 3))
    named = edge_list(["L0H0->L1H0.Q", "L0H1->L1H0.Q", "L1H0->logits"])
    return Edges(named, values, "m", "ioi", "exact", "logit_diff").table()


def test_with_too_few_examples_the_empty_graph_and_the_finding_say_so():
    table = edge_table(4)
    assert (table["q"] >= 0.125).all()
    (panel,) = wiring_chart(table).panels
    assert panel.title == "None of 3 edges has q < 0.05: with 4 examples no p is below 0.125; use more"
    (finding,) = findings({"edges": table})
    assert finding.sentence.endswith(
        "0 of 3 edges differ from 0 at q < .05 on held-out examples (with 4 examples no p is below 0.125)."
    )


def test_with_enough_examples_neither_mentions_a_smallest_p():
    table = edge_table(12)
    assert (table["q"] < 0.05).all()
    (finding,) = findings({"edges": table})
    assert finding.sentence.endswith("3 of 3 edges differ from 0 at q < .05 on held-out examples.")
    (panel,) = wiring_chart(table.assign(q=0.5, p=0.4)).panels
    assert panel.title.endswith("use more examples, or fewer senders and receivers")


def test_p_values_without_a_bound_are_not_explained_by_the_number_of_examples():
    (panel,) = wiring_chart(edge_table(4).assign(p=0.001, q=0.9)).panels
    assert panel.title.endswith("use more examples, or fewer senders and receivers")


@pytest.mark.parametrize("limits", [(1, 40), (40, 1)])
def test_a_log_axis_on_the_page_has_whole_numbers_at_its_ticks(limits):
    axis = _axis(Axis(scale="log", limits=limits))
    assert axis["tickvals"] == [1, 2, 5, 10, 20]
    assert axis["ticktext"] == ["1", "2", "5", "10", "20"]
