"""Gates over heads: numbers that remove, leave or amplify each head's output.

`of` says which heads there are: the shape (layers, heads), or a `Layout` where there are other components as well.
L layers, H heads (and two columns more with other components), V variants (one array of gates each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, first_line, quoted
from headwise.heads.components import Layout
from headwise.heads.head import Head, head_list


def gate_numbers(values: Any, what: str) -> np.ndarray:
    """Gates, or other numbers of a caller, as an array of float64; nothing is converted silently.

    Text, complex numbers, lists of unequal length and numbers that float32 cannot hold are refused.
    """
    try:
        if hasattr(values, "detach"):  # a tensor; numpy has no bfloat16
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"an array of {array.dtype}")
        array = array.astype(np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise HeadwiseError(
            f"{what} must be an array of numbers; {quoted(values)} is not ({first_line(error)})"
        ) from None
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise HeadwiseError(f"{what} must be an array of numbers; this one has masked entries")
    with np.errstate(over="ignore"):
        if not np.isfinite(array.astype(np.float32)).all():
            raise HeadwiseError(
                f"{what} must be finite numbers that float32 can hold; 0 removes a head, 1 leaves it, above 1 "
                "amplifies it"
            )
    return array


Shape = tuple[int, int] | Layout


def ones(of: Shape) -> np.ndarray:
    """Gates `[L, H]` that leave every head as it is."""
    return np.ones(_shape(of), dtype=np.float32)


def mask_gates(heads: Iterable[Head], of: Shape, gate: float = 0.0) -> np.ndarray:
    """Gates `[L, H]` with the given heads at `gate` and all others at 1."""
    gates = ones(of)
    for head in _inside(heads, of):
        gates[head.cell] = gate
    return gates


def keep_gates(heads: Iterable[Head], of: Shape) -> np.ndarray:
    """Gates `[L, H]` with the given heads at 1 and all others at 0."""
    return 1 - mask_gates(heads, of)


def lone_gates(heads: Sequence[Head], of: Shape) -> np.ndarray:
    """Gates `[V, L, H]`, one variant per head, each with that head alone at 1."""
    return 1 - single_gates(heads, of)


def single_gates(heads: Sequence[Head], of: Shape) -> np.ndarray:
    """Gates `[V, L, H]`, one variant per head, each with that head alone at 0."""
    chosen = _inside(heads, of)
    gates = np.ones((len(chosen), *_shape(of)), dtype=np.float32)
    for variant, head in zip(gates, chosen, strict=True):
        variant[head.cell] = 0
    return gates


def _shape(of: Shape) -> tuple[int, int]:
    return of.shape if isinstance(of, Layout) else of


def _inside(heads: Iterable[Head], of: Shape) -> list[Head]:
    checked = head_list(heads)
    if isinstance(of, Layout):
        of.check(checked, "the model")
        return checked
    for head in checked:
        if not (0 <= head.layer < of[0] and 0 <= head.head < of[1]):
            raise HeadwiseError(f"{head} is outside a model of {of[0]} layers × {of[1]} heads")
    return checked


def chosen_gates(
    shape: tuple[int, int], gates: Any = None, ablate: Any = None, keep: Any = None
) -> np.ndarray:
    """The gates that a call asks for: an array, or heads to ablate, or heads to keep; all 1 by default.

    >>> chosen_gates((2, 2), ablate=["L1H0"]).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    given = {"gates": gates, "ablate": ablate, "keep": keep}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise HeadwiseError(
            f"{' and '.join(names)} are given together; give one of gates (an array), ablate (heads to remove) and "
            "keep (the only heads to leave)"
        )
    if isinstance(gates, str) or (isinstance(gates, list | tuple) and any(isinstance(g, str) for g in gates)):
        raise HeadwiseError(
            f"gates is {quoted(gates)}; gates are an array of numbers [{shape[0]}, {shape[1]}]. To remove heads, give "
            "ablate=['L0H1']; to leave only these heads, give keep=['L0H1']"
        )
    if ablate is not None:
        return mask_gates(ablate, shape)
    if keep is not None:
        return keep_gates(keep, shape)
    return ones(shape) if gates is None else gate_numbers(gates, "gates")
