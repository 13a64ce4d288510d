"""From the tables of the study `circuits` to orders and curves. Tables in, tables out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.heatmap import grid
from headwise.heads import Scores, heads_of
from headwise.heads.components import kinds_of
from headwise.model.attention.attention import Attention
from headwise.studies.tables import fingerprint
from headwise.sweeps.ratio import curve_values


def scores_of(rows: pd.DataFrame) -> Scores:
    """The scores of one map from their rows: enough to rank heads by, without the examples behind them."""
    values, first = grid(rows), rows.iloc[0]
    about: dict[str, Any] = {name: str(first[name]) for name in ("model", "task", "method", "metric")}
    about["components"] = kinds_of(heads_of(rows))
    return Scores(values, grid(rows, "stderr"), values[None], signed=bool(first["signed"]), **about)


def curve_fingerprint(examples: pd.DataFrame) -> str:
    """A hash of every value behind a curve."""
    return fingerprint(*curve_values(examples))


def attention_rows(attention: Attention, about: dict[str, Any]) -> pd.DataFrame:
    """The maps of chosen heads as rows, each query with itself and the tokens before it."""
    assert attention.maps is not None, "whole maps are what this table holds"
    query, key = np.tril_indices(len(attention.tokens))
    tokens = [attention.tokens[position] for position in key]
    columns = {"query": query.astype(np.int32), "key": key.astype(np.int32), "token": tokens}
    frames = [
        pd.DataFrame(
            {**about, "rank": rank, "layer": head.layer, "head": head.head, **columns}
            | {"attention": attention.maps[rank, query, key].astype(np.float64)}
        )
        for rank, head in enumerate(attention.heads)
    ]
    return pd.concat(frames, ignore_index=True)
