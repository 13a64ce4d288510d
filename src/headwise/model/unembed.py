"""Logits at chosen positions only, so that memory does not grow with vocabulary × sequence length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def narrowed(model: nn.Module, positions: Tensor) -> Iterator[list[bool]]:
    """While this holds, the output embedding reads only `positions[B, P]` of its input `[B, T, width]`."""
    done: list[bool] = []

    def pick(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hidden = args[0]
        if hidden.dim() != 3 or hidden.shape[0] != positions.shape[0]:
            return None
        done.append(True)
        where = positions.to(hidden.device)[:, :, None].expand(-1, -1, hidden.shape[-1])
        return (hidden.gather(1, where), *args[1:])

    unembedding = model.get_output_embeddings()  # type: ignore[operator]
    if unembedding is None:
        yield done
        return
    handle = unembedding.register_forward_pre_hook(pick)
    try:
        yield done
    finally:
        handle.remove()


def logits_at(model: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    """Next-token logits `[B, P, vocabulary]` after the tokens at `positions[B, P]`; half precision is widened.

    Where a family has no output embedding to narrow, all logits are computed and the positions picked after.
    """
    with narrowed(model, positions) as done:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    if not done:
        where = positions.to(logits.device)[:, :, None].expand(-1, -1, logits.shape[-1])
        logits = logits.gather(1, where)
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
