"""How every figure looks, and how it is written to files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMATS = ("png", "svg", "pdf")

_SETTINGS: dict[str, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,  # embed fonts as text, not as outlines
    "svg.fonttype": "path",
    "svg.hashsalt": "headwise",  # the same figure gives the same file
}


@contextmanager
def house_style() -> Iterator[None]:
    """While this holds, matplotlib draws in the house style, without a display."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        yield


def file_name(name: object) -> str:
    """A model or a task may be a path, and an ability has spaces; a figure's name has neither."""
    return Path(str(name)).name.replace(" ", "-")


def png(figure: Any) -> bytes:
    """A figure as the bytes of a PNG, for notebooks."""
    from io import BytesIO

    buffer = BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path in paths:
        metadata = (
            {"Date": None}
            if path.suffix == ".svg"
            else {"CreationDate": None}
            if path.suffix == ".pdf"
            else {}
        )
        with house_style():
            figure.savefig(path, metadata=metadata)
    return paths
