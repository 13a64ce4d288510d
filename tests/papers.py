"""The tables of docs/goals/papers.md, made from the study files that ship.

`PYTHONPATH=src python tests/papers.py` writes them into the page.
"""

from __future__ import annotations

from headwise.studies.base import published
from headwise.studies.settings.resolve import about_of
from helpers import REPOSITORY

PAGE = REPOSITORY / "docs" / "goals" / "papers.md"
NAMES = ("functions", "masking", "roles", "circuits", "wiring", "prompts")
BEGIN, END = "<!-- from the study files -->\n", "<!-- end -->\n"
COLUMNS = {"setting": "setting", "paper": "paper", "published": "published", "default": "default"}
COLUMNS |= {"data": "data needed", "why": "why we deviate"}


def tables():
    """Paper, figure, what comes first, cost, and a row per setting, for every study."""
    figures = [
        f"| {about['figure']} | {about['paper']} | `headwise run {name} --config published` |"
        for name, about in ((name, about_of(published(name))) for name in NAMES)
    ]
    lines = ["| figure | paper | command |", "|---|---|---|", *figures, ""]
    for name in NAMES:
        about = about_of(published(name))
        lines += [f"**{name}**: {about['paper']}. First: {about['first']}. Cost: {about['cost']}.", ""]
        lines += [f"| {' | '.join(COLUMNS.values())} |", f"|{'---|' * len(COLUMNS)}"]
        lines += [f"| {' | '.join(str(row.get(key, '–')) for key in COLUMNS)} |" for row in about["settings"]]
        lines.append("")
    return "\n".join(lines)


def page():
    """The page with the tables in their place."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
