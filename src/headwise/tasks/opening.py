"""Open any task: a built-in one by its name, a file by its path, a dataset on the hub, or a list of examples."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError, quoted
from headwise.settings import several
from headwise.tasks import registry
from headwise.tasks.examples import Example, Task
from headwise.tasks.files.load_task import check_file, load_task
from headwise.tasks.files.mappings.registry import registered
from headwise.tasks.files.sources import PREFIX, is_example, items_of
from headwise.tasks.shots import AS_IS, check_shots, few_shot

DEFAULT_SIZE = 64
SHOTS = ("shots", "template", "separator")
FILE = ("columns", "mapping", "records", "duplicates", "family")
COMPANIONS = {"negatives": "negative", "transfer": "rewrite"}
"""Tasks that belong to a task, and how the names of the built-in ones end."""

TaskLike = Task | str | Path | Mapping[str, Any] | Iterable[Any]
"""What `task` takes: a task, its name, a path, hub:owner/name, a list of dicts or tuples, a DataFrame."""


class HasTokens(Protocol):
    """A model, as far as a task is concerned. A model with a tokenizer also has `has_text` and `text`."""

    def tokens(self, text: str) -> list[int]: ...


def task(
    source: TaskLike,
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
    """`n` examples of a built-in task (64 by default), or of a file, hub dataset, list or DataFrame (all by default).

    A list holds dicts, or tuples (prompt, answer) or (prompt, answer, wrong answer). With `model`, counterfactuals
    are guaranteed to be as long as their prompts under its tokenizer (`tokens` takes an encode function instead).
    `shots` few-shot examples come before every prompt; none of them is itself scored. `options` are the task's own
    (`headwise list tasks`), or those of `load_task`; and `negatives` and `transfer`, which name another task or file
    (`Task.negatives`, `Task.transfer`).

    >>> task("ioi", 2, seed=1).examples[0].target
    ' Linda'
    >>> task("ioi", 8, shots=2).settings["shots"]["k"]
    2
    >>> task([("The capital of France is", " Paris", " Rome")]).metric
    'logit_diff'
    """
    check_shots(shots, template, separator)
    if n is not None and (isinstance(n, bool) or not hasattr(n, "__index__")):
        raise HeadwiseError(f"n is {quoted(n)}; expected a whole number of examples, such as 64")
    count = None if n is None else int(n) + shots
    beside = {kind: options.pop(kind) for kind in COMPANIONS if kind in options}
    for companion_source in beside.values():
        check_source(companion_source)
    if isinstance(source, Task):
        opened = _drawn(source, count, seed, options)
    elif _is_data(source):
        text = getattr(model, "text", None) if getattr(model, "has_text", False) else None
        encode = text or (model.tokens if model is not None else tokens)
        opened = load_task(source, limit=count, seed=seed, tokens=encode, **options)
    else:
        size = DEFAULT_SIZE + shots if count is None else count
        encode = model.tokens if model is not None else tokens
        opened = registry.task(str(source), size, seed=seed, tokens=encode, **options)
    if shots or template != AS_IS:
        opened = few_shot(opened, shots, template=template, separator=separator, seed=seed)
    if opened.opener is not None and not beside:
        return opened
    return replace(opened, beside=beside, opener=companion)


def companion(of: Task, kind: str, n: int | None, model: HasTokens | None) -> Task | None:
    """The negatives or the transfer of a task: what it names itself, or the built-in task of that kind."""
    shared: dict[str, Any] = {"model": model, "seed": of.settings.get("seed", 0)}
    shots = of.settings.get("shots", {})
    shared |= {
        "shots" if name == "k" else name: shots[name]
        for name in ("k", "template", "separator")
        if name in shots
    }
    if (given := of.beside.get(kind)) is not None:
        return task(given, n if isinstance(given, Task) or _is_data(given) else n or len(of), **shared)
    name = f"{of.name}_{COMPANIONS[kind]}"
    family = registry.families().get(name)
    if family is None or "n" not in of.settings:  # a file may have the name of a built-in task
        return None
    same = {
        option: of.settings[option]
        for option, valid in family.options.items()
        if of.settings.get(option) in valid
    }
    try:
        return task(name, n or len(of), **shared, **same)
    except registry.TooFewExamples as few:
        return task(name, few.count - shared.get("shots", 0), **shared, **same)


def _drawn(given: Task, n: int | None, seed: int, options: Mapping[str, Any]) -> Task:
    """A task that is open already, or `n` of its examples."""
    if options:
        raise HeadwiseError(
            f"the task {given.name!r} is already open, so it does not take the options {', '.join(options)}"
        )
    if n is None or n >= len(given):
        return given
    return given.take(sorted(random.Random(f"limit/{seed}").sample(range(len(given)), n)))


def as_task(source: TaskLike, model: HasTokens, options: dict[str, Any]) -> Task:
    """The task itself, or the one that `task` makes of the source; options of a file are taken out of `options`."""
    if isinstance(source, Task):
        return source
    task_options = {name: options.pop(name) for name in (*FILE, *SHOTS, *COMPANIONS) if name in options}
    return task(source, model=model, **task_options)


def prompts_of(source: Any, model: HasTokens) -> list[Any]:
    """The prompts of a task, list or DataFrame of examples; texts, token ids and chats as they are.

    A text is one prompt, a list of messages ({"role": …, "content": …}) one chat.
    """
    if isinstance(source, str):
        source = [source]
    if isinstance(source, Task | Path):
        return [example.prompt for example in task(source, model=model)]
    items = list(source) if isinstance(source, tuple) else items_of(source)
    first = items[0] if items else None
    if isinstance(first, str) and _is_data(first) and os.path.isfile(os.path.expanduser(first)):
        raise HeadwiseError(
            f"{first!r} is a file, and a text here is a prompt; give the file's text (open({first!r}).read()), or its "
            f"rows as a task (hw.task({first!r}, model=model))"
        )
    if isinstance(first, Mapping) and "role" in first:
        return [items]
    if all(isinstance(item, Mapping) and isinstance(item.get("prompt"), str) for item in items):
        return [item["prompt"] for item in items]
    if is_example(first):
        return [example.prompt for example in task(items, model=model, duplicates="keep")]
    return items


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a task that are set for the whole study."""
    for name in options:
        if name in ("source", "n", "limit", "model", "seed", "tokens"):
            raise HeadwiseError(f"{name!r} is not an option of a task; it is set for the whole study")


