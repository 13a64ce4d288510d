"""What the card of a head shows, from its tables: sentences, the attention of the answer's position, and the figure."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.charts.attention import attention_chart
from headwise.charts.chart import Axis, Bars, Chart, Panel, Rule, names_axis
from headwise.charts.heatmap import HELPS, HINDERS, UNSIGNED
from headwise.charts.words import minus
from headwise.tables.frames import attention_grid, groups

PATTERNS = {
    "previous": "previous token",
    "duplicate": "duplicate token",
    "induction": "induction",
    "retrieval": "retrieval of the answer",
    "first": "first token",
}
"""Names of the attention patterns for readers."""
_LISTED = 10


def signed_number(value: float) -> str:
    """A signed number with a true minus sign."""
    return minus(f"{value:+.2f}")


def strongest(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The tokens of one kind (promoted, suppressed, target, foil), the strongest first."""
    return (
        rows[rows["kind"] == kind].sort_values("rank", ascending=kind != "suppressed") if len(rows) else rows
    )


def by_source(tokens: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Token lists of the OV weights, by the token that is attended to."""
    if not len(tokens):
        return []
    return groups(tokens[(tokens["path"] == "weights") & (tokens["kind"] != "own")], "source")


def sentences(tokens: pd.DataFrame, patterns: pd.DataFrame) -> list[str]:
    """What one head does, in words: towards the answers, by its OV weights, and its attention pattern."""
    lines = []
    if len(tokens):
        lines += _answers(tokens[tokens["path"] == "output"])
        lines += _own_tokens(tokens[(tokens["path"] == "weights") & (tokens["kind"] == "own")])
    if len(patterns):
        best = patterns.sort_values("rank", kind="stable").iloc[0]
        name = PATTERNS.get(best["pattern"], best["pattern"])
        place = f"{name}, {best['rank']} of {best['heads']} heads, {best['attention']:.0%} of its attention"
        high = best["rank"] <= best["heads"] / 10
        start = (
            "Attention pattern" if high else "Not in the top tenth of any attention pattern; its best rank"
        )
        lines.append(f"{start}: {place} (prompts: {best['prompts']}).")
    return lines


def _answers(output: pd.DataFrame) -> list[str]:
    """Mean logit that the head adds to target and foils, and how often these are in its lists."""
    lines = []
    for kind, name in (("target", "right answer"), ("foil", "wrong answer")):
        rows = output[output["kind"] == kind]
        if not len(rows):
            continue
        lists = {"promoted": rows["rank"] <= _LISTED, "suppressed": rows["rank"] > rows["of"] - _LISTED}
        most = max(lists, key=lambda which: lists[which].sum())
        count = int(lists[most].groupby(rows["example"]).any().sum())
        n = rows["example"].nunique()
        among = f"; it is among the ten most {most} tokens in {count} of {n} examples" if count else ""
        lines.append(
            f"Logit of the {name}: {signed_number(rows['logit'].mean())} from this head (mean of {n} examples){among}."
        )
    return lines


def _own_tokens(tokens: pd.DataFrame) -> list[str]:
    """Whether the OV weights copy or suppress a token that is attended to."""
    if not len(tokens):
        return []
    up, down = int((tokens["rank"] <= _LISTED).sum()), int((tokens["rank"] > tokens["of"] - _LISTED).sum())
    return [
        f"OV weights alone: attending to a token puts the token itself among the ten most suppressed for {down} of "
        f"{len(tokens)} tokens of the prompts, among the ten most promoted for {up} (mean own logit "
        f"{signed_number(tokens['logit'].mean())})."
    ]


def answer_row(attention: pd.DataFrame) -> pd.DataFrame:
    """The attention of the position that predicts the answer, in one example: a row per token of the prompt."""
    return attention[attention["query"] == attention["query"].max()].sort_values("key")


def attention_map(attention: pd.DataFrame) -> np.ndarray | None:
    """The whole map `[queries, keys]` of one example; None where only the answer's row was kept."""
    length = int(attention["key"].max()) + 1
    if attention["query"].nunique() < length:
        return None
    return np.nan_to_num(attention_grid(attention))


def card_chart(title: str, attention: pd.DataFrame, tokens: pd.DataFrame, patterns: pd.DataFrame) -> Chart:
    """One head on its strongest example: attention, tokens up and down; and its rank in the known patterns."""
    panels: list[Panel] = []
    if len(attention):
        example = attention["example"].iloc[0]
        panels.append(_attention_panel(attention[attention["example"] == example]))
        listed = tokens[tokens["example"] == example] if len(tokens) else tokens
        panels += [_token_panel(listed)] if len(listed) else []
    panels += [_pattern_panel(patterns)] if len(patterns) else []
    return Chart(title=title, panels=panels, columns=3, size=(6.0 * len(panels), 5.4))


def _attention_panel(attention: pd.DataFrame) -> Panel:
    last, weights = answer_row(attention), attention_map(attention)
    if weights is not None:
        (panel,) = attention_chart(
            weights, last["token"].tolist(), title="Attention, strongest example"
        ).panels
        assert panel is not None
        return panel
    most = last.nlargest(20, "attention")
    names = [f"{key} {token!r}" for key, token in zip(most["key"], most["token"], strict=True)]
    bars = Bars(at=np.arange(len(most)), values=most["attention"], colours=UNSIGNED, horizontal=True)
    x = Axis(label="Attention of the answer's position")
    return Panel(title="Attention, strongest example", marks=[bars], x=x, y=names_axis(names, down=True))


def _token_panel(rows: pd.DataFrame) -> Panel:
    up = rows[rows["kind"] == "promoted"].sort_values("rank")
    down = rows[rows["kind"] == "suppressed"].sort_values("rank")
    both = pd.concat([up, down])
    colours = [HELPS] * len(up) + [HINDERS] * len(down)
    bars = Bars(at=np.arange(len(both)), values=both["logit"], colours=colours, horizontal=True)
    x = Axis(label="Logit added at the answer")
    y = names_axis([repr(token) for token in both["token"]], down=True)
    return Panel(title="Most promoted and suppressed tokens", marks=[bars, Rule(at=0, of="x")], x=x, y=y)


def _pattern_panel(patterns: pd.DataFrame) -> Panel:
    names = [
        f"{PATTERNS.get(row['pattern'], row['pattern'])}\n{row['prompts']}, rank {row['rank']} of {row['heads']}"
        for row in patterns.to_dict("records")
    ]
    bars = Bars(at=np.arange(len(names)), values=patterns["attention"], colours=UNSIGNED, horizontal=True)
    x = Axis(label="Share of attention", limits=(0, 1))
    return Panel(title="Known attention patterns", marks=[bars], x=x, y=names_axis(names, down=True))
