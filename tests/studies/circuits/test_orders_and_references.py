"""The study `circuits` with several orders and ablation types: what is chosen, compared and said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import headwise as hw
from headwise.charts.explained_effect import COLOURS
from headwise.charts.style import without_figures
from headwise.errors import HeadwiseError
from headwise.report import write_report
from headwise.runs import read_table
from headwise.studies.base import studies
from headwise.studies.circuits.section import charts, findings
from headwise.studies.circuits.settings import CircuitsSettings
from headwise.studies.circuits.study import smallest
from headwise.studies.settings.resolve import resolve
from helpers import run_on
from planted import DENSE, SPARSE, planted_model, told_apart, written

N = 48
ORDERS = ["random", "integrated"]
"""The first given is the worse one."""


@pytest.fixture(scope="module")
def models(word_tokenizer):
    return {
        name: planted_model(word_tokenizer, kept, name)
        for name, kept in (("dense", DENSE), ("sparse", SPARSE))
    }


@pytest.fixture(scope="module")
def task(models):
    return told_apart(models.values(), N)


@pytest.fixture(scope="module")
def finished(models, task, tmp_path_factory):
    data = written(task, tmp_path_factory.mktemp("data") / "apart.jsonl")
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {"n": N, "by": ["absolute"], "orders": ORDERS, "tasks": [data], "maps": 1}
    with without_figures():
        return run_on("circuits", out, *models.values(), **settings)


@pytest.fixture(scope="module")
def tables(finished):
    names = [path.stem for path in (finished.path / "tables").glob("*.parquet")]
    return {name: read_table(finished.path, name) for name in names}


def test_both_ablation_types_are_ranked_chosen_and_swept_each_on_its_own(tables, models, task):
    assert set(tables["circuits"]["reference"]) == {"mean", "patch"}
    found, tested = task.halves()
    for model in models.values():
        for reference in ("mean", "patch"):
            scores = hw.score(model, found, "integrated", reference=reference, progress=False)
            own = tables["scores"].query(
                "model == @model.name and method == 'integrated' and reference == @reference"
            )
            np.testing.assert_allclose(own["score"], scores.values.ravel())
            options = {
                "by": "absolute",
                "reference": reference,
                "controls": (),
                "points": 21,
                "progress": False,
            }
            for half, table in ((found, "choices"), (tested, "circuits")):
                swept = hw.sweep(model, half, scores, **options)
                (row,) = (
                    tables[table]
                    .query("model == @model.name and order == 'integrated' and reference == @reference")
                    .to_dict("records")
                )
                assert (row["k"], row["stays"]) == (swept.k_at().k, swept.k_at().stays)
                assert row["n"] == N // 2


def sizes(**rows: tuple[float, float, float]) -> pd.DataFrame:
    """Orders with (stays, k, cmd)."""
    return pd.DataFrame(rows.values(), columns=["stays", "k", "cmd"], index=list(rows)).reset_index()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"a": (90, 30, 0.3), "b": (15, 14, 0.2), "c": (40, 3, 0.1)}, 1),  # stays decides, not first reached
        ({"a": (15, 15, 0.1), "b": (15, 9, 0.2)}, 1),  # equal: the one that is there first
        ({"a": (15, 9, 0.3), "b": (15, 9, 0.2)}, 1),  # equal again: the one closer to the whole model
        ({"a": (15, 9, 0.2), "b": (15, 9, 0.2)}, 0),  # the same: the first given
        ({"a": (np.nan, np.nan, np.nan), "b": (np.nan, np.nan, np.nan)}, 0),  # no effect to explain
        ({"a": (np.nan, np.nan, np.nan), "b": (200, 200, 0.9)}, 1),
    ],
)
def test_the_smallest_circuit_that_stays_is_chosen(rows, expected):
    assert smallest(sizes(**rows)) == expected


def test_the_chosen_order_is_the_smallest_on_the_finding_half(tables):
    for _, rows in tables["choices"].groupby(["model", "task", "reference"]):
        by_size = rows.sort_values("stays", kind="stable")
        assert by_size["chosen"].tolist() == [True, False]
        assert by_size["stays"].iloc[0] < by_size["stays"].iloc[1]
    keys = ["model", "task", "reference", "series"]
    chosen = [
        set(map(tuple, t.loc[t["chosen"], keys].to_numpy())) for t in (tables["choices"], tables["circuits"])
    ]
    assert chosen[0] == chosen[1]


def test_controls_and_maps_are_those_of_the_chosen_orders(tables):
    curves = tables["curves"]
    for kind in ("random", "random_layer"):
        rows = curves[curves["series"] == kind]
        assert set(rows["order"]) == {"integrated absolute"}
        assert rows["draw"].nunique() == 5
        assert rows["chosen"].all()
    assert set(tables["attention"]["series"]) == {"integrated absolute"}
    assert set(tables["attention"]["reference"]) == {"mean", "patch"}


def test_ratios_are_there_for_every_order_and_for_the_chosen_ones(tables):
    ratios = tables["ratios"]
    rows = ratios[["reference", "series", "other_series", "chosen"]].to_numpy().tolist()
    one, other = "random order", "integrated absolute"
    assert rows == [
        [reference, *row]
        for reference in ("mean", "patch")
        for row in ([one, one, False], [other, other, False], [other, other, True])
    ]
    circuits = tables["circuits"].set_index(["model", "reference", "series"])
    for row in ratios.to_dict("records"):
        sizes = [
            circuits.loc[(name, row["reference"], row["series"]), "stays"] for name in ("dense", "sparse")
        ]
        assert row["stays_ratio"] == sizes[0] / sizes[1]
        assert row["stays_lo"] <= row["stays_ratio"] <= row["stays_hi"]


def test_each_ablation_type_has_a_figure_with_the_chosen_orders_and_how_they_follow(tables):
    drawn = charts(tables)[:2]
    assert [chart.name for chart in drawn] == ["circuits", "circuits-patch"]
    assert all(name in chart.title for chart, name in zip(drawn, ("mean ablation", "patching"), strict=True))
    curves = tables["curves"].query("metric == 'explained_effect'")
    for chart, reference in zip(drawn, ("mean", "patch"), strict=True):
        panel, followed = chart.panels[:2]
        lines = {(line.name, line.hover_prefix): line for line in panel.marks if getattr(line, "name", "")}
        assert not any(
            name.startswith("ranked by") for name, _ in lines
        )  # two models: their chosen orders alone
        for name in ("dense", "sparse"):
            (r2,) = [
                line
                for line in followed.marks
                if getattr(line, "hover_prefix", "") == name and line.lo is not None
            ]
            for line, column in ((lines[f"{name} (integrated absolute)", ""], "value"), (r2, "r2")):
                assert line.colour == COLOURS[0][name]
                own = curves[(curves["model"] == name) & (curves["reference"] == reference)]
                own = own[own["series"] == "integrated absolute"].sort_values("k")
                np.testing.assert_array_equal(line.x, own["k"])
                np.testing.assert_array_equal(line.y, own[column])
            scores = tables["scores"].query("model == @name and method == 'integrated'")
            scores = scores[scores["reference"] == reference]
            first = scores.iloc[scores["score"].abs().argmax()]
            marked = panel.orders[f"{name} (integrated absolute)"]
            assert marked[0] == f"L{first['layer']}H{first['head']}"
        (segment,) = [m for m in panel.marks if getattr(m, "dash", "") == "dash" and getattr(m, "marker", "")]
        ratios = tables["ratios"][tables["ratios"]["chosen"]].set_index("reference")
        assert list(segment.x) == [ratios.loc[reference, "stays"], ratios.loc[reference, "other_stays"]]


def test_the_findings_say_what_the_other_order_takes(tables):
    messages = [finding.sentence for finding in findings(tables)]
    for row in tables["circuits"].query("chosen").to_dict("records"):
        (other,) = (
            tables["circuits"]
            .query("model == @row['model'] and reference == @row['reference'] and not chosen")
            .to_dict("records")
        )
        under = {"mean": "mean ablation", "patch": "counterfactual patching"}[row["reference"]]
        start = (
            f"{row['model']}: {row['stays']:.0f} of 16 heads (MLPs intact) recover 90 % of the mean logit_diff of "
            f"Apart under {under} (95 % CI "
        )
        end = f"; ranked by random order it takes {other['stays']:.0f}."
        assert any(s.startswith(start) and s.endswith(end) for s in messages), (start, messages)


def test_the_table_of_heads_names_the_ablation_type(tables):
    rows = studies()["circuits"].section.heads(tables)
    assert {"integrated (mean)", "integrated (patch)"} <= set(rows["measure"])
    assert not rows.duplicated(["model", "task", "measure", "layer", "head"]).any()


def test_the_page_is_written_with_both_rows(finished, tmp_path):
    page = write_report([finished.path], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "mean ablation" in page
    assert "counterfactual patching" in page


def test_a_circuit_above_the_whole_model_is_told_with_its_heads(
    word_tokenizer, tmp_path, monkeypatch, undrawn
):
    """Examples made for two heads of the model: the other heads work against them."""
    monkeypatch.setattr("headwise.sweeps.readings.OVERSHOOT", 1.02)
    model = planted_model(word_tokenizer, DENSE, "dense")
    task = told_apart([planted_model(word_tokenizer, DENSE[:2], "two")], 20)
    data = written(task, tmp_path / "apart.jsonl")
    run = {
        "n": 20,
        "by": ["signed"],
        "orders": ["keep"],
        "references": ["patch"],
        "controls": [],
        "maps": 0,
    }
    folder = run_on("circuits", tmp_path / "run", model, tasks=[data], **run)
    curve = read_table(folder.path, "curves").query("metric == 'explained_effect'")
    assert curve["value"].max() > 1.02, "the planted model has to overshoot for this test to say anything"
    rows = read_table(folder.path, "overshoot")
    assert rows["peak"].iloc[0] == pytest.approx(curve["value"].max(), abs=1e-4)
    order = hw.score(model, task.halves()[0], "keep", reference="patch", progress=False).order()
    shares = curve.set_index("k")["value"]
    for row in rows.to_dict("records"):
        assert row["heads"] == str(order[row["k"] - 1])
        assert row["rise"] == pytest.approx(shares[row["k"]] - shares[row["k"] - 1], abs=1e-4)
    messages = [
        f.sentence
        for f in findings({name: read_table(folder.path, name) for name in ("circuits", "overshoot")})
    ]
    assert any(
        "more than all heads together" in sentence and rows["heads"].iloc[0] in sentence
        for sentence in messages
    )


def test_a_task_without_counterfactuals_has_mean_alone(models, task, tmp_path):
    bare = hw.Task("bare", tuple(hw.Example(e.prompt, e.target, e.foils) for e in task), "logit_diff")
    lines = [{"prompt": e.prompt, "target": e.target, "foils": list(e.foils)} for e in bare]
    data = tmp_path / "bare.jsonl"
    data.write_text(pd.DataFrame(lines).to_json(orient="records", lines=True))
    run = {"n": N, "orders": ["integrated"], "maps": 0, "controls": [], "method_options": {"steps": 2}}
    folder = run_on("circuits", tmp_path / "run", models["dense"], tasks=[str(data)], **run)
    assert set(read_table(folder.path, "circuits")["reference"]) == {"mean"}
    with pytest.raises(HeadwiseError, match="have no counterfactual, which the ablation type 'patch' needs"):
        run_on("circuits", tmp_path / "no", models["dense"], tasks=[str(data)], references=["patch"], **run)


# ---- settings --------------------------------------------------------------------------------------------


def test_the_defaults_are_what_the_machine_can_do_in_minutes(monkeypatch):
    monkeypatch.setattr("headwise.studies.circuits.settings.accelerated", lambda device: device == "cuda")
    cpu, cuda = CircuitsSettings(), CircuitsSettings(device="cuda")
    assert (cpu.tasks, cpu.orders) == (("greater_than", "ioi"), ("integrated", "nested"))
    assert cuda.tasks == ("greater_than", "ioi", "docstring", "ioi_long")
    assert cuda.orders == ("integrated", "nested", "ablation")
    quick = CircuitsSettings(device="cuda", quick=True)
    assert (quick.tasks, quick.orders) == (("ioi",), ("integrated", "nested"))
    asked = CircuitsSettings(quick=True, tasks=["ioi", "docstring"], orders=["ablation"])
    assert (asked.tasks, asked.orders) == (("ioi", "docstring"), ("ablation",))
    assert cpu.method_options == {"most_steps": 40, "seeds": 1, "rows": 2000}
    assert quick.method_options == {"most_steps": 20, "seeds": 1, "rows": 300}
    assert (cuda.method_options, asked.method_options) == ({}, {})
    longer = CircuitsSettings(method_options={"updates": 50, "seeds": 2})
    assert longer.method_options == {"most_steps": 40, "updates": 50, "seeds": 2}
    for settings in (cpu, cuda, quick, asked, longer):  # as the run folder writes it down
        assert resolve(CircuitsSettings, None, settings.model_dump()) == settings
        elsewhere = {
            **settings.model_dump(),
            "device": "cpu",
        }  # a run is the same where another machine verifies it
        assert resolve(CircuitsSettings, None, elsewhere).method_options == settings.method_options


def test_an_ablation_type_twice_is_refused():
    with pytest.raises(HeadwiseError, match="each ablation type once"):
        CircuitsSettings(orders=["integrated"], references=["mean", "mean"])