def option_names() -> set[str]:
    """Every option that some task, file or prompt has."""
    of_mappings = (name for mapping in registered().values() for name in mapping.settings.model_fields)
    of_families = (name for family in registry.families().values() for name in family.options)
    return {*FILE, *SHOTS, *COMPANIONS, *of_mappings, *of_families}


def check_source(source: Any) -> None:
    """Refuse a name that is no built-in task and no file's, before anything is loaded for it."""
    if not _is_data(source):
        registry.FAMILIES.get(source)


def check_task(
    source: str, options: Mapping[str, Any], text: registry.ModelText | None = None
) -> Sequence[Example] | None:
    """Refuse a task that cannot be opened: no such name or file, a wrong option, a file with a bad line.

    Returns the examples of a file; None for a built-in task, and for a file that only a tokenizer (`text`) can read.
    """
    check_options(options)
    task_options = {name: value for name, value in options.items() if name not in (*SHOTS, *COMPANIONS)}
    for kind in COMPANIONS:
        check_source(options.get(kind, ()))
    if _is_data(source):
        return check_file(source, task_options, text)
    registry.check_family_options(registry.FAMILIES.get(source), task_options)
    return None


def check_given(settings: Mapping[str, Any]) -> None:
    """Refuse files among the settings of a study that cannot be read; other settings are checked by the study."""
    sources = [*several(settings.get("tasks", ())), *several(settings.get("data", ()))]
    options = settings.get("task_options", {})
    if isinstance(options, Mapping) and not set(options) & set(sources):  # else they are given by task
        given = {**options, **{name: settings[name] for name in FILE if name in settings}}
        for source in (source for source in sources if isinstance(source, str) and _is_data(source)):
            check_task(source, given)


def depends_on_tokenizer(source: str, options: Mapping[str, Any]) -> bool:
    """Whether a file can be read, or its counterfactuals compared, only with a tokenizer."""
    examples = check_task(source, options)
    return _is_data(source) and (examples is None or any(e.counterfactual is not None for e in examples))


def _is_data(source: Any) -> bool:
    """Whether the source is no name of a built-in task."""
    if not isinstance(source, str):
        return True
    return source.startswith(PREFIX) or bool(Path(source).suffix) or "/" in source
