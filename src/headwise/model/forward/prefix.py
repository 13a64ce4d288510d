"""Run the decoder from the middle: the blocks before the first changed layer are not computed again.

No family needs to be known for it. The model's own forward pass runs as always (embeddings, masks, rotary
tables); the blocks before the entry return at once, and the last of them hands out the stored residual
stream. Whether that is exact for a model is not assumed: `shortcuts.py` compares, and a family with side
channels between blocks simply runs in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def recorded_streams(blocks: Sequence[nn.Module], streams: dict[int, Tensor]) -> Iterator[None]:
    """While this holds, `streams[k]` receives what block k reads."""
    with ExitStack() as undo:
        for index, block in enumerate(blocks):

            def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int = index) -> None:
                streams[index] = args[0] if args else kwargs["hidden_states"]

            undo.callback(block.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield


@contextmanager
def entered_at(blocks: Sequence[nn.Module], entry: int, stream: Tensor, as_tuple: bool) -> Iterator[None]:
    """While this holds, the blocks before `entry` do nothing and block `entry` reads `stream`."""
    result = (stream,) if as_tuple else stream
    with ExitStack() as undo:
        for block in blocks[:entry]:
            # An instance attribute shadows the method; a wrapper set by others (accelerate) is put back.
            before = block.__dict__.get("forward")
            block.forward = lambda *args, **kwargs: result
            undo.callback(_restore, block, before)
        yield


@contextmanager
def shared_rows(
    blocks: Sequence[nn.Module], rows: int, shared: Mapping[int, tuple[Tensor, Tensor]]
) -> Iterator[None]:
    """While this holds, block k computes only some of its batch's `rows`, and the others get what their like got.

    `shared[k]` are the rows to compute `[r]`, and for every row which of these it equals `[rows]`. The caller knows
    which rows are alike: those that have met the same tokens and the same gates so far.
    """
    with ExitStack() as undo:
        for index, (chosen, like) in shared.items():
            block = blocks[index]
            before = block.__dict__.get("forward")
            block.forward = _sharing(block.forward, rows, chosen, like)
            undo.callback(_restore, block, before)
        yield


def _sharing(forward: Any, rows: int, chosen: Tensor, like: Tensor) -> Any:
    def picked(given: Any) -> Any:
        if isinstance(given, Tensor):
            has_rows = (
                given.dim() > 1 and given.shape[0] == rows
            )  # masks and positions may have one row for all
            return given.index_select(0, chosen.to(given.device)) if has_rows else given
        return type(given)(map(picked, given)) if type(given) in (tuple, list) else given

    def run(*args: Any, **kwargs: Any) -> Any:
        found = forward(*map(picked, args), **{name: picked(value) for name, value in kwargs.items()})
        if isinstance(found, Tensor):
            return found.index_select(0, like.to(found.device))
        return type(found)([found[0].index_select(0, like.to(found[0].device)), *found[1:]])

    return run


def _restore(block: nn.Module, before: Any) -> None:
    if before is None:
        del block.forward
    else:
        block.forward = before


@contextmanager
def observed_outputs(blocks: Sequence[nn.Module], kinds: list[type]) -> Iterator[None]:
    """While this holds, `kinds` collects the type of what each block returns."""
    with ExitStack() as undo:
        for block in blocks:
            hook = block.register_forward_hook(lambda _, __, output: kinds.append(type(output)))
            undo.callback(hook.remove)
        yield


@contextmanager
def left_after(blocks: Sequence[nn.Module], last: int, as_tuple: bool) -> Iterator[None]:
    """While this holds, the blocks after `last` hand on what they read: for passes whose logits nobody reads."""

    def hand_on(*args: Any, **kwargs: Any) -> Any:
        stream = args[0] if args else kwargs["hidden_states"]
        return (stream,) if as_tuple else stream

    with ExitStack() as undo:
        for block in blocks[last + 1 :]:
            before = block.__dict__.get("forward")
            block.forward = hand_on
            undo.callback(_restore, block, before)
        yield
