"""One forward pass: a `Pass` says what goes in, what is changed on the way and what comes out; `run` carries it out.

What headwise changes in a model while it runs is put in place here, in this order, and taken out again:

1. kernels   attention on a GPU without cuDNN's planning; on a CPU the faster library for products
2. heads     our attention function or a hook on the output projection: `slots` edit queries, keys and values,
             `attention` computes it, `watch` sees each call, `heads` edits z
3. modules   `modules` edit what a module gives out: an MLP, the embeddings, an activation; a block
4. blocks    `streams` edit what a block reads, equal rows are computed once (`shared`, and of any module `parts`),
             blocks up to `resume_from` are skipped, `record_streams` receives what blocks write, the pass ends
             after the block `last`
5. the end   the parts of `narrow` and the unembedding compute `scored` positions only

B rows, T tokens, P scored positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.model.forward.products import FEWEST, faster_products
from headwise.model.sites.attention_function import AttentionHook, HeadHook, SlotHook, Watcher
from headwise.model.sites.head_hooks import HeadHooks
from headwise.model.sites.patch import edit_first, hooked, replaced, without_cudnn_sdpa
from headwise.model.sites.probe import widened

Edit = Callable[[Tensor], Tensor | None]
"""From a tensor to the one that the model goes on with; None leaves it."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward pass of a model. Only `ids` is needed; all else is off by default."""

    ids: Tensor  # B, T
    scored: Tensor | None = None
    """`[B, P]`: positions after which logits are wanted; None for all."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the model: position_ids, attention_mask, past_key_values, use_cache."""
    heads: HeadHook | None = None
    """Edits the head outputs of each layer: gates, or a recorder."""
    watch: Watcher | None = None
    """Sees (layer, call) for every call of the attention function, before `heads`."""
    attention: Callable[[Tensor | None], AttentionHook] | None = None
    """From the mask of all tokens `[B, S]` (None: no padding) to what computes attention in place of the model's own
    function (`HeadGates.attention`)."""
    slots: SlotHook | None = None
    """Edits the query, key and value of each layer."""
    modules: Mapping[nn.Module, Edit] = field(default_factory=dict)
    """Edits what a module gives out: gates on MLPs and embeddings."""
    streams: Mapping[int, Edit] = field(default_factory=dict)
    """Block -> edits the residual stream that it reads."""
    shared: Mapping[int, SharedRows] = field(default_factory=dict)
    """Block -> rows that are equal so far."""
    parts: Mapping[nn.Module, SharedRows] = field(default_factory=dict)
    """The same for any other module, such as an MLP whose output is needed for some rows only."""
    resume_from: tuple[int, Tensor] | None = None
    """A block and the residual stream after it, from a pass that was equal so far: it and all before it are skipped.
    Only for models whose blocks exchange nothing but the stream (`Capabilities.share_rows`)."""
    record_streams: dict[int, Tensor] | None = None
    """Receives the residual stream after every block that is computed and gives out one tensor."""
    last: int | None = None
    """The decoder block after which the pass ends, for one whose logits nobody reads."""
    narrow: Sequence[nn.Module] = ()
    """Parts of the last block that may compute scored positions only (`Capabilities.narrow`)."""
    hidden: bool = False
    """Give out what the unembedding would read at the scored positions, and no logits."""


@dataclass
class Output:
    """What a pass gave."""

    logits: Tensor  # B, P, vocabulary
    """At least in float32; with `hidden` what the unembedding would have read; empty where `last` ended the pass."""
    raw: Any
    """What the model itself returned, with its KV cache; None where `last` ended the pass."""


class _Ended(Exception):  # noqa: N818 - nothing went wrong
    """The pass has computed its last block."""


