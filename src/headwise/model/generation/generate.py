"""Generation with ablated heads: every variant of the gates continues every prompt.

A row is a (variant, prompt) pair. Rows of similar length share a left-padded batch with a KV cache; a finished row
leaves the batch, and a prefix that ungated rows share is read once. With all gates at 1 a row is what transformers'
`generate` writes, and a prompt gives the same text alone and in a batch (up to ties within rounding).

V variants, E prompts, B rows of a batch, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise.display import counted, cut_in_the_middle, html_table
from headwise.errors import HeadwiseError, quoted, unknown
from headwise.heads import gate_numbers, ones
from headwise.model.forward.decode import Batch
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.schedule import LOGIT_BUDGET, cut_rows, in_halves
from headwise.model.forward.short_view import ShortView
from headwise.model.generation.prompts import (
    Prompt,
    choose,
    continuation,
    encode_prompts,
    end_tokens,
    uniforms,
)
from headwise.model.generation.streaming import Streaming, streaming_of
from headwise.model.measure.positions import ANSWERED
from headwise.model.measure.references import short_view
from headwise.model.measure.rows import MeasureSettings
from headwise.model.tokens.text import common_prefix
from headwise.names import ablation_name, window_of
from headwise.progress import Progress, reporting
from headwise.settings import several

if TYPE_CHECKING:
    from headwise.model.model import Model
    from headwise.tasks.opening import TaskLike

_MOST_SHOWN = 20
"""Prompts that a notebook shows."""

LEAST_SHARED = 16
"""A shared prefix shorter than this is not worth a pass of its own."""


@dataclass(frozen=True)
class Generated:
    """What every variant wrote after every prompt."""

    texts: list[list[str]]
    """`[V][E]`, without the prompt, without the end token, cut before a stop string."""
    tokens: list[list[list[int]]]
    """`[V][E]` generated token ids, without the end token, with the tokens of a stop string."""
    finished: np.ndarray
    """`[V, E]`: True where an end token or stop string ended the text, False where `max_new_tokens` did."""
    prompts: list[list[int]]
    """`[E]` token ids of the prompts as the model read them."""
    passes: list[int]
    """Rows of each forward pass, in order; their sum is the work done."""
    read: list[str] = field(default_factory=list)
    """`[E]` the prompts as texts, with what the tokenizer or the chat template adds."""
    reference: str = ""
    """The ablation type; empty where every gate is 1."""

    def __repr__(self) -> str:
        counts = f"{counted(len(self.texts), 'variant')} × {counted(len(self.prompts), 'prompt')}"
        first = quoted(self.texts[0][0], 60) if self.texts and self.texts[0] else "none"
        counts += f", {ablation_name(self.reference)}" if self.reference else ""
        return f"Generated({counts}, {int(self.truncated.sum())} cut off; first text: {first})"

    def _repr_html_(self) -> str:
        """In a notebook, the texts of the first prompts under every variant; … marks a text that was cut off."""
        variants = [f"variant {v}" for v in range(len(self.texts))] if len(self.texts) > 1 else ["text"]
        shown = range(min(len(self.prompts), _MOST_SHOWN))
        rows = [
            [cut_in_the_middle(self.read[e]) if self.read else f"prompt {e + 1}"]
            + [
                of_variant[e] + "…" * bool(cut[e])
                for of_variant, cut in zip(self.texts, self.truncated, strict=True)
            ]
            for e in shown
        ]
        of = f" (the first {len(shown)} of {len(self.prompts)} prompts)" * (len(shown) < len(self.prompts))
        return html_table(f"Generated texts{of}", ["prompt", *variants], rows)

    @property
    def truncated(self) -> np.ndarray:
        """`[V, E]`: True where `max_new_tokens` cut the text off."""
        return ~self.finished


def generate(
    model: Model,
    prompts: Prompt | Sequence[Prompt] | TaskLike,
    gates: np.ndarray | None = None,
    *,
    ablate: Any = None,
    keep: Any = None,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    chat: bool = False,
    stop: str | Sequence[str] = (),
    reference: str | None = None,
    streaming: Any = None,
    positions: str = "all",
    reference_prompts: Prompt | Sequence[Prompt] | TaskLike | None = None,
    shifts: np.ndarray | None = None,
    batch_tokens: int | None = None,
    progress: Progress = True,
) -> Generated:
    """Continue each prompt under each variant of the gates.

    prompts: one text, a list of texts, of chats or of token ids, or a task, list or DataFrame of examples.
    gates: `[L, H]` or `[V, L, H]`; by default all 1. 0 removes a head, above 1 amplifies it.
    ablate, keep: remove these heads, such as ["L3H2"], or all but these, in every variant of the gates.
    temperature: 0 is greedy; above it tokens are drawn from the `top_p` nucleus, seeded per prompt, with the
        same random draws for every variant.
    chat: prompts are put into the tokenizer's chat template; a prompt may then be a list of messages. Prompts
        that are in the template already, as those of a task of chats are, stay as they are.
    stop: texts end before any of these.
    reference: `zero`, `mean` over all tokens of `reference_prompts` (by default the prompts themselves), or `window`:
        the head sees the last `window=64` tokens and the first `sink=4`. By default `mean` if `reference_prompts` are
        given, else `zero`.
    streaming: the heads that keep the whole context, as `Model.streaming` takes them, for a KV cache in which all
        others store the last `window=64` tokens and the first `sink=4`. The texts are those of the reference `window`
        with all other key/value heads ablated.
    positions: gates act at `all` positions, or from the `last` prompt token on.
    shifts: `[L, H, D]` or `[V, L, H, D]`, added to the heads' outputs after the gates, where these act.
    batch_tokens: most tokens in one batch; halved when memory runs out.
    progress: False for no progress bar.
    """
    streams = None if streaming is None else _streaming(model, streaming, reference)
    reference = reference or ("zero" if reference_prompts is None else "mean")
    reference = _checked_reference(reference if streams is None else streams.view.name, positions)
    from headwise.tasks.opening import prompts_of

    prompts = prompts_of(prompts, model)
    averaged = prompts if reference_prompts is None else prompts_of(reference_prompts, model)
    stops = _checked_stops(stop)
    # The last token is written, but never read.
    encoded = encode_prompts(model, prompts, chat, room=max_new_tokens - 1)
    budget = batch_tokens or model.batch_tokens
    texts = encoded if averaged is prompts else encode_prompts(model, averaged, chat)
    longest = max(map(len, encoded), default=0) + max_new_tokens - 1
    replaced_by = None if streams else _replaced_by(model, reference, texts, longest, budget)
    draws = [uniforms(seed, e, max_new_tokens) for e in range(len(encoded))]
    checked_gates, checked_shifts = _checked_variants(model, gates, shifts)
    checked_gates = checked_gates * model.gates(ablate=ablate, keep=keep)
    ablates = streams is not None or bool((checked_gates != 1).any())
    if streams and (checked_gates != 1).any():
        raise HeadwiseError("streaming says which heads see less; give it without gates on heads")
    writer = _Writer(
        model=model,
        prompts=encoded,
        gates=checked_gates,
        shifts=checked_shifts,
        reference=replaced_by,
        streams=streams,
        only_answers=positions == "last",
        max_new_tokens=max_new_tokens,
        choose=lambda logits, draws: choose(logits, temperature, top_p, draws),
        draws=np.stack(draws) if temperature else None,
        stops=stops,
        batch_tokens=budget,
    )
    with reporting("generating", len(checked_gates) * len(encoded), progress) as writer.advance:
        return replace(writer.run(), reference=reference if ablates else "")


# ---- the loop ---------------------------------------------------------------------------------------------

_Pair = tuple[int, int]
"""(variant, prompt)."""


@dataclass
class _Writer:
    """One call of `generate`: its settings, and what has been written so far."""

    model: Model
    prompts: list[list[int]]
    gates: np.ndarray  # V, L, H
    shifts: np.ndarray | None  # V, L, H, D
    reference: dict[Any, Tensor] | ShortView | None
    streams: Streaming | None
    only_answers: bool
    max_new_tokens: int
    choose: Callable[[Tensor, Tensor | None], Tensor]
    draws: np.ndarray | None  # E, max_new_tokens
    stops: tuple[str, ...]
    batch_tokens: int
    advance: Callable[[int], None] | None = None
    passes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.prompts)
        self.written: list[list[list[int]]] = [[[] for _ in range(count)] for _ in self.gates]
        self.ended = np.zeros((len(self.gates), count), dtype=bool)
        self.end_tokens = end_tokens(self.model)
        self.decoding = self.model.capabilities.decoding
        self.gated = {int(layer) for layer in np.flatnonzero((self.gates != 1).any(axis=(0, 2)))}
        self.layer_shifts: dict[int, Tensor] = {}  # layer -> V, H, D
        if self.shifts is not None:
            for layer in np.flatnonzero(self.shifts.any(axis=(0, 2, 3))):
                shifts = torch.from_numpy(self.shifts[:, layer])
                self.layer_shifts[int(layer)] = shifts.to(self.model.gate_dtype)

    def run(self) -> Generated:
        pairs = [(v, e) for e in range(len(self.prompts)) for v in range(len(self.gates))]
        lengths = [len(self.prompts[e]) for _, e in pairs]
        with torch.inference_mode():
            for rows in cut_rows(range(len(pairs)), lengths, self._joins):
                in_halves([pairs[n] for n in rows], self._write, self._too_large, self._shrink)
        texts = [[self._text(e, ids)[0] for e, ids in enumerate(row)] for row in self.written]
        read = [self.model.text.tokenizer.decode(ids) for ids in self.prompts] if self.model.has_text else []
        return Generated(texts, self.written, self.ended, self.prompts, self.passes, read)

    def _joins(self, size: int, shortest: float, length: float, left: int) -> bool:
        """Whether a row of this length joins a batch of this size."""
        room = (size + 1) * (length + self.max_new_tokens) <= self.batch_tokens
        # Padding costs time: a much longer row begins a new batch, unless this one is still small.
        near = length <= 1.5 * shortest or size * shortest < self.batch_tokens // 8
        alike = self.decoding.padding or length == shortest
        return room and near and alike and size < LOGIT_BUDGET // self.model.vocabulary

    def _shrink(self) -> None:
        self.batch_tokens = max(1, self.batch_tokens // 2)

    def _too_large(self, pair: _Pair) -> HeadwiseError:
        return HeadwiseError(
            f"prompt {pair[1] + 1} ({len(self.prompts[pair[1]])} tokens, up to {self.max_new_tokens} new ones) does "
            "not fit into memory even alone; use a shorter prompt, a smaller dtype or another device"
        )

    def _write(self, pairs: Sequence[_Pair]) -> None:
        """Generate one batch."""
        prompts = [self.prompts[e] for _, e in pairs]
        shared = self._shared_prefix(prompts)
        self.passes += [1] if shared else []
        able, hooks = self.decoding, self.model.hooks
        cache = self.streams and self.streams.cache()
        batch = Batch(
            self.model.hf, prompts, pad=able.pad, cached=able.cache, shared=shared, hooks=hooks, cache=cache
        )
        device = batch.ids.device
        variants, examples = torch.tensor(pairs, device=device).T
        gates = torch.from_numpy(self.gates).to(device, self.model.gate_dtype)
        draws = None if self.draws is None else torch.from_numpy(self.draws).to(device)
        written: list[list[int]] = [[] for _ in pairs]
        ended = [False] * len(pairs)
        rows = torch.arange(len(pairs), device=device)  # the pair of each row of the batch
        for step in range(self.max_new_tokens):
            mask = batch.answering() if self.only_answers else None
            logits = batch.logits(**self._edits(gates[variants[rows]], variants[rows], mask))
            self.passes.append(len(batch))
            chosen = self.choose(logits, None if draws is None else draws[examples[rows], step])
            for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
                if token in self.end_tokens:
                    ended[row] = True
                else:
                    written[row].append(token)
                    ended[row] = bool(self.stops) and self._text(pairs[row][1], written[row])[1]
            unfinished = [at for at, row in enumerate(rows.tolist()) if not ended[row]]
            if not unfinished or step + 1 == self.max_new_tokens:
                break
            batch.append(chosen)
            if len(unfinished) < len(rows):
                index = torch.tensor(unfinished, device=device)
                batch.keep(index)
                rows = rows[index]
        for (v, e), ids, has_ended in zip(pairs, written, ended, strict=True):
            self.written[v][e], self.ended[v, e] = ids, has_ended
        if self.advance:
            self.advance(len(pairs))

    def _shared_prefix(self, prompts: Sequence[Sequence[int]]) -> int:
        """The number of first tokens that are read once for all rows; 0 where gates or shifts make rows differ."""
        alike = not (self.gated or self.layer_shifts or self.streams)
        if not self.decoding.prefix or not alike or len(prompts) < 2:
            return 0
        shared = common_prefix(*(prompt[:-1] for prompt in prompts))  # each row keeps a token to read
        return shared if shared >= LEAST_SHARED else 0

    def _edits(self, gates: Tensor, variants: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """What applies the gates `[B, L, H]` and shifts of the rows, at the positions `mask[T]`: fields of `Pass`."""
        attention = self.streams and self.streams.attention
        if not self.gated and not self.layer_shifts:
            return {"attention": attention}
        gate = HeadGates(gates, self.gated, self.reference, None if mask is None else mask[None])

        def hook(layer: int, z: Tensor) -> Tensor:
            z = gate(layer, z)
            if layer in self.layer_shifts:
                shifts = self.layer_shifts[layer].to(z.device, z.dtype)[
                    :, : z.shape[2], : z.shape[3]
                ]  # V, H, D
                shift = shifts[variants.to(z.device)][:, None]  # B, 1, H, D
                z = z + (shift if mask is None else shift * mask.to(z.device)[None, :, None, None])
            return z

        return {"heads": hook, "attention": attention or gate.attention}

    def _text(self, prompt: int, ids: list[int]) -> tuple[str, bool]:
        """The generated text up to the first stop string, and whether it has one."""
        text = continuation(self.model, self.prompts[prompt], ids)
        ends = [text.index(stop) for stop in self.stops if stop in text]
        return text[: min(ends, default=None)], bool(ends)


# ---- checks -----------------------------------------------------------------------------------------------


def _checked_reference(reference: str, positions: str) -> str:
    MeasureSettings(reference=reference)
    if positions not in ANSWERED:
        raise unknown("positions", positions, ANSWERED)
    if reference not in ("zero", "mean") and not window_of(reference):
        raise HeadwiseError(
            f"the reference {reference!r} is not available in generation; use 'zero', 'mean' or 'window'"
        )
    return reference


def _checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = tuple(several(stop))
    if not all(isinstance(text, str) and text for text in stops):
        raise HeadwiseError(f"stop is {quoted(stop)}; expected texts, none of them empty")
    return stops


def _streaming(model: Model, heads: Any, reference: str | None) -> Streaming:
    window, sink = (None, None) if reference is None else window_of(reference) or (None, None)
    if reference is not None and window is None:
        raise HeadwiseError(
            f"streaming heads have a short view, not the reference {reference!r}; leave it out"
        )
    if not model.capabilities.decoding.cache:
        raise HeadwiseError(f"{model.name} does not go on from a KV cache, so no head can have a smaller one")
    return streaming_of(model, heads, sink=sink, window=window)


def _replaced_by(
    model: Model, reference: str, texts: Sequence[Sequence[int]], longest: int, budget: int
) -> dict[Any, Tensor] | ShortView | None:
    """What replaces ablated heads. texts: those of a mean; longest: tokens of the longest text when it is written."""
    if reference == "mean":
        return model.mean_outputs(texts, batch_tokens=budget)
    sizes = window_of(reference)
    return short_view(model, *sizes, longest, "text") if sizes else None


def _checked_variants(
    model: Model, gates: np.ndarray | None, shifts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gates `[V, L, H]` and shifts `[V, L, H, D]`; a single one of either goes with all variants of the other."""
    gates = _variants(model, "gates", ones(model.shape) if gates is None else gates, model.shape)
    gates = np.where(model.exists, gates, 1.0)
    if shifts is None:
        return gates, None
    head_size = max(site.head_dim for site in model.hooks.sites)
    shifts = _variants(model, "shifts", shifts, (*model.shape, head_size))
    count = max(len(gates), len(shifts))
    if {len(gates), len(shifts)} - {1, count}:
        raise HeadwiseError(
            f"{len(gates)} variants of gates and {len(shifts)} of shifts do not match; give the same number "
            "of each, or a single one"
        )
    # Copies, because torch warns of arrays that share their memory.
    return np.resize(gates, (count, *gates.shape[1:])), np.resize(shifts, (count, *shifts.shape[1:]))


def _variants(model: Model, name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`values` with an axis of variants before `shape`."""
    numbers = gate_numbers(values, name)
    variants = numbers[None] if numbers.shape == shape else numbers
    if variants.shape[1:] != shape or not len(variants):
        sizes = ", ".join(map(str, shape))
        raise HeadwiseError(
            f"{name} of shape {numbers.shape} do not fit {model.name}: expected [{sizes}] or [variants, {sizes}]"
        )
    return variants
