"""The state of a training on disk, in safe formats, written whole or not at all.

    DIR/training/settings.json        the settings; other settings in the same folder are refused
    DIR/training/samples.safetensors  text sampled from the model
    DIR/training/state.safetensors    adapter, both moments of the optimiser, multiplier, history so far
    DIR/training/curve.csv            the history, for people

One file holds everything that must agree, so that a kill between two files cannot mix two steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.files import explain_disk_errors, replacing

HISTORY = ("excess", "share", "multiplier", "gradient_norm")
"""Columns of the history, one row per update."""
CHECKS = ("step", "excess", "share", "cross_entropy", "dense_cross_entropy")
"""Columns of the checks of the hard-gated model."""


class Disk:
    """The folder of one training."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / "training"

    def begin(self, settings: Mapping[str, Any], fresh: bool) -> None:
        """Make the folder, or check that the existing one belongs to the same training."""
        path = self.folder / "settings.json"
        with explain_disk_errors(self.out):
            if fresh and self.folder.is_dir():
                for file in self.folder.iterdir():
                    file.unlink()
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                before = json.loads(path.read_text(encoding="utf-8"))
                names = sorted({*before, *settings})
                pairs = [(name, before.get(name), settings.get(name)) for name in names]
                changes = ", ".join(f"{name}: {old!r} → {new!r}" for name, old, new in pairs if old != new)
                if changes:
                    raise HeadwiseError(
                        f"{self.out} holds a training with other settings ({changes}); give the same settings to "
                        "resume it, another --out, or --fresh to start over"
                    )
                return
            with replacing(path) as partial:
                partial.write_text(json.dumps(dict(settings), indent=1) + "\n", encoding="utf-8")

    def save(self, name: str, tensors: Mapping[str, Tensor], step: int = 0) -> None:
        from safetensors.torch import save_file

        ready = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        with explain_disk_errors(self.out), replacing(self.folder / f"{name}.safetensors") as partial:
            save_file(ready, partial, {"step": str(step)})

    def load(self, name: str) -> tuple[dict[str, Tensor], int] | None:
        """The tensors and the step that `save` was given; None before the first `save`."""
        from safetensors import safe_open

        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 no mapping
            return tensors, int((file.metadata() or {}).get("step", 0))

    def write_curves(self, history: Tensor, checks: Tensor) -> None:
        """The history as two tables that anybody can read."""
        for name, columns, rows in (
            ("curve.csv", ("step", *HISTORY), [[i + 1, *row] for i, row in enumerate(history.tolist())]),
            ("checks.csv", CHECKS, checks.tolist()),
        ):
            lines = [",".join(columns), *(",".join(f"{number:.6g}" for number in row) for row in rows)]
            with explain_disk_errors(self.out), replacing(self.folder / name) as partial:
                partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
