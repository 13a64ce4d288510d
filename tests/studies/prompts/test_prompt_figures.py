"""The pictures of the study `prompts` show the numbers of the tables, and the title says what was found."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from headwise.charts.static import figure
from headwise.studies.prompts.findings import findings, headline, significance
from headwise.studies.prompts.inside import activation_panels, affine_panels, moved_maps
from headwise.studies.prompts.section import condition_colours, length_curves, prompt_chart

CONDITIONS = ["none", "meaningless", "meaningful"]
PALETTE = condition_colours(CONDITIONS)
ALONE = pd.DataFrame()
"""Comparisons of one condition: none."""


def accuracy_table(models, names=CONDITIONS):
    draw = np.random.default_rng(0)
    rows = [
        {
            "model": model,
            "task": "word_problems",
            "condition": name,
            "accuracy": (share := draw.uniform(0.3, 0.6)),
        }
        | {"lo": share - 0.1, "hi": share + 0.12, "n": 60, "samples": 1, "truncated": 2, "unparsed": 1}
        for model, name in itertools.product(models, names)
    ]
    return pd.DataFrame(rows)


def comparison_table(models, differences, p, names=CONDITIONS[1:]):
    rows = [
        {"model": model, "task": "word_problems", "condition": name, "baseline": "none", "difference": d}
        | {"lo": d - 0.1, "hi": d + 0.1, "p": q, "p_holm": q, "test": "McNemar", "n": 60, "detectable": 0.17}
        for model in models
        for name, d, q in zip(names, differences, p, strict=True)
    ]
    return pd.DataFrame(rows)


def profile_table(names=CONDITIONS, before=9, span=5, after=7):
    parts = []
    for number, name in enumerate(names):
        inserted = np.array([False] * before + [True] * (span if name != "none" else 0) + [False] * after)
        values = np.random.default_rng(number).random(len(inserted))
        values[[0, -1]] = np.nan
        aligned = pd.array([pd.NA] * len(inserted), dtype="Int32")
        aligned[~inserted] = np.arange(before + after)
        about = {
            "model": "smollm2",
            "task": "word_problems",
            "condition": name,
            "layer": 0,
            "head": 14,
            "n": 1,
        }
        columns = {"position": np.arange(len(inserted)), "inserted": inserted, "aligned": aligned}
        parts.append(pd.DataFrame(about | columns | {"token": "x", "attention": values}))
    return pd.concat(parts, ignore_index=True)


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure.axes


@pytest.mark.parametrize("models", [["smollm2"], ["a", "b", "owner/a-rather-long-model-name-1.5B-instruct"]])
def test_bars_and_profiles_are_the_numbers_of_the_tables(models):
    accuracy, profiles = accuracy_table(models), profile_table()
    comparisons = comparison_table(models, [0.02, -0.03], [0.7, 0.9])
    bars, upper, lower = drawn(figure(prompt_chart(accuracy, comparisons, profiles)))
    assert bars.get_title().startswith("Results on word_problems")
    assert f"{6 * len(models)} of {180 * len(models)} answers cut off" in bars.get_title()
    assert [text.get_text() for text in bars.get_legend().get_texts()] == ["w/o", "w/ Mless", "w/ Mful"]
    for container, name in zip(
        [c for c in bars.containers if hasattr(c, "patches")], CONDITIONS, strict=True
    ):
        part = accuracy[accuracy["condition"] == name]
        assert [bar.get_height() for bar in container] == pytest.approx(list(100 * part["accuracy"]))
        (segments,) = container.errorbar.lines[2]
        ends = [tuple(segment[:, 1]) for segment in segments.get_segments()]
        np.testing.assert_allclose(ends, 100 * part[["lo", "hi"]].to_numpy())
    assert upper.get_title().startswith("Average attention on L0H14")
    for line, name in zip(upper.lines, CONDITIONS, strict=True):
        own = profiles[(profiles["condition"] == name) & ~profiles["inserted"]]
        np.testing.assert_allclose(line.get_ydata(), own["attention"])
        assert len(line.get_xdata()) == 16
    assert [len(line.get_xdata()) for line in lower.lines] == [21, 21]
    (shade,) = lower.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (8.5, 13.5)


def test_a_long_beginning_is_left_out_of_the_panels_and_said():
    _, upper, lower = drawn(figure(prompt_chart(accuracy_table(["m"]), ALONE, profile_table(before=200))))
    assert upper.get_xlabel() == "Original tokens from 176 on"
    assert lower.get_xlabel() == "Full sequence from 176 on (shaded: inserted)"
    assert {int(line.get_xdata()[0]) for line in (*upper.lines, *lower.lines)} == {176}
    (shade,) = lower.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (199.5, 204.5)


def test_the_title_says_when_no_gain_is_significant_and_what_could_have_been_found():
    models = ["m"]
    message = headline(comparison_table(models, [0.05, -0.2], [0.3, 0.8]))
    assert (
        message == "No gain is significant (Holm p ≥ 0.05); minimum detectable effect 17 points (80 % power)"
    )
    message = headline(comparison_table(models, [0.05, -0.2], [0.3, 0.01]))
    assert message.startswith("No gain is significant")
    assert "significantly worse: Mful −20.0 points [−30.0, −10.0]" in message
    message = headline(comparison_table(models, [0.25, -0.2], [0.01, 0.8]))
    assert message == "Significant after Holm's correction: Mless +25.0 points [+15.0, +35.0]"
    assert "nothing is compared" in headline(ALONE)


def test_of_several_models_the_title_says_which_one_differs():
    plain, worse = comparison_table(["a"], [0.05, 0], [0.3, 1]), comparison_table(["b"], [0, -0.2], [1, 0.01])
    assert "significantly worse: b, Mful −20.0 points" in headline(pd.concat([plain, worse]))


def test_of_several_tasks_the_title_says_on_which_one_a_condition_differs():
    plain = comparison_table(["a"], [0.05, 0], [0.3, 1]).assign(task="sums")
    worse = comparison_table(["a"], [-0.1, -0.2], [0.02, 0.01]).assign(task="GSM8K")
    message = headline(pd.concat([plain, worse]))
    assert "significantly worse: GSM8K, Mless −10.0 points [−20.0, 0]; GSM8K, Mful −20.0 points" in message
    assert "significantly worse: b on GSM8K, Mless −10.0" in headline(
        pd.concat([plain, worse.assign(model="b")])
    )
    assert "significantly worse: Mless" in headline(worse)


def test_a_star_marks_the_bars_that_differ():
    picture = figure(prompt_chart(accuracy_table(["m"]), comparison_table(["m"], [0.25, 0], [0.01, 1]), None))
    (bars,) = drawn(picture)
    assert [text.get_text() for text in bars.texts] == ["*"]


def test_a_comparison_is_one_sentence():
    row = comparison_table(["m"], [-1 / 60, 0], [0.25, 1]).to_dict("records")[0]
    assert significance(row) == (
        "m on word_problems, meaningless against none: −1.7 points [−11.7, +8.3], McNemar p = 0.25, Holm 0.25, n = 60: "
        "not significant; minimum detectable effect 17.0 points (80 % power)"
    )
    assert "too few problems to detect any difference" in significance(row | {"detectable": float("nan")})


def test_the_share_of_right_answers_is_told_for_each_model_also_where_nothing_is_compared():
    accuracy = accuracy_table(["a", "b"], ["none", "meaningless"])
    found = findings({"accuracy": accuracy})
    assert [finding.found for finding in found] == [True, True]
    for finding, (model, rows) in zip(found, accuracy.groupby("model"), strict=True):
        assert finding.sentence.startswith(f"{model} on word_problems: ")
        for row in rows.itertuples():
            share = f"{row.accuracy:.1%} right [{row.lo:.1%}, {row.hi:.1%}] under {row.condition}"
            assert share in finding.sentence
        assert "n = 60 problems; of 120 answers 4 were cut off and 2 have no result" in finding.sentence
    compared = findings({"accuracy": accuracy, "comparisons": comparison_table(["a", "b"], [0, 0], [1, 1])})
    assert [finding.sentence for finding in compared[-2:]] == [finding.sentence for finding in found]
    assert not any(finding.found for finding in compared)


def layered(models, names, columns, layers=4, heads=None):
    draw = np.random.default_rng(1)
    rows = []
    for model, name, layer, head in itertools.product(models, names, range(layers), range(heads or 1)):
        row = {"model": model, "task": "t", "condition": name, "layer": layer, "n": 8}
        row |= {"head": head} if heads else {}
        for column in columns:
            value = draw.random() + 0.2
            row |= {column: value, f"{column}_lo": value - 0.1, f"{column}_hi": value + 0.1}
        rows.append(row | {"r2_unchanged": -3.0})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("models", [["m"], ["m", "owner/a-long-name"]])
def test_maps_have_a_panel_per_model_and_condition_with_the_largest_head_named(models):
    table = layered(models, CONDITIONS[1:], ["moved"], heads=3)
    panels = [axes for axes in drawn(figure(moved_maps(table, PALETTE))) if axes.images]
    assert len(panels) == 2 * len(models)
    assert len({panel.images[0].get_clim() for panel in panels}) == 1
    for panel, (model, name) in zip(panels, itertools.product(models, CONDITIONS[1:]), strict=True):
        part = table[(table["model"] == model) & (table["condition"] == name)]
        best = part.loc[part["moved"].idxmax()]
        message = panel.get_title()
        assert f"L{best['layer']}H{best['head']} {best['moved']:.2f}" in message
        assert message.endswith(f"[{best['moved_lo']:.2f}, {best['moved_hi']:.2f}]")
        values = panel.images[0].get_array()
        assert values[best["layer"], best["head"]] == pytest.approx(best["moved"])


@pytest.mark.parametrize(
    ("draw", "columns"),
    [(affine_panels, ["slope", "r2"]), (activation_panels, ["near_zero_change", "kurtosis_change"])],
)
def test_layers_are_drawn_with_their_bands(draw, columns):
    table = layered(["m", "n"], CONDITIONS, columns)
    if draw is affine_panels:
        table = table[table["condition"] != "none"]
    else:
        table.loc[table["condition"] == "none", "near_zero_change"] = 0.0
    panels = drawn(figure(draw(table, PALETTE)))
    assert len(panels) == 4
    for panel, (model, column) in zip(panels, itertools.product(["m", "n"], columns), strict=True):
        lines = [line for line in panel.lines if line.get_label() in ("None", "Mless", "Mful")]
        assert len(panel.collections) == 2
        for line, name in zip(lines, CONDITIONS[1:], strict=True):
            own = table[(table["model"] == model) & (table["condition"] == name)]
            np.testing.assert_allclose(line.get_ydata(), own[column])


def test_lengths_are_drawn_from_nothing_on():
    rows = [{"series": "none", "k": 0, "value": 0.4}]
    rows += [{"series": s, "k": k, "value": 0.3 + k / 100} for s in CONDITIONS[1:] for k in (5, 20)]
    table = pd.DataFrame(rows).assign(model="m", task="t", n=60)
    table = table.assign(lo=table["value"] - 0.1, hi=table["value"] + 0.1)
    (panel,) = drawn(figure(length_curves(table, PALETTE)))
    for line in panel.lines:
        assert list(line.get_xdata()) == [0, 5, 20]
        np.testing.assert_allclose(line.get_ydata(), [40, 35, 50])
