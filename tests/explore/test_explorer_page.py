"""The explorer in a real browser: what a person clicks, drags, types and reads."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from importlib import resources
from urllib.parse import quote

import pytest

import headwise as hw
from explore.conftest import PROMPT
from headwise.explorer.explorer import Explorer
from headwise.explorer.worker import Job
from headwise.report import write_report
from helpers import word_model
from report.conftest import HOSTILE, finished_run, score_table
from report.test_browser import browser, pytestmark, serious_faults  # noqa: F401 - the browser, and why there is none


@pytest.fixture(scope="module")
def model():
    """A tiny model whose name is an attack."""
    return word_model("llama", name=HOSTILE, max_position_embeddings=512)


@pytest.fixture(scope="module")
def explorer(model, tmp_path_factory):
    table = score_table(HOSTILE, "words", "ablation", (4, 4))
    run = finished_run(tmp_path_factory.mktemp("runs") / "run", "score", {"scores": table}, models=(HOSTILE,))
    started = Explorer(model, run)
    started.serve()
    yield started
    started.stop()


@pytest.fixture
def page(browser, explorer):  # noqa: F811
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.problems, opened.requests = [], []
    opened.on("console", lambda said: opened.problems.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("request", lambda request: opened.requests.append(request.url))
    visit(opened, explorer)
    yield opened
    assert opened.problems == []
    context.close()


def until(page, expression, seconds=90):
    """Wait until an expression is true. (Playwright's own way evaluates text in the page, which its policy forbids.)"""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def visit(page, explorer, fragment=None):
    fragment = f"#prompt={quote(PROMPT)}" if fragment is None else fragment
    page.goto("about:blank")
    page.goto(explorer.url + fragment)
    until(page, "window.headwise !== undefined")
    settled(page)


def settled(page):
    """Wait until the last question is answered."""
    until(page, "document.getElementById('busy').hidden && document.querySelector('#next tbody tr') !== null")


def at(page, layer, head):
    page.locator("#map").scroll_into_view_if_needed()
    return page.evaluate(f"window.headwise.map.middle({layer}, {head})")


def click(page, layer, head, **options):
    page.mouse.click(*at(page, layer, head), **options)


def gates(page):
    return {
        tuple(map(int, key.split("."))): gate
        for key, gate in page.evaluate("[...window.headwise.state.gates]")
    }


def shares(page, side="gated"):
    return page.locator(f"#next td.share.{side}").all_inner_texts()


def drag(page, start, end, steps=6):
    page.mouse.move(*at(page, *start))
    page.mouse.down()
    page.mouse.move(*at(page, *end), steps=steps)
    page.mouse.up()


def test_a_click_switches_a_head_off_and_shows_what_the_library_computes(page, model):
    before = shares(page)
    click(page, 1, 2)
    until(page, "window.headwise.state.gates.size === 1")
    settled(page)
    assert gates(page) == {(1, 2): 0}
    assert shares(page) != before
    assert page.locator("#off").inner_text() == "1 off"
    written = hw.generate(model, PROMPT, model.gates(ablate=["L1H2"]), reference="mean", progress=False)
    assert (
        page.locator("#gated-text").inner_text().replace(" ■ end", "").strip() == written.texts[0][0].strip()
    )
    click(page, 1, 2)
    settled(page)
    assert gates(page) == {}
    assert shares(page) == before == shares(page, "full")


def test_dragging_selects_a_rectangle_and_the_slider_sets_its_gate(page):
    drag(page, (0, 1), (2, 2))
    assert page.evaluate("window.headwise.map.selected.size") == 6
    assert gates(page) == {}
    assert page.locator("#chosen").inner_text() == "6 heads"
    page.locator("#gate").fill("0.5")
    settled(page)
    assert gates(page) == {(layer, head): 0.5 for layer in range(3) for head in (1, 2)}
    assert page.locator("#gate-value").inner_text() == "0.5"
    page.click("#undo")
    assert gates(page) == {}


def test_undo_redo_and_reset_go_through_the_history(page):
    for head in range(3):
        click(page, 0, head)
    page.click("#undo")
    assert set(gates(page)) == {(0, 0), (0, 1)}
    page.click("#redo")
    assert len(gates(page)) == 3
    page.click("#reset")
    assert gates(page) == {}
    page.click("#undo")
    assert len(gates(page)) == 3
    settled(page)


def test_presets_take_the_top_heads_of_the_map_and_a_random_set_of_equal_layers(page):
    page.click("#presets summary")
    table = score_table(HOSTILE, "words", "ablation", (4, 4))
    best = {(row.layer, row.head) for row in table.nlargest(3, "score").itertuples()}
    page.fill("#k", "3")
    page.click("#top-off")
    assert gates(page) == dict.fromkeys(best, 0)
    page.click("#top-keep")
    assert set(gates(page)) == {(i, j) for i in range(4) for j in range(4)} - best
    page.select_option("#by", "hinders")
    page.click("#top-off")
    worst = {(row.layer, row.head) for row in table.nsmallest(3, "score").itertuples()}
    assert set(gates(page)) == worst
    page.click("#random")
    until(page, f"![...window.headwise.state.gates.keys()].includes('{min(worst)[0]}.{min(worst)[1]}')")
    assert sorted(layer for layer, _ in gates(page)) == sorted(layer for layer, _ in worst)
    settled(page)


@pytest.fixture
def slow_text(monkeypatch):
    """Each text waits after its first events until a newer one takes its place, or until this is set."""
    released, step, steps = threading.Event(), Job.step, Counter()

    def waiting(job):
        steps[id(job)] += job.kind == "run"
        while steps[id(job)] > 8 and not released.is_set() and not job._cancelled.wait(0.01):
            pass
        return step(job)

    monkeypatch.setattr(Job, "step", waiting)
    yield released
    released.set()


def test_the_text_streams_and_a_newer_click_takes_the_place_of_an_older_one(page, slow_text):
    page.evaluate(
        """() => { window.seen = []; for (const name of ["token", "done"])
            document.addEventListener(`headwise:${name}`,
                () => window.seen.push([name, window.headwise.state.gates.size]));
        }"""
    )
    page.fill("#new", "200")
    page.locator("#new").press("Tab")
    click(page, 0, 0)
    until(page, "window.seen.some(([name, size]) => name === 'token' && size === 1)")
    click(page, 3, 3)
    until(page, "window.seen.some(([name, size]) => name === 'token' && size === 2)")
    slow_text.set()
    settled(page)
    seen = page.evaluate("window.seen")
    assert [name for name, size in seen if size == 1 and name == "done"] == []
    assert ["done", 2] in seen
    assert sum(name == "token" and size == 1 for name, size in seen) < 200


def test_differences_to_the_full_model_are_marked(page):
    page.evaluate("window.headwise.state.replace(new Map([['3.0', 0], ['3.1', 0], ['3.2', 0], ['3.3', 0]]))")
    settled(page)
    marked = page.locator("#gated-text mark").count()
    assert marked > 0
    assert page.locator("#same").inner_text().startswith(f"{marked} of ")


def test_opening_a_head_shows_attention_tokens_and_scores(page):
    click(page, 2, 1, click_count=2)
    page.wait_for_selector("#head .heat canvas")
    page.wait_for_selector("#head .lists li")
    assert page.locator("#head-title").inner_text() == "Head L2H1"
    assert gates(page) == {}, "a double-click opens and leaves the gates alone"
    row = score_table(HOSTILE, "words", "ablation", (4, 4)).query("layer == 2 and head == 1").iloc[0]
    assert f"{row['score']:.4g}" in page.locator("#head table").inner_text()
    assert page.locator("#head .tokens button").all_inner_texts() == PROMPT.split()
    page.locator("#head .tokens button").nth(2).click()
    until(page, "document.querySelector('#head h3').textContent.includes('token 2')")
    page.click("#close")
    assert page.locator("#head").is_hidden()


def test_live_attribution_colours_the_map_for_the_token_that_is_chosen(page):
    page.select_option("#colour", "live")
    until(page, "document.getElementById('scale').textContent.includes('attribution')")
    second = page.locator("#next td.word button").nth(1)
    word = second.inner_text()
    second.click()
    until(page, f"document.getElementById('scale').textContent.includes({json.dumps(word)})")
    assert page.locator("#next td.word button[aria-pressed=true]").inner_text() == word


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_explorer_and_the_report_have_the_same_colours_and_scale(page, browser, tmp_path, scheme):  # noqa: F811
    """Every variable that either page's style uses has one value, and the map's scale is that of the report's maps."""
    scores = score_table("tiny", "words", "ablation", (4, 4))
    report = browser.new_page(color_scheme=scheme)
    report.goto(
        write_report(
            [finished_run(tmp_path / "run", "score", {"scores": scores})], tmp_path / "r.html"
        ).as_uri()
    )
    page.emulate_media(color_scheme=scheme)
    for one in (page, report):
        one.wait_for_selector(f"html[data-theme={scheme}]")
    names = {
        name for folder in ("report", "explorer") for name in re.findall(r"var\((--[\w-]+)\)", styles(folder))
    }
    asked = (
        "(names) => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(name))"
    )
    listed = sorted(names - {"--share"})  # a number that a script sets
    values = page.evaluate(asked, listed)
    assert values == report.evaluate(asked, listed)
    assert all(values)
    until(page, "document.querySelector('#scale canvas') !== null")
    ends = page.evaluate(
        """(() => { const bar = document.querySelector('#scale canvas'), pen = bar.getContext('2d');
        return [0, bar.width - 1].map((x) => [...pen.getImageData(x, 4, 1, 1).data].slice(0, 3)); })()"""
    )
    chart = json.loads(report.locator("#data").text_content())["charts"]["chart-0"]
    trace = chart["panels"][0]["traces"][0]
    scale = [bytes.fromhex(colour[1:]) for _, colour in trace["dark" if scheme == "dark" else "colorscale"]]
    assert ends == [list(scale[0]), list(scale[-1])]
    report.close()


def styles(folder) -> str:
    """All style sheets and scripts of one page."""
    assets = resources.files(f"headwise.{folder}") / "assets"
    return "".join(
        file.read_text() for file in assets.iterdir() if file.name.endswith((".css", ".js", ".html"))
    )


@pytest.mark.parametrize("folder", ["report", "explorer"])
def test_no_page_has_theme_colours_of_its_own(folder):
    assert not re.findall(r"--[\w-]+:\s*#", styles(folder).partition("@media print")[0])


def test_the_url_restores_the_screen(page, explorer, browser):  # noqa: F811
    click(page, 1, 1)
    drag(page, (2, 0), (3, 1))
    page.locator("#gate").fill("1.5")
    page.check("input[name=reference][value=mean]")
    page.fill("#prompt", "the dog saw a cat")
    page.fill("#new", "7")
    page.locator("#new").press("Tab")
    click(page, 0, 3, click_count=2)
    page.wait_for_selector("#head .tokens button")
    page.wait_for_timeout(600)
    settled(page)
    url, shown = page.url, (gates(page), shares(page), page.locator("#gated-text").inner_text())
    other = browser.new_context().new_page()
    other.goto(url)
    until(other, "window.headwise !== undefined")
    settled(other)
    other.wait_for_selector("#head .tokens button")
    assert (gates(other), shares(other), other.locator("#gated-text").inner_text()) == shown
    assert other.locator("#prompt").input_value() == "the dog saw a cat"
    assert other.locator("input[value=mean]").is_checked()
    assert other.locator("#new").input_value() == "7"
    assert other.locator("#head-title").inner_text() == "Head L0H3"
    other.context.close()


def test_save_writes_a_heads_file_that_the_command_reads(page, tmp_path):
    click(page, 1, 1)
    click(page, 2, 3)
    settled(page)
    page.check("input[name=reference][value=zero]")  # the only ablation that a checkpoint can have
    settled(page)
    with page.expect_download() as loading:
        page.click("#save")
    file = tmp_path / "heads.json"
    loading.value.save_as(file)
    assert json.loads(file.read_text()) == ["L1H1", "L2H3"]
    from headwise.heads.heads_file import read_heads

    assert [str(head) for head in read_heads(file)] == ["L1H1", "L2H3"]
    assert page.locator("#command").inner_text().startswith("headwise export ")
    code = page.locator("#python").inner_text()
    compile(code, "saved", "exec")
    assert 'ablate=["L1H1", "L2H3"]' in code


def test_the_keyboard_alone_is_enough(page):
    page.focus("#map")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "L1H1" in page.locator("#at").inner_text()
    page.keyboard.press("Space")
    assert gates(page) == {(1, 1): 0}
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("0")
    assert set(gates(page)) == {(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)}
    page.keyboard.press("Control+z")
    assert gates(page) == {(1, 1): 0}
    page.keyboard.press("Control+Shift+z")
    assert len(gates(page)) == 5
    page.keyboard.press("Enter")
    page.wait_for_selector("#head .tokens button")
    assert page.evaluate("document.activeElement.id") == "head-title"
    settled(page)
    names = set()
    for _ in range(60):  # every control can be reached with Tab
        page.keyboard.press("Tab")
        names.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"check", "task", "map", "prompt", "undo", "colour", "save", "gate"} <= names


