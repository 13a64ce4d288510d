"""What things are called on a figure, at the length there is room for."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import pandas as pd

from headwise.names import ablation_name, method_name

_SPLITS = ("train", "test", "dev", "valid", "validation")
"""Files named after a part of a data set, which say nothing without their folder."""


def task_title(task: str) -> str:
    """A task's name as a title; a file by its own name, one named after a split by its folder as well.

    >>> task_title("greater_than"), task_title("ioi_long"), task_title("data/my_facts.jsonl")
    ('Greater Than', 'IOI Long', 'My Facts')
    >>> task_title("data/gsm8k/test.jsonl"), task_title("hub:owner/facts")
    ('Gsm8k Test', 'Facts')
    """
    path = PurePosixPath(task.removeprefix("hub:"))
    name = path.stem if path.suffix in (".jsonl", ".json", ".csv", ".parquet", ".txt", ".tsv") else path.name
    if name in _SPLITS and path.parent.name:
        name = f"{path.parent.name} {name}"
    words = name.replace("_", " ").replace("-", " ").split()
    return " ".join("IOI" if word == "ioi" else word[:1].upper() + word[1:] for word in words)


def shortened(name: str, most: int = 28, among: Iterable[str] = ()) -> str:
    """A model or a task in about so many characters: without its owner or folders, then without its last words.

    It keeps more where another one of `among` would be called alike.

    >>> shortened("smollm2"), shortened("owner/a-model-with-a-name", 20)
    ('smollm2', 'a-model-with-a-name')
    >>> qwen = "qwen2.5-coder-1.5b-instruct-q4_k_m"
    >>> shortened(qwen), shortened(qwen, among=[qwen, "qwen2.5-coder-1.5b-instruct-q8_0"])
    ('qwen2.5-coder-1.5b-instruct…', 'qwen2.5-coder-1.5b-instruct-q4_k_m')
    """
    forms = [_few_words(name, most), name.rstrip("/").rsplit("/", 1)[-1], name]
    others = [
        [_few_words(other, most), other.rstrip("/").rsplit("/", 1)[-1]] for other in among if other != name
    ]
    return next(form for form in forms if form == name or all(form not in taken for taken in others))


def _few_words(name: str, most: int) -> str:
    """Whole words only: of a single one that is too long nothing is left out."""
    if len(name) <= most:
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    ends = [match.start() for match in re.finditer(r"[-_.,\s]+", last) if 0 < match.start() < most]
    return last if len(last) <= most or not ends else f"{last[: ends[-1]]}…"


def span(numbers: pd.Series) -> str:
    """One number where all are the same, else from the least to the most.

    >>> span(pd.Series([40, 40])), span(pd.Series([12, 40]))
    ('40', '12–40')
    """
    low, high = numbers.min(), numbers.max()
    return str(low) if low == high else f"{low}–{high}"


def wrapped(name: str, width: int = 26) -> str:
    """A long name on two lines, so that neighbours do not touch."""
    return "\n".join(textwrap.wrap(str(name), width, max_lines=2, placeholder="…")) or str(name)


def minus(number: str) -> str:
    """A number with a minus sign in place of a hyphen."""
    return number.replace("-", "−")


def with_minus(sentence: str) -> str:
    """A sentence whose numbers have minus signs; names, quoted tokens and ranges keep their hyphens.

    >>> with_minus("a-1b: -0.12 [-.3, 1e-05], layers 4-7, token “-5”")
    'a-1b: −0.12 [−.3, 1e−05], layers 4-7, token “-5”'
    """
    return re.sub(r"(?<![\w/.“)\]-])(\d[\d.]*e)?-(?=\.?\d)", r"\1−", sentence)


def plus(number: float, digits: int = 1) -> str:
    """A change as a sentence has it, with its sign.

    >>> plus(0.31), plus(-1.24), plus(-0.04)
    ('+0.3', '−1.2', '+0.0')
    """
    return minus(f"{rounded(number, digits):+.{digits}f}")


def rounded(number: float, digits: int = 0) -> float:
    """The number, rounded; what rounds to 0 is 0 and not −0."""
    return round(number, digits) + 0.0


def percent(share: float, lo: float | None = None, hi: float | None = None) -> str:
    """A share in percent, with its interval where it has one.

    >>> percent(0.9), percent(-0.001), percent(0.9, 0.8, 0.95)
    ('90 %', '0 %', '90 % (95 % CI 80–95 %)')
    """
    interval = (
        "" if lo is None or hi is None else f" (95 % CI {rounded(100 * lo):.0f}–{rounded(100 * hi):.0f} %)"
    )
    return f"{rounded(100 * share):.0f} %{interval}"


def joined(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def under(table: pd.DataFrame) -> str:
    """The ablation types of a table, for the end of a title.

    >>> under(pd.DataFrame({"reference": ["mean", "mean", ""]})), under(pd.DataFrame({"k": [1]}))
    (', mean ablation', '')
    """
    types = table["reference"].dropna().unique() if "reference" in table else ()
    names = [ablation_name(str(reference)) for reference in types if reference]
    return f", {joined(names)}" if names else ""


def method_title(table: pd.DataFrame) -> str:
    """The method of a table's first row with its ablation type: `Attribution (mean)`."""
    first = table.iloc[0]
    return method_name(str(first["method"]).capitalize(), str(first.get("reference") or ""))
