"""The state of a training on disk, in safe formats, written whole or not at all.

    DIR/training/settings.json        what was asked for; another wish in the same folder is refused
    DIR/training/samples.safetensors  text sampled from the model
    DIR/training/state.safetensors    adapter, both moments of the optimiser, multiplier, history so far
    DIR/training/curve.csv            the history, for people

One file holds all that must agree, so that a kill between two files cannot mix two moments in time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, replacing

HISTORY = ("excess", "share", "multiplier", "gradient_norm")
"""Columns of the history, one row per update."""
CHECKS = ("step", "excess", "share", "cross_entropy", "dense_cross_entropy")
"""Columns of the looks at the hard-gated model."""


class Disk:
    """The folder of one training."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / "training"

    def begin(self, settings: Mapping[str, Any], fresh: bool) -> None:
        """Make the folder, or see to it that the one that is there belongs to the same training."""
        path = self.folder / "settings.json"
        with explain_disk_errors(self.out):
            if fresh and self.folder.is_dir():
                for file in self.folder.iterdir():
                    file.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                before = json.loads(path.read_text(encoding="utf-8"))
                other = sorted(
                    name for name in {*before, *settings} if before.get(name) != settings.get(name)
                )
                if other:
                    shown = ", ".join(f"{n}: {before.get(n)!r} → {settings.get(n)!r}" for n in other)
                    raise HeadwiseError(
                        f"{self.out} holds a training with other settings ({shown}); give the same again to resume it, "
                        "another --out, or --fresh to start over"
                    )
                return
            with replacing(path) as partial:
                partial.write_text(json.dumps(dict(settings), indent=1) + "\n", encoding="utf-8")

    def save(self, tensors: Mapping[str, Tensor], step: int) -> None:
        from safetensors.torch import save_file

        ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        with explain_disk_errors(self.out), replacing(self.folder / "state.safetensors") as partial:
            save_file(ready, partial, {"step": str(step)})

    def load(self) -> tuple[dict[str, Tensor], int] | None:
        from safetensors import safe_open
        from safetensors.torch import load_file

        path = self.folder / "state.safetensors"
        if not path.is_file():
            return None
        with safe_open(path, "pt") as file:
            step = int(file.metadata()["step"])
        return load_file(path), step

    def samples(self) -> Tensor | None:
        from safetensors.torch import load_file

        path = self.folder / "samples.safetensors"
        return load_file(path)["ids"] if path.is_file() else None

    def keep_samples(self, ids: Tensor) -> None:
        from safetensors.torch import save_file

        with explain_disk_errors(self.out), replacing(self.folder / "samples.safetensors") as partial:
            save_file({"ids": ids.to(torch.int32).contiguous()}, partial)

    def write_curves(self, history: Tensor, checks: Tensor) -> None:
        """The history as two tables that anybody can read."""
        for name, columns, rows in (
            ("curve.csv", ("step", *HISTORY), [[i + 1, *row] for i, row in enumerate(history.tolist())]),
            ("checks.csv", CHECKS, checks.tolist()),
        ):
            lines = [",".join(columns), *(",".join(f"{number:.6g}" for number in row) for row in rows)]
            with explain_disk_errors(self.out), replacing(self.folder / name) as partial:
                partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
