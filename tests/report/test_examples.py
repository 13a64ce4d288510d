"""What the page says beyond the charts: examples behind a number, glossary, documentation, units, findings on top."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headwise.charts.chart import DARK_PALETTES, PALETTES
from headwise.charts.section import SECTIONS
from headwise.report import docs, examples, write_report
from headwise.runs import read_table
from headwise.studies.prompts.section import condition_colours
from headwise.tasks import Example, Task
from report import small_tables as small
from report.conftest import finished_run, score_table
from report.test_page import data_of

ROOT = Path(__file__).parents[2]


def score_examples(shape=(3, 4), n=6, seed=0, model="tiny", task="ioi"):
    """Rows of `examples` and `inputs` for the scores of `score_table`, which draws the same values."""
    values = np.random.default_rng(seed).normal(size=(n, *shape))
    about = {"model": model, "task": task, "method": "ablation", "metric": "logit_diff"}
    rows = [
        {**about, "layer": layer, "head": head, "example": e, "value": values[e, layer, head]}
        for e in range(n)
        for layer in range(shape[0])
        for head in range(shape[1])
    ]
    inputs = [
        {
            "model": model,
            "task": task,
            "part": "scores",
            "example": e,
            "prompt": f"prompt {e}",
            "target": f" t{e}",
        }
        | {"foils": f"f{e}"}
        for e in range(n)
    ]
    return pd.DataFrame(rows), pd.DataFrame(inputs)


def score_run(make_run, name="a", **more):
    rows, inputs = score_examples(**more)
    table = score_table("tiny", "ioi", "ablation", more.get("shape", (3, 4)))
    return make_run(name, "score", {"scores": table, "examples": rows, "inputs": inputs})


def masking_tables():
    """Masking with per-example values whose means are the points of the curve, and with texts."""
    tables, rows, texts = small.masking(), [], []
    for row in tables["curves"][tables["curves"]["draw"].isna()].to_dict("records"):
        about = {name: row[name] for name in ("model", "task", "series", "action", "k")}
        right = round(20 * row["value"])
        for e in range(20):
            value = float(e < right) if row["metric"] == "accuracy" else row["value"]
            rows.append({**about, "draw": 0, "metric": row["metric"], "example": e, "value": value})
        if row["metric"] == "accuracy":
            texts += [
                {**about, "draw": 0, "example": e, "text": f"{row['series']} {row['k']} wrote {e}"}
                for e in range(20)
            ]
    inputs = [
        {"model": "tiny", "task": task, "part": "curves", "example": e, "prompt": f"{task} asks {e}"}
        | {"target": f"gold {e}", "foils": ""}
        for task in ("Recall", "Logic")
        for e in range(20)
    ]
    made = {"examples": rows, "texts": texts, "inputs": inputs}
    return tables | {name: pd.DataFrame(table) for name, table in made.items()}


def test_the_mean_of_a_heads_examples_is_its_score(make_run, tmp_path):
    data = data_of(write_report([score_run(make_run)], tmp_path / "r.html").read_text())
    (found,) = data["sets"]
    assert found["kind"] == "head"
    for row in score_table("tiny", "ioi", "ablation", (3, 4)).itertuples():
        point = found["points"][f"L{row.layer}H{row.head}"]
        assert np.mean(point["v"]) == pytest.approx(row.score, rel=1e-2)
        assert point["v"] == sorted(point["v"], reverse=True)
        assert sorted(point["e"]) == list(range(6))
    assert data["inputs"][found["inputs"]]["3"] == ["prompt 3", " t3", "f3"]
    map_, bars = data["charts"]["chart-0"]["panels"]
    assert map_["traces"][0]["meta"] == bars["traces"][0]["meta"] == 0
    assert bars["traces"][0]["ids"] == bars["y"]["ticktext"]


def test_the_examples_of_a_curve_have_its_mean_and_the_models_texts(make_run, tmp_path):
    data = data_of(
        write_report([make_run("m", "masking", masking_tables())], tmp_path / "r.html").read_text()
    )
    sets = {tuple(found["columns"].values()): found for found in data["sets"]}
    for (task, series), points in small.MASKED.items():
        found = sets["tiny", task, series, "accuracy"]
        for k, (value, _, _) in points.items():
            point = found["points"][str(k)]
            assert np.mean(point["v"]) == pytest.approx(value)
            assert point["t"][0] == f"{series} {k} wrote {point['e'][0]}"
            assert found["full"][str(point["e"][0])] == f"full 0 wrote {point['e'][0]}"
    assert data["inputs"][sets["tiny", "Logic", "top", "accuracy"]["inputs"]]["7"][:2] == [
        "Logic asks 7",
        "gold 7",
    ]


def test_a_page_holds_the_strongest_heads_and_the_extreme_examples_and_says_what_it_leaves_out(
    make_run, tmp_path, monkeypatch
):
    monkeypatch.setattr(examples, "HEADS", 5)
    monkeypatch.setattr(examples, "EXAMPLES", 4)
    (found,) = data_of(write_report([score_run(make_run)], tmp_path / "r.html").read_text())["sets"]
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    first = table.reindex(table["score"].abs().sort_values(ascending=False).index)[:5]
    assert set(found["points"]) == {f"L{r.layer}H{r.head}" for r in first.itertuples()}
    assert found["left"] == 7
    rows, _ = score_examples()
    for name, point in found["points"].items():
        layer, head = map(int, re.findall(r"\d+", name))
        values = rows[(rows["layer"] == layer) & (rows["head"] == head)]["value"].sort_values(ascending=False)
        assert point["v"] == pytest.approx([*values[:2], *values[-2:]], rel=1e-3)
        assert point["n"] == 6
    monkeypatch.setattr(examples, "MOST", 10)
    (found,) = data_of(write_report([score_run(make_run, "b")], tmp_path / "s.html").read_text())["sets"]
    assert (found["points"], found["omitted"]) == ({}, 5)


def test_a_run_without_prompts_still_shows_values(make_run, tmp_path):
    rows, _ = score_examples()
    run = make_run("a", "score", {"scores": score_table("tiny", "ioi", "ablation", (3, 4)), "examples": rows})
    (found,) = data_of(write_report([run], tmp_path / "r.html").read_text())["sets"]
    assert found["inputs"] is None
    assert len(found["points"]) == 12


def test_a_score_stores_the_prompts_of_its_examples(tiny, tmp_path):
    import headwise as hw
    from helpers import bench_of

    task = tmp_path / "mine.jsonl"
    task.write_text('{"prompt": "the cat", "target": " saw"}\n{"prompt": "a dog", "target": " met"}\n')
    folder = hw.run(
        "score",
        tmp_path / "run",
        workbench=bench_of(tiny),
        models=["tiny"],
        tasks=[str(task)],
        n=2,
        progress=False,
    )
    inputs = read_table(folder.path, "inputs")
    assert set(inputs["prompt"]) == {"the cat", "a dog"}
    assert set(inputs["part"]) == {"scores"}
    assert set(inputs["example"]) == set(read_table(folder.path, "examples")["example"])


def test_inputs_carry_the_numbers_of_their_examples():
    from headwise.studies.steps import input_table

    task = Task("t", (Example("a", " b", foils=(" c", " d")), Example("e", " f")), numbers=(7, 3))
    table = input_table(task, "curves")
    assert table[["example", "prompt", "target", "foils"]].to_numpy().tolist() == [
        [7, "a", " b", "c / d"],
        [3, "e", " f", ""],
    ]


def test_the_glossary_of_the_page_has_every_entry_of_the_documentation(make_run, tmp_path):
    entries = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    page = write_report([score_run(make_run)], tmp_path / "r.html").read_text().split("<script>")[0]
    shown = re.findall(r'<li id="(term-\d+)"><strong>(.+?)</strong>', page)
    assert [unescape(re.sub(r"<.*?>", "", words)) for _, words in shown] == [
        entry.replace("`", "") for entry in entries
    ]
    anchors = {anchor for anchor, _ in shown}
    assert set(re.findall(r'href="#(term-\d+)"', page)) <= anchors
    assert re.findall(r'href="#(term-\d+)"', page)


@pytest.mark.parametrize("text", ["heads before the elbow", "Elbows of two abilities"])
def test_a_term_is_found_in_the_words_of_a_chart(text):
    assert "elbow" in [name for name, _ in docs.terms_in(text)]
    assert "elbow" not in [name for name, _ in docs.terms_in("the elbowroom")]


def test_every_documentation_page_that_a_chart_links_to_exists_and_is_packaged(make_run, tmp_path):
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    for name in {docs.GLOSSARY, *(section.docs for section in SECTIONS.all().values())}:
        assert docs.markdown(name)
        assert packaged["force-include"][f"docs/{name}.md"] == f"headwise/report/docs/{name}.md"
    page = write_report([make_run("m", "masking", small.masking())], tmp_path / "r.html").read_text()
    assert page.count('<a href="#docs-masking">Documentation of this chart</a>') == 2
    assert '<section class="study doc" id="docs-masking"' in page


def test_the_five_heaviest_findings_come_first_with_links_to_their_charts(tmp_path):
    runs = [
        finished_run(tmp_path / "roles", "roles", small.roles(), models=("big", "small")),
        finished_run(tmp_path / "masking", "masking", small.masking()),
    ]
    page = write_report(runs, tmp_path / "r.html").read_text()
    top = re.search(r'<ol class="findings" id="top"[^>]*>(.*?)</ol>', page)[1]
    items = [
        unescape(re.sub("</?(abbr|span)[^>]*>", "", item)) for item in re.findall(r"<li>(.*?)</li>", top)
    ]
    tables = {"roles": small.roles(), "masking": small.masking()}
    found = {name: SECTIONS.get(name).findings(table) for name, table in tables.items()}
    heaviest = {name: max(several, key=lambda one: one.weight) for name, several in found.items()}
    labelled = {f"{name}: {one.plain or one.sentence}" for name, one in heaviest.items()}
    assert {item.split(" <a")[0] for item in items[:2]} == labelled
    real = sum(finding.found for several in found.values() for finding in several)
    assert len(items) == min(5, real)
    assert not any("Not found" in item for item in items[:real])
    titles = dict(re.findall(r'<h3 id="(chart-\d+-title)">(.*?)</h3>', page))
    for item in items:
        title = titles[re.search(r'href="#(.*?)"', item)[1]]
        assert title.startswith("Masking the heads of tiny" if "tiny" in item else "Effect of ablating")


def test_the_few_findings_of_a_single_study_are_on_the_page_once(make_run, tmp_path):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    page = write_report([make_run("a", "score", {"scores": table})], tmp_path / "r.html").read_text()
    (found,) = SECTIONS.get("score").findings({"scores": table})
    text = unescape(re.sub("<[^>]+>", "", page))  # terms carry their meaning
    assert text.count(found.sentence) == 1
    assert 'id="top-title"' not in page


def test_a_table_has_one_unit_and_a_condition_has_one_colour(make_run, tmp_path):
    runs = [make_run("p", "prompts", small.prompts()), make_run("m", "masking", small.masking())]
    data = data_of(write_report(runs, tmp_path / "r.html").read_text())
    assert set(data["heads"]["unit"]["words"]) == {"share of attention", "logprob"}
    traces = [
        trace
        for chart in data["charts"].values()
        for panel in chart["panels"]
        for trace in panel["traces"]
        if re.search("Mless|Mful|None|w/o", trace.get("name", ""))
    ]
    by_condition = {}
    for trace in traces:
        name = re.sub("^w/ ", "", trace["name"]).replace("w/o", "None").split(",")[0]
        colour = trace["marker"]["color"] if trace["type"] == "bar" else trace["line"]["color"]
        by_condition.setdefault(name, set()).add(colour)
    assert set(by_condition) == {"None", "Mless", "Mful"}
    assert all(len(found) == 1 for found in by_condition.values())
    assert len(set().union(*by_condition.values())) == 3
    assert condition_colours(["a", "none", "b"])["b"] == condition_colours(["none", "a", "b"])["b"]


def test_masking_has_one_panel_per_metric_and_one_column_per_unit():
    (chart, *_) = SECTIONS.get("masking").charts(small.masking())
    assert [panel.y.label for panel in chart.page] == ["Accuracy", "chrF"] * 2
    for panel in chart.page:
        assert panel.y2 is None
        assert len({mark.examples["metric"] for mark in panel.marks if mark.examples}) == 1
    table = chart.table.set_index(["task", "series", "k"])
    assert table.loc[("Recall", "top", 4), ["Accuracy", "Accuracy lo", "chrF"]].tolist() == pytest.approx(
        [0.1, 0.0, 0.95]
    )


def test_the_short_names_of_conditions_are_explained_below_every_chart():
    charts = SECTIONS.get("prompts").charts(small.prompts())
    assert charts
    for chart in charts:
        assert "Mless: a meaningless filler" in chart.caption
        assert "Mful: a meaningful filler" in chart.caption


def test_dark_palettes_are_dark_where_the_light_ones_are_white():
    def luminance(colour):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return (0.3 * red + 0.59 * green + 0.11 * blue) / 255

    for name, light in PALETTES.items():
        for step, colour in enumerate(light.split()):
            if luminance(colour) > 0.9 and name != "viridis":
                assert luminance(DARK_PALETTES[name].split()[step]) < 0.2
        assert len(DARK_PALETTES.get(name, light).split()) == len(light.split())
