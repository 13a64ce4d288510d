"""Sparse-attention post-training: the same model with few open edges, as a small folder that `hw.load` opens.

from headwise.sparsify import sparsify
sparsify("smollm2", ["text.txt"], "sparse", sample=8000, steps=4000)
model = hw.load("sparse")
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.model.load import load
from headwise.sparsifying.checkpoint import Disk
from headwise.sparsifying.pool import Pool
from headwise.sparsifying.settings import SparsifySettings
from headwise.sparsifying.texts import sequences
from headwise.sparsifying.trainer import Trainer

log = logging.getLogger("headwise")


def sparsify(
    model: str | Path,
    texts: Sequence[str | Path] = (),
    out: str | Path = "sparse",
    *,
    seconds: float | None = None,
    fresh: bool = False,
    device: str | None = None,
    compile: bool | None = None,
    graph: bool | None = None,
    report: Callable[[str], None] = log.info,
    **settings: Any,
) -> bool:
    """Train `model` to use few edges; True when all updates are done.

    texts: files to train on (plain text, or JSON lines); `sample=N` adds sequences from the model itself.
    out: the folder that is made. The same call again resumes a training that was stopped or killed.
    seconds: stop cleanly after so long. compile, graph: use torch.compile and a CUDA graph (default: on a GPU,
        where they work).
    settings: fields of `SparsifySettings`.
    """
    known = {field.name for field in dataclasses.fields(SparsifySettings)}
    for name in settings:
        if name not in known:
            from headwise.errors import unknown

            raise unknown("setting", name, known)
    chosen = SparsifySettings(**settings)
    paths = [Path(text) for text in texts]
    disk = Disk(Path(out))
    base = _base_name(str(model))
    named = {"model": base, "texts": {path.name: _digest(path) for path in paths}}
    disk.begin({**named, **dataclasses.asdict(chosen)}, fresh)
    if torch.cuda.is_available() and device != "cpu":
        torch.set_float32_matmul_precision("high")
    loaded = load(model, device=device, dtype="float32")
    given = sequences(loaded.text, paths, chosen.length)
    sampled = _sampled(loaded, given, chosen, disk)
    report(f"training on {len(given)} sequences of the texts and {len(sampled)} of the model's own")
    pool = Pool(given, sampled, chosen.batch, chosen.text_share, chosen.seed)
    trainer = Trainer(loaded, base, pool, chosen, disk, compile, graph)
    if trainer.step:
        report(f"resuming after update {trainer.step}")
    return trainer.train(seconds, report)


def _sampled(loaded: Any, given: torch.Tensor, settings: SparsifySettings, disk: Disk) -> torch.Tensor:
    if not settings.sample:
        return torch.empty(0, settings.length, dtype=torch.int32)
    kept = disk.samples()
    if kept is None:
        from headwise.runs import progress
        from headwise.sparsifying.sampling import sample

        with progress("Sampling from the model", settings.sample) as advance:
            kept = sample(loaded, given, settings.sample, settings.length, settings.seed, advance)
        disk.keep_samples(kept)
    return kept


def _base_name(model: str) -> str:
    """How the finished folder finds its base again: a folder by its whole path, all else as it was named."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise HeadwiseError(f"the text {path} cannot be read: {error.strerror}") from error
