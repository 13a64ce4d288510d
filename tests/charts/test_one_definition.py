"""The figure on paper and the chart of the page show the same: series, numbers, words, tokens, marks."""

from __future__ import annotations

import itertools
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Annotation
from matplotlib.text import Text as Words

from headwise.charts.attention import attention_chart
from headwise.charts.chart import Axis, Chart, Label, Line, Panel
from headwise.charts.comparison import agreement_chart
from headwise.charts.interactive import page_chart
from headwise.charts.section import SECTIONS
from headwise.charts.static import figure
from headwise.report.page import _caption
from headwise.sparsify.evaluate import edge_chart, training_chart
from report import small_tables as small
from report.conftest import score_table

ABILITIES = ("Recall", "Logic", "A <b>$5</b> & $6 task")


def functions():
    scores = pd.concat(
        [score_table("tiny", task, "probe", (3, 4), seed) for seed, task in enumerate(ABILITIES)]
    )
    pairs = itertools.product(ABILITIES, ABILITIES)
    overlap = [{"task": a, "other": b, "heads": len(a), "jaccard": 1.0 if a == b else 0.25} for a, b in pairs]
    scores.loc[scores["head"] == 2, "q"] = 0.01
    overlap = pd.DataFrame(overlap).assign(model="tiny", method="probe", by_chance=0.1, other_heads=3)
    return {"scores": scores.reset_index(drop=True), "overlap": overlap}


def contrast():
    places = itertools.product(("a", "b"), ("keep", "lose"), (-1, 0, 1))
    rows = [
        {"model": "tiny", "pair": pair, "side": side, "seed": seed}
        | {"mean_logprob": -1 - seed / 4 - (side == "lose"), "accuracy": 0.5 + seed / 8}
        for pair, side, seed in places
    ]
    return {"contrast": pd.DataFrame(rows), "scores": score_table("tiny", "a", "contrastive", (2, 3))}


def reach():
    names = {"model": "tiny", "task": "needle", "reference": "window:16", "n": 8}
    places = itertools.product(("nested", "pattern", "random"), (0, 1, 2, 4))
    rows = [
        {
            "series": series,
            "far": far,
            "share": 0.1 + far / 5,
            "explained": far / 4,
            "lo": far / 5,
            "hi": far / 3,
        }
        | {"accuracy": far / 4, "accuracy_lo": far / 5, "accuracy_hi": far / 3, "of": 4, "tokens": 200.0}
        for series, far in places
    ]
    places = itertools.product(("nested", "window alone"), (50, 100))
    text = [
        {"series": series, "position": position, "rise": position / 500, "lo": 0.0, "hi": 0.3, "far": 2}
        for series, position in places
    ]
    scores = score_table("tiny", "needle", "ablation", (2, 3))
    return {
        "reach": pd.DataFrame(rows).assign(**names),
        "text": pd.DataFrame(text).assign(**names),
        "scores": scores,
    }


def diff():
    scores = pd.concat([score_table(model, "a", "ablation", (2, 3)) for model in ("base", "tuned")])
    names = {"base": "base", "tuned": "tuned", "base_score": 0.5, "tuned_score": 0.25}
    change = score_table("tuned", "a", "ablation", (2, 3)).rename(columns={"score": "difference"})
    row = {"task": "a", "base": "base", "tuned": "tuned", "metric": "accuracy", "test": "McNemar", "p": 0.03}
    values = {"base": (0.9, 0.8, 1.0), "tuned": (0.7, 0.6, 0.8)}
    row |= {
        f"{m}_{end}": v for m, vs in values.items() for end, v in zip(("value", "lo", "hi"), vs, strict=True)
    }
    row |= {"difference": -0.2, "lo": -0.3, "hi": -0.1, "n": 8}
    return {"scores": scores, "diff": change.assign(**names), "outcomes": pd.DataFrame([row])}


