"""Finished seeds of a fit that takes long, kept in a run's folder, so that a run that is stopped goes on after them.

Seeds run one by one where a device is no faster with more rows (a CPU). `Setup.folder` says where they are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from headwise.files import replacing
from headwise.scores.nested.fit import NestedFit, SeedFit
from headwise.scores.registry import Setup


class FinishedSeeds:
    """The finished seeds of one score, by a hash of everything that they depend on."""

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder, self._key = folder, key

    def get(self, seed: int, train: Callable[[], SeedFit]) -> SeedFit:
        """The fit of a seed: read, or trained and kept."""
        path = None if self._folder is None else self._folder / f"{self._key}-{seed}.npz"
        if path is not None and path.exists():
            with suppress(OSError, ValueError, KeyError), np.load(path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                checks = [(int(update), float(cost)) for update, cost in about["checks"]]
                return SeedFit(file["strengths"], about["losses"], checks, about["cost"])
        fit = train()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            about = {"losses": fit.losses, "checks": fit.checks, "cost": fit.cost}
            with replacing(path) as new, new.open("wb") as file:
                np.savez(file, strengths=fit.strengths, about=np.array(json.dumps(about)))
        return fit

    def remove(self) -> None:
        """Forget the seeds: the score that they were for is finished."""
        if self._folder is not None and self._folder.exists():
            for path in self._folder.glob(f"{self._key}-*.npz"):
                path.unlink()
            with suppress(OSError):  # others are not finished yet
                self._folder.rmdir()


def finished_seeds(setup: Setup, fit: NestedFit, start: str, held_back: float) -> FinishedSeeds:
    """The seeds that were finished for this model, task, reference and fit."""
    folder = setup.folder
    if folder is None:
        return FinishedSeeds(None, "")
    about = [
        setup.model.fingerprint, str(setup.model.dtype), setup.task.fingerprint, setup.metric.name, setup.reference,
        setup.positions, setup.seed, list(setup.components), setup.exists.astype(int).tolist(),
        None if setup.reference_task is None else setup.reference_task.fingerprint,
        fit.model_dump(), start, held_back,
    ]  # fmt: skip
    return FinishedSeeds(folder, hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16])
