"""The pictures of masking show the numbers of the tables, in several shapes, without texts that touch."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from headwise.charts.static import figure
from headwise.studies.masking.section import cross_table, intervention_curves, masking_curves

FOUR = ("Retrieval", "Knowledge Recall", "Math Calculation", "Inference")
EIGHT = (*FOUR, "Logical Reasoning", "Decision-making", "Semantic Understanding", "Syntactic Understanding")
LONG = (
    "An ability whose name was written by somebody with much time",
    "another/very_long_label_without_any_space",
)


def curves(abilities=FOUR, ks=(4, 8, 16, 32), similarity="chrf", model="smollm2"):
    draw = np.random.default_rng(0)
    rows = []

    def add(ability, series, k, metric, value, number=None):
        rows.append(
            {
                "model": model,
                "task": ability,
                "series": series,
                "action": "mask",
                "k": k,
                "metric": metric,
                "value": value,
                "lo": max(0, value - 0.1),
                "hi": min(1, value + 0.1),
                "n": 37,
                "draw": number,
            }
        )

    for ability, metric in itertools.product(abilities, ("accuracy", similarity)):
        add(ability, "full", 0, metric, 0.8)
        for place, k in enumerate(ks):
            add(ability, "top", k, metric, 0.8 / (place + 2))
            for number in (None, 0, 1):
                add(ability, "random", k, metric, float(draw.uniform(0.6, 0.8)), number)
        add(ability, "random_layer", ks[min(2, len(ks) - 1)], metric, 0.6)
    table = pd.DataFrame(rows)
    table["draw"] = table["draw"].astype("Int32")
    return table


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return [axes for axes in figure.axes if axes.get_title() and axes.get_visible()]


def apart(figure, texts):
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]
    return not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_lines_are_the_rows_of_the_table_and_single_draws_are_left_out():
    table = curves()
    picture = figure(masking_curves(table))
    panels = drawn(picture)
    assert [panel.get_title() for panel in panels] == list(FOUR)
    twins = [axes for axes in picture.axes if axes not in panels]
    for panel, twin, ability in zip(panels, twins, FOUR, strict=True):
        for axes, metric in ((panel, "accuracy"), (twin, "chrf")):
            own = table[(table["task"] == ability) & (table["metric"] == metric) & table["draw"].isna()]
            lines = {line.get_linestyle(): line for line in axes.lines if len(line.get_xdata()) == 4}
            for style, series in (("-", "top"), ("--", "random")):
                expected = own[own["series"] == series]
                np.testing.assert_allclose(lines[style].get_xdata(), expected["k"].to_numpy(float))
                np.testing.assert_allclose(lines[style].get_ydata(), expected["value"].to_numpy(float))
        assert panel.get_xlabel() == "# Masked Heads"
        assert [label.get_text() for label in panel.get_xticklabels()] == ["4", "8", "16", "32"]
        assert panel.get_xscale() == "log"
    assert panels[0].get_ylabel() == "Score"
    assert twins[-1].get_ylabel() == "chrF"
    names = [text.get_text() for text in picture.legends[0].get_texts()]
    assert names[:4] == ["TopK Accuracy", "RandomK Accuracy", "TopK chrF", "RandomK chrF"]


@pytest.mark.parametrize("abilities", [FOUR[:1], FOUR[:2], FOUR, EIGHT, LONG])
@pytest.mark.parametrize("ks", [(1,), (4, 8, 16, 32)])
def test_titles_ticks_and_legend_do_not_touch(abilities, ks):
    picture = figure(
        masking_curves(curves(abilities, ks, "cosine", "owner/a-model-with-a-long-name-7B-Instruct"))
    )
    panels = drawn(picture)
    texts = [panel.title for panel in panels] + picture.legends[0].get_texts()
    assert apart(picture, texts)
    for panel in panels:
        assert apart(picture, panel.get_xticklabels())
    width = picture.get_window_extent().width
    box = picture.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= width


@pytest.mark.parametrize("abilities", [FOUR, EIGHT, LONG])
def test_the_cross_table_shows_every_change(abilities):
    draw = np.random.default_rng(1)
    rows = []
    for owner, measured in itertools.product(abilities, abilities):
        change = -float(draw.random())
        rows.append(
            {
                "model": "m",
                "heads_of": owner,
                "task": measured,
                "k": 16,
                "metric": "accuracy",
                "full": 0.7,
                "change": change,
                "change_lo": change - 0.2,
                "change_hi": change + 0.2,
                "n": 37,
            }
        )
    table = pd.DataFrame(rows)
    picture = figure(cross_table(table))
    FigureCanvasAgg(picture).draw()
    axes = picture.axes[0]
    values = axes.images[0].get_array()
    for row in rows:
        at = abilities.index(row["heads_of"]), abilities.index(row["task"])
        assert values[at] == pytest.approx(row["change"])
    bold = {text.get_position() for text in axes.texts if text.get_fontweight() == "bold"}
    clear = {(abilities.index(r["task"]), abilities.index(r["heads_of"])) for r in rows if r["change_hi"] < 0}
    assert bold == clear
    assert apart(picture, axes.texts)


def test_an_intervention_begins_at_the_accuracy_before():
    rows = [
        {
            "model": "m",
            "task": task,
            "series": series,
            "k": 4,
            "kind": kind,
            "strength": strength,
            "before": 0.5,
            "before_lo": 0.4,
            "before_hi": 0.6,
            "after": 0.5 + strength / 20,
            "lo": 0.4,
            "hi": 0.9,
            "n": 37,
        }
        for task in FOUR
        for kind, strengths in (("amplify", (1.5, 2.0)), ("shift", (1.0, 5.0)))
        for series in ("top", "random")
        for strength in strengths
    ]
    picture = figure(intervention_curves(pd.DataFrame(rows)))
    FigureCanvasAgg(picture).draw()
    assert len(picture.axes) == 8
    assert picture.axes[0].lines[0].get_xdata().tolist() == [1, 1.5, 2.0]
    assert picture.axes[4].lines[0].get_xdata().tolist() == [0, 1.0, 5.0]
    np.testing.assert_allclose(picture.axes[4].lines[0].get_ydata(), [0.5, 0.55, 0.75])
