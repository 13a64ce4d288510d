"""The models and tasks of a study, each loaded once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headwise.errors import HeadwiseError
from headwise.files import named_source
from headwise.metrics.leading_space import note_leading_space
from headwise.model.load.load import is_adapted, load, load_in_main_memory, load_text
from headwise.model.model import Model
from headwise.tasks import Task, task
from headwise.tasks.opening import check_options, check_task, depends_on_tokenizer


class Workbench:
    """Loads what a study names when it is first needed, and keeps it."""

    def __init__(self, progress: bool = True) -> None:
        self.progress = progress
        self._models: dict[str, Model] = {}
        self._added: set[str] = set()
        self._tasks: dict[tuple[Any, ...], Task] = {}
        self._load_options: dict[str, Any] = {}
        self._in_main_memory = False
        self._remembers = False

    def prepare(self, settings: Any) -> None:
        """Check everything that needs no model, and use these settings to load models."""
        settings.before_run()
        self.configure(settings)
        self.check_files(settings)

    def configure(self, settings: Any) -> None:
        """Use these settings to load models; those loaded with other settings are dropped."""
        names = "device dtype batch_tokens compile truncate revision base trust_remote_code".split()
        options = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        if options.get("base") and not any(map(is_adapted, settings.models)):
            raise HeadwiseError(f"base is {options['base']!r}, but no model of the study is an adapter")
        if options != self._load_options:
            self._models = {name: model for name, model in self._models.items() if name in self._added}
            self._tasks = {}
        self._load_options = options
        self._in_main_memory = False

    def use_main_memory(self) -> None:
        """Load models into main memory only, because other processes compute with them.

        Their dtype is the one they would have on the device, because it is part of the keys of steps.
        """
        self._in_main_memory = True

    def add(self, model: Model) -> None:
        """Use a model that is loaded already, under its own name."""
        self._models[model.name] = model
        self._added.add(model.name)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """While this holds, means of head outputs and the like are computed once for all steps of a study."""
        self._remembers = True
        try:
            yield
        finally:
            self._remembers = False
            for model in self._models.values():
                model.memory = None

    def source(self, name: str) -> str:
        """How a command names a model: as the settings do, or by the source of one that was added."""
        origin = self._models[name].origin if name in self._added else None
        return name if origin is None or origin.source == name else f"{name}={origin.source}"

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has no terminal to draw on; its models are loaded there (`Model.__reduce__`)."""
        return self.__dict__ | {"progress": False}

    def replica_bytes(self) -> int:
        """The size of all models together."""
        return sum(p.nbytes for model in self._models.values() for p in model.hf.parameters())

    def model(self, name: str) -> Model:
        if name not in self._models:
            options = dict(self._load_options)
            if options.get("base") and not is_adapted(name):
                options["base"] = None
            self._models[name] = (
                load_in_main_memory(name, **options) if self._in_main_memory else load(name, **options)
            )
        model = self._models[name]
        if self._remembers and model.memory is None:
            model.memory = {}
        return model

    def display_names(self, sources: Sequence[str]) -> dict[str, str]:
        """What each model is called in the tables: its own name, or its source where two have the same name."""
        names = {source: self.model(source).name for source in sources}
        counts = Counter(names.values())
        for source, name in names.items():
            if counts[name] > 1 and named_source(source)[0]:
                raise HeadwiseError(
                    f"two models would be called {name!r} in the tables; give {named_source(source)[1]} another name "
                    "(NAME=path)"
                )
        return {source: name if counts[name] == 1 else source for source, name in names.items()}

    def task(
        self, source: str, model: Model, n: int, seed: int, options: Mapping[str, Any] | None = None
    ) -> Task:
        """A task by name or file; its examples may depend on the model's tokenizer, so it is made for one model."""
        key = (source, model.name, n, seed, json.dumps(options or {}, sort_keys=True, default=str))
        if key not in self._tasks:
            check_options(options or {})
            self._tasks[key] = task(source, n, seed=seed, model=model, **(options or {}))
            note_leading_space(model, self._tasks[key])
        return self._tasks[key]

    def check_files(self, settings: Any) -> None:
        """Refuse a file that does not suit a model's tokenizer before the weights of the model are loaded."""
        names = ("revision", "trust_remote_code", "base")
        options = {name: value for name, value in self._load_options.items() if name in names}
        sources = [source for source in settings.sources() if depends_on_tokenizer(*source)]
        for name in settings.models if sources else ():
            try:
                text = self._models[name].text if name in self._models else load_text(name, **options)
            except HeadwiseError:
                continue  # loading the model says better what is wrong with it
            for source, task_options in sources:
                check_task(source, task_options, text)

    def fingerprints(self, settings: Any) -> dict[str, str]:
        """Of every model a study names (its tasks' are in the keys of steps)."""
        self.display_names(settings.models)
        return {name: self.model(name).fingerprint for name in settings.models}