def masking():
    places = itertools.product(("Recall", "Logic"), ("amplify", "shift"), ("top", "random"), (1.5, 2.0))
    rows = [
        {"model": "tiny", "task": task, "kind": kind, "series": series, "strength": strength, "k": 4, "n": 8}
        | {"before": 0.5, "before_lo": 0.4, "before_hi": 0.6, "after": strength / 4, "lo": 0.3, "hi": 0.7}
        for task, kind, series, strength in places
    ]
    return small.masking() | {"interventions": pd.DataFrame(rows)}


def prompts():
    ends = {"": 0, "_lo": -1, "_hi": 1}
    columns = ("slope", "r2", "near_zero_change", "kurtosis_change")
    layers = pd.DataFrame(
        [
            {"model": "tiny", "task": "sums", "condition": name, "layer": layer, "n": 4, "r2_unchanged": 0.25}
            | {f"{column}{end}": layer + shift for column in columns for end, shift in ends.items()}
            for name, layer in itertools.product(("meaningless", "meaningful"), range(4))
        ]
    )
    lengths = pd.DataFrame(
        [
            {
                "model": "tiny",
                "task": "sums",
                "series": series,
                "k": k,
                "value": 0.5,
                "lo": 0.25,
                "hi": 0.75,
                "n": 16,
            }
            for series, k in (("none", 0), ("meaningless", 5), ("meaningless", 20))
        ]
    )
    return small.prompts() | {"affine": layers, "activations": layers, "curves": lengths}


def sure_roles():
    tables = small.roles()
    return tables | {"scores": tables["scores"].assign(label="facilitating", agreement=1.0)}


def others():
    square = pd.DataFrame([[1.0, 0.5], [0.5, 1.0]], index=["a", "b"], columns=["a", "b"])
    stability = pd.DataFrame({"resamples": [0.5, 0.75], "seeds": [0.25, 1.0]}, index=["a", "b"])
    yield agreement_chart(square, square / 2, square, stability, k=3)
    yield attention_chart(np.tri(3) / np.arange(1, 4)[:, None], [" a", "b\n", "c"], title="Attention of L0H0")
    steps = pd.DataFrame({"step": [1, 2, 3], "share": [1.0, 0.5, 0.25], "excess": [0.5, 0.25, 0.1]})
    yield training_chart(steps.assign(multiplier=steps["step"]), steps, bound=0.2)
    edges = pd.DataFrame([(la, h, (la * 3 + h) / 100) for la in range(2) for h in range(3)])
    lengths = pd.DataFrame({"length": range(4), "edges": [6, 2, 1, 1], "possible": [40, 30, 20, 10]})
    yield edge_chart(edges.set_axis(["layer", "head", "open"], axis=1), lengths)
    yield graph()


def graph() -> Chart:
    """A layered graph of heads and edges: lines between named points."""
    heads = {"L0H1": (1, 0), "L0H3": (3, 0), "L2H2": (2, 2)}
    edges = [
        Line(x=[heads[a][0], heads[b][0]], y=[heads[a][1], heads[b][1]], name=through, width=width)
        for a, b, through, width in (("L0H1", "L2H2", "through Q", 2.0), ("L0H3", "L2H2", "through K", 0.5))
    ]
    x, y = zip(*heads.values(), strict=True)
    nodes = Line(x=x, y=y, dash="none", marker="circle", size=20, colour="#dddddd")
    names = [Label(x=x, y=y, text=name) for name, (x, y) in heads.items()]
    axes = {
        "x": Axis(label="Head", limits=(0, 4), ticks=range(5)),
        "y": Axis(label="Layer", limits=(-1, 3), ticks=range(3)),
    }
    return Chart(title="What L2H2 reads", panels=[Panel(marks=[*edges, nodes, *names], **axes)])


