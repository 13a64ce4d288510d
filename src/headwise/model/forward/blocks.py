"""Row sharing: a decoder block computes rows of a batch that are still equal once.

No family needs to be known: the model's own forward pass runs as always (embeddings, masks, rotary tables). Whether
sharing is exact for a model is not assumed: `verify/shortcuts.py` compares, and a family whose blocks exchange more
than the residual stream computes every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch import Tensor, nn

from headwise.model.sites.patch import edit_first, hooked, replaced


class SharedRows(NamedTuple):
    """Rows of a batch that are equal so far, so that a block computes one of each group."""

    compute: Tensor  # r: the rows to compute
    group: Tensor  # B: which of these every row equals


def shared(batch: int, groups: Mapping[nn.Module, SharedRows]) -> AbstractContextManager[None]:
    """While this holds, each of these modules computes only `compute` of the `batch` rows."""
    return replaced(groups, lambda module: _shared_forward(module.forward, batch, groups[module]))


def _shared_forward(forward: Callable[..., Any], batch: int, rows: SharedRows) -> Callable[..., Any]:
    def pick(value: Any) -> Any:
        if isinstance(value, Tensor):
            # Masks and positions may have one row for all.
            return value.index_select(0, rows.compute.to(value.device)) if _has_rows(value, batch) else value
        return type(value)(map(pick, value)) if type(value) in (tuple, list) else value

    def spread(output: Tensor) -> Tensor:
        return output.index_select(0, rows.group.to(output.device))

    def run(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor) and not _has_rows(args[0], batch):
            # OPT puts the tokens of all rows one behind the other: all are computed.
            return forward(*args, **kwargs)
        output = forward(*map(pick, args), **{name: pick(value) for name, value in kwargs.items()})
        return edit_first(output, spread)

    return run


def _has_rows(value: Tensor, batch: int) -> bool:
    return value.dim() > 1 and value.shape[0] == batch


def stream_edited(block: nn.Module, edit: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """While this holds, a block reads `edit(stream)`."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = edit(read(args, kwargs))
        return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

    return hooked([block], before=before)


def skipped(blocks: Sequence[nn.Module], last: int, stream: Tensor) -> AbstractContextManager[None]:
    """While this holds, block `last` and those before it compute nothing: the model goes on with `stream`."""
    return replaced(blocks[: last + 1], lambda _: lambda *args, **kwargs: stream)


def recorded(blocks: Sequence[nn.Module], streams: dict[int, Tensor]) -> AbstractContextManager[None]:
    """While this holds, `streams` receives the residual stream after each block, by the number of the block."""
    number = {block: index for index, block in enumerate(blocks)}

    def note(block: nn.Module, _: tuple[Any, ...], __: dict[str, Any], output: Any) -> None:
        if isinstance(output, Tensor):
            streams[number[block]] = output

    return hooked(blocks, after=note)


def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The residual stream that a block is called with."""
    stream: Tensor = args[0] if args else kwargs["hidden_states"]
    return stream
