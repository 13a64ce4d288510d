"""The inputs and the ways that the jobs of `peers.py` share.

E examples, T tokens; every prompt has the same number of tokens, so nobody pads and everybody may ask for the last
token's logits alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headwise as hw
from common import Cost, matrix_rate, timed
from headwise.heads import Head
from headwise.metrics import metric
from headwise.model.load import bundled
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.tokens.encode import batch_of, encode_rows
from headwise.tasks import Task
from ways import FILES, PACKAGES, Way, load_way

AGREE = 1e-3
"""Largest difference of a value, in logits, that rounding may make in float32."""


@dataclass(frozen=True)
class Inputs:
    """The same prompts for everybody: as a task, and as tensors."""

    task: Task
    ids: Tensor  # E, T
    rights: Tensor  # E
    wrongs: Tensor  # E

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]

    def some(self, first: int, last: int) -> Inputs:
        task = Task(self.task.name, self.task.examples[first:last], self.task.metric)
        return Inputs(task, self.ids[first:last], self.rights[first:last], self.wrongs[first:last])

    def difference(self, logits: Tensor) -> Tensor:
        """Logit of the right answer minus that of the wrong one `[E]`."""
        row = torch.arange(len(logits), device=logits.device)
        return logits[row, self.rights] - logits[row, self.wrongs]


@dataclass(frozen=True)
class Peer:
    """A way with its choice of logits and its best batch size."""

    label: str
    way: Way
    narrow: bool
    batch: int

    def values(self, inputs: Inputs, off: list[Head]) -> np.ndarray:
        """The metric `[E]` with these heads at zero: one forward pass per batch."""
        with torch.inference_mode():
            return np.concatenate(
                [
                    part.difference(self.way.logits(part.ids, off, self.narrow)).double().cpu().numpy()
                    for part in self._parts(inputs)
                ]
            )

    def gradients(self, inputs: Inputs, level: float, shape: tuple[int, int]) -> np.ndarray:
        """Gradients of the metric with respect to every gate `[E, L, H]`, with all gates at one level."""
        found = []
        for part in self._parts(inputs):
            gates = torch.full((len(part.ids), *shape), level, device=part.ids.device, requires_grad=True)
            value = part.difference(self.way.gated(part.ids, gates, self.narrow))
            (gradient,) = torch.autograd.grad(value.sum(), gates)
            found.append(gradient.double().cpu().numpy())
        return np.concatenate(found)

    def _parts(self, inputs: Inputs) -> Iterator[Inputs]:
        for first in range(0, len(inputs.ids), self.batch):
            yield inputs.some(first, first + self.batch)


class Bench:
    """Model, inputs and peers, each made when first asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device: str = arguments.device
        self.dtype = torch.float32
        self.missing: dict[str, str] = {}
        """Peers that could not be used here, and why."""
        self.keep: Callable[[dict[str, Any]], None] = lambda found: None
        """Saves what a job has found so far; at its end everybody's is saved."""
        self._ways: dict[str, Way] = {}
        self._batches: dict[tuple[str, bool, int], int] = {}

    @cached_property
    def folder(self) -> str:
        """Where the weights are: everybody loads the same files."""
        name = self.arguments.model
        return str(bundled.fetch(name)) if name in bundled.aliases() else name

    @cached_property
    def model(self) -> Model:
        return hw.load(self.folder, name=self.arguments.model, device=self.device, dtype="float32")

    @cached_property
    def cost(self) -> Cost:
        return Cost(self.model.hf.config)

    @cached_property
    def rate(self) -> float:
        """Measured floating-point operations per second, in float32."""
        return matrix_rate(self.device, self.dtype)

    def inputs(self, examples: int) -> Inputs:
        """So many IOI prompts of one length: the commonest."""
        drawn = hw.task("ioi", 40 * examples, model=self.model)
        rows = encode_rows(self.model.text, drawn.examples, "pairs")
        ((length, _),) = Counter(len(row.ids) for row in rows).most_common(1)
        chosen = [row for row in rows if len(row.ids) == length][:examples]
        assert len(chosen) == examples, f"only {len(chosen)} prompts of {length} tokens"
        task = Task("ioi", tuple(drawn.examples[row.example] for row in chosen), "logit_diff")
        batch = {name: t.to(self.device) for name, t in batch_of(chosen).items()}
        assert bool((batch["positions"] == length - 1).all())
        return Inputs(task, batch["ids"], batch["rights"][:, 0, 1], batch["wrongs"][:, 0, 1])

    def engine(self, inputs: Inputs, **options: Any) -> Engine:
        return Engine(self.model, inputs.task, metric("logit_diff"), **options)

    def peers(self, inputs: Inputs, gradients: bool = False, only: str | None = None) -> list[Peer]:
        """Every way that is here, with all logits and with the last token's alone, at its best batch size."""
        found = []
        for name in self.arguments.peers if only is None else [only]:
            way = self._way(name)
            if way is None or (gradients and not way.gradients):
                continue
            for narrow in (False, True):
                label = f"{name}, {'last' if narrow else 'all'} logits"
                found.append(Peer(label, way, narrow, self._best_batch(name, way, narrow, inputs)))
        return found

    def _way(self, name: str) -> Way | None:
        if name not in self._ways and name not in self.missing:
            try:
                self._ways[name] = load_way(name, self.folder, self.device, self.dtype)
            except Exception as error:  # not installed, or at odds with the transformers that is here
                self.missing[name] = f"{PACKAGES.get(name, name)}: {type(error).__name__}: {error}"
                print(f"{name} is left out: {self.missing[name]}", flush=True)
        return self._ways.get(name)

    def _best_batch(self, name: str, way: Way, narrow: bool, inputs: Inputs) -> int:
        """The number of rows per pass with the least time per row, from one measured pass of each."""
        whole = len(inputs.ids)
        known = self._batches.get((name, narrow, whole))
        if known is None:
            times = {}
            for size in sorted({whole, -(-whole // 2), -(-whole // 4)}):
                part = inputs.some(0, size)
                work = Peer(name, way, narrow, size)
                work.values(part, [Head(0, 0)])  # warm
                times[size] = timed(lambda w=work, p=part: w.values(p, [Head(0, 0)]), self.device)[0] / size
            known = min(times, key=times.__getitem__)
            self._batches[name, narrow, whole] = known
        return known


def summary(
    seconds: dict[str, float], done: dict[str, float], ours: str = "headwise", **more: Any
) -> dict[str, Any]:
    """Seconds for the whole work by each way (`done` is the share that was run), the fastest peer, the ratio."""
    whole = {name: spent / done[name] for name, spent in seconds.items()}
    peers = {name: spent for name, spent in whole.items() if name != ours}
    found: dict[str, Any] = {
        "ways": {
            name: {
                "seconds": whole[name],
                "share_run": done[name],
                "times_headwise": whole[name] / whole[ours],
            }
            for name in whole
        }
    }
    if peers:
        fastest = min(peers, key=peers.__getitem__)
        found |= {"fastest_peer": fastest, "ratio": peers[fastest] / whole[ours]}
    return found | more


def report(job: str, found: dict[str, Any]) -> None:
    """One line per way."""
    for name, way in found.get("ways", {}).items():
        memory = f"{way['peak_mb']:8.0f} MB" if "peak_mb" in way else ""
        print(f"  {name:<34}{way['seconds']:9.2f} s{way['times_headwise']:8.2f}×{memory}", flush=True)
    if "floor_s" in found:
        print(f"  {'floor (operations / matrix rate)':<34}{found['floor_s']:9.2f} s", flush=True)


__all__ = ["AGREE", "FILES", "Bench", "Inputs", "Peer", "report", "summary"]
