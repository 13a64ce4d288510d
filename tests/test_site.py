"""The documentation site as `make docs` builds it, opened from its folder in a browser that has no network."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from urllib.parse import urljoin, urlsplit

import pytest

from helpers import REPOSITORY

SITE = REPOSITORY / "site"
DOCS = REPOSITORY / ".venv-docs" / "bin"
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: `make docs` builds it")
LINK = re.compile(r'<a [^>]*?href="?([^"\s>]+)')


def linked(page):
    """The pages of the site that a page has links to."""
    found = {urljoin(page, target) for target in LINK.findall((SITE / page).read_text(encoding="utf-8"))}
    return {
        path for target in found if (path := urlsplit(target).path).endswith(".html") and "//" not in target
    }


@built
def test_every_page_is_two_clicks_away_and_every_link_leads_somewhere():
    pages = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")} - {"404.html"}
    first = linked("index.html")
    reached = first.union(*(linked(page) for page in first & pages))
    assert reached - {"404.html"} == pages
    sources = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "gallery").rglob("*.md"),
        *(REPOSITORY / "skills").rglob("*.md"),
    ]
    assert len(pages) == len(sources) + 2  # the notebook, the reference


@pytest.mark.skipif(not (DOCS / "mkdocs").exists(), reason="no .venv-docs: `make docs` builds it")
def test_the_notebook_of_a_published_site_opens_in_colab(tmp_path):
    build = [DOCS / "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    environment = {**os.environ, "GITHUB_REPOSITORY": "owner/name", "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=REPOSITORY, env=environment, check=True)
    text = (tmp_path / "docs" / "first-look.html").read_text(encoding="utf-8")
    found = re.search(r"colab\.research\.google\.com/github/owner/name/blob/main/([^\"'\s>]*)", text)
    assert found
    assert (REPOSITORY / found[1]).exists()


@built
def test_pages_fetch_nothing_from_elsewhere():
    fetched = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+")
    for page in SITE.rglob("*.html"):
        foreign = [
            tag for tag in fetched.findall(page.read_text(encoding="utf-8")) if "rel=canonical" not in tag
        ]
        assert not foreign, page


@built
def test_the_reference_has_every_public_name_with_its_arguments_and_no_example_as_a_quotation():
    import headwise as hw

    text = (SITE / "docs" / "reference.html").read_text(encoding="utf-8")
    entries = dict(re.findall(r"<h2[^>]*>\s*hw\.(\w+)(.*?)(?=<h2|\Z)", text, re.DOTALL))
    assert entries.keys() == hw._HOMES.keys()
    for name, entry in entries.items():
        if inspect.isfunction(getattr(hw, name)):
            shown = re.sub(r"<[^>]*>", "", entry.partition("</pre>")[0])
            for argument in inspect.signature(getattr(hw, name)).parameters:
                assert re.search(rf"\b{argument}\b", shown), (name, argument)
    assert "<blockquote>" not in text


def test_the_list_for_language_models_has_every_page_with_a_sentence(tmp_path):
    """Counted from the files; what the sentence is, the page itself says."""
    subprocess.run([sys.executable, REPOSITORY / "docs" / "llms.py", tmp_path], check=True)
    index, full = ((tmp_path / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    sources = [
        REPOSITORY / "README.md",
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "gallery").rglob("*.md"),
    ]
    entries = re.findall(r"^- \[(.+)\]\((.+\.html)\): (.+)$", index, re.MULTILINE)
    assert len(entries) == len(sources)
    everything = " ".join(re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", full).split())
    for title, address, sentence in entries:
        assert len(sentence) > 10, title
        assert sentence in everything or sentence == "a table without text", title
        assert not (SITE / "index.html").exists() or (SITE / address).exists(), address
    assert index.count("a table without text") <= 1
    for page in sources:
        assert page.read_text(encoding="utf-8").strip() in full, page


PAGES = [
    "index", "docs/first-look", "docs/scores", "docs/tasks", "docs/reference", "docs/glossary", "docs/goals/circuit",
    "gallery/index", "CONTRIBUTING", "CHANGELOG",
]  # fmt: skip


@built
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_ten_pages_open_light_and_dark_and_on_a_phone_and_search_finds_a_word():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for number, name in enumerate(PAGES):
            dark, width = bool(number % 2), 390 if number % 3 == 0 else 1280
            context = browser.new_context(
                color_scheme="dark" if dark else "light",
                viewport={"width": width, "height": 800},
                offline=True,
            )
            page = context.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
            page.goto((SITE / f"{name}.html").as_uri())
            assert page.locator("article h1").first.inner_text().strip()
            red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
            assert (int(red) < 80) == dark, name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            pictures = page.locator("article img").evaluate_all(
                "all => all.map(i => [i.complete, i.naturalWidth])"
            )
            assert all(width for complete, width in pictures if complete), name
            if name == "docs/tasks":
                page.locator(".md-search__input").fill("faithfulness")
                page.locator(".md-search-result__link").first.wait_for(timeout=10_000)
            assert not problems, name
            context.close()
        browser.close()
