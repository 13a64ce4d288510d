"""Text under gates: every variant of the gates writes on from every prompt.

Rows are (variant, prompt) pairs. Those of about equal length share a left-padded batch with a key/value
cache; a row that has finished leaves it, and what ungated rows begin with alike is read once. With all gates at 1
a row writes what transformers' own `generate` writes, and a prompt writes the same alone and in a batch (up to
ties within rounding).

V variants, E prompts, B rows still writing, L layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import gate_numbers, ones
from headwise.model.forward.decode import Batch
from headwise.model.forward.gate import HeadGates
from headwise.model.forward.out_of_memory import fits
from headwise.model.generation.prompts import Prompt, continuation, encode_prompts, end_tokens
from headwise.model.generation.sampling import choose, uniforms
from headwise.model.measure.references.means import mean_outputs
from headwise.model.measure.rows import MeasureSettings
from headwise.model.sites.attention_function import Visitor
from headwise.model.tokens.encode import Row
from headwise.several import several

if TYPE_CHECKING:
    from headwise.model.model import Model

LOGIT_BUDGET = 2**26
"""Most logits held at once, in numbers: 256 MB in float32."""

LEAST_SHARED = 16
"""Tokens that all rows of a batch must begin with before reading them once is worth a pass of its own."""


@dataclass(frozen=True)
class Generated:
    """What every variant wrote after every prompt."""

    texts: list[list[str]]
    """`[V][E]`, without the prompt, without the end token, cut before a stop string."""
    tokens: list[list[list[int]]]
    """`[V][E]` token numbers as written: without the end token, a stop string's tokens still there."""
    finished: np.ndarray
    """`[V, E]`: True where the row ended by itself (end token or stop string), False where it was cut off."""
    prompts: list[list[int]]
    """`[E]` token numbers of the prompts as the model read them."""
    passes: list[int]
    """Rows of each forward pass, in order; their sum is the work done."""

    @property
    def truncated(self) -> np.ndarray:
        """`[V, E]`: True where `max_new_tokens` cut the text off."""
        return ~self.finished


