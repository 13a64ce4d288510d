"""The head pages of the report in a real browser."""

from __future__ import annotations

import pytest

from headwise.heads import Head
from headwise.report import write_head_page, write_report
from report.conftest import HOSTILE, finished_run, score_table
from report.test_browser import browser, hover, pytestmark, serious_faults  # noqa: F401 - a fixture and the skip mark

TOKENS = ["Then", " Ann", " and", f" {HOSTILE}", " met", ".", " Ann", " spoke to"]


def card_tables(*heads, model="tiny", task="ioi"):
    """Cards as the study `score` stores them: L0H0's answer attends to token 6 by 0.6."""
    import pandas as pd

    tables = {"card_attention": [], "card_tokens": [], "card_patterns": [], "card_examples": []}
    for head in heads:
        about = {"model": model, "task": task, "layer": head.layer, "head": head.head}
        for query in range(len(TOKENS)):
            for key in range(query + 1):
                last = query == len(TOKENS) - 1
                weight = {6: 0.6, 0: 0.3}.get(key, 0.1 / 6) if last else float(key == 0)
                pair = {
                    "example": 4,
                    "query": query,
                    "key": key,
                    "attention": weight,
                    "token": TOKENS[key],
                    "id": key,
                }
                tables["card_attention"].append({**about, **pair})
        for path, example, source in (("output", 4, ""), ("weights", -1, " Ann")):
            for place in range(10):
                row = {"path": path, "example": example, "source": source, "of": 100}
                up, down = f"up{place}", " Ann" if place == 0 else f"down{place}"
                tables["card_tokens"] += [
                    {
                        **about,
                        **row,
                        "kind": "promoted",
                        "rank": 1 + place,
                        "token": up,
                        "logit": 2 - place / 10,
                    },
                    {
                        **about,
                        **row,
                        "kind": "suppressed",
                        "rank": 100 - place,
                        "token": down,
                        "logit": -3 + place / 10,
                    },
                ]
        answer = {"path": "output", "example": 4, "source": "", "of": 100}
        tables["card_tokens"].append(
            {**about, **answer, "kind": "foil", "rank": 100, "token": " Ann", "logit": -3.0}
        )
        pattern = {"prompts": task, "pattern": "induction", "n": 5, "heads": 12, "attention": 0.25, "rank": 1}
        tables["card_patterns"].append({**about, **pattern})
        for kind, value in (("helps", 1.5), ("hurts", -0.75)):
            texts = {"prompt": HOSTILE, "target": "Bob", "foils": "Ann", "metric": "logit_diff"}
            tables["card_examples"].append(
                {**about, "kind": kind, "rank": 1, "example": 4, "value": value, **texts}
            )
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The file of a page over two runs; the first has cards of L1H2 and L2H0."""
    scores = score_table("tiny", "ioi", "ablation", (3, 4))
    other = score_table("tiny", "names", "attribution", (3, 4), seed=1)
    cards = card_tables(Head(1, 2), Head(2, 0))
    place = tmp_path_factory.mktemp("report")
    runs = [
        finished_run(place / "a", "score", {"scores": scores, **cards}),
        finished_run(place / "b", "score", {"scores": other}),
    ]
    return write_report(runs, place / "report.html"), scores, other


@pytest.fixture
def page(browser):  # noqa: F811 - the fixture
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.problems = []
    page.on(
        "console", lambda message: page.problems.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    yield page
    assert page.problems == []
    assert page.evaluate("window.broken") is None
    page.close()


def opened_at(page, report, anchor=""):
    page.goto(report[0].as_uri() + anchor)
    page.evaluate(
        "document.getElementById('chart-0').scrollIntoView()"
    )  # charts are drawn when they come into view
    page.wait_for_selector("#chart-0 .heatmaplayer")
    return page


def test_an_address_with_a_head_opens_its_page(page, report):
    opened_at(page, report, "#L1H2")
    page.wait_for_selector("#card.page")
    text = page.locator("#card").inner_text()
    assert "L1H2 of tiny" in text
    for table in report[1:]:  # its scores in both studies of the page, with intervals
        row = table.query("layer == 1 and head == 2").iloc[0]
        assert f"{float(f'{row.score:.4g}'):.4g} [" in text
    assert "it is among the ten most suppressed tokens in 1 of 1 examples" in text
    assert "induction" in text
    assert "1 of 12" in text
    assert "+1.50" in text
    assert "−0.75" in text
    assert page.evaluate("document.activeElement.id") == "card-title"


def test_the_map_has_the_tokens_on_both_axes_and_the_prompt_above(page, report):
    opened_at(page, report, "#L1H2")
    card = page.locator("#card-page")
    assert card.locator(".prompt").first.text_content() == "".join(TOKENS)
    names = [token.replace(" ", "␣", 1) if token.startswith(" ") else token for token in TOKENS]
    assert card.locator(".map thead th").all_text_contents() == names
    assert card.locator(".map tbody th").all_text_contents() == names
    cell = card.locator(".map tbody tr").nth(7).locator("td").nth(6)
    assert cell.get_attribute("title") == "from “ spoke to” to “ Ann”: 0.6"
    assert cell.evaluate("node => node.style.getPropertyValue('--share')") == "100"
    assert card.locator(".map td.heat").count() == 8 * 9 / 2
    assert (
        card.locator(".prompt .heat").nth(6).evaluate("node => node.style.getPropertyValue('--share')")
        == "27"
    )


def test_token_lists_are_in_order_and_the_answer_stands_out(page, report):
    opened_at(page, report, "#L1H2")
    promoted, suppressed = page.locator("#card-page details").first.locator(".lists table").all()
    assert promoted.locator("code").all_text_contents() == [f"up{place}" for place in range(10)]
    assert suppressed.locator("code").all_text_contents() == [
        "␣Ann",
        *(f"down{place}" for place in range(1, 10)),
    ]
    assert suppressed.locator("tr.answer code").all_text_contents() == ["␣Ann"]
    assert suppressed.locator("td.logit").first.inner_text() == "−3.00"


def test_a_click_on_the_map_opens_the_page_and_escape_closes_it(page, report):
    opened_at(page, report)
    page.locator("#chart-0").scroll_into_view_if_needed()
    page.mouse.click(*hover(page, "chart-0", 1, 2))
    page.wait_for_selector("#card.page")
    assert page.url.endswith("#L1H2")
    page.keyboard.press("Escape")
    assert page.locator("#card").is_hidden()
    assert "#" not in page.url


def test_the_keyboard_opens_a_page_from_the_table_and_comes_back_to_it(page, report):
    opened_at(page, report)
    page.fill("#find", "l2h0")
    page.locator(".pick").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#card.page")
    assert page.evaluate("document.activeElement.id") == "card-title"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "close"
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.textContent === 'L2H0'")


def test_links_to_all_head_pages_are_above_the_table(page, report):
    opened_at(page, report)
    links = page.locator("#card-links a")
    assert links.all_text_contents() == ["L1H2", "L2H0"]
    links.nth(1).click()
    page.locator("#card", has_text="L2H0 of tiny").wait_for(state="visible")


def test_a_head_without_a_card_says_how_to_make_one(page, report):
    opened_at(page, report, "#L0H0")
    assert page.locator("#card.page").count() == 0
    assert "headwise card MODEL TASK L0H0" in page.locator("#card").inner_text()


def test_a_phone_shows_the_page_without_sideways_scroll(page, report):
    page.set_viewport_size({"width": 390, "height": 800})
    opened_at(page, report, "#L1H2")
    page.wait_for_selector("#card.page")
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("card.scrollWidth <= card.clientWidth")


def test_an_accessibility_check_of_the_head_page_finds_nothing_serious(page, report):
    opened_at(page, report, "#L1H2")
    for scheme in ("light", "dark"):
        assert serious_faults(page, scheme) == []


def test_a_card_alone_is_a_page_with_its_scores_attention_and_tokens(page, tmp_path):
    tables = {name.removeprefix("card_"): table for name, table in card_tables(Head(1, 2)).items()}
    tables["scores"] = score_table("tiny", "ioi", "ablation", (3, 4)).query("layer == 1 and head == 2")
    file = write_head_page(tmp_path / "head.html", HOSTILE, "6 examples", tables, [f"no part: {HOSTILE}"])
    assert "plotly" not in file.read_text(encoding="utf-8").lower()  # no chart library of 4 MB for one head
    page.goto(file.as_uri())
    assert page.locator("h1").inner_text() == HOSTILE
    assert f"{tables['scores']['score'].iloc[0]:.4g}" in page.locator("table").first.inner_text()
    card = page.locator("#card-page")
    assert card.locator(".prompt").first.text_content() == "".join(TOKENS)
    assert card.locator(".map tbody tr").nth(7).locator("td").nth(6).get_attribute("title").endswith(": 0.6")
    assert card.locator("tr.answer code").first.text_content() == "␣Ann"
    assert [serious_faults(page, scheme) for scheme in ("light", "dark")] == [[], []]
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
