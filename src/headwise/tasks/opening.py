"""Open any task: a built-in one by its name, a file by its path, or a dataset on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError
from headwise.tasks import registry
from headwise.tasks.examples import Task
from headwise.tasks.files.hub import PREFIX
from headwise.tasks.files.load_task import check_readable, load_task
from headwise.tasks.shots import AS_IS, check_shots, few_shot

DEFAULT_SIZE = 64


class HasTokens(Protocol):
    """A model, as far as a task is concerned."""

    def tokens(self, text: str) -> list[int]: ...


def task(
    source: str | Path,
    n: int | None = None,
    *,
    model: HasTokens | None = None,
    seed: int = 0,
    shots: int = 0,
    template: str = AS_IS,
    separator: str = "\n\n",
    tokens: registry.Lengths | None = None,
    **options: Any,
) -> Task:
    """`n` examples of a built-in task (64 by default), of a file, or of a hub dataset (all by default).

    With `model`, counterfactuals are guaranteed to be as long as their prompts under its tokenizer (`tokens`
    takes an encode function instead). `shots` solved examples stand before every prompt, never one that is
    itself scored. `options` are the task's own (`headwise list tasks`), or those of `load_task`.

    >>> task("ioi", 2, seed=1).examples[0].target
    ' Linda'
    >>> task("ioi", 8, shots=2).settings["shots"]["k"]
    2
    """
    check_shots(shots, template, separator)
    encode = model.tokens if model is not None else tokens
    if _is_file(source):
        opened = load_task(
            source, limit=None if n is None else n + shots, seed=seed, tokens=encode, **options
        )
    else:
        count = (DEFAULT_SIZE if n is None else n) + shots
        opened = registry.task(str(source), count, seed=seed, tokens=encode, **options)
    if not shots and template == AS_IS:
        return opened
    return few_shot(opened, shots, template=template, separator=separator, seed=seed)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a task that are set for the whole study."""
    for name in options:
        if name in ("source", "n", "limit", "model", "seed", "tokens"):
            raise HeadwiseError(f"{name!r} is no option of a task; it is set for the whole study")


def check_source(source: str) -> None:
    """Refuse a name that is no built-in task and no file's, before anything is loaded for it."""
    if not _is_file(source):
        registry.FAMILIES.get(source)


def check_task(source: str, options: Mapping[str, Any]) -> None:
    """Refuse a task that cannot be opened: no such name or file, or an option that it does not have."""
    check_options(options)
    if not _is_file(source):
        family_options = {k: v for k, v in options.items() if k not in ("shots", "template", "separator")}
        registry.check_family_options(registry.FAMILIES.get(source), family_options)
    elif not source.startswith(PREFIX):
        check_readable(source)


def _is_file(source: str | Path) -> bool:
    text = str(source)
    return isinstance(source, Path) or text.startswith(PREFIX) or bool(Path(text).suffix) or "/" in text
