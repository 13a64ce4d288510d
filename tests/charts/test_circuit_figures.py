"""The pictures of circuits show the numbers of the tables."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from headwise.charts.attention import kept_heads
from headwise.charts.chart import Line
from headwise.charts.explained_effect import COLOURS, explained_chart
from headwise.charts.static import figure

TASKS = ("greater_than", "ioi", "docstring", "ioi_long")


def curve(model, task, knee, total=144, series="integrated"):
    k = np.unique(np.round(total * np.linspace(0, 1, 20) ** 2)).astype(int)
    value = np.minimum(k / knee, 1.0)
    spread = 0.1 * ((k > 0) & (k < total))
    table = pd.DataFrame({"k": k, "value": value, "lo": value - spread, "hi": value + spread})
    about = {
        "model": model,
        "task": task,
        "series": series,
        "action": "keep",
        "metric": "explained_effect",
        "n": 8,
    }
    return table.assign(**about, draw=None, order="integrated")


def pairs(tasks=TASKS, names=(("GPT-2", "Sparse GPT-2"), ("OLMo-7B", "Sparse OLMo-7B")), total=144, dense=80):
    """Curves, members and ratios of two pairs, the first on the first half of the tasks."""
    curves, members, ratios = [], [], []
    for i, task in enumerate(tasks):
        pair = min(2 * i // len(tasks), len(names) - 1)
        knees = (dense, dense * (2 if i == 0 else 0.5))
        for model, role, knee in zip(names[pair], ("dense", "sparse"), knees, strict=True):
            curves.append(curve(model, task, knee, total))
            members.append({"pair": pair, "task": task, "role": role, "model": model})
        curves.append(curve(names[pair][0], task, total, total, "random"))
        row = {"pair": pair, "task": task, "compared": "dense/sparse", "model": names[pair][0]}
        k, other = (0.9 * knee for knee in knees)
        sizes = {"k": k, "other_k": other, "stays": k, "other_stays": other, "stays_ratio": k / other}
        ratios.append({**row, **sizes, "ratio": k / other, "stays_lo": 0.4, "stays_hi": 3.0})
    return pd.concat(curves), pd.DataFrame(members), pd.DataFrame(ratios)


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]


def named(panel, label):
    return next(line for line in panel.lines if line.get_label() == label)


def test_one_panel_per_task_with_the_curves_of_the_tables():
    curves, members, ratios = pairs()
    panels = drawn(figure(explained_chart(curves, members=members, ratios=ratios)))
    assert [panel.get_title() for panel in panels] == ["Greater Than", "IOI", "Docstring", "IOI Long"]
    assert panels[0].get_ylabel() == "Explained Effect"
    for panel, task in zip(panels, TASKS, strict=True):
        assert panel.get_xlabel() == "Number of Heads Kept"
        assert panel.get_yticks().tolist() == [0, 0.5, 1]
        assert panel.get_legend()._loc == 4  # lower right
        for row in members[members["task"] == task].itertuples():
            own = curves[
                (curves["model"] == row.model) & (curves["task"] == task) & (curves["series"] != "random")
            ]
            line = named(panel, row.model)
            np.testing.assert_allclose(line.get_xdata(), own["k"])
            np.testing.assert_allclose(line.get_ydata(), own["value"])
            assert to_hex(line.get_color()) == COLOURS[row.pair][row.role]
        assert len(panel.collections) == 3  # a band for each, and for the random heads
        grey = named(panel, "random heads")
        assert grey.get_linewidth() < 1


def test_the_segment_joins_the_curves_at_the_threshold_and_says_the_ratio():
    curves, members, ratios = pairs()
    panels = drawn(figure(explained_chart(curves, members=members, ratios=ratios)))
    messages = []
    for panel, row in zip(panels, ratios.itertuples(), strict=True):
        segment = next(line for line in panel.lines if to_hex(line.get_color()) == "#000000")
        assert segment.get_linestyle() == "--"
        assert list(segment.get_xdata()) == [row.k, row.other_k]
        assert list(segment.get_ydata()) == [0.9, 0.9]
        for label in members[members["task"] == row.task]["model"]:
            line = named(panel, label)
            x = row.k if label == row.model else row.other_k
            assert np.interp(x, line.get_xdata(), line.get_ydata()) == pytest.approx(0.9, abs=0.02)
        (text,) = panel.texts
        messages.append(text.get_text())
    assert messages == ["0.5x\n[0.4, 3.0]", "2.0x\n[0.4, 3.0]", "2.0x\n[0.4, 3.0]", "2.0x\n[0.4, 3.0]"]


def test_one_model_is_drawn_without_a_ratio():
    (panel,) = drawn(figure(explained_chart(curve("smollm2", "ioi", 60))))
    assert not panel.texts
    assert [line.get_label() for line in panel.lines] == ["smollm2"]


def test_heads_that_came_from_other_layers_are_counted_below_the_panels():
    curves = curve("GPT-2", "ioi", 80)
    control = curve("GPT-2", "ioi", 144, series="random_layer").query("k <= 72")
    moved = np.maximum(0, control["k"] - 30)
    draws = [control.assign(draw=i, value=i, lo=0, hi=0, moved=moved) for i in range(2)]
    table = pd.concat([curves, control.assign(moved=moved), *draws], ignore_index=True)
    picture = figure(explained_chart(table))
    (panel,) = drawn(picture)
    most, at = int(moved.max()), int(control["k"].max())
    label = f"random heads, same layers (up to {most} of {at} from the nearest layers)"
    assert [text.get_text() for text in picture.legends[0].get_texts()] == [label]
    # The line is the mean over draws as the table has it, with its band; single draws are not drawn.
    np.testing.assert_allclose(named(panel, label).get_ydata(), control["value"])


def test_one_legend_entry_counts_the_heads_from_other_layers_over_all_panels():
    parts = []
    for task, moved in (("ioi", 7), ("docstring", 3)):
        control = curve("GPT-2", task, 144, series="random_layer").query("k <= 72").assign(moved=moved)
        parts += [curve("GPT-2", task, 80), control]
    picture = figure(explained_chart(pd.concat(parts, ignore_index=True)))
    (text,) = picture.legends[0].get_texts()
    assert "up to 7 of" in text.get_text()


def test_where_few_heads_do_it_the_axis_gives_them_room():
    curves, members, ratios = pairs(total=270, dense=8)
    panels = drawn(figure(explained_chart(curves, members=members, ratios=ratios)))
    for panel in panels:
        assert panel.get_xlabel() == "Heads Kept (√ axis)"  # four panels across a page
        places = panel.transData.transform([(k, 0) for k in (0, 8, 270)])[:, 0]
        assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx(np.sqrt(8 / 270))
        assert panel.get_xlim() == (0, 270)


def followed(table):
    """The same curves with R², shares of examples, and a lowest family at every k; the last column differs by task."""
    share = table["k"] / table["k"].max()
    columns = {
        "r2": 3 * share - 2,
        "within": share,
        "agreement": (1 + share) / 2,
        "lowest_family": 0.7 * table["value"],
    }
    for name, values in columns.items():
        table = table.assign(**{name: values, f"{name}_lo": values - 0.05, f"{name}_hi": values + 0.05})
    return table.assign(family="order = BAB")


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_below_each_task_are_r2_and_the_lowest_family_on_the_same_axis_of_heads(count):
    tasks = (*TASKS, "recall", "syntax")[:count]
    curves, members, ratios = pairs(tasks)
    curves = followed(curves)
    chart = explained_chart(curves, members=members, ratios=ratios)
    picture = figure(chart)
    FigureCanvasAgg(picture).draw()
    assert len(chart.panels) == 3 * count
    axes = [one for one in picture.axes if one.get_visible()]
    for task, top in zip(tasks, drawn(picture), strict=True):
        place = top.get_position()
        below = [one for one in axes if abs(one.get_position().x0 - place.x0) < 0.01 and one is not top]
        below = sorted(
            (one for one in below if one.get_position().y0 < place.y0), key=lambda a: -a.get_position().y0
        )
        for panel, column in zip(below[:2], ("r2", "lowest_family"), strict=True):
            assert panel.get_xlim() == top.get_xlim()
            for row in members[members["task"] == task].itertuples():
                own = curves[
                    (curves["model"] == row.model) & (curves["task"] == task) & (curves["series"] != "random")
                ]
                (line,) = [
                    one
                    for one in panel.lines
                    if to_hex(one.get_color()) == COLOURS[row.pair][row.role] and one.get_linewidth() > 1
                ]
                np.testing.assert_allclose(line.get_ydata(), own[column])
        assert below[0].get_ylim() == (-1.05, 1.08)
        assert below[1].get_ylim() == top.get_ylim()
    assert picture.get_size_inches()[0] <= 7.2


def test_one_model_alone_also_has_the_shares_of_examples_and_two_do_not():
    alone = explained_chart(followed(curve("smollm2", "ioi", 60)))
    names = [mark.name for mark in alone.panels[1].marks if isinstance(mark, Line)]
    assert names == ["R² over examples", "examples within a fifth of the effect", "same answer"]
    curves, members, _ = pairs(TASKS[:1])
    two = explained_chart(followed(curves), members=members)
    drawn_lines = [
        mark for mark in two.panels[1].marks if isinstance(mark, Line) and np.isfinite(mark.y).any()
    ]
    assert [line.name for line in drawn_lines] == ["R² over examples"] * 2


def test_a_task_without_families_says_so_where_others_have_them():
    curves, members, _ = pairs(TASKS[:2])
    curves = followed(curves)
    ends = [f"lowest_family{end}" for end in ("", "_lo", "_hi")]
    curves.loc[curves["task"] == TASKS[0], ends] = np.nan
    chart = explained_chart(curves, members=members)
    (label,) = chart.panels[4].marks
    assert "no family with enough examples" in label.text
    curves[ends] = np.nan
    assert len(explained_chart(curves, members=members).panels) == 4  # no row of panels without a line


def test_of_two_kinds_of_random_heads_those_of_the_same_layers_are_drawn():
    kinds = [curve("GPT-2", "ioi", 144, series=kind).query("k <= 72") for kind in ("random", "random_layer")]
    chart = explained_chart(pd.concat([curve("GPT-2", "ioi", 80), *kinds]))
    assert [mark.name for mark in chart.panels[0].marks] == ["random heads, same layers", "GPT-2"]


def test_an_effect_that_is_none_is_said_in_the_legend():
    curves, members, _ = pairs(TASKS[:1])
    curves.loc[curves["model"] == "GPT-2", ["value", "lo", "hi"]] = np.nan
    (panel,) = drawn(figure(explained_chart(curves, members=members)))
    assert "GPT-2: no effect to explain" in [text.get_text() for text in panel.get_legend().get_texts()]


def boxes(figure, texts):
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in texts if text.get_text() and text.get_visible()]


@pytest.mark.parametrize("count", [1, 2, 4, 6])
@pytest.mark.parametrize("dense", [8, 130])
def test_texts_keep_apart(count, dense):
    names = (("a-model-with-a-very-long-name-indeed-0724", "short"), ("another", "other"))
    tasks = (*TASKS, "data/my_own_facts.jsonl", "recall")[:count]
    curves, members, ratios = pairs(tasks, names, total=270, dense=dense)
    picture = figure(explained_chart(curves, members=members, ratios=ratios))
    panels = drawn(picture)
    assert len(panels) == count
    everything = [panel.title for panel in panels] + [text for panel in panels for text in panel.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes(picture, everything), 2))
    for panel in panels:
        ticks = boxes(picture, panel.get_xticklabels())
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(ticks))
        (label,) = boxes(picture, panel.texts)
        legend = panel.get_legend().get_window_extent()
        assert not label.overlaps(legend)


def attention_table(models=("dense", "sparse"), heads=4, length=12):
    draw = np.random.default_rng(0)
    query, key = np.tril_indices(length)
    frames = []
    for model, rank in itertools.product(models, range(heads)):
        weights = draw.dirichlet(np.ones(length), length)[query, key]
        frame = pd.DataFrame(
            {"query": query, "key": key, "token": [f" t{k}" for k in key], "attention": weights}
        )
        about = {
            "model": model,
            "task": "ioi",
            "series": "integrated",
            "rank": rank,
            "layer": rank + 3,
            "head": 1,
        }
        frames.append(frame.assign(**about))
    return pd.concat(frames, ignore_index=True)


def test_the_maps_show_the_attention_of_the_first_heads_of_each_model():
    table = attention_table()
    picture = figure(kept_heads(table))
    panels = drawn(picture)
    assert [panel.get_title() for panel in panels] == ["1. L3H1", "2. L4H1", "3. L5H1", "4. L6H1"] * 2
    for panel, (model, rank) in zip(panels, itertools.product(("dense", "sparse"), range(4)), strict=True):
        shown = np.ma.filled(panel.images[0].get_array().astype(float), np.nan)
        part = table[(table["model"] == model) & (table["rank"] == rank)]
        np.testing.assert_allclose(shown[part["query"], part["key"]], part["attention"])
        assert np.isnan(shown[np.triu_indices(12, 1)]).all()
        labels = [text.get_text() for text in panel.get_xticklabels()]
        assert labels[:3] == (["t0", "t1", "t2"] if model == "sparse" else [])  # the same below: said once
    tops = {panel.images[0].get_clim()[1] for panel in panels[:4]}
    assert len(tops) == 1


def test_models_that_cut_the_prompt_otherwise_have_their_own_labels():
    table = attention_table()
    table.loc[table["model"] == "sparse", "token"] += "s"
    panels = drawn(figure(kept_heads(table)))
    assert [panel.get_xticklabels()[0].get_text() for panel in panels] == ["t0"] * 4 + ["t0s"] * 4


def test_a_model_with_fewer_heads_leaves_its_places_empty():
    table = attention_table(heads=3)
    table = table[(table["model"] == "dense") | (table["rank"] < 1)]
    assert len(drawn(figure(kept_heads(table)))) == 4