def generate(
    model: Model,
    prompts: Sequence[Prompt],
    gates: np.ndarray | None = None,
    *,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    chat: bool = False,
    stop: str | Sequence[str] = (),
    reference: str = "zero",
    positions: str = "all",
    reference_prompts: Sequence[Prompt] | None = None,
    shifts: np.ndarray | None = None,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Generated:
    """Write on from each prompt under each variant of the gates.

    gates: `[L, H]` or `[V, L, H]`; by default all 1. 0 removes a head, above 1 amplifies it.
    temperature: 0 is greedy; above it tokens are drawn from the `top_p` nucleus, seeded per prompt, with the
        same random draws for every variant.
    chat: prompts are put into the tokenizer's chat template; a prompt may then be a list of messages.
    stop: texts end before any of these.
    reference: `zero`, or `mean` over all tokens of `reference_prompts` (by default the prompts themselves).
    positions: gates act at `all` positions, or from the `last` prompt token on.
    shifts: `[L, H, D]` or `[V, L, H, D]`, added to the heads' outputs after the gates, where these act.
    batch_tokens: most tokens in one batch; halved when memory runs out.
    advance: called with the number of rows just finished.
    """
    _check(max_new_tokens, temperature, top_p, reference, positions)
    if isinstance(prompts, str):
        raise HeadwiseError("prompts must be a list; put the one text into a list: [text]")
    if isinstance(reference_prompts, str):
        reference_prompts = [reference_prompts]
    stops = tuple(several(stop))
    if "" in stops:
        raise HeadwiseError("a stop string must not be empty")
    # The last token is written, but never read.
    encoded = encode_prompts(model, prompts, chat, room=max_new_tokens - 1)
    means = None
    if reference == "mean":
        behind = encoded if reference_prompts is None else encode_prompts(model, reference_prompts, chat)
        rows = [Row(number, ids, len(ids), [], []) for number, ids in enumerate(behind)]
        means = mean_outputs(model, rows, False, batch_tokens or model.batch_tokens)
    checked, added = _matched(_checked_gates(model, gates), _checked_shifts(model, shifts))
    writer = _Writer(
        model=model,
        prompts=encoded,
        gates=checked,
        shifts=added,
        means=means,
        only_answers=positions == "last",
        max_new_tokens=max_new_tokens,
        choose=lambda logits, draws: choose(logits, temperature, top_p, draws),
        draws=None
        if temperature == 0
        else np.stack([uniforms(seed, e, max_new_tokens) for e in range(len(encoded))]),
        stops=stops,
        batch_tokens=batch_tokens or model.batch_tokens,
        advance=advance or (lambda count: None),
    )
    return writer.run()


# ---- the loop ---------------------------------------------------------------------------------------------

_Pair = tuple[int, int]
"""(variant, prompt)."""


class _Writer:
    """Everything a generation needs while it runs."""

    def __init__(
        self,
        model: Model,
        prompts: list[list[int]],
        gates: np.ndarray,
        shifts: np.ndarray | None,
        means: dict[int, Tensor] | None,
        only_answers: bool,
        max_new_tokens: int,
        choose: Callable[[Tensor, Tensor | None], Tensor],
        draws: np.ndarray | None,
        stops: tuple[str, ...],
        batch_tokens: int,
        advance: Callable[[int], None],
    ) -> None:
        self.model, self.prompts, self.gates, self.means = model, prompts, gates, means
        self.only_answers, self.max_new_tokens = only_answers, max_new_tokens
        self.choose, self.draws, self.stops = choose, draws, stops
        self.batch_tokens, self.advance = batch_tokens, advance
        self.ends = end_tokens(model)
        self.able = model.capabilities.decoding
        self.changed = {int(layer) for layer in np.flatnonzero((gates != 1).any(axis=(0, 2)))}
        self.shifts: dict[int, Tensor] = {}  # layer -> V, H, D
        if shifts is not None:
            for layer in np.flatnonzero(shifts.any(axis=(0, 2, 3))):
                self.shifts[int(layer)] = torch.from_numpy(shifts[:, layer]).to(model.gate_dtype)
        self.passes: list[int] = []

    def run(self) -> Generated:
        variants, count = len(self.gates), len(self.prompts)
        tokens: list[list[list[int]]] = [[[] for _ in range(count)] for _ in range(variants)]
        finished = np.zeros((variants, count), dtype=bool)
        waiting = sorted(
            ((v, e) for e in range(count) for v in range(variants)),
            key=lambda pair: len(self.prompts[pair[1]]),
        )
        while waiting:
            pairs = waiting[: self._rows_at_once(waiting)]
            written = self._write(pairs)
            if written is None:  # out of memory: the budget is smaller now
                continue
            for (v, e), (ids, ended) in zip(pairs, written, strict=True):
                tokens[v][e], finished[v, e] = ids, ended
            waiting = waiting[len(pairs) :]
            self.advance(len(pairs))
        texts = [[self._text(e, ids) for e, ids in enumerate(row)] for row in tokens]
        return Generated(texts, tokens, finished, self.prompts, self.passes)

    def _rows_at_once(self, waiting: Sequence[_Pair]) -> int:
        """How many of the waiting rows, shortest first, make the next batch."""
        lengths = [len(self.prompts[e]) for _, e in waiting]
        most = max(1, min(len(lengths), LOGIT_BUDGET // self.model.vocabulary))
        size = 1
        while size < most:
            if (size + 1) * (lengths[size] + self.max_new_tokens) > self.batch_tokens:
                break
            if not self.able.padding and lengths[size] != lengths[0]:
                break
            # Padding is work for nothing: a much longer row begins a new batch, once this one is not small.
            if lengths[size] > 1.5 * lengths[0] and size * lengths[0] >= self.batch_tokens // 8:
                break
            size += 1
        return size

    def _write(self, pairs: Sequence[_Pair]) -> list[tuple[list[int], bool]] | None:
        """Tokens of each row and whether it ended by itself; None when memory ran out."""
        written: list[tuple[list[int], bool]] = []
        with torch.inference_mode():
            if fits(lambda: written.extend(self._write_batch(pairs))):
                return written
        if len(pairs) == 1:
            length = len(self.prompts[pairs[0][1]])
            raise HeadwiseError(
                f"prompt {pairs[0][1] + 1} ({length} tokens, up to {self.max_new_tokens} new ones) does not fit "
                "into memory even alone; use a shorter prompt, a smaller dtype or another device"
            )
        width = len(self.prompts[pairs[-1][1]]) + self.max_new_tokens
        self.batch_tokens = max(1, min(self.batch_tokens, len(pairs) * width) // 2)
        return None

    def _write_batch(self, pairs: Sequence[_Pair]) -> list[tuple[list[int], bool]]:
        prompts = [self.prompts[e] for _, e in pairs]
        shared = self._shared(prompts)
        self.passes += [1] if shared else []
        batch = Batch(
            self.model.hf,
            prompts,
            pad=self.able.pad,
            cached=self.able.cache,
            shared=shared,
            hooks=self.model.hooks,
        )
        device = batch.ids.device
        variants = torch.tensor([v for v, _ in pairs], device=device)
        gates = torch.from_numpy(self.gates[[v for v, _ in pairs]]).to(device, self.model.gate_dtype)
        draws = None
        if self.draws is not None:
            draws = torch.from_numpy(self.draws[[e for _, e in pairs]]).to(device)
        written: list[list[int]] = [[] for _ in pairs]
        ended = [False] * len(pairs)
        rows = list(range(len(pairs)))  # which pair each row of the batch belongs to
        for step in range(self.max_new_tokens):
            acts = batch.answering() if self.only_answers else None
            logits = batch.logits(self._heads(gates, variants, acts))
            self.passes.append(len(batch))
            chosen = self.choose(logits, None if draws is None else draws[:, step])
            for row, token in zip(rows, chosen.tolist(), strict=True):
                if token in self.ends:
                    ended[row] = True
                else:
                    written[row].append(token)
                    ended[row] = self._stopped(pairs[row][1], written[row])
            going = [place for place, row in enumerate(rows) if not ended[row]]
            if not going or step + 1 == self.max_new_tokens:
                break
            batch.append(chosen)
            if len(going) < len(rows):
                rows = [rows[place] for place in going]
                index = torch.tensor(going, device=device)
                batch.keep(index)
                gates, variants = gates[index], variants[index]
                draws = None if draws is None else draws[index]
        return list(zip(written, ended, strict=True))

    def _shared(self, prompts: Sequence[Sequence[int]]) -> int:
        """How many first tokens all rows have in common; 0 where gates or shifts make them differ, or for a few."""
        if not self.able.prefix or self.changed or self.shifts or len(prompts) < 2:
            return 0
        same = 0
        for column in zip(
            *(prompt[:-1] for prompt in prompts), strict=False
        ):  # each row keeps a token to read
            if len(set(column)) > 1:
                break
            same += 1
        return same if same >= LEAST_SHARED else 0

    def _heads(self, gates: Tensor, variants: Tensor, acts: Tensor | None) -> Visitor | None:
        """The gates `[B, L, H]` and shifts of the rows that are writing, at the positions `acts[T]` where they act."""
        if not self.changed and not self.shifts:
            return None
        layers = self.changed | set(self.shifts)
        gate = HeadGates(gates, layers, self.means, None if acts is None else acts[None])

        def edit(layer: int, z: Tensor) -> Tensor:
            z = gate(layer, z)
            if layer in self.shifts:
                every = self.shifts[layer][:, : z.shape[2], : z.shape[3]].to(z.device, z.dtype)  # V, H, D
                shift = every[variants.to(z.device)][:, None]  # B, 1, H, D
                z = z + (shift if acts is None else shift * acts.to(z.device)[None, :, None, None])
            return z

        return edit

    def _stopped(self, prompt: int, ids: list[int]) -> bool:
        if not self.stops:
            return False
        text = continuation(self.model, self.prompts[prompt], ids)
        return any(stop in text for stop in self.stops)

    def _text(self, prompt: int, ids: list[int]) -> str:
        text = continuation(self.model, self.prompts[prompt], ids)
        places = [place for place in (text.find(stop) for stop in self.stops) if place >= 0]
        return text[: min(places)] if places else text


# ---- checks -----------------------------------------------------------------------------------------------


def _check(max_new_tokens: int, temperature: float, top_p: float, reference: str, positions: str) -> None:
    if max_new_tokens < 1:
        raise HeadwiseError(f"max_new_tokens is {max_new_tokens}; at least one token must be written")
    if not (temperature >= 0 and np.isfinite(temperature)):
        raise HeadwiseError(f"temperature is {temperature}; it must be 0 (greedy) or a positive number")
    if not 0 < top_p <= 1:
        raise HeadwiseError(f"top_p is {top_p}; it must be above 0 and at most 1")
    MeasureSettings(reference=reference, positions=positions)
    if reference not in ("zero", "mean"):
        raise HeadwiseError(
            f"the reference {reference!r} is not defined for tokens that are yet to be written; use 'zero' or 'mean'"
        )


def _checked_gates(model: Model, gates: np.ndarray | None) -> np.ndarray:
    given = ones(model.shape) if gates is None else gate_numbers(gates, "gates")
    several = given[None] if given.ndim == 2 else given
    if several.ndim != 3 or several.shape[1:] != model.shape or not len(several):
        layers, heads = model.shape
        raise HeadwiseError(
            f"gates of shape {given.shape} do not fit {model.name}: expected [{layers}, {heads}] or "
            f"[variants, {layers}, {heads}]"
        )
    return np.where(model.exists, several, 1.0)


def _checked_shifts(model: Model, shifts: np.ndarray | None) -> np.ndarray | None:
    if shifts is None:
        return None
    given = gate_numbers(shifts, "shifts")
    several = given[None] if given.ndim == 3 else given
    expected = (*model.shape, max(site.head_dim for site in model.hooks.sites))
    if several.ndim != 4 or several.shape[1:] != expected:
        layers, heads, size = expected
        raise HeadwiseError(
            f"shifts of shape {given.shape} do not fit {model.name}: expected [{layers}, {heads}, {size}] or "
            f"[variants, {layers}, {heads}, {size}]"
        )
    return several


def _matched(gates: np.ndarray, shifts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """As many variants of both; one of either goes with all of the other."""
    if shifts is None:
        return gates, None
    counts = {len(gates), len(shifts)} - {1}
    if len(counts) > 1:
        raise HeadwiseError(
            f"{len(gates)} variants of gates and {len(shifts)} of shifts do not match; give as many, or one of either"
        )
    count = counts.pop() if counts else 1
    # Copies, because torch warns of arrays that share their memory.
    several = (np.array(np.broadcast_to(one, (count, *one.shape[1:]))) for one in (gates, shifts))
    return next(several), next(several)
