"""What the user named for the server: models, data and runs, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.errors import unknown
from headwise.files import inside
from headwise.mcp.answers import Half


@dataclass
class Desk:
    """What the user named, and the models that are loaded; only the worker's thread uses the models."""

    models: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)
    runs: Path = field(default_factory=lambda: Path("runs"))
    options: dict[str, Any] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)

    def model(self, name: str | None) -> Any:
        from headwise.model.load.load import load

        chosen = name or next(iter(self.models))
        if chosen not in self.models:
            raise unknown("model of this server", chosen, list(self.models))
        if chosen not in self.loaded:
            self.loaded[chosen] = load(self.models[chosen], **self.options)
        return self.loaded[chosen]

    def tasks(self) -> dict[str, str]:
        """Built-in tasks and the user's files, each with a line on what it is."""
        from headwise.tasks.registry import FAMILIES

        builtin = {name: family.about for name, family in FAMILIES.all().items()}
        return builtin | dict.fromkeys(self.data, "a file of the user")

    def opened(
        self, model: str | None, name: str, n: int, half: Half, seed: int
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The model and the examples of a call, and what an answer says of them."""
        from headwise.tasks import task

        if name not in self.tasks():  # a name only: no path, no dataset of the hub
            raise unknown("task of this server", name, list(self.tasks()))
        loaded = self.model(model)
        examples = task(self.data.get(name, name), n, model=loaded, seed=seed)
        if half != "all":
            examples = examples.halves()[half == "test"]
        about = {"model": loaded.name, "task": examples.name, "half": half, "n": len(examples), "seed": seed}
        return loaded, examples, about

    def run(self, name: str) -> Path:
        folder = self.runs / name
        if not inside(self.runs, folder) or not (folder / "run.json").is_file():
            raise unknown("run of this server", name, self.run_names())
        return folder

    def run_names(self) -> list[str]:
        return sorted(path.parent.name for path in self.runs.glob("*/run.json"))
