"""What a newcomer reads first: the story, findings before nulls, terms with their meaning, controls that do well."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from headwise.charts.chart import Axis, Chart, Line, Panel
from headwise.charts.section import SECTIONS
from headwise.report import Story, findings, write_report
from headwise.report.docs import glossed
from report import small_tables as small
from report.conftest import HOSTILE

JARGON = ("elbow", "Holm", "Mless", "integrated", "CPR", "EE", "attribution", "IOI", "q")


def first_page(page: str) -> str:
    """The part before the studies."""
    return re.search(r'<section class="intro".*?</section>', page, re.S)[0]


def top_items(page: str) -> list[str]:
    return re.findall(r"<li>(.*?)</li>", re.search(r'<ol class="findings" id="top".*?</ol>', page, re.S)[0])


@pytest.fixture
def runs(make_run):
    return [
        make_run("p", "prompts", small.prompts()),
        make_run("r", "roles", small.roles(), models=("big", "small")),
        make_run("c", "circuits", small.circuits(), models=("plain", "thin")),
        make_run("m", "masking", small.masking()),
    ]


def nothing_significant(tables):
    rows = tables["comparisons"]
    return tables | {"comparisons": rows.assign(p=0.6, p_holm=0.9)}


def test_what_was_not_found_comes_after_what_was(make_run, tmp_path):
    nulls = make_run("p", "prompts", nothing_significant(small.prompts()))
    runs = [nulls, make_run("m", "masking", small.masking())]
    shown = [finding.found for finding in findings(runs)]
    assert shown == sorted(shown, reverse=True)
    assert set(shown) == {True, False}
    items = top_items(write_report(runs, tmp_path / "r.html").read_text())
    told = ["Not found:" in item for item in items]
    assert told == sorted(told)
    assert not told[0]
    assert told[-1], "a study's own null is told"


def test_a_loss_within_the_intervals_is_not_a_finding():
    found = {f.sentence.split(",")[0]: f.found for f in SECTIONS.get("masking").findings(small.masking())}
    for task, shown in found.items():
        top, rest = small.MASKED[task, "top"], small.MASKED[task, "random"]
        k = max(top, key=lambda k: rest[k][0] - top[k][0])
        assert shown == (top[k][2] < rest[k][1])


def test_every_technical_word_of_the_first_page_has_its_meaning_at_hand(runs, tmp_path):
    page = first_page(write_report(runs, tmp_path / "r.html").read_text())
    meanings = re.findall(r'<abbr tabindex="0" title="([^"]+)">', page)
    assert all(len(meaning) > 10 for meaning in meanings)
    bare = unescape(re.sub(r"<abbr.*?</abbr>|<[^>]+>", " ", page))
    for word in JARGON:
        explained = re.search(rf"<abbr[^>]*>{word}s?</abbr>", page)
        assert explained or not re.search(rf"\b{word}\b", bare), word


def test_a_term_is_explained_once_in_the_words_of_the_glossary():
    text = "ranked by integrated, before the elbow; integrated again, q < .05"
    html = glossed(text)
    assert html.count("<abbr") == 3
    assert html.index('bends (largest distance to the chord)."') < html.index("elbow</abbr>")
    assert unescape(re.sub(r"<[^>]+>", "", html)) == text


def test_what_is_no_term_is_escaped():
    html = glossed(f"{HOSTILE} elbow")
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_a_story_stands_before_the_findings_with_its_picture(runs, tmp_path):
    panel = Panel(title="Where", marks=[Line(x=[0, 1], y=[2, 3], name="a")], x=Axis(label="Head"))
    chart = Chart(title="One head", panels=[panel], caption="Left: <b>.")
    story = Story(
        title="Head 3 helps", sentences=[f"It falls from 4.3 to 2.1 {HOSTILE}.", "Two."], chart=chart
    )
    page = write_report(runs, tmp_path / "r.html", story).read_text()
    first = first_page(page)
    places = [
        first.index(text)
        for text in ("Head 3 helps", "from 4.3 to 2.1", "Two.", 'id="chart-story"', 'id="top"')
    ]
    assert places == sorted(places)
    assert "<script>window" not in first
    assert '"chart-story":' in page
    assert "chart-story" not in write_report(runs, tmp_path / "s.html").read_text()


# ---- random controls that do better than the whole model --------------------------------------------------------


def masked(full, control):
    """Curves of one ability: (value, lo, hi) with all heads, and without 4 random ones."""
    rows = {"full": (0, full), "random": (4, control), "top": (4, (0.1, 0.0, 0.2))}
    about = {
        "model": "tiny",
        "task": "Recall",
        "action": "mask",
        "metric": "accuracy",
        "n": 10,
        "draw": np.nan,
    }
    return pd.DataFrame(
        [
            {**about, "series": series, "k": k, "value": value, "lo": lo, "hi": hi}
            for series, (k, (value, lo, hi)) in rows.items()
        ]
    )


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (
            (0.69, 0.5, 0.8),
            "Recall: without 4 random heads accuracy rises from 62 % to 69 %; the intervals overlap, so",
        ),
        (
            (0.95, 0.9, 0.99),
            "rises from 62 % to 95 %; the intervals do not overlap, so this is more than noise",
        ),
        ((0.55, 0.4, 0.7), None),
    ],
)
def test_masking_comments_on_random_heads_whose_loss_helps(control, said):
    (chart,) = SECTIONS.get("masking").charts({"curves": masked((0.62, 0.45, 0.77), control)})
    assert (said in chart.caption) if said else ("rises from" not in chart.caption)


@pytest.mark.parametrize(
    ("value", "lo", "noise"), [(1.2, 0.8, "within noise"), (1.5, 1.1, "more than noise")]
)
def test_circuits_comments_on_random_heads_that_explain_more_than_all(value, lo, noise):
    tables = small.circuits()
    curves = tables["curves"]
    control = (curves["series"] == "random") & (curves["metric"] == "explained_effect")
    assert control.any()
    captions = [chart.caption for chart in SECTIONS.get("circuits").charts(tables)]
    assert not any("rises from" in caption for caption in captions)
    last = curves[control].index[-1]
    curves.loc[last, ["value", "lo", "hi"]] = [value, lo, value + 0.2]
    captions = [chart.caption for chart in SECTIONS.get("circuits").charts(tables)]
    (said,) = [caption for caption in captions if "rises from" in caption]
    assert f"rises from 1.00 to {value:.2f}" in said
    assert noise in said
