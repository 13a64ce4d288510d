"""Heads, scores on heads, and gates over heads. Nothing here knows what a model is.

L layers, H heads, E examples, V variants (one array of gates each).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError

_HEAD = re.compile(r"^L(\d+)H(\d+)$")


class Head(NamedTuple):
    """One attention head, both numbers from 0; written `L12H3`.

    >>> Head.parse("L12H3")
    Head(layer=12, head=3)
    >>> str(Head(12, 3))
    'L12H3'
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        found = _HEAD.match(text.strip()) if isinstance(text, str) else None
        if not found:
            raise HeadwiseError(f"{text!r} is not a head; heads are written like 'L12H3' (layer 12, head 3)")
        return cls(int(found[1]), int(found[2]))


Order = list[Head]
"""Heads ranked by a score, most important first."""


def ones(shape: tuple[int, int]) -> np.ndarray:
    """Gates `[L, H]` that leave every head as it is."""
    return np.ones(shape, dtype=np.float32)


def mask_gates(heads: Iterable[Head], shape: tuple[int, int]) -> np.ndarray:
    """Gates `[L, H]` with the given heads at 0 and all others at 1."""
    gates = ones(shape)
    for layer, head in _inside(heads, shape):
        gates[layer, head] = 0
    return gates


def keep_gates(heads: Iterable[Head], shape: tuple[int, int]) -> np.ndarray:
    """Gates `[L, H]` with the given heads at 1 and all others at 0."""
    return 1 - mask_gates(heads, shape)


def lone_gates(heads: Sequence[Head], shape: tuple[int, int]) -> np.ndarray:
    """Gates `[V, L, H]`, one variant per head, each with that head alone at 1."""
    return 1 - single_gates(heads, shape)


def single_gates(heads: Sequence[Head], shape: tuple[int, int]) -> np.ndarray:
    """Gates `[V, L, H]`, one variant per head, each with that head alone at 0."""
    gates = np.ones((len(heads), *shape), dtype=np.float32)
    for variant, (layer, head) in enumerate(_inside(heads, shape)):
        gates[variant, layer, head] = 0
    return gates


def _inside(heads: Iterable[Head], shape: tuple[int, int]) -> list[Head]:
    checked = [Head(*h) for h in heads]
    for h in checked:
        if not (0 <= h.layer < shape[0] and 0 <= h.head < shape[1]):
            raise HeadwiseError(f"{h} is outside a model of {shape[0]} layers × {shape[1]} heads")
    return checked


