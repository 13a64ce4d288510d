"""The table behind a score. Scores in, tables out."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headwise.heads import Scores


def example_table(scores: Scores) -> pd.DataFrame:
    """The per-example values behind a score: one row per example and head."""
    heads = scores.heads()
    values = np.stack([scores.examples[:, h.layer, h.head] for h in heads], axis=1)  # E, heads
    table = pd.DataFrame(
        {
            "model": scores.model,
            "task": scores.task,
            "method": scores.method,
            "metric": scores.metric,
            "example": np.repeat(np.arange(scores.n, dtype=np.int32), len(heads)),
            "layer": np.tile(np.array([h.layer for h in heads], dtype=np.int32), scores.n),
            "head": np.tile(np.array([h.head for h in heads], dtype=np.int32), scores.n),
            "value": values.ravel(),
        }
    )
    if scores.groups is not None:
        table["group"] = np.repeat(np.array(scores.groups, dtype=object), len(heads))
    # Where a method chose not to run an example there is no row, rather than a value that went missing.
    return table.dropna(subset=["value"]).reset_index(drop=True) if scores.own else table
