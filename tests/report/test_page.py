"""The page as a file: whole, escaped, and with the numbers of the tables."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.report import findings, write_report
from headwise.runs import RunFolder, read_info
from headwise.studies import base as registry
from headwise.studies.settings.resolve import StudySettings
from report.conftest import HOSTILE, score_table


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def test_the_table_of_heads_holds_every_row_of_the_scores(make_run, tmp_path):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    page = write_report([make_run("a", "score", {"scores": table})], tmp_path / "r.html").read_text()
    heads = data_of(page)["heads"]
    assert heads["rows"] == 12
    for i, row in table.reset_index(drop=True).iterrows():
        assert (heads["layer"][i], heads["head"][i]) == (row["layer"], row["head"])
        assert heads["score"][i] == pytest.approx(row["score"], rel=1e-3)
        assert heads["lo"][i] == pytest.approx(row["lo"], rel=1e-3)


def test_a_map_has_each_score_at_its_layer_and_head(make_run, tmp_path):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    page = write_report([make_run("a", "score", {"scores": table})], tmp_path / "r.html").read_text()
    panel, largest = data_of(page)["charts"]["chart-0"]["panels"]
    assert largest["y"]["ticktext"][0] == "L{}H{}".format(
        *table.loc[table["score"].abs().idxmax(), ["layer", "head"]]
    )
    sure = table[table["q"] < 0.05]
    dots = [pair for trace in panel["traces"][1:] for pair in zip(trace["y"], trace["x"], strict=True)]
    assert dots == list(zip(sure["layer"], sure["head"], strict=True))
    for row in table.itertuples():
        assert panel["traces"][0]["z"][row.layer][row.head] == pytest.approx(row.score, rel=1e-3)


def test_nothing_is_fetched_and_nothing_hostile_becomes_markup(make_run, tmp_path):
    table = score_table(HOSTILE, HOSTILE, "ablation", (2, 2))
    run = make_run(
        "a", "score", {"scores": table}, models=(HOSTILE,), command=f"run {HOSTILE}", notices=[HOSTILE]
    )
    page = write_report([run], tmp_path / "r.html").read_text()
    own = page.split("<script>", 1)[0] + page.rsplit("</script>", 2)[0].rsplit("<script", 1)[1]
    assert "window.broken=1</script>" not in own
    assert "<img" not in own
    assert not re.search(r'(src|href)="(https?:)?//', own)
    panel = data_of(page)["charts"]["chart-0"]["panels"][0]
    assert "<" not in panel["title"]


def test_several_runs_share_one_page_and_one_copy_of_the_script(make_run, tmp_path):
    runs = [
        make_run(
            name, "score", {"scores": score_table(name, "ioi", "ablation", (2, 2), seed)}, models=(name,)
        )
        for seed, name in enumerate(("small", "large"))
    ]
    page = write_report(runs, tmp_path / "r.html").read_text()
    assert data_of(page)["heads"]["model"]["words"] == ["small", "large"]
    assert len(page) < 8_000_000
    assert page.count("plotly.js v") <= 2


def test_findings_name_the_largest_head_with_its_interval(make_run):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    largest = table.loc[table["score"].abs().idxmax()]
    (found,) = findings([make_run("a", "score", {"scores": table})])
    assert f"L{largest['layer']}H{largest['head']} ({largest['score']:+.3g}" in found.sentence


def test_a_study_without_a_section_of_its_own_still_gets_one(make_run, tmp_path):
    run = make_run("a", "my_study", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))})
    assert "my_study" in write_report([run], tmp_path / "r.html").read_text()
    empty = make_run("b", "my_study", {"other": pd.DataFrame({"a": [1]})})
    assert "my_study" in write_report([empty], tmp_path / "s.html").read_text()


def asked(run, tmp_path) -> str:
    page = write_report([run], tmp_path / "asked.html").read_text()
    return re.search(r'<h2 id="study-0-title"><span[^>]*>[^<]*</span> ([^<]*)</h2>', page)[1]


def test_a_study_of_somebody_elses_is_headed_by_its_own_question(tmp_path):
    colours = registry.Study("colours", "Which heads see red?", StudySettings, lambda *_: None)
    with registry.STUDIES.restored():
        registry.STUDIES.add("colours", colours)
        folder = registry.run("colours", tmp_path / "run", models=[], progress=False)
    assert read_info(folder.path)["question"] == "Which heads see red?"
    assert asked(folder.path, tmp_path) == "Which heads see red?"


def test_a_run_that_does_not_say_its_question_still_opens(make_run, tmp_path):
    run = make_run("a", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))}, question="Why?")
    assert asked(run, tmp_path) == "Why?"
    info = read_info(run)
    del info["question"]  # as runs of earlier versions are
    (run / "run.json").write_text(json.dumps(info))
    assert asked(run, tmp_path) == "What did the study score find?"
    with RunFolder(run, study="score", question="Why?", settings=info["settings"]) as again:
        assert not [notice for notice in again.notices if "question" in notice]
    assert asked(run, tmp_path) == "Why?"


def test_the_title_calls_models_as_the_tables_do(make_run, tmp_path):
    run = make_run(
        "a",
        "score",
        {"scores": score_table("tiny-q4", "ioi", "ablation", (2, 2))},
        models=("/far/away/tiny-q4.gguf",),
    )
    page = write_report([run], tmp_path / "r.html").read_text()
    assert "<title>headwise: tiny-q4</title>" in page


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(HeadwiseError, match="is not a run"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(HeadwiseError, match="at least one"):
        write_report([], tmp_path / "r.html")
