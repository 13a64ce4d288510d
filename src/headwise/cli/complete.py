"""Names that the shell completes. Completion must answer at once, so nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LISTS = ("models", "tasks", "metrics", "methods", "studies", "settings", "families")
"""What `headwise list` lists."""
_NAMES = {
    "lists": LISTS,
    "models": ("smollm2", "minilm", "smollm2-sparse", "smollm2-control"),
    "methods": tuple(
        "ablation attribution direct gating integrated keep nested norm pattern probe random sensitivity".split()
    ),
    "references": ("zero", "mean", "position_mean", "resample", "patch", "window"),
}
"""Names whose registries import torch; a test compares them. Names of plug-ins are not completed."""


def names(kind: str) -> list[str]:
    """Every name of a kind: models, tasks, methods, references, studies, lists."""
    if kind == "tasks":
        from headwise.tasks import families

        return list(families())
    if kind == "studies":
        folder = Path(__file__).parents[1] / "studies"
        return sorted(file.parent.name for file in folder.glob("*/study.py"))
    return list(_NAMES[kind])


def complete(kind: str) -> Callable[[str], list[str]]:
    """The function that typer asks for the names that begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names(kind) if name.startswith(incomplete)]

    return complete
