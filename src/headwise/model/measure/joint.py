"""The metric without each unit of heads and without pairs of them, each pair entering the model midway.

Without the units a and b the model runs as without a alone, up to the first block of b. So a first run per unit keeps
the residual stream, and every pair enters at the later of its two units: in a model of L blocks a random pair runs a
third of them. Pairs with different first units share a batch.

Rounding depends on the shape of a batch. Here every pass over the same examples has the same number of rows, so a unit
that does nothing has a joint effect that is exactly the other unit's effect.

V variants of one pass, S rows of a block, E examples, U units, P pairs, L layers, H heads, T tokens, W stream width.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.heads import ones
from headwise.model.forward.schedule import in_halves
from headwise.model.measure.engine import CPU_FILLED, Engine

STREAM_BUDGET = 2**28
"""Most numbers of residual streams that are kept: 1 GB in float32; four times as many on an accelerator."""
VARIANTS = 8
"""Variants that a pass has room for, where there are enough examples to choose from."""


class Joint(NamedTuple):
    """The metric per example, under one choice of removed heads after another."""

    plain: np.ndarray  # E: nothing removed
    single: np.ndarray  # U, E
    pairs: np.ndarray  # P, E


def measure_joint(
    engine: Engine, gates: np.ndarray, pairs: np.ndarray, examples: Sequence[int] | np.ndarray | None = None
) -> Joint:
    """The metric without each of U units and without both units of each pair `[P, 2]`.

    gates: `[U, L, H]`, those of one unit at 0. examples: run only these, by their index in the task.
    """
    chosen = np.arange(len(engine.task)) if examples is None else np.asarray(examples, dtype=int)
    values = np.full((1 + len(gates) + len(pairs), len(engine.rows)), np.nan)

    def fill(numbers: Sequence[int]) -> None:
        values[:, list(numbers)] = _Block(engine, list(numbers), gates, pairs).values()

    with torch.inference_mode(), engine.model.running():
        for numbers in engine.table.partition(VARIANTS, _tokens(engine), set(chosen.tolist())):
            in_halves(numbers, fill, engine.table.too_large, engine.shrink)
    combined = engine.metric.combine(engine.rows, values, len(engine.task))[:, chosen]
    return Joint(combined[0], combined[1 : 1 + len(gates)], combined[1 + len(gates) :])


def _tokens(engine: Engine) -> int:
    """Tokens of one pass. Prefixes are kept between passes, so that a CPU gains nothing from a large one."""
    on_cpu = engine.model.device.type == "cpu"
    return min(engine.batch_tokens, CPU_FILLED) if on_cpu else engine.batch_tokens


class _Streams(dict[int, Tensor]):
    """Receives the streams of a pass and keeps those after some of the blocks."""

    def __init__(self, wanted: Collection[int]) -> None:
        super().__init__()
        self.wanted = wanted

    def __setitem__(self, block: int, stream: Tensor) -> None:
        if block in self.wanted:
            super().__setitem__(block, stream)


_Chunk = tuple[np.ndarray, int]
"""Variants of one pass, and the first block that it computes."""


class _Block:
    """Some rows of the task under every unit and every pair."""

    def __init__(self, engine: Engine, numbers: list[int], gates: np.ndarray, pairs: np.ndarray) -> None:
        self.engine, self.gates = engine, gates
        self.block = engine.table.block(numbers)
        first = np.array([engine.first_block(unit) for unit in gates])
        self.first = first
        # The run without the unit of the earlier block is the one whose stream a pair begins with.
        earlier_first = np.where((first[pairs[:, 0]] <= first[pairs[:, 1]])[:, None], pairs, pairs[:, ::-1])
        self.parents, self.others = earlier_first.T
        rows = self.block.size * self.block.length
        at_once = max(1, min(_tokens(engine) // rows, engine.variants_at_once(self.block)))
        self.V = min(at_once, max(len(gates), len(pairs), 1))

    def values(self) -> np.ndarray:
        """`[1 + U + P, S]`: plain, without each unit, without each pair."""
        U, P, S = len(self.gates), len(self.others), self.block.size
        plain, single, joint = np.empty((1, S)), np.empty((U, S)), np.empty((P, S))
        streams = _Streams(range(len(self.engine.model.hooks.blocks)))
        self.plain_logits: Tensor | None = None
        plain[:] = self._run(ones(self.gates.shape[1:])[None], None, streams)
        shares = self.engine.model.capabilities.share_rows  # otherwise blocks exchange more than the stream
        self.plain = {block: stream[:S].clone() for block, stream in streams.items()} if shares else {}
        del streams
        for units in self._unit_groups():
            numbers = np.flatnonzero(np.isin(self.parents, units))
            chunks = list(self._chunks(numbers, self.first[self.others[numbers]]))
            self._measure_units(units, {entry - 1 for _, entry in chunks}, single)
            for some, entry in chunks:
                parents = self.parents[some]
                gates = np.minimum(self.gates[parents], self.gates[self.others[some]])
                kept = [self.kept.get(unit, {}) for unit in parents.tolist()]
                joint[some] = self._run(gates, self._resume_from(entry, kept))
                self.engine.advance(len(some) * S)
        return np.concatenate([plain, single, joint])

    def _unit_groups(self) -> Iterator[np.ndarray]:
        """Units in the order of their blocks, as many at a time as have room for their streams."""
        order = np.argsort(self.first, kind="stable")
        one = next(iter(self.plain.values())).numel() if self.plain else 0
        sizes = (len(self.engine.model.hooks.blocks) - self.first[order]) * one
        budget = STREAM_BUDGET if self.engine.model.device.type == "cpu" else 4 * STREAM_BUDGET
        yield from np.split(order, np.flatnonzero(np.diff(np.cumsum(sizes) // budget)) + 1)

    def _measure_units(self, units: np.ndarray, wanted: Collection[int], single: np.ndarray) -> None:
        """Fill in the values without each of these units; keep the streams that pairs will begin with."""
        S, self.kept = self.block.size, dict[int, dict[int, Tensor]]()
        for some, entry in self._chunks(units, self.first[units]):
            streams = _Streams([block for block in wanted if block in self.plain])
            resume_from = self._resume_from(entry, [{}] * len(some))
            single[some] = self._run(self.gates[some], resume_from, streams)
            for place, unit in enumerate(some.tolist()):
                self.kept[unit] = {
                    block: stream[place * S : (place + 1) * S]
                    for block, stream in streams.items()
                    if block >= self.first[unit]  # before it, the stream is the plain one
                }

    def _chunks(self, numbers: np.ndarray, entries: np.ndarray) -> Iterator[_Chunk]:
        """Variants in passes of V, those that enter at about the same block together."""
        order = np.argsort(entries, kind="stable")
        for start in range(0, len(order), self.V):
            some = order[start : start + self.V]
            entry = int(entries[some[0]])
            yield numbers[some], entry if entry - 1 in self.plain else 0

    def _resume_from(self, entry: int, kept: Sequence[dict[int, Tensor]]) -> tuple[int, Tensor] | None:
        """The streams that the block `entry` reads `[V·S, T, W]`, one for each variant; None for the first block."""
        if not entry:
            return None
        streams = [one.get(entry - 1, self.plain[entry - 1]) for one in kept]
        streams += [streams[-1]] * (self.V - len(streams))
        return entry - 1, torch.cat(streams)

    def _run(
        self, gates: np.ndarray, resume_from: tuple[int, Tensor] | None, streams: _Streams | None = None
    ) -> np.ndarray:
        """The metric under each of `gates[v, L, H]`, v ≤ V, per row `[v, S]`. The pass always has V variants."""
        engine, model = self.engine, self.engine.model
        padded = np.concatenate([gates, np.repeat(gates[-1:], self.V - len(gates), axis=0)])
        per_row = torch.from_numpy(padded).to(model.device, model.gate_dtype)
        changed = np.flatnonzero((gates != 1).any(axis=(0, 2))).tolist()
        request = self.block.gated(per_row.repeat_interleave(self.block.size, 0), self.V, layers=set(changed))
        more: dict[str, Any] = {"resume_from": resume_from, "record_streams": streams}
        logits = model.run(replace(request, **more)).logits
        if self.plain_logits is None and engine.metric.compares:
            self.plain_logits = logits[: self.block.size]
        return engine.read(self.block, logits, self.plain_logits)[: len(gates), :, 0]
