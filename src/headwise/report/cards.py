"""The head pages: what the tables `card_…` of a run say of single heads, as data for the page's script."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.charts.card import PATTERNS, answer_row, attention_map, by_source, sentences, strongest
from headwise.charts.interactive import json_numbers
from headwise.tables.frames import Tables, groups, rows_where, table_of

MOST = 60
"""Most head pages of one run; the run's tables have all of them."""
_KEYS = ["model", "task", "layer", "head"]


def head_pages(tables: Tables) -> list[dict[str, Any]]:
    """One entry per model, task and head; none for a run without cards."""
    examples, attention, tokens, patterns = (
        dict(groups(table_of(tables, f"card_{name}"), *_KEYS))
        for name in ("examples", "attention", "tokens", "patterns")
    )
    empty = pd.DataFrame()
    pages = []
    for key in list(dict.fromkeys([*examples, *attention, *tokens, *patterns]))[:MOST]:
        of_tokens, of_patterns = tokens.get(key, empty), patterns.get(key, empty)
        pages.append(
            {
                "model": str(key[0]),
                "task": str(key[1]),
                "name": f"L{key[2]}H{key[3]}",
                "sentences": sentences(of_tokens, of_patterns),
                "attention": _attention(attention.get(key, empty), of_tokens),
                "weights": [{"source": str(s), **_lists(part)} for s, part in by_source(of_tokens)],
                "patterns": [_pattern(row) for row in of_patterns.to_dict("records")],
                "examples": [_example(row) for row in examples.get(key, empty).to_dict("records")],
            }
        )
    return pages


def _attention(attention: pd.DataFrame, tokens: pd.DataFrame) -> list[dict[str, Any]]:
    """Each of the strongest examples: tokens, the answer's row, the whole map where it was kept, token lists."""
    shown = []
    for example, rows in groups(attention, "example"):
        last, weights = answer_row(rows), attention_map(rows)
        shown.append(
            {
                "example": int(example) + 1,
                "tokens": last["token"].astype(str).tolist(),
                "row": json_numbers(last["attention"], 3),
                "map": None if weights is None else [json_numbers(row, 3) for row in weights],
                **_lists(rows_where(tokens, example=example)),
            }
        )
    return shown


def _lists(rows: pd.DataFrame) -> dict[str, Any]:
    """Promoted and suppressed tokens with their logits, the strongest first; and those of the answers."""
    return {
        kind: [[str(row["token"]), float(row["logit"])] for row in strongest(rows, kind).to_dict("records")]
        for kind in ("promoted", "suppressed", "target", "foil")
    }


def _pattern(row: dict[str, Any]) -> dict[str, Any]:
    name = PATTERNS.get(row["pattern"], str(row["pattern"]))
    numbers = {"rank": int(row["rank"]), "heads": int(row["heads"]), "attention": float(row["attention"])}
    return {"pattern": name, "prompts": str(row["prompts"]), **numbers}


def _example(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: str(row[name]) for name in ("kind", "prompt", "target", "foils", "metric")}
    return {**texts, "example": int(row["example"]) + 1, "value": float(row["value"])}
