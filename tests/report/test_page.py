"""The page as a file: whole, escaped, and with the numbers of the tables."""

from __future__ import annotations

import hashlib
import json
import os
import re
from html import unescape
from importlib import resources

import pandas as pd
import pytest

import headwise as hw
from headwise.charts.section import SECTIONS
from headwise.errors import HeadwiseError
from headwise.report import findings, write_report
from headwise.report.page import PLOTLY
from headwise.runs import RunFolder, compute, read_info, write_table
from headwise.studies import base as registry
from headwise.studies.settings.shared import StudySettings
from headwise.studies.verify import verify
from helpers import bench_of
from report.conftest import HOSTILE, given_tables, score_table


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
    assert panel["title"] == "Score of each head" + (" (dot: q &lt; .05)" if len(sure) else "")
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
    assert len(page) < 2_000_000
    assert page.count("plotly.js (cartesian - minified) v4.1.1") == 1


def test_the_script_of_the_page_is_the_released_one_with_its_licence():
    assets = resources.files("headwise.report") / "assets"
    script = (assets / PLOTLY).read_bytes()
    digest = hashlib.sha256(script).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"  # as npm has it
    assert "MIT License" in (assets / "plotly/LICENSE").read_text()
    assert b"</script" not in script


def test_a_figure_that_repeats_the_maps_of_the_page_is_on_paper_only(make_run, tmp_path):
    tables = [score_table(model, "Recall", "attribution", (2, 2)) for model in ("small", "large")]
    run = make_run("a", "functions", {"scores": pd.concat(tables)}, models=("small", "large"))
    charts = list(hw.open_run(run).charts)
    assert charts == [
        "functions-small-attribution",
        "functions-large-attribution",
        "functions-models-attribution",
    ]
    page = write_report([run], tmp_path / "r.html").read_text()
    assert len(data_of(page)["charts"]) == 2
    assert "2 models" not in page


def test_findings_name_the_largest_head_with_its_interval(make_run):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    largest = table.loc[table["score"].abs().idxmax()]
    (found,) = findings([make_run("a", "score", {"scores": table})])
    assert f"L{largest['layer']}H{largest['head']} ({largest['score']:+.3g}" in found.sentence


@pytest.mark.parametrize(("bounds", "words"), [(float("nan"), "no interval"), (None, "exact on these")])
def test_a_finding_without_an_interval_says_why(make_run, bounds, words):
    table = score_table("tiny", "ioi", "ablation", (3, 4))
    bounds = table["score"] if bounds is None else bounds
    (found,) = findings([make_run("a", "score", {"scores": table.assign(lo=bounds, hi=bounds)})])
    assert words in found.sentence
    assert "nan" not in found.sentence
    assert "[" not in found.sentence


@pytest.fixture
def register():
    """Registers a study that is known while the test runs."""
    with registry.STUDIES.restored(), SECTIONS.restored():
        yield registry.study


def test_a_study_without_a_section_of_its_own_still_gets_one(make_run, tmp_path, register):
    register(question="", settings=StudySettings, name="my_study")(lambda run, s: None)
    run = make_run("a", "my_study", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))})
    assert "my_study" in write_report([run], tmp_path / "r.html").read_text()
    empty = make_run("b", "my_study", {"other": pd.DataFrame({"a": [1]})})
    assert "my_study" in write_report([empty], tmp_path / "s.html").read_text()


