"""Patterns of DuoAttention (Xiao et al. 2024, arXiv 2410.10819): which key/value heads keep the whole context.

A folder with one row per layer and one number per key/value head between tabs: near 1 for a head that keeps everything,
near 0 for one that streams. Beside it `config.json` says how many first (`sink_size`) and last (`recent_size`) tokens
the latter store.

L layers, KV key/value heads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headwise.bounded import MOST_TEXT, regular
from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, user_path
from headwise.heads.head import Head, Order, ranked
from headwise.names import KV, WINDOW

FILE = "full_attention_heads.tsv"
HALF = 0.5
"""From this number on, a head keeps the whole context."""


def save_pattern(far: Iterable[Head], groups: np.ndarray, folder: str | Path, sink: int, window: int) -> Path:
    """Write 1 for the key/value heads of these query heads, else 0, and the sizes that the other heads store.

    groups: `[L, H]`, the key/value head of each query head.
    """
    keeps = np.zeros((len(groups), 1 + int(groups.max())))
    for layer, head in far:
        keeps[layer, groups[layer, head]] = 1
    place = user_path(folder)
    with explain_disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        np.savetxt(place / FILE, keeps, delimiter="\t", fmt="%g")
        sizes = json.dumps({"sink_size": sink, "recent_size": window})
        (place / "config.json").write_text(sizes + "\n", encoding="utf-8")
    return place


def pattern_file(path: str | Path) -> Path | None:
    """The table of a pattern, from its path or its folder; None for anything else."""
    inside = Path(path) / FILE
    return inside if os.path.isfile(inside) else Path(path) if Path(path).suffix == ".tsv" else None


def load_pattern(path: Path, top: int | None = None) -> Order:
    """The key/value heads with at least a half, or the first `top` by their number."""
    try:
        lines = regular(path, most=MOST_TEXT).read_text(encoding="utf-8-sig").splitlines()
        values = np.array([[float(number) for number in line.split("\t")] for line in lines if line.strip()])
    except FileNotFoundError:
        raise HeadwiseError(f"no heads file at {path}") from None
    except OSError as error:
        raise HeadwiseError(f"the heads file {path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        values = np.array(np.nan)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise HeadwiseError(
            f"{path} is no pattern of heads; expected a row per layer, with a number per key/value head between tabs"
        )
    heads = [Head(layer, KV - head) for layer, head in np.ndindex(*values.shape)]
    order = ranked(heads, values.ravel())
    return order if top is not None else order[: int((values >= HALF).sum())]


def pattern_sizes(heads: Any) -> str | None:
    """The sizes that stand beside a pattern, as the reference `window` is named; None where there are none."""
    place = pattern_file(heads) if isinstance(heads, str | Path) else None
    if place is None or not os.path.isfile(config := place.with_name("config.json")):
        return None
    try:
        sizes = json.loads(regular(config, most=MOST_TEXT).read_text(encoding="utf-8-sig"))
        return f"{WINDOW}:{int(sizes['recent_size'])}:{int(sizes['sink_size'])}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise HeadwiseError(
            f"{config} does not say recent_size and sink_size, the last and first tokens that a streaming head stores"
        ) from None