STUDIES = {
    "score": lambda: {
        "scores": score_table("tiny", "ioi", "ablation", (3, 4)).assign(q=[0.01, 0.2, 0.03] * 4)
    },
    "roles": sure_roles,
    "circuits": lambda: small.followed(small.circuit_orders()),
    "masking": masking,
    "prompts": prompts,
    "functions": functions,
    "contrast": contrast,
    "diff": diff,
    "reach": reach,
    "backups": small.backups,
}
CHARTS = [
    *(
        pytest.param(c, id=f"{study}: {c.title}")
        for study, t in STUDIES.items()
        for c in SECTIONS.get(study).charts(t())
    ),
    *(pytest.param(chart, id=chart.title) for chart in others()),
]


# ---- what is there, from matplotlib's artists and from Plotly's JSON -----------------------------------


def rounded(values) -> tuple:
    return tuple(
        None if v is None or not np.isfinite(v) else float(f"{float(v) + 0:.4g}") for v in np.ravel(values)
    )


def plain(text) -> str:
    """A word as it is written on paper, a number as a number."""
    text = str(text).replace(r"\$", "$")
    try:
        return str(float(text.replace("−", "-")) + 0)
    except ValueError:
        return text


def word(text) -> str:
    """A word as the page shows it, without its markup."""
    return plain(unescape(str(text).replace("<br>", "\n").replace("<b>", "").replace("</b>", "")))


def edges_of(x, lo, hi) -> frozenset:
    return frozenset(rounded(edge) for edge in zip(x, lo, hi, strict=True))


def on_paper(axes) -> dict:
    """What one pair of axes shows."""
    found = {name: [] for name in ("lines", "cells", "bars", "bands", "texts", "dots")}
    for line in axes.lines:
        if line.get_label() == "_rule":
            continue
        points = (rounded(line.get_xdata()), rounded(line.get_ydata()))
        if not line.get_label().startswith("_"):
            found["lines"].append((plain(line.get_label()), *points, to_hex(line.get_color())))
        elif len(points[0]) and line.get_marker() not in ("|", "_", "None"):  # not the caps of error bars
            found["dots"].append(points)
    for image in axes.images:
        values = np.ma.filled(image.get_array().astype(float), np.nan)
        found["cells"].append((values.shape, rounded(values), rounded(image.get_clim())))
    for container in axes.containers:
        for bar in getattr(container, "patches", ()):
            name = container.get_label()
            box = (bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height())
            # Bars that stand lower than 0 have their base at the top.
            found["bars"].append(
                ("" if name.startswith("_") else plain(name), rounded(box), to_hex(bar.get_facecolor()))
            )
    for band in axes.collections:
        points = np.concatenate([path.vertices for path in band.get_paths()])
        if hasattr(band, "get_segments"):  # error bars
            for segment in band.get_segments():
                found["bands"].append(frozenset([rounded(np.sort(segment, axis=0))]))
            continue
        by_x: dict = {}
        for x, y in points:
            by_x.setdefault(x, []).append(y)
        found["bands"].append(edges_of(by_x, map(min, by_x.values()), map(max, by_x.values())))
    found["texts"] = [plain(text.get_text()) for text in axes.texts if text.get_rotation() in (0, 360.0)]
    return found


def on_page(panel) -> dict:
    """What one panel shows."""
    found = {name: [] for name in ("lines", "cells", "bars", "bands", "texts", "dots")}
    places = (lambda x: np.square(np.array(x, dtype=float))) if panel["root"] else (lambda x: x)
    for trace in panel["traces"]:
        kind, name = trace["type"], word(trace.get("name", ""))
        if kind == "heatmap":
            values = np.array(trace["z"], dtype=float)
            found["cells"].append((values.shape, rounded(values), rounded([trace["zmin"], trace["zmax"]])))
            found["texts"] += [word(text) for row in trace.get("text", ()) for text in row if text]
        elif kind == "bar":
            found["bars"] += bars_of(trace, name)
            found["texts"] += [word(text) for text in trace.get("text", ()) if text]
            found["bands"] += errors_of(trace)
        elif trace.get("fill") == "toself":
            half = len(trace["x"]) // 2
            found["bands"].append(
                edges_of(places(trace["x"][:half]), trace["y"][half:][::-1], trace["y"][:half])
            )
        elif trace["x"] != [None]:
            points = (rounded(places(trace["x"])), rounded(trace["y"]))
            colour = trace["line"]["color"].replace("ink", "#000000")
            found["lines" if name else "dots"].append((name, *points, colour) if name else points)
            found["bands"] += errors_of(trace)
            if trace.get("fill") == "tozeroy":
                found["bands"].append(edges_of(trace["x"], np.zeros(len(trace["y"])), trace["y"]))
    found["texts"] += [word(mark["text"]) for mark in panel["marks"] if mark["kind"] == "text"]
    return found


