"""A run as a notebook shows it: what it is, what it says, and its figures."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from headwise.bounded import regular


def line(path: Path, info: Mapping[str, Any]) -> str:
    """The run in one line."""
    tables = ", ".join(info.get("tables", ())) or "none yet"
    return f"run {path.name}: study {info.get('study')}, {info.get('status')}, tables: {tables}"


def page(path: Path, info: Mapping[str, Any], notices: Sequence[str]) -> str:
    """The run as HTML, its figures inlined; all text is escaped."""
    parts = [f"<p><strong>{escape(line(path, info))}</strong></p>"]
    if notices:
        parts.append("<ul>" + "".join(f"<li>{escape(notice)}</li>" for notice in notices) + "</ul>")
    for figure in sorted((path / "figures").glob("*.png")):
        data = base64.b64encode(regular(figure, root=path).read_bytes()).decode()
        parts.append(
            f'<img alt="{escape(figure.stem)}" style="max-width:100%" src="data:image/png;base64,{data}">'
        )
    return "\n".join(parts)
