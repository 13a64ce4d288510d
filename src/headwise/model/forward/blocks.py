"""Which decoder blocks a pass computes, and for which rows: enter midway, share rows, leave early, record streams.

No family needs to be known. The model's own forward pass runs as always (embeddings, masks, rotary tables); blocks
that are not needed return at once. Whether that is exact for a model is not assumed: `verify/shortcuts.py` compares,
and a family with side channels between blocks runs in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from headwise.model.sites.patch import hooked, replaced


class Entry(NamedTuple):
    """The blocks before `block` are skipped, and it reads `stream`."""

    block: int
    stream: Tensor  # B, T, width


class SharedRows(NamedTuple):
    """Rows of a batch that are equal so far, so that a block computes one of each group."""

    compute: Tensor  # r: the rows to compute
    group: Tensor  # B: which of these every row equals


def entered(blocks: Sequence[nn.Module], entry: Entry, as_tuple: bool) -> AbstractContextManager[None]:
    """While this holds, the blocks before the entry hand out its stream."""
    result = (entry.stream,) if as_tuple else entry.stream
    return replaced(blocks[: entry.block], lambda _: lambda *args, **kwargs: result)


def left_after(blocks: Sequence[nn.Module], last: int, as_tuple: bool) -> AbstractContextManager[None]:
    """While this holds, the blocks after `last` hand on what they read: for passes whose logits nobody reads."""

    def hand_on(*args: Any, **kwargs: Any) -> Any:
        stream = read(args, kwargs)
        return (stream,) if as_tuple else stream

    return replaced(blocks[last + 1 :], lambda _: hand_on)


@contextmanager
def shared(blocks: Sequence[nn.Module], rows: int, groups: Mapping[int, SharedRows]) -> Iterator[None]:
    """While this holds, block k computes only `groups[k].compute` of its batch's `rows`."""
    with ExitStack() as stack:
        for index, group in groups.items():
            make = _sharing(rows, group)
            stack.enter_context(replaced([blocks[index]], make))
        yield


def _sharing(rows: int, group: SharedRows) -> Callable[[nn.Module], Callable[..., Any]]:
    def picked(given: Any) -> Any:
        if isinstance(given, Tensor):
            # Masks and positions may have one row for all.
            has_rows = given.dim() > 1 and given.shape[0] == rows
            return given.index_select(0, group.compute.to(given.device)) if has_rows else given
        return type(given)(map(picked, given)) if type(given) in (tuple, list) else given

    def spread(found: Tensor) -> Tensor:
        return found.index_select(0, group.group.to(found.device))

    def make(block: nn.Module) -> Callable[..., Any]:
        own = block.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            found = own(*map(picked, args), **{name: picked(value) for name, value in kwargs.items()})
            if isinstance(found, Tensor):
                return spread(found)
            return type(found)([spread(found[0]), *found[1:]])

        return run

    return make


@contextmanager
def recorded(blocks: Sequence[nn.Module], streams: dict[int, Tensor]) -> Iterator[None]:
    """While this holds, `streams[k]` receives what block k reads."""
    with ExitStack() as stack:
        for index, block in enumerate(blocks):

            def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int = index) -> None:
                streams[index] = read(args, kwargs)

            stack.enter_context(hooked([block], before=note))
        yield


def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The residual stream that a block is called with."""
    stream: Tensor = args[0] if args else kwargs["hidden_states"]
    return stream
