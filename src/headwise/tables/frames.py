"""Frames: long tables of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd


def long_table(
    columns: Mapping[str, Any], axes: Iterable[Mapping[str, Any]], values: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """One row per entry of arrays of the same shape.

    columns: those of one value each; axes: for each axis of the arrays the columns that label it, integers as int32.
    """
    shape = next(iter(values.values())).shape
    frame = dict(columns)
    for axis, entries in zip(axes, np.indices(shape).reshape(len(shape), -1), strict=True):
        for name, labels in axis.items():
            spread = np.asarray(labels)[entries]
            frame[name] = spread.astype(np.int32) if spread.dtype.kind == "i" else spread
    return pd.DataFrame(frame | {name: array.ravel() for name, array in values.items()})
