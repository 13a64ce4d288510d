"""What a reader does with the page: open the examples behind a number, filter by number, look up a term."""

from __future__ import annotations

import pandas as pd
import pytest

from headwise.report import write_report
from report import small_tables
from report.conftest import HOSTILE, finished_run, score_table
from report.test_browser import browser, hover_at, pytestmark, serious_faults  # noqa: F401
from report.test_examples import masking_tables, score_examples

TOKENS = ["Then", ",", " Samuel", " and", " Kim", " went", " to", " the", " garden", "."]


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):  # noqa: F811
    place = tmp_path_factory.mktemp("details")
    rows, inputs = score_examples()
    inputs.loc[2, "prompt"] = HOSTILE
    scores = score_table("tiny", "ioi", "ablation", (3, 4))
    circuits = small_tables.circuits()
    first = circuits["attention"].iloc[0].to_dict()
    pairs = [(query, key) for query in range(len(TOKENS)) for key in range(query + 1)]
    circuits["attention"] = pd.DataFrame(
        [{**first, "query": q, "key": k, "token": TOKENS[k], "attention": 1 / (q + 1)} for q, k in pairs]
    )
    runs = [
        finished_run(place / "s", "score", {"scores": scores, "examples": rows, "inputs": inputs}),
        finished_run(place / "m", "masking", masking_tables()),
        finished_run(place / "p", "prompts", small_tables.prompts()),
        finished_run(place / "c", "circuits", circuits, models=("plain", "thin")),
    ]
    path = write_report(runs, place / "report.html")
    opened = browser.new_page(viewport={"width": 1200, "height": 900})
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on(
        "console", lambda message: opened.problems.append(message.text) if message.type == "error" else None
    )
    opened.goto(path.as_uri())
    yield opened
    assert opened.problems == []
    opened.close()


@pytest.fixture(autouse=True)
def as_at_first(page):
    page.set_viewport_size({"width": 1200, "height": 900})
    page.emulate_media(color_scheme="light")
    yield
    page.evaluate("document.getElementById('examples').close()")
    page.fill("#find", "")
    if page.locator("#card").is_visible():
        page.keyboard.press("Escape")


def chart_of(page, title) -> str:
    """The chart with this title, drawn and in the window."""
    chart = page.locator("h3", has_text=title).first.get_attribute("id").removesuffix("-title")
    page.locator(f"#{chart}").evaluate("chart => chart.scrollIntoView()")
    page.wait_for_selector(f"#{chart} .subplot", state="attached")
    return chart


def shown_examples(page) -> list[list[str]]:
    page.wait_for_selector("#examples[open]")
    return page.evaluate(
        "[...document.querySelectorAll('#examples-table tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )


def test_a_click_on_a_point_of_a_curve_shows_its_examples_with_the_models_texts(page):
    chart = chart_of(page, "Masking the heads of tiny")
    page.mouse.move(0, 0)
    page.mouse.click(*hover_at(page, chart, 4, 0.1))
    rows = shown_examples(page)
    assert page.locator("#examples-title").inner_text() == "k = 4: Recall, top, tiny"
    assert len(rows) == 20
    value = small_tables.MASKED["Recall", "top"][4][0]
    assert sum(float(row[1]) for row in rows) / 20 == pytest.approx(value)
    number = rows[0][0]
    assert rows[0][2:] == [
        f"Recall asks {number}",
        f"gold {number}",
        f"top 4 wrote {number}",
        f"full 0 wrote {number}",
    ]
    page.select_option("#examples-point", "2")
    assert "top 2 wrote" in shown_examples(page)[0][4]
    page.keyboard.press("Escape")
    assert page.locator("#examples").is_hidden()


def test_a_click_on_a_bar_of_prompts_shows_the_answers(page):
    chart = chart_of(page, "Answers under each condition")
    page.mouse.move(0, 0)
    page.mouse.click(*hover_at(page, chart, 0.27, 5))
    rows = shown_examples(page)
    assert "meaningful" in page.locator("#examples-title").inner_text()
    assert sum(float(row[1]) for row in rows) == sum(small_tables.RIGHT["meaningful"])


def test_the_examples_of_a_chosen_head_are_opened_by_keyboard_and_stay_text(page):
    page.fill("#find", "L2H3 ablation")
    page.locator("#table .pick").first.focus()
    page.keyboard.press("Enter")
    button = page.locator("#card button", has_text="examples").first
    button.focus()
    page.keyboard.press("Enter")
    rows = shown_examples(page)
    score = score_table("tiny", "ioi", "ablation", (3, 4)).query("layer == 2 and head == 3")["score"].iloc[0]
    assert sum(float(row[1]) for row in rows) / len(rows) == pytest.approx(score, rel=1e-2)
    assert HOSTILE in [row[2] for row in rows]
    assert page.evaluate("window.broken") is None
    page.keyboard.press("Escape")
    assert page.locator("#card").is_visible()  # the first Escape closes the examples alone


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("score > 0.3", lambda row: row["score"] > 0.3),
        ("q<0.3 score<0", lambda row: row["q"] < 0.3 and row["score"] < 0),
        ("|score| >= .4 layer = 1", lambda row: abs(row["score"]) >= 0.4 and row["layer"] == 1),
        ("l1h2", lambda row: (row["layer"], row["head"]) == (1, 2)),
        ("score > −0.1 and head != 2", lambda row: row["score"] > -0.1 and row["head"] != 2),
    ],
)
def test_numbers_filter_the_table_of_heads(page, text, keeps):
    page.select_option("[data-filter=unit]", "logit_diff")
    page.fill("#find", f"{text} ablation")
    shown = page.locator("#table tbody tr td:first-child").all_inner_texts()
    table = score_table("tiny", "ioi", "ablation", (3, 4)).to_dict("records")
    expected = [f"L{row['layer']}H{row['head']}" for row in table if keeps(row)]
    assert sorted(shown) == sorted(expected)
    page.fill("#find", "size < 3")
    assert "Cannot read “size < 3”" in page.locator("#count").inner_text()


