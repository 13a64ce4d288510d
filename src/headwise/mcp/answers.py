"""What the tools take and answer: every size limited, every answer with a schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

MOST_EXAMPLES, MOST_ROWS, MOST_REPORT = 512, 200, 16 << 20
"""Examples of one call, rows of one answer, bytes of a report."""

Text = Annotated[str, Field(max_length=400)]
HeadName = Annotated[str, Field(pattern=r"^L\d{1,4}H\d{1,4}$")]
HeadNames = Annotated[list[HeadName], Field(max_length=1024)]
Examples = Annotated[int, Field(ge=4, le=MOST_EXAMPLES)]
Half = Literal["find", "test", "all"]
_Window = Annotated[str, Field(pattern=r"^window(:\d{1,9}){0,2}$")]
Reference = Literal["zero", "mean", "position_mean", "resample", "patch"] | _Window
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Number = float | None
"""None where a number is not finite."""
Row = dict[str, str | int | float | bool | None]


class ModelEntry(BaseModel):
    name: str
    loaded: bool
    layers: int | None
    heads: int | None


class Models(BaseModel):
    """What this server may use."""

    models: list[ModelEntry]
    tasks: dict[str, str]
    runs: list[str]


class Shown(BaseModel):
    prompt: str
    target: str
    foils: list[str]
    counterfactual: str | None


class Preview(BaseModel):
    """Examples of a task, and how often the model prefers the target to the foils."""

    task: str
    metric: str
    accuracy: Number
    accuracy_lo: Number
    accuracy_hi: Number
    n: int
    examples: list[Shown]


class HeadScore(BaseModel):
    head: str
    score: Number
    lo: Number
    hi: Number
    q: Number


class ScoreResult(BaseModel):
    """The heads with the largest scores in absolute value, with 95 % intervals; q is corrected over all heads."""

    model: str
    task: str
    half: Half
    method: str
    metric: str
    reference: str
    n: int
    of: int
    significant: int
    heads: list[HeadScore]
    notes: list[str] = []


class Table(BaseModel):
    """Rows of a table of headwise; numbers that are not finite are null."""

    title: str
    notes: list[str] = []
    tables: dict[str, list[Row]]


class Measured(BaseModel):
    """A metric with heads removed: `effect` is the mean with all heads minus the mean without, with a 95 % interval.
    `controls`: the effects of as many random heads of the same layers; `larger`: how many of them are as large."""

    task: str
    half: Half
    metric: str
    reference: str
    n: int
    full: Number
    mean: Number
    effect: Number
    effect_lo: Number
    effect_hi: Number
    p: Number
    controls: list[Number]
    larger: int | None


class Texts(BaseModel):
    """The greedy continuation of every prompt."""

    texts: list[str]


class Verdict(BaseModel):
    """Is the set of heads a circuit? Every check with its number, interval, threshold and state."""

    verdict: str
    sentence: str
    n: int
    reference: str
    checks: list[Row]


class Run(BaseModel):
    """A finished run, read from its folder."""

    name: str
    study: str
    status: str
    findings: list[str]
    notices: list[str]
    tables: list[str]
    rows: list[Row]


def number(value: Any) -> Number:
    return float(value) if value is not None and math.isfinite(value) else None


def too_few(task: Any, tests: int, what: str = "head") -> list[str]:
    """What the examples of a call are too few to show, as a note of its answer."""
    from headwise import stats
    from headwise.stats.resampling import independent

    sentence = stats.too_few(independent(task.shared_groups(), len(task)), tests, what)
    return [sentence] if sentence else []


def card_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a card that say where the head looks and what it writes; an attention map alone has thousands.

    Of the attention, the eight tokens that the last query (which predicts the answer) attends to most; of the tokens,
    the first three of every list, and every answer.
    """
    kept = {name: table for name, table in tables.items() if len(table)}
    if (seen := kept.get("attention")) is not None:
        last = seen[seen["query"] == seen.groupby("example")["query"].transform("max")]
        largest = last.sort_values("attention", ascending=False, kind="stable").groupby("example", sort=False)
        kept["attention"] = largest.head(8).sort_values("example", kind="stable")
    if (tokens := kept.get("tokens")) is not None:
        listed = tokens["kind"].isin(("promoted", "suppressed"))
        place = tokens["rank"].where(tokens["kind"] != "suppressed", tokens["of"] + 1 - tokens["rank"])
        kept["tokens"] = tokens[(listed & (place <= 3)) | tokens["kind"].isin(("target", "foil"))]
    every = ("model", "task", "layer", "head", "metric", "reference")  # said in the title
    return {name: table.drop(columns=[c for c in every if c in table]) for name, table in kept.items()}


def rows(frame: Any, most: int = MOST_ROWS) -> list[Row]:
    def plain(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float):
            return number(value)
        return value if isinstance(value, str | int | bool) or value is None else str(value)

    return [
        {name: plain(value) for name, value in row.items()} for row in frame.head(most).to_dict("records")
    ]
