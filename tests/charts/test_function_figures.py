"""The pictures show the numbers of the tables."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from headwise.charts.heatmap import saturation
from headwise.charts.static import figure
from headwise.studies.functions.section import ability_maps, charts, model_grid, overlap_matrix

ABILITIES = (
    "Knowledge Recall,Retrieval,Logical Reasoning,Decision-making,Semantic Understanding,"
    "Syntactic Understanding,Inference,Math Calculation"
).split(",")


def score_table(shape, signed, abilities=ABILITIES, method="probe"):
    draw = np.random.default_rng(0)
    places = itertools.product(abilities, *map(range, shape))
    table = pd.DataFrame(places, columns=["task", "layer", "head"])
    table = table.assign(model="smollm2", method=method, n=12, signed=signed)
    table["score"] = draw.standard_cauchy(len(table)) / 1000
    if not signed:
        table["score"] = table["score"].abs()
    return table


def drawn(figure):
    FigureCanvasAgg(figure).draw()  # sets itself as the figure's canvas
    panels = [axes for axes in figure.axes if axes.images and axes.get_visible()]
    return panels, next(axes for axes in figure.axes if axes.get_label() == "<colorbar>")


@pytest.mark.parametrize("shape", [(30, 9), (32, 32)])
@pytest.mark.parametrize("signed", [False, True])
def test_the_colours_are_the_numbers_of_the_table_on_one_scale(shape, signed):
    table = score_table(shape, signed)
    panels, _ = drawn(figure(ability_maps(table)))
    assert [panel.get_title() for panel in panels] == ABILITIES
    limits = {panel.images[0].get_clim() for panel in panels}
    assert len(limits) == 1
    (low, high) = limits.pop()
    assert low == (-high if signed else 0)
    for panel, ability in zip(panels, ABILITIES, strict=True):
        values = panel.images[0].get_array()
        assert values.shape == shape
        for row in table[table["task"] == ability].sample(20, random_state=0).itertuples():
            assert values[row.layer, row.head] == row.score


def test_the_scale_ends_at_a_high_percentile_and_says_so():
    table = score_table((32, 32), False)
    top, _ = saturation(table["score"].to_numpy())
    assert np.percentile(table["score"], 99) <= top < 1.3 * np.percentile(table["score"], 99)
    _, bar = drawn(figure(ability_maps(table)))
    labels = [label.get_text() for label in bar.get_yticklabels()]
    assert labels[-1].endswith("+")
    assert float(labels[-1][:-1]) == pytest.approx(top)
    assert not any(label.endswith("+") for label in labels[:-1])
    assert bar.get_ylabel().startswith("Heads Importance")


def test_a_scale_that_nothing_exceeds_does_not_claim_to_saturate():
    table = score_table((4, 4), False, ABILITIES[:2])
    table["score"] = 0.5
    _, bar = drawn(figure(ability_maps(table)))
    assert [label.get_text() for label in bar.get_yticklabels()][-1] == "0.5"


def test_a_head_that_does_not_exist_is_no_number():
    table = score_table((4, 4), False, ABILITIES[:3])
    table = table[~((table["layer"] == 2) & (table["head"] == 3))]
    panels, _ = drawn(figure(ability_maps(table)))
    values = np.ma.filled(panels[0].images[0].get_array().astype(float), np.nan)
    assert np.isnan(values[2, 3])
    assert np.isnan(values).sum() == 1


def test_several_models_are_columns_of_one_grid_each_in_its_own_shape():
    shapes = {"smollm2": (30, 9), "other": (12, 4)}
    tables = [score_table(shape, True).assign(model=model) for model, shape in shapes.items()]
    tables[1] = tables[1][tables[1]["task"] != "Retrieval"]
    tables[1]["score"] *= 3
    table = pd.concat(tables, ignore_index=True)
    panels, _ = drawn(figure(model_grid(table)))
    assert len(panels) == 15, "a gap where a model lacks an ability"
    assert len({panel.images[0].get_clim() for panel in panels}) == 1
    shown = iter(panels)
    for ability, model in itertools.product(ABILITIES, shapes):
        part = table[(table["task"] == ability) & (table["model"] == model)]
        if len(part):
            values = next(shown).images[0].get_array()
            assert values.shape == shapes[model]
            np.testing.assert_array_equal(values.ravel(), part["score"])
    names = [[chart.name for chart in charts({"scores": part})] for part in (tables[0], table)]
    assert names[0] == ["functions-smollm2-probe"]
    assert names[1] == [*names[0], "functions-other-probe", "functions-models-probe"]


def texts_apart(figure, texts):
    """No two of the texts touch."""
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]
    return not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("shape", [(30, 9), (32, 32), (4, 2)])
def test_titles_and_ticks_do_not_overlap(shape):
    picture = figure(ability_maps(score_table(shape, True, method="attribution")))
    panels, bar = drawn(picture)
    assert texts_apart(picture, [panel.title for panel in panels])
    assert texts_apart(picture, bar.get_yticklabels())
    for panel in panels[-4:]:
        assert texts_apart(picture, panel.get_xticklabels())


def test_the_matrix_shows_the_jaccard_index_of_every_pair():
    draw = np.random.default_rng(1)
    rows = [
        {
            "model": "m",
            "method": method,
            "task": a,
            "other": b,
            "heads": i + 3,
            "jaccard": float(a == b) or draw.random(),
        }
        for method in ("attribution", "probe")
        for i, a in enumerate(ABILITIES)
        for b in ABILITIES
    ]
    table = pd.DataFrame(rows)
    picture = figure(overlap_matrix(table))
    panels, _ = drawn(picture)
    for panel, method in zip(panels, ("attribution", "probe"), strict=True):
        values = panel.images[0].get_array()
        for row in table[table["method"] == method].itertuples():
            assert values[ABILITIES.index(row.task), ABILITIES.index(row.other)] == row.jaccard
        assert texts_apart(picture, panel.get_yticklabels())
    assert panels[0].get_yticklabels()[2].get_text() == "Logical Reasoning (5)"
    counted = table.assign(
        significant=pd.array([3 if m == "attribution" else None for m in table["method"]], "Int32")
    )
    picture = figure(overlap_matrix(counted))
    panels, _ = drawn(picture)
    labels = [[label.get_text() for label in panel.get_yticklabels()][2] for panel in panels]
    assert labels == ["Logical Reasoning (3; 5)", "Logical Reasoning (5)"]
    assert all(texts_apart(picture, panel.get_yticklabels()) for panel in panels)


@pytest.mark.parametrize(
    ("high", "expected"), [(0.0038, 0.004), (3.8e-7, 4e-7), (7.0, 7.0), (81, 100), (1.0, 1.0)]
)
def test_the_scale_ends_at_a_round_number(high, expected):
    top, step = saturation(np.full(100, high))
    assert top == pytest.approx(expected)
    assert top / step == pytest.approx(round(top / step))
    assert 4 <= round(top / step) <= 10
