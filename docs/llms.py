"""llms.txt (every page with a sentence) and llms-full.txt (the text of every page), made from the documentation.

`make docs` puts both into the site; `python docs/llms.py FOLDER` writes them into a folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    """The pages in the order of reading: README, goals, the others, the gallery."""
    folders = [ROOT / "docs" / "goals", ROOT / "docs", ROOT / "gallery"]
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def address(page: Path) -> str:
    """Where a page is on the site.

    >>> address(ROOT / "gallery" / "README.md")
    'gallery/index.html'
    """
    return page.relative_to(ROOT).with_suffix(".html").as_posix().replace("README", "index")


def sentence(text: str) -> str:
    """The question that a page answers, or its first sentence."""
    asked = re.search(r"This page answers (?:the question|\w+ questions): (.+?\?)", text, re.DOTALL)
    prose = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    prose = " ".join(line for line in prose.splitlines() if not re.match(r"[#|!]", line)).strip()
    first = asked[1] if asked else re.split(r"(?<=[.?!:])\**\s", prose)[0]
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.sub(r"[*`]", "", first)


def index() -> str:
    """The text of llms.txt."""
    lines = ["# headwise", "", f"> {sentence(ROOT.joinpath('README.md').read_text(encoding='utf-8'))}", ""]
    lines += ["## Pages", ""]
    for page in pages():
        text = page.read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        about = sentence(text) or "a table without text"
        lines.append(f"- [{title[1] if title else page.stem}]({address(page)}): {about}")
    return "\n".join([*lines, "", "## Everything in one file", "", "- [llms-full.txt](llms-full.txt)", ""])


def full() -> str:
    """The text of llms-full.txt."""
    parts = (f"<!-- {address(page)} -->\n\n{page.read_text(encoding='utf-8').strip()}\n" for page in pages())
    return "\n".join(parts)


def write(folder: Path) -> None:
    """Write both files."""
    (folder / "llms.txt").write_text(index(), encoding="utf-8", newline="\n")
    (folder / "llms-full.txt").write_text(full(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
