"""Logits at chosen positions only, so that memory does not grow with vocabulary × sequence length.

What the last block does after its attention, its output projection and its feed-forward part, acts position by position
and nothing reads it but the output, so it too is computed at those positions only, where `shortcuts.py` has shown that
this changes no logit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.model.sites.devices import steady_attention


def logits_at(
    model: nn.Module,
    ids: Tensor,
    positions: Tensor,
    tail: Sequence[nn.Module] = (),
    places: Tensor | None = None,
) -> Tensor:
    """Next-token logits `[B, P, vocabulary]` after the tokens at `positions[B, P]`; half precision is widened.

    `tail` are the parts of the last block that may be narrowed. Where a family has no output embedding to narrow,
    all logits are computed and the positions picked after. `places[B, T]` number the tokens otherwise than by
    counting.
    """
    numbered = {} if places is None else {"position_ids": places}
    with ExitStack() as stack:
        done = stack.enter_context(narrowed(model, positions))
        if tail and positions.shape[1] < ids.shape[1]:
            stack.enter_context(_narrowed_tail(tail, positions, ids.shape[1]))
        stack.enter_context(steady_attention())
        logits: Tensor = model(input_ids=ids, use_cache=False, **numbered).logits
    if not done:
        logits = at_positions(logits, positions)
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def at_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """`[B, T, width]` at `positions[B, P]`."""
    return hidden.gather(1, positions.to(hidden.device)[:, :, None].expand(-1, -1, hidden.shape[-1]))


@contextmanager
def narrowed(model: nn.Module, positions: Tensor) -> Iterator[list[bool]]:
    """While this holds, the output embedding reads only `positions[B, P]` of its input `[B, T, width]`."""
    done: list[bool] = []

    def pick(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if args[0].dim() != 3 or args[0].shape[0] != positions.shape[0]:
            return None
        done.append(True)
        return (at_positions(args[0], positions), *args[1:])

    unembedding = model.get_output_embeddings()  # type: ignore[operator]
    if unembedding is None:
        yield done
        return
    handle = unembedding.register_forward_pre_hook(pick)
    try:
        yield done
    finally:
        handle.remove()


@contextmanager
def _narrowed_tail(tail: Sequence[nn.Module], positions: Tensor, tokens: int) -> Iterator[None]:
    """While this holds, the parts of `tail` compute only `positions[B, P]` of `tokens`; everywhere else they give 0,
    which nobody reads."""
    # A short row names its last position several times. Scattering would give the right output and, backwards, the
    # whole slope to each of them; so every token takes its output from one slot, and the others from a slot of 0.
    slots = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    none = positions.new_full((len(positions), tokens), positions.shape[1])
    slot_of = none.scatter_reduce(1, positions, slots, "amin")

    def pick(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (at_positions(args[0], positions), *args[1:])

    def spread(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        zero = output.new_zeros(len(output), 1, output.shape[-1])
        return at_positions(torch.cat([output, zero], 1), slot_of)

    with ExitStack() as undo:
        for part in tail:
            undo.callback(part.register_forward_pre_hook(pick).remove)
            undo.callback(part.register_forward_hook(spread).remove)
        yield