@dataclass(frozen=True)
class Scores:
    """One number per head, with the per-example values behind it.

    For a signed causal method positive means that the head helps: metric with the head minus metric
    without it. `values[L, H]` is the mean of `examples[E, L, H]`, `stderr[L, H]` its standard error; heads
    that the model does not have (layers without attention) are NaN. A method that does not run every example
    brings estimates instead: `examples` is NaN where none was run, and `own` has what the table then shows.
    """

    values: np.ndarray
    stderr: np.ndarray
    examples: np.ndarray
    model: str
    task: str
    method: str
    signed: bool = True
    metric: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else the method has to say: settings, chunk size, completeness gap, rows spent."""
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Columns of the table that the method computes itself, each `[L, H]`: `lo`, `hi`, `n`, `p`."""

    @classmethod
    def from_examples(cls, examples: np.ndarray, **about: Any) -> Scores:
        """Scores whose value is the plain mean of `examples[E, L, H]`."""
        n = len(examples)
        spread = examples.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(examples.shape[1:], np.nan)
        return cls(examples.mean(axis=0), spread, examples, **about)

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def n(self) -> int:
        return len(self.examples)

    def __getitem__(self, head: Head | str) -> float:
        layer, number = Head.parse(head) if isinstance(head, str) else head
        return float(self.values[layer, number])

    def heads(self) -> list[Head]:
        """Every head that has a score, layer by layer."""
        return [Head(int(layer), int(head)) for layer, head in np.argwhere(~np.isnan(self.values))]

    def order(self, by: str = "signed") -> Order:
        """All heads, most important first. `by`: `signed` (helps most first), `absolute`, `hinders`.

        Equal scores keep the order of layer and head, so an order is the same on every machine.
        """
        keys = {"signed": self.values, "absolute": np.abs(self.values), "hinders": -self.values}
        if by not in keys:
            raise HeadwiseError(f"an order is by 'signed', 'absolute' or 'hinders', not by {by!r}")
        heads = self.heads()
        return [heads[i] for i in np.argsort([-keys[by][h] for h in heads], kind="stable")]

    def top(self, k: int, by: str = "signed") -> Order:
        """The first k heads of the order."""
        return self.order(by)[:k]

    def table(self, seed: int = 0) -> pd.DataFrame:
        """The contract's score table: one row per head, with interval, p-value and q-value."""
        from headwise import stats

        heads = self.heads()
        n: Any = self.n
        if self.own:
            lo, hi, n, p = (np.array([self.own[name][h] for h in heads]) for name in ("lo", "hi", "n", "p"))
        else:
            columns = np.stack([self.examples[:, h.layer, h.head] for h in heads], axis=1)  # E, heads
            lo, hi = stats.bootstrap_mean(columns, seed=seed)
            # An unsigned score cannot be centred on zero, so asking whether its mean is zero has no meaning.
            p = stats.sign_flip(columns, seed=seed) if self.signed else np.full(len(heads), np.nan)
        q = stats.benjamini_hochberg(p) if self.signed else p
        return pd.DataFrame(
            {
                "model": self.model,
                "task": self.task,
                "method": self.method,
                "layer": [h.layer for h in heads],
                "head": [h.head for h in heads],
                "score": [self.values[h] for h in heads],
                "stderr": [self.stderr[h] for h in heads],
                "lo": lo,
                "hi": hi,
                "n": n,
                "p": p,
                "q": q,
                "metric": self.metric,
                "signed": self.signed,
            }
        )

    def save(self, path: str | Path) -> None:
        """Write to one `.npz` file (plain arrays and a JSON string; no pickle)."""
        about = {k: getattr(self, k) for k in ("model", "task", "method", "signed", "metric")}
        about["details"] = dict(self.details)
        arrays: dict[str, Any] = {f"own_{name}": column for name, column in self.own.items()}
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file,
                values=self.values,
                stderr=self.stderr,
                examples=self.examples,
                about=np.array(json.dumps(about)),
                **arrays,
            )

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                own = {n.removeprefix("own_"): file[n] for n in file.files if n.startswith("own_")}
                return cls(file["values"], file["stderr"], file["examples"], **about, own=own)
        except FileNotFoundError:
            raise HeadwiseError(f"no scores at {path}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HeadwiseError(f"{path} is not a file written by Scores.save: {error}") from None

    def plot(self, **options: Any) -> Any:
        """Draw the layer × head map; returns the matplotlib figure."""
        from headwise.figures.heatmap import score_map

        return score_map(self.table(), signed=self.signed, **options)

    def __repr__(self) -> str:
        layers, heads = self.shape
        first = ", ".join(f"{h} {self[h]:+.3g}" for h in self.top(3, "absolute"))
        return f"Scores({self.method} on {self.task}, {self.model}: {layers} × {heads}, n = {self.n}; largest: {first})"

    def _repr_png_(self) -> bytes:
        """In a notebook, the map."""
        from headwise.figures.style import png

        return png(self.plot())


def save_order(order: Sequence[Head], path: str | Path) -> None:
    """Write an order as a heads file: a JSON list of "L12H3"."""
    Path(path).write_text(json.dumps([str(Head(*h)) for h in order], indent=0) + "\n", encoding="utf-8")


def load_order(path: str | Path) -> Order:
    """Read a heads file: a JSON list of "L12H3"."""
    try:
        listed = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeadwiseError(f"no heads file at {path}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HeadwiseError(
            f'{path} is not JSON ({error}); a heads file is a list such as ["L12H3"]'
        ) from None
    if not isinstance(listed, list):
        raise HeadwiseError(
            f'{path} holds a {type(listed).__name__}; a heads file is a list such as ["L12H3"]'
        )
    return [Head.parse(item) for item in listed]