def bars_of(trace, name):
    lying = trace["orientation"] == "h"
    at, values = (trace["y"], trace["x"]) if lying else (trace["x"], trace["y"])
    colours = trace["marker"]["color"]
    for place, (where, value) in enumerate(zip(at, values, strict=True)):
        base, thick = trace.get("base", [0] * len(at))[place], trace["width"]
        box = (base, where - thick / 2, value, thick) if lying else (where - thick / 2, base, thick, value)
        yield name, rounded(box), colours if isinstance(colours, str) else colours[place]


def errors_of(trace):
    for along, across in (("x", "y"), ("y", "x")):
        error = trace.get(f"error_{along}")
        for at, middle, less, more in (
            zip(trace[across], trace[along], error["arrayminus"], error["array"], strict=True)
            if error
            else ()
        ):
            ends = [(at, middle - less), (at, middle + more)]
            yield frozenset([rounded([pair if along == "y" else pair[::-1] for pair in ends])])


def close(a, b) -> bool:
    """The same, within what the page rounds."""
    if isinstance(a, str) or a is None or isinstance(b, str) or b is None:
        return a == b
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, frozenset):
        return close(sorted(a, key=repr), sorted(b, key=repr))
    return a == pytest.approx(b, rel=2e-3, abs=1e-4)


