"""A heads file: a JSON list of "L12H3", or a table of scores of which the first k heads are meant.

A run folder stands for its table of scores, and names such as "L12H3,L3H1" for the list of them. So does a pattern of
DuoAttention (Xiao et al. 2024, arXiv 2410.10819) for the key/value heads that keep the whole context: a folder with one
row per layer and one number per key/value head between tabs, near 1 for a head that keeps everything, near 0 for one
that streams. Beside it `config.json` says how many first (`sink_size`) and last (`recent_size`) tokens those store.

L layers, KV key/value heads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.bounded import MOST_TEXT, read_parquet, regular
from headwise.errors import HeadwiseError, flag, hint
from headwise.files import explain_disk_errors, user_path
from headwise.heads.components import check_together, kinds_of
from headwise.heads.head import Head, Order, head_list, heads_of, ranked
from headwise.heads.scores import Scores
from headwise.names import INPUT, KV, MLP, WINDOW

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("headwise")


def save_order(order: Sequence[Head], path: str | Path) -> None:
    """Write an order as a heads file: a JSON list of "L12H3"."""
    Path(path).write_text(
        json.dumps([str(head) for head in head_list(order)], indent=0) + "\n", encoding="utf-8"
    )


def load_order(path: str | Path) -> Order:
    """Read a heads file: a JSON list of "L12H3"."""
    try:
        listed = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise HeadwiseError(
            f'{path} is not JSON ({error}); a heads file is a list such as ["L12H3"]'
        ) from None
    if not isinstance(listed, list):
        raise HeadwiseError(
            f'{path} holds a {type(listed).__name__}; a heads file is a list such as ["L12H3"]'
        )
    entries: dict[Head, int] = {}
    for number, item in enumerate(listed, 1):
        try:
            head = Head.parse(item)
        except HeadwiseError as error:
            raise HeadwiseError(f"{path}, entry {number}: {error}") from None
        # Twice in a list, a head would count as two wherever the first k are taken.
        if head in entries:
            raise HeadwiseError(
                f"{path}, entry {number}: {head} is listed twice; it is also entry {entries[head]}"
            )
        entries[head] = number
    return list(entries)


def _text(path: str | Path) -> str:
    try:
        return regular(Path(path), most=MOST_TEXT).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HeadwiseError(f"no heads file at {path}") from None
    except OSError as error:
        raise HeadwiseError(f"the heads file {path} cannot be read: {error.strerror or error}") from None


def read_heads(
    path: str | Path,
    top: int | None = None,
    *,
    task: str | None = None,
    method: str | None = None,
    model: str | None = None,
    existing: Iterable[Head] | None = None,
    by: str = "signed",
    prefer: Mapping[str, str] | None = None,
) -> Order:
    """The heads that a file names: all of a list or its first `top`, the first `top` of a scores table.

    A table is what `Scores.save` writes (.npz), a run's `scores.parquet` or the run folder; where that holds several
    maps, `task`, `method` and `model` say which. `existing` are the heads of `model`: scores of a model with another
    name are taken only if they are of exactly these heads, with a warning. If there is no such file, "L12H3,L3H1" is a
    list of heads. `by`: `signed` (helps most first), `absolute`, `hinders`, or `least` (the smallest absolute score
    first). `prefer`: task and reference that choose among several maps where a run has them; a run of the study
    `circuits` then gives the order that it chose, and by default as many heads as it found to be enough.
    """
    path = Path(path)
    if prefer is not None and os.path.isfile(path / "tables" / "circuits.parquet"):
        task, method, by, top = _chosen_circuit(path, top, {"model": model or "", **prefer})
    if os.path.isfile(path / "run.json"):  # a list of many heads is too long to be a file's name
        path = path / "tables" / "scores.parquet"
    if path.suffix != ".parquet" and not (task is None and method is None):
        raise HeadwiseError(
            f"{path} holds one list of heads; {flag('task')} and {flag('method')} choose a map of a scores.parquet"
        )
    if top is not None and top < 1:
        raise HeadwiseError(f"top is {top}; expected at least 1")
    if pattern := pattern_file(path):
        order = load_pattern(pattern, top)
    elif path.suffix not in (".npz", ".parquet"):
        order = _named(path) or load_order(path)
    elif top is None:
        raise HeadwiseError(f"{path} holds scores of every head; say how many to take: {hint('top', 16)}")
    else:
        scores = Scores.load(path) if path.suffix == ".npz" else _from_run(path, task, method, model, prefer)
        if model is not None and existing is not None:
            _check_model(path, scores, model, set(existing))
        heads, sizes = scores.heads(), [-abs(scores[head]) for head in scores.heads()]
        order = ranked(heads, sizes) if by == "least" else scores.order(by)
    if top is not None and top > len(order):
        raise HeadwiseError(f"{path} has {len(order)} heads, fewer than the {top} asked for")
    return order[:top]


def named_heads(
    heads: Any, k: int | None, model: str, existing: Iterable[Head], prefer: Mapping[str, str] | None = None
) -> Order:
    """The heads that a caller means: a list, or the first `k` of it; the first `k` of scores; a heads file or a run."""
    heads = getattr(heads, "path", heads)  # of an opened run
    if isinstance(heads, str | Path):
        return read_heads(heads, k, model=model, existing=existing, prefer=prefer)
    if isinstance(heads, Scores) and k is None:
        raise HeadwiseError("scores rank every head; say how many of the first are meant: k=48")
    order = heads.order() if isinstance(heads, Scores) else head_list(heads)
    if k is not None and not 1 <= k <= len(order):
        raise HeadwiseError(f"k is {k}; expected 1 to {len(order)}, the number of heads that are ranked")
    return order[:k]


def _check_model(path: Path, scores: Scores, model: str, existing: set[Head]) -> None:
    """Heads of one model say nothing about another; a copy under another name has the same heads."""
    if scores.model == model:
        return
    if {head for head in scores.heads() if head.head >= 0} != existing:
        raise HeadwiseError(
            f"{path} has scores of {scores.model}, whose heads are not those of {model}; give scores of {model}, or "
            f"name the heads: {flag('heads')} L12H3,L3H1"
        )
    message = "%s has scores of %s, not of %s: they hold only if both are the same model"
    log.warning(message, path, scores.model, model)


def _named(path: Path) -> Order | None:
    """The heads of "L12H3,L3H1", if that is no file but a list of names."""
    try:
        heads = [Head.parse(name.strip()) for name in str(path).split(",")]
    except HeadwiseError:
        return None
    if os.path.exists(path):
        return None
    if twice := next((head for head in heads if heads.count(head) > 1), None):
        raise HeadwiseError(f"{path} names {twice} twice; name each head once")
    return heads


def _table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        return read_parquet(regular(path), columns).to_pandas(ignore_metadata=True)
    except FileNotFoundError:
        raise HeadwiseError(f"no scores at {path}") from None
    except (OSError, ValueError, TypeError, OverflowError, MemoryError, NotImplementedError) as error:
        raise HeadwiseError(f"{path} is not a readable table: {' '.join(str(error).split())}") from None


def _preferred(table: pd.DataFrame, prefer: Mapping[str, str] | None) -> pd.DataFrame:
    """The rows of this model, task and reference, as far as the table has any."""
    for name, choice in (prefer or {}).items():
        if name in table and choice in set(table[name]):
            table = table[table[name] == choice]
    return table


def _chosen_circuit(
    run: Path, top: int | None, prefer: Mapping[str, str]
) -> tuple[str, str, str, int | None]:
    """Task, method and kind of the order that a run of `circuits` chose, and how many heads it found to be enough."""
    path = run / "tables" / "circuits.parquet"
    names = ("model", "task", "reference", "order", "by")
    table = _table(path, names)
    if missing := {*names, "chosen", "stays"} - set(table.columns):
        raise HeadwiseError(
            f"{path} has no column {', '.join(sorted(missing))}; run the study circuits again"
        )
    table = _preferred(table[table["chosen"].astype(bool)], prefer)
    if table["task"].nunique() != 1:
        raise HeadwiseError(
            f"{run} has circuits of {', '.join(map(str, table['task'].unique()))}; name one task"
        )
    row = table.iloc[0]
    if top is None and np.isfinite(row["stays"]):
        top = int(row["stays"])
    by = "signed" if row["by"] == "unsigned" else str(row["by"])
    return str(row["task"]), str(row["order"]), by, top


def _from_run(
    path: Path,
    task: str | None,
    method: str | None,
    model: str | None,
    prefer: Mapping[str, str] | None = None,
) -> Scores:
    from headwise.tables.frames import grid

    table = _table(path, ("model", "task", "method"))
    missing = {"model", "task", "method", "layer", "head", "score"} - set(table.columns)
    if missing:
        raise HeadwiseError(f"{path} has no column {', '.join(sorted(missing))}; give a run's scores.parquet")
    for name, choice in (("task", task), ("method", method)):
        table = table if choice is None else table[table[name] == choice]
    table = _preferred(table, {"model": model or "", **(prefer or {})})
    maps = table[["model", "task", "method"]].drop_duplicates()
    if len(maps) != 1:
        raise HeadwiseError(
            f"{path} has {len(maps)} maps that fit; {flag('task')} and {flag('method')} choose one of those it holds: "
            + "; ".join(f"{row.task} by {row.method} ({row.model})" for row in maps[:10].itertuples())
        )
    table = _checked(path, table)
    values, names = grid(table), maps.iloc[0].astype(str)
    stderr = grid(table, "stderr") if "stderr" in table else np.full_like(values, np.nan)
    check_together(kinds_of(heads_of(table)))
    scores = Scores(values, stderr, values[None], names["model"], names["task"], names["method"])
    return replace(scores, components=kinds_of(heads_of(table)))


def _checked(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The table, if every row is one head with its number: a negative layer would count from the end in silence."""
    import pandas as pd

    for name in ("layer", "head"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        whole = (numbers % 1 == 0) & numbers.between(0, 99_999)
        if name == "head" and "component" in table:
            whole |= numbers.isin([*range(KV - 999, KV + 1), INPUT, MLP])
        if not whole.all():
            raise HeadwiseError(
                f"{path}: the column {name!r} must hold whole numbers from 0; give a run's scores.parquet"
            )
    for name in ("score", "stderr"):
        if name in table and not pd.api.types.is_numeric_dtype(table[name]):
            raise HeadwiseError(f"{path}: the column {name!r} holds no numbers; give a run's scores.parquet")
    if table.duplicated(["layer", "head"]).any():
        raise HeadwiseError(f"{path} has two scores for one head; give a run's scores.parquet")
    return table.astype({"layer": int, "head": int})


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
        lines = [line for line in _text(path).splitlines() if line.strip()]
        values = np.array([[float(number) for number in line.split("\t")] for line in lines])
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
