"""The page in a real browser, opened from a file as a person would."""

from __future__ import annotations

import shutil

import pytest

from headwise.report import write_report
from report import small_tables
from report.conftest import HOSTILE, finished_run, score_table

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def tables():
    return {
        "scores": score_table("tiny", "ioi", "ablation", (3, 4)),
        "other": score_table("tiny", HOSTILE, "ablation", (3, 4), seed=1),
    }


@pytest.fixture(scope="module")
def report(tables, tmp_path_factory):
    """A report over two runs of one model, one of them with a task whose name is an attack."""
    place = tmp_path_factory.mktemp("report")
    runs = [
        finished_run(place / "a", "score", {"scores": tables["scores"]}),
        finished_run(place / "b", "score", {"scores": tables["other"]}, notices=[HOSTILE]),
    ]
    return write_report(runs, place / "report.html")


@pytest.fixture
def opened(browser, report):
    """The report in a new page."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.problems, page.requests = [], []
    page.on(
        "console", lambda message: page.problems.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("#chart-0 .heatmaplayer")
    page.locator("#chart-1").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-1 .heatmaplayer")
    yield page
    page.close()


def hover(page, chart, layer, head):
    """Move the mouse to the middle of one cell of the first map of a chart."""
    return hover_at(page, chart, head, layer)


def hover_at(page, chart, x, y, axis=""):
    """Move the mouse to a point of one pair of axes of a chart."""
    spot = page.evaluate(
        """([id, x, y, axis]) => {
            const plot = document.getElementById(id), axes = plot._fullLayout;
            const box = plot.getBoundingClientRect(), across = axes["xaxis" + axis], down = axes["yaxis" + axis];
            return [box.left + across._offset + across.d2p(x), box.top + down._offset + down.d2p(y)];
        }""",
        [chart, x, y, axis],
    )
    page.mouse.move(*spot)
    return spot


def serious_faults(page, scheme, within=None):
    """What axe finds on the page, or within one element; in the dark, which differs in colours alone, of colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    page.emulate_media(color_scheme=scheme)
    page.wait_for_selector(f"html[data-theme={scheme}]")
    options = {"resultTypes": ["violations"]} | ({"runOnly": ["cat.color"]} if scheme == "dark" else {})
    found = axe.Axe().run(page, within, options).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")]


def test_it_opens_from_a_file_without_a_request_or_an_error(opened):
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith("file:")] == []
    assert len(opened.requests) == 1


def test_hovering_a_head_shows_its_number(opened, tables):
    row = tables["scores"].query("layer == 1 and head == 2").iloc[0]
    opened.locator("#chart-0").scroll_into_view_if_needed()
    hover(opened, "chart-0", 1, 2)
    label = opened.wait_for_selector("#chart-0 .hoverlayer .hovertext").text_content()
    assert "L1H2" in label
    shown = float(label.split("L1H2")[1].split("[")[0].replace("−", "-"))
    assert shown == pytest.approx(row["score"], rel=2e-3)


@pytest.fixture(scope="module")
def five(browser, tmp_path_factory):
    """A page over small runs of the studies with curves and bars."""
    place = tmp_path_factory.mktemp("five")
    runs = [
        finished_run(place / "roles", "roles", small_tables.roles(), models=("big", "small")),
        finished_run(place / "circuits", "circuits", small_tables.circuits(), models=("plain", "thin")),
        finished_run(place / "masking", "masking", small_tables.masking()),
        finished_run(place / "prompts", "prompts", small_tables.prompts()),
    ]
    path = write_report(runs, place / "report.html")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(path.as_uri())
    yield page
    assert page.problems == []
    page.close()


@pytest.mark.parametrize(
    ("title", "x", "y", "expected"),
    [
        ("Effect of ablating the top k heads of each role", 4, -4.0, "Facilitation, 4: -4 [-4.5, -3.5]"),
        ("The three roles of big's heads", 2, 0, "L0H20.1 [0, 0.2]n = 5"),
        (
            "Explained effect (faithfulness) of the top k heads",
            2,
            0.7,
            "plain, 2: 0.7 [0.65, 0.75]",
        ),
        ("Masking the heads of tiny", 4, 0.1, "TopK Accuracy, 4: 0.1 [0, 0.2]"),
        (
            "Accuracy on each ability when another ability's heads are masked, tiny",
            1,
            0,
            "heads of Recall masked, Logic (0.80) measured: -0.25",
        ),
        ("Answers under each condition, sums", 4, 0.08, "Mful, token 4 “two”: 0.08"),
        ("Share of each head's attention that inserted tokens move, tiny", 1, 1, "L1H10.4 [0.05, 0.7]n = 4"),
    ],
)
def test_hovering_shows_the_number_of_the_table_in_every_study(five, title, x, y, expected):
    heading = five.locator("h3", has_text=title).first
    chart = heading.get_attribute("id").removesuffix("-title")
    five.locator(f"#{chart}").evaluate("chart => chart.scrollIntoView()")
    five.wait_for_selector(f"#{chart} .subplot", state="attached")
    five.mouse.move(0, 0)
    hover_at(five, chart, x, y, axis="2" if "token" in expected else "")  # bars stand before the tokens
    five.wait_for_selector(f"#{chart} .hoverlayer .hovertext")
    shown = five.locator(f"#{chart} .hoverlayer .hovertext").all_text_contents()
    assert any(expected in label for label in shown), shown