def test_a_run_of_a_study_that_nobody_registered_is_refused(make_run, tmp_path):
    run = make_run("a", "my_study", {"scores": score_table("tiny", "ioi", "ablation", (2, 2))})
    with pytest.raises(
        hw.HeadwiseError, match="the study 'my_study' is not known here; it may come from a plug-in"
    ):
        write_report([run], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def asked(run, tmp_path) -> str:
    page = write_report([run], tmp_path / "asked.html").read_text()
    return re.search(r'<h2 id="study-0-title"><span[^>]*>[^<]*</span> ([^<]*)</h2>', page)[1]


def test_a_study_of_somebody_elses_is_headed_by_its_own_question(tiny, tmp_path, register):
    @register(question="Which heads see red?", settings=StudySettings)
    def colours(run, s):
        """Computes nothing."""

    folder = registry.run("colours", tmp_path / "run", workbench=bench_of(tiny), models=["tiny"])
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


def test_a_table_that_is_not_what_the_run_wrote_is_named_on_the_page_and_in_the_terminal(
    make_run, tmp_path, caplog
):
    scores = score_table("tiny", "ioi", "ablation", (2, 3))
    run = make_run("run", "score", {"scores": scores, "extra": scores})
    good = write_report([run], tmp_path / "good.html").read_text()
    assert "not what the run wrote" not in good
    assert "2 of 2 tables have the SHA-256" in good
    assert caplog.text == ""
    write_table(run, "scores", [scores.assign(score=scores["score"] + 1)])
    (run / "tables/extra.parquet").unlink()
    page = write_report([run], tmp_path / "page.html").read_text()
    for said in (page, caplog.text):
        assert "The table scores is not what the run wrote" in said
        assert "The table extra is missing from the run folder." in said
    assert "0 of 1 tables have the SHA-256" in page


def test_a_run_of_an_earlier_headwise_without_hashes_is_shown_and_says_that_nothing_was_checked(
    make_run, tmp_path, caplog
):
    run = make_run("run", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 3))})
    info = json.loads((run / "run.json").read_text())
    del info["written"]
    (run / "run.json").write_text(json.dumps(info))
    page = write_report([run], tmp_path / "page.html").read_text()
    assert "run.json has no SHA-256 of the tables" in page
    assert caplog.text == ""


def settings_on(page: str) -> dict:
    return json.loads(unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1]))


def test_a_run_begun_again_with_other_settings_and_stopped_shows_the_settings_of_its_tables(tmp_path):
    def once(settings, stop_after=None):
        """Two stages, a table each; the session ends without a word after the first, as if killed."""
        tables = score_table("tiny", "ioi", "ablation", (2, 3), seed=settings["n"])
        folder = RunFolder(
            tmp_path / "run", study="score", settings=settings, command=f"run -n {settings['n']}"
        )
        for number, name in enumerate(("scores", "extra")):
            if number == stop_after:
                folder.store.close()
                folder._lock.release()
                return
            compute(folder, {0: given_tables({name: tables})})
            write_table(folder, name, [tables])
            folder.wrote([name])
        folder.close()

    def page() -> str:
        return write_report([tmp_path / "run"], tmp_path / "page.html").read_text()

    once({"n": 4})
    assert settings_on(page()) == {"n": 4}
    assert "other settings" not in page()
    once({"n": 8}, stop_after=0)
    stopped = page()
    assert settings_on(stopped) == {"n": 4}
    assert "run -n 4" in stopped
    assert "started again with other settings and has written no tables since" in stopped
    once({"n": 8}, stop_after=1)
    half = page()
    assert settings_on(half) == {"n": 8}
    assert "The table extra is of an earlier session with other settings" in half
    once({"n": 8})
    assert settings_on(page()) == {"n": 8}
    assert "other settings" not in page()
    assert "run -n 4" not in (tmp_path / "run/run.json").read_text()


@pytest.mark.parametrize("kind", ["a folder", "a fifo", "a link to a device"])
def test_a_report_is_not_written_over_what_is_no_regular_file(make_run, tmp_path, kind):
    run = make_run("run", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 3))})
    out = tmp_path / "out"
    {"a folder": out.mkdir, "a fifo": lambda: os.mkfifo(out)}.get(kind, lambda: out.symlink_to("/dev/null"))()
    before = out.lstat()
    with pytest.raises(HeadwiseError, match=r"give out= a name such as report\.html"):
        write_report([run], out)
    assert out.lstat() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_run_of_a_later_format_is_refused(make_run, tmp_path):
    run = make_run("run", "score", {"scores": score_table("tiny", "ioi", "ablation", (2, 3))})
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps({**info, "format": 99, "tables": {"scores": "what it means then"}})
    )
    with pytest.raises(HeadwiseError, match="was written by a newer headwise"):
        write_report([run], tmp_path / "page.html")
    with pytest.raises(HeadwiseError, match="was written by a newer headwise"):
        verify(run)
    with pytest.raises(HeadwiseError, match="was written by a newer headwise"):
        RunFolder(run)
    assert json.loads((run / "run.json").read_text())["format"] == 99