def test_is_this_real_shows_progress_and_an_answer(page, monkeypatch):
    click(page, 1, 1)
    settled(page)
    page.fill("#n", "4")
    page.select_option("#task", "ioi")
    page.click("#check")
    until(page, "document.getElementById('real').textContent !== ''")
    assert page.locator("#progress").is_hidden()
    message = page.locator("#real").inner_text()
    assert "held-out examples of ioi" in message or "does not" in message or "token" in message


def test_an_error_is_shown_and_goes_away_with_the_next_answer(page):
    page.fill("#prompt", "cat " * 600)
    page.wait_for_selector("#problem:not([hidden])")
    assert "512" in page.locator("#problem").inner_text()
    page.fill("#prompt", PROMPT)
    page.wait_for_selector("#problem", state="hidden")
    settled(page)
    page.problems.clear()


def test_hostile_prompts_and_names_stay_text(page, explorer):
    visit(page, explorer, f"#prompt={quote(HOSTILE + ' the cat')}&head=L1H1")
    page.wait_for_selector("#head .tokens button")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert "<script>window.broken=1</script>" in page.locator("#model").inner_text()


def test_nothing_leaves_this_machine(page, explorer):
    click(page, 0, 0)
    settled(page)
    assert page.requests
    assert {
        url.split("/")[2] for url in page.requests if not url.startswith(("data:", "blob:", "about:"))
    } == {f"127.0.0.1:{explorer.server.port}"}


def test_dark_follows_the_system_and_the_button(page):
    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-theme=dark]")
    assert paper() != light
    page.click("#theme")
    assert paper() == light


def test_a_small_window_has_no_sideways_scroll(page):
    page.set_viewport_size({"width": 768, "height": 800})
    click(page, 1, 1, click_count=2)
    page.wait_for_selector("#head .lists li")
    for width in (768, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_accessibility_check_finds_nothing_serious(browser, explorer):  # noqa: F811
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    visit(page, explorer, f"#prompt={quote(PROMPT)}&g=0:1.1,2.2&head=L2H1")
    page.wait_for_selector("#head .lists li")
    faults = {scheme: serious_faults(page, scheme) for scheme in ("light", "dark")}
    context.close()
    assert faults == {"light": [], "dark": []}