def test_a_chosen_head_is_marked_in_the_orders_of_its_own_model_alone(five):
    five.evaluate("document.querySelector('#find').value = ''")
    five.locator("#find").fill("L0H1 thin ioi")
    five.locator("#table .pick").first.click()
    chart = (
        five.locator("h3", has_text="Explained effect (faithfulness)")
        .first.get_attribute("id")
        .removesuffix("-title")
    )
    five.locator(f"#{chart}").scroll_into_view_if_needed()
    five.wait_for_selector(f"#{chart} .subplot", state="attached")
    marked = five.evaluate(
        f"document.getElementById('{chart}').layout.shapes.filter(s => s.name === 'chosen').map(s => [s.xref, s.x0])"
    )
    # By score L0H1 comes last of six: marked once in each task's panel, for the model that was chosen.
    assert marked == [["x", 6], ["x2", 6]]
    card = five.locator("#card").inner_text()
    assert "thin: number 6" in card
    assert "plain: number" not in card
    five.keyboard.press("Escape")


def test_clicking_a_head_marks_it_in_every_chart_and_shows_its_row(opened, tables):
    opened.locator("#chart-0").scroll_into_view_if_needed()
    opened.mouse.click(*hover(opened, "chart-0", 2, 3))
    opened.wait_for_selector("#card:not([hidden])")
    for chart in ("chart-0", "chart-1"):
        shapes = opened.evaluate(
            f"document.getElementById('{chart}').layout.shapes.filter(s => s.name === 'chosen').map(s => [s.x0, s.y0])"
        )
        assert shapes == [[2.5, 1.5]]
    card = opened.locator("#card").inner_text()
    assert "L2H3" in card
    for name in ("scores", "other"):
        score = tables[name].query("layer == 2 and head == 3").iloc[0]["score"]
        assert f"{score:.4g}"[:6] in card
    opened.keyboard.press("Escape")
    assert opened.locator("#card").is_hidden()


def test_the_table_sorts_and_filters(opened, tables):
    def first():
        return opened.locator("#table tbody tr td").nth(0).inner_text()

    both = [row for name in ("scores", "other") for row in tables[name].to_dict("records")]
    by_score = sorted(both, key=lambda row: row["score"])
    assert first() == f"L{by_score[-1]['layer']}H{by_score[-1]['head']}"
    opened.click("[data-column=score]")
    assert first() == f"L{by_score[0]['layer']}H{by_score[0]['head']}"
    assert opened.locator("th[aria-sort=ascending]").inner_text().startswith("score")
    opened.fill("#find", "l1h1")
    assert opened.locator("#table tbody tr").count() == 2
    opened.select_option("[data-filter=task]", "ioi")
    assert opened.locator("#table tbody tr").count() == 1
    assert "1 of 24 rows" in opened.locator("#count").inner_text()


def test_hostile_text_stays_text(opened):
    assert opened.evaluate("window.broken") is None
    assert opened.locator("img").count() == 0
    assert "<script>window.broken=1</script>" in opened.locator("body").inner_text()


def test_dark_follows_the_system_and_the_button(browser, opened):
    def paper():
        return opened.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_selector("html[data-theme=dark]")
    dark = paper()
    assert light != dark
    opened.click("#theme")
    assert paper() == light


def test_a_small_window_has_no_sideways_scroll(opened):
    for width in (768, 390, 320):
        opened.set_viewport_size({"width": width, "height": 800})
        opened.wait_for_timeout(400)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_an_accessibility_check_finds_nothing_serious(opened):
    opened.mouse.click(*hover(opened, "chart-1", 0, 0))
    for scheme in ("light", "dark"):
        assert serious_faults(opened, scheme) == []