def matched(paper: list, page: list) -> bool:
    """Whether each thing of one list has its own in the other."""
    left = list(page)
    for one in paper:
        found = next((other for other in left if close(one, other)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


PICTURES: dict[int, tuple] = {}
"""Of each chart its figure, drawn once for all tests; and the chart, so that no other gets its id."""


def drawn(chart):
    if id(chart) not in PICTURES:
        picture = figure(chart)
        FigureCanvasAgg(picture).draw()
        PICTURES[id(chart)] = (picture, chart)
    picture, _ = PICTURES[id(chart)]
    return picture, [axes for axes in picture.axes if axes.get_label() != "<colorbar>"]


# ---- tests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", CHARTS)
def test_marks_and_numbers_are_the_same(chart):
    _, axes = drawn(chart)
    panels = page_chart(chart)["panels"]
    paper, page = [on_paper(one) for one in axes], [on_page(panel) for panel in panels]
    if chart.page is not None:  # other panels, the same marks
        paper, page = (
            [{name: [mark for one in found for mark in one[name]] for name in found[0]}]
            for found in (paper, page)
        )
    assert len(paper) == len(page)
    for one, other in zip(paper, page, strict=True):
        for kind in one:
            assert matched(one[kind], other[kind]), (kind, one[kind], other[kind])
    assert any(found[kind] for found in page for kind in found)


COUNTED = re.compile(r"(Layer|Head)$|Number of|Copies inserted|# Masked Heads")
"""Labels of axes of numbers of things, and of numbered things."""


@pytest.mark.parametrize("chart", CHARTS)
def test_axes_of_layers_heads_and_counts_have_whole_numbers_however_few_there_are(chart):
    _, axes = drawn(chart)
    for one in axes:
        for axis in (one.xaxis, one.yaxis):
            if COUNTED.match(axis.get_label_text()):
                low, high = sorted(axis.get_view_interval())
                inside = [tick for tick in axis.get_ticklocs() if low <= tick <= high]
                assert all(float(tick).is_integer() for tick in inside), inside
    for panel in page_chart(chart)["panels"]:
        for name in ("x", "y"):
            if COUNTED.match(panel[name]["title"]):
                # Without ticks of ours the page chooses some for the width it has: 0, 0.5, 1, …
                shown = [text for text in panel[name]["ticktext"] if text not in ("MLP", "input")]
                assert all(float(text).is_integer() for text in shown), shown


@pytest.mark.parametrize("chart", CHARTS)
def test_words_are_the_same(chart):
    picture, axes = drawn(chart)
    page = page_chart(chart)
    written = [plain(text.get_text()) for text in picture.findobj(Words)]
    everything = "\n".join(written)
    for panel in page["panels"]:
        for part in (
            word(panel["title"]).replace("\n", ", ").rstrip(")").replace(" (dot", ", dot").split(", ")
        ):
            assert part in everything
    legends = [*picture.legends, *(one.get_legend() for one in axes if one.get_legend())]
    entries = {plain(text.get_text()) for legend in legends for text in legend.get_texts()}
    assert entries == {word(t["name"]) for p in page["panels"] for t in p["traces"] if t.get("showlegend")}
    bars = {
        plain(one.get_ylabel() or one.get_xlabel()).replace("\n", " ")
        for one in picture.axes
        if one.get_label() == "<colorbar>"
    }
    titles = [t["colorbar"]["title"]["text"] for p in page["panels"] for t in p["traces"] if "colorbar" in t]
    assert bars == {word(title).replace("\n", " ").strip(" \N{BRAILLE PATTERN BLANK}") for title in titles}
    caption = _caption(chart)
    for said in (chart.heading if chart.heading is not None else chart.title, chart.note):
        assert said in everything
        assert " ".join(said.split("\n")) in f"{chart.title} {caption}"


@pytest.mark.parametrize("chart", [c for c in CHARTS if c.values[0].page is None])
def test_ticks_and_limits_are_the_same(chart):
    _, axes = drawn(chart)
    panels = page_chart(chart)["panels"]
    for which in ("x", "y"):
        named = [[plain(t.get_text()) for t in getattr(one, f"get_{which}ticklabels")()] for one in axes]
        for one, names, panel in zip(axes, named, panels, strict=True):
            axis = panel[which]
            expected = [word(text) for text in axis.get("ticktext", ())]
            # On paper, what the panel at the edge of the grid says is not said again.
            assert names[: len(expected)] == expected or (not names and expected in named)
            if "range" in axis:
                limits = np.array(axis["range"], dtype=float)
                limits = 10**limits if axis.get("type") == "log" else limits
                limits = limits**2 if which == "x" and panel["root"] else limits
                np.testing.assert_allclose(getattr(one, f"get_{which}lim")(), limits, rtol=1e-3, atol=1e-6)


def test_a_word_that_looks_like_markup_is_a_word_in_both():
    (maps, *_) = SECTIONS.get("functions").charts(functions())
    _, axes = drawn(maps)
    assert [plain(one.get_title()) for one in axes] == list(ABILITIES)
    titles = [panel["title"] for panel in page_chart(maps)["panels"]]
    assert titles[2] == "A &lt;b&gt;$5&lt;/b&gt; &amp; $6 task"


def test_a_graph_of_heads_has_its_names_at_its_points():
    _, (axes,) = drawn(graph())
    placed = {text.get_text(): text.xy for text in axes.texts if isinstance(text, Annotation)}
    assert placed == {"L0H1": (1, 0), "L0H3": (3, 0), "L2H2": (2, 2)}
    (panel,) = page_chart(graph())["panels"]
    assert {mark["text"]: (mark["x"], mark["y"]) for mark in panel["marks"]} == placed
