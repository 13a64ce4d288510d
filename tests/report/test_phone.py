"""The report on a phone: every word of every chart is inside it, and matrices stay readable."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

from headwise.report import write_report
from report import small_tables
from report.conftest import finished_run, score_table
from report.test_browser import browser, pytestmark  # noqa: F401

ABILITIES = (
    "Retrieval,Knowledge Recall,Syntactic Agreement,Logical Reasoning,Math Calculation,Math Reasoning,Inference,"
    "Decision-making"
).split(",")
MODEL = "SmolLM2-135M-Instruct"


def functions():
    """Eight abilities with long names, and how far their heads overlap."""
    scores = [score_table(MODEL, ability, "nested", (6, 9), seed) for seed, ability in enumerate(ABILITIES)]
    pairs = itertools.product(ABILITIES, ABILITIES)
    overlap = pd.DataFrame([{"task": a, "other": b, "jaccard": 1.0 if a == b else 0.25} for a, b in pairs])
    overlap = overlap.assign(model=MODEL, method="nested", by_chance=0.1, heads=30, other_heads=30)
    return {"scores": pd.concat(scores, ignore_index=True), "overlap": overlap}


def diff():
    """Two models, with two scales, a long panel title and long labels."""
    scores = pd.concat([score_table(model, "a", "ablation", (2, 3)) for model in ("base", "tuned")])
    about = {"base": "base", "tuned": "tuned", "base_score": 0.5, "tuned_score": 0.25, "weight_change": 0.1}
    change = score_table("tuned", "a", "ablation", (2, 3)).rename(columns={"score": "difference"})
    row = {"task": "a", "base": "base", "tuned": "tuned", "metric": "accuracy", "test": "McNemar", "p": 0.03}
    row |= {f"{name}_{end}": 0.5 for name in ("base", "tuned") for end in ("value", "lo", "hi")}
    row |= {"difference": 0.0, "lo": -0.1, "hi": 0.1, "n": 8}
    return {"scores": scores, "diff": change.assign(**about), "outcomes": pd.DataFrame([row])}


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):  # noqa: F811
    place = tmp_path_factory.mktemp("phone")
    runs = [
        finished_run(place / "f", "functions", functions(), models=(MODEL,)),
        finished_run(place / "d", "diff", diff()),
        finished_run(place / "r", "roles", small_tables.roles()),
        finished_run(place / "m", "masking", small_tables.masking()),
        finished_run(place / "b", "backups", small_tables.backups()),
    ]
    path = write_report(runs, place / "report.html")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    yield opened
    opened.close()


def at_width(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("dispatchEvent(new Event('afterprint'))")  # draws every chart
    page.wait_for_timeout(600)


@pytest.mark.parametrize("width", [320, 390])
def test_no_chart_is_wider_than_the_page_and_no_word_is_cut_off(page, width):
    at_width(page, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap((chart) => {
          const frame = chart.getBoundingClientRect();
          return [...chart.querySelectorAll('text')]
            .map((text) => [text.textContent, text.getBoundingClientRect()])
            .filter(([words, box]) => words.trim() && box.width)
            .filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1)
            .map(([words]) => `${chart.id}: ${words}`);
        })"""
    )
    assert outside == []


def test_the_cells_of_the_overlap_are_as_wide_as_their_numbers_and_no_label_lies_on_a_map(page):
    at_width(page, 390)
    overlap = page.locator('.chart[aria-label*="Overlap"]')
    pixels = overlap.evaluate("(chart) => chart._fullLayout.xaxis._length")
    assert pixels / len(ABILITIES) > 24  # three digits of 11 pixels each
    names = overlap.evaluate("(chart) => chart._fullLayout.yaxis.ticktext")
    assert "Syntactic<br>Agreement (30)" in names
    covering = page.evaluate(
        """[...document.querySelectorAll('.chart')].flatMap((chart) =>
          [...chart.querySelectorAll('.subplot .plot')].flatMap((plot, i) => {
            const map = plot.getBoundingClientRect(), title = chart.querySelector(`.x${i ? i + 1 : ''}title`);
            return title && title.getBoundingClientRect().top < map.top + map.height / 2 + 1
              && title.getBoundingClientRect().bottom > map.top ? [`${chart.id}: ${title.textContent}`] : [];
          }))"""
    )
    assert covering == []
    bars = page.evaluate(
        "[...document.querySelectorAll('.chart')].flatMap((c) => c._fullData.filter((t) => t.colorbar && t.showscale))"
        ".map((t) => t.colorbar.orientation)"
    )
    assert set(bars) == {"h"}  # above the panels, where they take no width


def test_on_a_wide_page_names_stay_on_one_line_and_bars_at_the_side(page):
    at_width(page, 1200)
    overlap = page.locator('.chart[aria-label*="Overlap"]')
    assert "Syntactic Agreement (30)" in overlap.evaluate("(chart) => chart._fullLayout.yaxis.ticktext")
    assert overlap.evaluate("(chart) => chart._fullData[0].colorbar.orientation") == "v"


def test_charts_are_printed_whole_and_come_back_as_wide_as_the_page(page):
    at_width(page, 1280)
    widths = "[...document.querySelectorAll('.chart')].map((chart) => chart._fullLayout.width)"
    before = page.evaluate(widths)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(page.evaluate(widths)) == {850}
    page.emulate_media(media="print")
    printed = page.evaluate(
        "[...document.querySelectorAll('.chart')].map((c) => c.getBoundingClientRect().width)"
    )
    page.emulate_media(media="screen")
    assert max(printed) <= 681  # A4 at 96 pixels an inch, less its margins and those of the page
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(widths) == before