def test_the_table_of_heads_shows_one_unit_at_a_time(page):
    for unit in page.locator("[data-filter=unit] option").all_inner_texts():
        page.select_option("[data-filter=unit]", unit)
        assert f"score ({unit})" in page.locator("#table thead").inner_text()
        studies = set(page.locator("#table tbody tr td:nth-child(9)").all_inner_texts())
        assert studies == {"logit_diff": {"score: s"}, "logprob": {"masking: m", "circuits: c"}}.get(
            unit, {"prompts: p"}
        )


def test_a_term_below_a_chart_leads_to_its_entry_in_the_glossary(page):
    chart_of(page, "Explained effect (faithfulness)")
    page.locator(".terms a", has_text="explained effect").first.click()
    entry = page.locator("#terms li:target")
    entry.wait_for(state="visible")
    assert entry.inner_text().startswith("explained effect (EE) = faithfulness")
    page.fill("#find-term", "jaccard")
    assert 0 < page.locator("#terms li:visible").count() < 8
    page.fill("#find-term", "")
    page.locator("a", has_text="Documentation of this chart").first.click()
    page.locator("#docs-scores details[open]").wait_for(state="visible")


def test_attention_maps_have_the_tokens_on_both_axes_and_the_prompt_above(page):
    chart = chart_of(page, "IOI: attention of the top heads")
    figure = page.locator(f"figure:has(#{chart})")
    assert "".join(TOKENS) in figure.locator(".prompt").inner_text()
    above = figure.locator(".prompt").bounding_box()["y"]
    assert above < page.locator(f"#{chart}").bounding_box()["y"]
    labels = page.locator(f"#{chart} .ytick text, #{chart} .xtick text").all_text_contents()
    for token in TOKENS:
        assert labels.count(token.strip()) == 2


def test_a_phone_shows_the_score_of_each_head_without_scrolling_sideways(page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#table").evaluate("table => table.scrollIntoView()")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for column in ("score", "q"):
        box = page.locator(f"[data-column={column}]").bounding_box()
        assert box["x"] + box["width"] <= 390


def test_dark_maps_have_no_white_and_their_marks_are_light(page):
    chart = chart_of(page, "Ablation on ioi")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-theme=dark]")
    page.wait_for_timeout(300)
    middle = page.evaluate(
        f"document.getElementById('{chart}').data[0].colorscale.find(([at]) => at === 0.5)[1]"
    )
    assert max(int(middle[i : i + 2], 16) for i in (1, 3, 5)) < 80
    star = page.evaluate(
        f"getComputedStyle(document.querySelector('#{chart} .annotation text, #{chart} .xtick text')).fill"
    )
    assert min(map(int, star.removeprefix("rgb(").removesuffix(")").split(","))) > 150


def test_an_accessibility_check_of_examples_and_glossary_finds_nothing_serious(page):
    page.evaluate("for (const d of document.querySelectorAll('.doc details')) d.open = true")
    for scheme in ("light", "dark"):
        assert serious_faults(page, scheme) == []
    page.locator(".behind").first.click()
    for scheme in ("light", "dark"):
        assert serious_faults(page, scheme, within="#examples") == []
