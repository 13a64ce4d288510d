"""The glossary and the studies' documentation pages as HTML, from the Markdown files in docs/."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path

from markupsafe import Markup

_FOLDERS = (Path(__file__).parent / "docs", Path(__file__).parents[3] / "docs")
"""In an installed package, and in a checkout."""
GLOSSARY = "glossary"
_WORD = r"[A-Za-z0-9_⁺⁻]"
_COMMON = {
    *"head g z r m mask keep full none positions example target label task group metric row score order".split(),
    *"effect stays draw moved always ever joint cross shift amplify edge bound excess run cell finding".split(),
    *"notice quick published reached n p mean zero top roles circuits masking prompts functions".split(),
}
"""Terms that are also everyday words or single letters: nobody looks for them below a chart."""


@dataclass(frozen=True)
class Term:
    """One entry of the glossary."""

    id: str
    names: tuple[str, ...]
    meaning: str
    """The first sentence of the entry."""


@cache
def markdown(name: str) -> str:
    """A documentation page without its pictures; empty where this installation has none of this name."""
    files = [folder / f"{name}.md" for folder in _FOLDERS]
    text = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")
    return re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)


def page(name: str, others: Collection[str] = ()) -> str:
    """A documentation page as HTML; links lead to the `others` on the same report, and all other links are left out."""
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown(name))
    html = re.sub(r"<(/?)h([1-3])>", lambda found: f"<{found[1]}h{int(found[2]) + 2}>", html)
    html = html.replace("<pre>", '<pre tabindex="0">')
    html = html.replace(
        "<table>", '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
    )
    html = html.replace("</table>", "</table></div>")
    return re.sub(r'<a href="([^"]*)">(.*?)</a>', lambda found: _link(found[1], found[2], others), html)


def _link(address: str, words: str, others: Collection[str]) -> str:
    target = address.partition("#")[0].removesuffix(".md")
    return f'<a href="#docs-{target}">{words}</a>' if target in others else words


def glossary(others: Collection[str] = ()) -> str:
    """The glossary as HTML, an anchor at each term."""
    html, ids = page(GLOSSARY, others), iter(term.id for term in terms())
    html = re.sub(r"<li><strong>", lambda _: f'<li id="{next(ids)}"><strong>', html)
    return re.sub(r"^.*?(?=<h4>)", "", html, flags=re.DOTALL)  # without the page's own introduction


@cache
def terms() -> tuple[Term, ...]:
    """The entries of the glossary, in order."""
    entry = r"^- \*\*(.+?)\*\*(?: \(([^)]*)\))?(.*?)(?=^- \*\*|^$|\Z)"
    found = re.findall(entry, markdown(GLOSSARY), flags=re.MULTILINE | re.DOTALL)
    entries = []
    for number, (bold, code, text) in enumerate(found):
        names = re.split(r",\s*|\s+=\s+", unescape(re.sub(r"\s*\(([^)]*)\)", r", \1", bold)))
        names += re.findall(r"`([^`]+)`", code)  # as settings and tables call it
        plain = re.sub(r"\s*\(?\[[^\]]*\]\([^)]*\)\)?|[`*]", "", " ".join(text.lstrip(": ").split()))
        meaning = re.split(r"(?<=[^.]{3}\.) ", plain, maxsplit=1)[0]
        listed = tuple(name.strip("` ") for name in names if name.strip("` "))
        entries.append(Term(f"term-{number}", listed, meaning))
    return tuple(entries)


def terms_in(text: str, most: int = 8) -> list[tuple[str, str]]:
    """The glossary's terms that a text uses: each name with the anchor of its entry, in order of appearance."""
    places: dict[str, tuple[int, str]] = {}
    for term in terms():
        for name in term.names:
            hit = re.search(_written(name), text)
            is_taken = term.id in places or name in _COMMON or name in (other for _, other in places.values())
            if hit and not is_taken:
                places[term.id] = (hit.start(), name)
    ordered = sorted((start, name, anchor) for anchor, (start, name) in places.items())
    return [(name, anchor) for _, name, anchor in ordered[:most]]


def glossed(text: str) -> Markup:
    """A text as HTML in which the first use of each of the glossary's terms has its meaning as a tooltip, which the
    keyboard reaches and print shows."""
    used = {anchor: name for name, anchor in terms_in(text, 20)}
    hits = sorted(
        (re.search(_written(used[term.id]), text).span(), term.meaning)  # type: ignore[union-attr]
        for term in terms()
        if term.id in used
    )
    html, end = Markup(), 0  # which escapes what is put into it
    for (start, stop), meaning in hits:
        if start >= end:
            term = Markup('<abbr tabindex="0" title="{}">{}</abbr>').format(meaning, text[start:stop])
            html, end = html + text[end:start] + term, stop
    return html + text[end:]


def _written(name: str) -> str:
    """A pattern for a term as a word of its own, in the plural too."""
    exact = len(name) < 4  # `q`, `lo`, `EE` are written so and not otherwise
    return rf"(?<!{_WORD})(?{'' if exact else 'i'}:{re.escape(name)}s?)(?!{_WORD})"
