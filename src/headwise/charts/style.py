"""How every figure and page looks, and how a figure is written to files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

from headwise.charts.chart import DARK_PALETTES, PALETTES
from headwise.errors import HeadwiseError, switched_on
from headwise.files import explain_disk_errors, inside, replacing

_NO_DATES: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
FORMATS = tuple(_NO_DATES)

_SETTINGS: dict[str, Any] = {
    "font.size": 9,
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


_FONTS = (
    "Noto Sans CJK SC,Noto Sans CJK JP,Noto Sans SC,Source Han Sans SC,WenQuanYi Zen Hei,WenQuanYi Micro Hei,"
    "Droid Sans Fallback,PingFang SC,Hiragino Sans,Microsoft YaHei,SimHei,Malgun Gothic,Arial Unicode MS,"
    "Noto Sans Arabic,Noto Sans Hebrew,Noto Sans Devanagari,Noto Sans Thai,Noto Emoji,Segoe UI Emoji,Symbola"
).split(",")
"""Fonts for characters that the first one lacks, where they are installed; fonts of bitmaps cannot be used."""


@cache
def font_families() -> list[str]:
    """The font of all figures, and the installed ones in which Matplotlib looks for characters that it lacks."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FONTS if name in installed)]


@cache
def _characters() -> frozenset[int]:
    """Every character that one of the fonts has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in font_families()]
    return frozenset().union(*(font.get_charmap() for font in fonts))


def drawable(text: str) -> str:
    """The text with a box for every character that no font has; Matplotlib would draw one too, and warn."""
    if text.isascii():
        return text
    return "".join(c if c == "\n" or ord(c) in _characters() else "□" for c in text)


@contextmanager
def house_style() -> Iterator[None]:
    """Inside this context matplotlib draws in the house style, without a display."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS | {"font.family": font_families()}):
        yield


_LONGEST = 60
"""Characters of one part of a file's name; a name has a few parts, and file systems end at 255 bytes."""


def file_name(*names: object) -> str:
    """Names as one file name. A model or a task may be a path, or any text; a figure's name is one word.

    A name that is shortened or has characters a file name cannot have gets a short hash, so that names stay distinct.

    >>> file_name("masking", "tiny"), file_name("models/tiny"), file_name("Logical Reasoning"), file_name("../..")
    ('masking-tiny', 'tiny-83188a', 'Logical-Reasoning', 'x-ce178f')
    """
    return "-".join(map(_one_word, names))


def _one_word(name: object) -> str:
    last = PurePath(str(name)).name.replace(" ", "-")
    allowed = re.sub(r"[^\w.+=@-]", "-", last).lstrip(".")
    allowed = allowed.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    if allowed and allowed == str(name).replace(" ", "-"):
        return allowed
    return f"{allowed.rstrip('-.') or 'x'}-{hashlib.sha256(repr(str(name)).encode()).hexdigest()[:6]}"


def png(figure: Any) -> bytes:
    """A figure as the bytes of a PNG, for notebooks."""
    return _rendered(figure, "png", dpi=110)


def _rendered(figure: Any, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    with house_style():
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


_left_out: ContextVar[bool] = ContextVar("left_out", default=False)


@contextmanager
def without_figures() -> Iterator[None]:
    """Inside this context `save` writes nothing: for callers that need only a study's numbers."""
    with switched_on(_left_out):
        yield


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF into `folder`, and nowhere else; returns the paths."""
    if _left_out.get():
        return []
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path in paths:
        if path.parent != folder or not inside(folder, path):
            raise HeadwiseError(f"a figure {str(path)!r} would lie outside {folder}; give it a plain name")
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            # Into memory first: where a disk is full, Matplotlib's PDF writer raises errors of its own and keeps the
            # file open, which also keeps its space taken.
            content = _rendered(figure, path.suffix[1:], metadata=_NO_DATES[path.suffix[1:]])
            with replacing(path) as partial:
                partial.write_bytes(content)
    return paths


# ---- the pages: the report and the live explorer -------------------------------------------------------------

_COLOURS = {
    "paper": ("#ffffff", "#14171b"),
    "raised": ("#f6f7f9", "#1d2127"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#545c66", "#a9b1bb"),
    "line": ("#dfe3e8", "#333a43"),
    "accent": ("#1f5fa8", "#7db4f0"),
    "mark": ("#c2410c", "#ffa366"),
    "mark-paper": ("#ffe8d9", "#4a2a12"),
    "warn": ("#8a4b00", "#ffcf8a"),
    "warn-paper": ("#fff4e0", "#33270f"),
    "bad": ("#a11212", "#ffb4ad"),
    "bad-paper": ("#ffeceb", "#3d1512"),
    "off": ("#1b1f24", "#f2f4f6"),
    "cell": ("#e4e8ed", "#2b313a"),
}
"""Colours of the pages by name: on a light page, on a dark one."""
LIGHT, DARK = ({name: pair[side] for name, pair in _COLOURS.items()} for side in (0, 1))


def css_variables() -> str:
    """The start of a style sheet: `--paper`, …, and each palette of the charts, `--RdBu`, as colours with spaces."""
    dark = "".join(f"--{name}: {value}; " for name, value in (DARK | DARK_PALETTES).items())
    light = "".join(f"--{name}: {value}; " for name, value in (LIGHT | PALETTES).items())
    return (
        f':root {{ color-scheme: light; {light}}}\n:root[data-theme="dark"] {{ color-scheme: dark; {dark}}}\n'
    )
