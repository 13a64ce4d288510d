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
Receivers = Annotated[
    list[Annotated[str, Field(max_length=32)]],
    Field(
        min_length=1,
        max_length=64,
        description='a list of what reads: "L23H3" (its Q, and the K and V of its key/value head), "L23H3.Q", '
        '"L23KV1.K", "MLP4", "logits"',
    ),
]
Examples = Annotated[int, Field(ge=4, le=MOST_EXAMPLES)]
Top = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Half = Literal["find", "test", "all"]
Reference = Annotated[
    Literal["zero", "mean", "position_mean", "resample", "patch"]
    | Annotated[str, Field(pattern=r"^window(:\d{1,9}){0,2}$")],
    Field(
        description="what replaces a removed head: its mean output, zero, its mean at the same position, another "
        "example's output (resample), its output on the counterfactual prompt (patch: counterfactual patching), or "
        "the same head with a short view (window:64:4)"
    ),
]
Method = Literal["attribution", "ablation", "integrated", "random"]
EdgeMethod = Literal["exact", "attribution", "integrated"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Number = float | None
"""None where a number is not finite."""
Row = dict[str, str | int | float | bool | None]


class Answer(BaseModel):
    """`notices`: read them before you use the numbers."""

    notices: list[str] = []


class Models(Answer):
    """What this server may use."""

    models: list[Row]
    tasks: dict[str, str]
    runs: list[str]


class Shown(BaseModel):
    prompt: str
    target: str
    foils: list[str]
    counterfactual: str | None


class Preview(Answer):
    """Examples of a task, and how often the model prefers the target to the foils."""

    task: str
    metric: str
    accuracy: Number
    accuracy_lo: Number
    accuracy_hi: Number
    n: int
    examples: list[Shown]


class About(Answer):
    """What the numbers are of: `n` examples of `half`."""

    model: str
    task: str
    half: Half
    n: int
    seed: int
    metric: str
    reference: str


class Scored(About):
    """The largest scores in absolute value, with 95 % intervals; q is corrected over all `of`, and `significant` of
    them have q < .05."""

    method: str
    of: int
    significant: int
    rows: list[Row]


class Card(About):
    """One head: what it does in words, and tables; numbers that are not finite are null."""

    words: list[str]
    tables: dict[str, list[Row]]


class Measured(About):
    """A metric with heads removed or only these kept: `full` is its mean with all heads, `mean` that with the change,
    `effect` what is lost, full − mean, paired, with a 95 % interval. `controls`: the same of random heads of the same
    layers; `as_good`: in how many of them at least as much is lost (`ablate`) or kept (`keep`)."""

    ablate: list[str] | None
    keep: list[str] | None

    full: Number
    mean: Number
    effect: Number
    effect_lo: Number
    effect_hi: Number
    p: Number
    controls: list[Number]
    as_good: int | None


class Texts(Answer):
    """The greedy continuation of every prompt."""

    texts: list[str]


class Verdict(About):
    """Is the set of heads a circuit? Every check with its number, interval, threshold and state."""

    verdict: str
    sentence: str
    checks: list[Row]


class Run(Answer):
    """A finished run, read from its folder."""

    name: str
    study: str
    status: str
    findings: list[str]
    tables: list[str]
    rows: list[Row]


def number(value: Any) -> Number:
    return float(value) if value is not None and math.isfinite(value) else None


def rows(frame: Any, most: int = MOST_ROWS) -> list[Row]:
    """The first rows of a table."""

    def plain(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float):
            return number(value)
        return value if isinstance(value, str | int | bool) or value is None else str(value)

    return [
        {name: plain(value) for name, value in row.items()} for row in frame.head(most).to_dict("records")
    ]


def largest(table: Any, of: list[str], most: int) -> dict[str, Any]:
    """What `Scored` has of a table of scores; of: the columns that say what a row is the score of."""
    from headwise.tables.frames import by_size

    shown = by_size(table)[[*of, "score", "lo", "hi", "q"]]
    return {
        "of": len(table),
        "significant": int((table["q"] < 0.05).sum()),
        "rows": rows(shown, most),
    }


def card_tables(tables: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The rows of a card that say where the head looks and what it writes; an attention map alone has thousands.

    Of the attention, the eight tokens that the last query (which predicts the answer) attends to most; of the tokens,
    the first three of every list, and every answer.
    """
    kept = {name: table for name, table in tables.items() if len(table)}
    if (seen := kept.get("attention")) is not None:
        last = seen[seen["query"] == seen.groupby("example")["query"].transform("max")]
        most = last.sort_values("attention", ascending=False, kind="stable").groupby("example", sort=False)
        kept["attention"] = most.head(8).sort_values("example", kind="stable")
    if (tokens := kept.get("tokens")) is not None:
        listed = tokens["kind"].isin(("promoted", "suppressed"))
        place = tokens["rank"].where(tokens["kind"] != "suppressed", tokens["of"] + 1 - tokens["rank"])
        kept["tokens"] = tokens[(listed & (place <= 3)) | tokens["kind"].isin(("target", "foil"))]
    every = ("model", "task", "layer", "head", "metric", "reference")  # fields of the answer
    return {name: rows(table.drop(columns=[c for c in every if c in table])) for name, table in kept.items()}