def run(model: nn.Module, request: Pass, hooks: HeadHooks | None = None) -> Output:
    """Carry out one pass of a transformers model; `hooks` is needed for everything that concerns heads or blocks."""
    narrowed: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(without_cudnn_sdpa())
        if request.ids.numel() >= FEWEST:
            stack.enter_context(faster_products(model))
        if hooks is not None:
            attention = request.attention and request.attention(request.inputs.get("attention_mask"))
            stack.enter_context(hooks.attached(request.heads, request.watch, request.slots, attention))
            of_blocks = {hooks.blocks[index]: rows for index, rows in request.shared.items()}
            stack.enter_context(shared(len(request.ids), {**of_blocks, **request.parts}))
            for index, edit in request.streams.items():
                stack.enter_context(stream_edited(hooks.blocks[index], edit))
            if request.record_streams is not None:
                stack.enter_context(recorded(hooks.blocks, request.record_streams))
            if request.resume_from is not None:
                stack.enter_context(skipped(hooks.blocks, *request.resume_from))
        for module, edit in request.modules.items():
            stack.enter_context(edited(module, edit))
        if hooks is not None and request.last is not None:  # after the edits of what this block gives out
            stack.enter_context(hooked([hooks.blocks[request.last]], after=_end))
        if request.scored is not None:
            # A module that is edited is computed at every position: edits differ by position.
            narrow = [part for part in request.narrow if part not in request.modules]
            if narrow and request.scored.shape[1] < request.ids.shape[1]:
                stack.enter_context(_narrowed_parts(narrow, request.scored, request.ids.shape[1]))
            stack.enter_context(_narrowed_unembedding(model, request.scored, narrowed))
        if request.hidden:
            unembedding = model.get_output_embeddings()  # type: ignore[operator]
            stack.enter_context(replaced([unembedding], lambda _: lambda hidden: hidden))
        try:
            raw = model(input_ids=request.ids, **{"use_cache": False, **request.inputs})
        except _Ended:
            return Output(torch.empty(0), None)
    logits: Tensor = narrowed[-1] if request.hidden else raw.logits
    if request.scored is not None and not narrowed:
        logits = at_positions(logits, request.scored)
    return Output(widened(logits), raw)


def _end(*_: Any) -> None:
    raise _Ended


def edited(module: nn.Module, edit: Edit) -> AbstractContextManager[None]:
    """While this holds, the model goes on with `edit(output)` of a module; of a tuple, the first is edited."""
    return hooked([module], after=lambda _, __, ___, output: edit_first(output, edit))


def at_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """`[B, T, width]` at `positions[B, P]`."""
    return hidden.gather(1, positions.to(hidden.device)[:, :, None].expand(-1, -1, hidden.shape[-1]))


def _narrowed_unembedding(
    model: nn.Module, positions: Tensor, narrowed: list[Tensor]
) -> AbstractContextManager[None]:
    """While this holds, the output embedding reads only `positions[B, P]`; `narrowed` receives what it reads.

    Where a family has no output embedding to narrow, all logits are computed and picked afterwards.
    """

    def pick(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args[0].dim() != 3 or args[0].shape[0] != positions.shape[0]:
            return None
        narrowed.append(at_positions(args[0], positions))
        return (narrowed[-1], *args[1:]), kwargs

    unembedding = model.get_output_embeddings()  # type: ignore[operator]
    return hooked([] if unembedding is None else [unembedding], before=pick)


def _narrowed_parts(
    parts: Sequence[nn.Module], positions: Tensor, tokens: int
) -> AbstractContextManager[None]:
    """While this holds, the parts compute only `positions[B, P]` of `tokens`; everywhere else they give 0, which
    nobody reads."""
    # A short row names its last position several times. Scattering would give the right output and, in the
    # backward pass, the whole gradient to each of them; so every token takes its output from one slot, and the others
    # from a slot of 0.
    slots = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    none = positions.new_full((len(positions), tokens), positions.shape[1])
    slot_of = none.scatter_reduce(1, positions, slots, "amin")

    def pick(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (at_positions(args[0], positions), *args[1:]), kwargs

    def spread(_: nn.Module, __: tuple[Any, ...], ___: dict[str, Any], output: Tensor) -> Tensor:
        zero = output.new_zeros(len(output), 1, output.shape[-1])
        return at_positions(torch.cat([output, zero], 1), slot_of)

    return hooked(parts, before=pick, after=spread)


# ---- decoder blocks: equal rows, edited and recorded streams ---------------------------------------------
# Rows of a batch that are still equal are computed once. No family needs to be known: the model's own forward pass
# runs as always (embeddings, masks, rotary tables). Whether sharing is exact for a model is not assumed:
# `verify/shortcuts.py` compares, and a family whose blocks exchange more than the residual stream computes every row.


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


def stream_edited(block: nn.Module, edit: Edit) -> AbstractContextManager[None]:
    """While this holds, a block reads `edit(stream)`."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = edit(read(args, kwargs))
        return None if stream is None else with_stream(args, kwargs, stream)

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


def with_stream(args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor) -> tuple[Any, dict[str, Any]]:
    """The arguments of a block that reads another stream."""
    return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})
