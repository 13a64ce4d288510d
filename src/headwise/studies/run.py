"""`Run`: what a study is written with. It loads models and tasks, computes steps or reads them back, and writes tables.

for pair in run.pairs():
    scored = run.one(score_heads(pair.model, pair.task, "ablation"))
    run.table("scores", scored.table.assign(**pair.columns))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import TypeVar as TypeVarWithDefault

from headwise.errors import HeadwiseError
from headwise.runs import Call, RunFolder, compute, write_table
from headwise.runs.compute import closing_after_errors
from headwise.runs.reader import RunTables
from headwise.runs.tables import Spool

if TYPE_CHECKING:
    import pandas as pd

    from headwise.model.model import Model
    from headwise.studies.settings.shared import StudySettings
    from headwise.studies.workbench import Workbench
    from headwise.tasks import Task

K = TypeVar("K")
T = TypeVar("T")
Opened = TypeVarWithDefault("Opened", default="Task")
"""What a study makes of a task: anything with a name."""


@dataclass(frozen=True, eq=False)
class Pair(Generic[Opened]):
    """One model on one task."""

    model: Model
    task: Opened
    columns: dict[str, str]
    """What the tables call them: `model` and `task`."""


class Run:
    """One run of a study."""

    def __init__(self, settings: StudySettings, bench: Workbench, folder: RunFolder) -> None:
        self.settings, self.bench, self.folder = settings, bench, folder
        self._spools: dict[str, Spool] = {}

    # ---- models and tasks ------------------------------------------------------------------------------

    def model(self, source: str) -> Model:
        """A model of the settings, loaded once."""
        return self.bench.model(source)

    def display_name(self, source: str) -> str:
        """What the tables call a model of the settings."""
        return self.bench.display_names(self.settings.models)[source]

    def task(self, source: str, model: Model, options: Mapping[str, Any] | None = None) -> Task:
        """A task in a model's tokens, with the settings n, seed and task_options."""
        s: Any = self.settings
        return self.bench.task(
            source, model, s.n, s.seed, getattr(s, "task_options", {}) if options is None else options
        )

    def pairs(
        self,
        sources: Iterable[tuple[str, str]] | None = None,
        task: Callable[[str, Model], Opened] | None = None,
    ) -> list[Pair[Opened]]:
        """Every model of the settings with every task, loaded and named; two that would be called alike are refused.

        sources: (model, task) pairs to use instead. task: how a task is opened for a model, if not by `self.task`.
        """
        s: Any = self.settings
        named: dict[tuple[str, str], tuple[str, str]] = {}
        pairs = []
        for source in sources or [(model, task) for model in s.models for task in s.tasks]:
            model = self.model(source[0])
            examples: Any = (task or self.task)(source[1], model)
            names = self.display_name(source[0]), examples.name
            other = named.setdefault(names, source)
            if other != source:  # their rows could not be told apart in the tables
                raise HeadwiseError(
                    f"{other} and {source} would both be called {names[1]!r} with {names[0]!r} in the tables; name one "
                    "of the models (NAME=path), or rename the file of one of the tasks"
                )
            pairs.append(Pair(model, examples, dict(zip(("model", "task"), names, strict=True))))
        return pairs

    # ---- steps -----------------------------------------------------------------------------------------

    def all(self, calls: Mapping[K, Call[T]], label: str = "steps") -> Mapping[K, T]:
        """The results of these calls under the same keys: read back where they are stored, else computed, here or on
        the workers of the run. label: for the progress bar."""
        return compute(self.folder, calls, label, progress=self.bench.progress)

    def one(self, call: Call[T]) -> T:
        return self.all({0: call}, call.label)[0]

    # ---- what the user gets ------------------------------------------------------------------------------

    def table(self, name: str, *frames: pd.DataFrame) -> None:
        """Add rows to a table of the run, in the order of the calls; it is written when the study has ended."""
        spool = self._spools.setdefault(name, Spool(name))
        for frame in frames:
            spool.add(frame)

    def tables(self, frames: Mapping[str, pd.DataFrame], **columns: Any) -> None:
        """Add rows to several tables; columns: set in all of them."""
        for name, frame in frames.items():
            self.table(name, frame.assign(**columns))

    def add_cards(self, calls: Iterable[tuple[dict[str, str], Call[Any] | None]]) -> None:
        """Compute cards (`top_cards`) and add them to the run, each under its `model` and `task`."""
        wanted = [(columns, call) for columns, call in calls if call is not None]
        for number, cards in self.all({i: call for i, (_, call) in enumerate(wanted)}, "cards").items():
            self.tables(cards.tables, **wanted[number][0])
            self.say_of(wanted[number][0], *cards.notes)

    def say(self, *sentences: str) -> None:
        """Tell the user something that no finding says."""
        for sentence in sentences:
            self.folder.notice(sentence)

    def say_of(self, columns: Mapping[str, str], *sentences: str) -> None:
        """The same of one task and model."""
        self.say(*(f"{columns['task']}, {columns['model']}: {sentence}" for sentence in sentences))

    def write_tables(self) -> RunTables:
        """Write all tables, and give them back as the report reads them."""
        names: Sequence[str] = sorted(self._spools)
        with closing_after_errors(self.folder):
            self.folder.begin(with_result=True)  # where no step was asked for
            for name in names:
                write_table(self.folder, name, self._spools[name])
            self.folder.wrote(list(names))
            self.folder.save()
        return RunTables(self.folder.path, names)
