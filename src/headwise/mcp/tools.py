"""The tools, one method each, whose signature and docstring are what a client sees; and the desk: what they may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from headwise.errors import HeadwiseError, unknown
from headwise.files import inside
from headwise.mcp.answers import (
    Card,
    EdgeMethod,
    Examples,
    Half,
    HeadName,
    HeadNames,
    Measured,
    Method,
    Models,
    Preview,
    Receivers,
    Reference,
    Row,
    Run,
    Scored,
    Seed,
    Shown,
    Text,
    Texts,
    Top,
    Verdict,
    card_tables,
    largest,
    number,
    rows,
)


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
        columns = {
            "model": loaded.name,
            "task": examples.name,
            "half": half,
            "n": len(examples),
            "seed": seed,
        }
        return loaded, examples, columns

    def run(self, name: str) -> Path:
        folder = self.runs / name
        if not inside(self.runs, folder) or not (folder / "run.json").is_file():
            raise unknown("run of this server", name, self.run_names())
        return folder

    def run_names(self) -> list[str]:
        return sorted(path.parent.name for path in self.runs.glob("*/run.json"))


class Tools:
    """What a client can ask about what is on the desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.progress: Callable[[int], None] = lambda steps: None
        """The progress of the call that is carried out."""

    def list_models(self) -> Models:
        """Models, tasks and runs that this server may use. `layers` and `heads` (of a layer) are known once a model is
        loaded, which its first call does."""
        shapes = {name: model.shape for name, model in self._desk.loaded.items()}
        models: list[Row] = []
        for name in self._desk.models:
            layers, heads = shapes.get(name, (None, None))
            models.append({"name": name, "loaded": name in shapes, "layers": layers, "heads": heads})
        return Models(models=models, tasks=self._desk.tasks(), runs=self._desk.run_names())

    def task_preview(
        self, task: Text, model: Text | None = None, n: Examples = 32, seed: Seed = 0
    ) -> Preview:
        """Three examples of a task, and the model's accuracy on n of them. Heads of a task that the model cannot do
        mean nothing."""
        from headwise.scores.measure import measure

        loaded, opened, _ = self._desk.opened(model, task, n, "all", seed)
        row = measure(loaded, opened, metric="accuracy", progress=self.progress).table().iloc[0]
        shown = [
            Shown(prompt=e.prompt, target=e.target, foils=list(e.foils), counterfactual=e.counterfactual)
            for e in opened.examples[:3]
        ]
        spread = {"accuracy": row["mean"], "accuracy_lo": row["lo"], "accuracy_hi": row["hi"]}
        return Preview(task=opened.name, metric=opened.metric, n=len(opened), examples=shown, **spread)

    def score(
        self,
        task: Text,
        model: Text | None = None,
        method: Method = "attribution",
        n: Examples = 64,
        half: Half = "find",
        reference: Reference = "mean",
        metric: Text | None = None,
        seed: Seed = 0,
        top: Top = 20,
    ) -> Scored:
        """Score every head on one half of n examples (half="all": on all n). `attribution` takes seconds and is a
        first-order estimate; `ablation` is exact and takes many times as long. The heads are listed by absolute score:
        positive ones help, negative ones hinder. Test what you find with half="test"."""
        from headwise.scores import score

        loaded, opened, columns = self._desk.opened(model, task, n, half, seed)
        options: dict[str, Any] = {"metric": metric, "reference": reference, "seed": seed}
        found = score(loaded, opened, method, progress=self.progress, **options)
        table = found.table()
        table["head"] = [f"L{row.layer}H{row.head}" for row in table.itertuples()]
        columns |= {"metric": found.metric, "reference": found.reference}
        return Scored(method=method, **columns, **largest(table, ["head"], top))

    def edges(
        self,
        into: Receivers,
        task: Text,
        out_of: HeadNames | None = None,
        model: Text | None = None,
        method: EdgeMethod = "attribution",
        n: Annotated[int, Field(ge=4, le=128)] = 32,
        half: Half = "find",
        reference: Reference = "mean",
        metric: Text | None = None,
        seed: Seed = 0,
        top: Top = 20,
    ) -> Scored:
        """What heads (["L23H3"]: Q, K and V; ["L23H3.Q"]: its query alone) or the output (["logits"]) read from earlier
        heads: the largest direct edges in absolute value. `attribution` takes seconds and is a first-order estimate;
        `exact` replaces one edge at a time and can differ even in sign: name the senders in out_of to keep it short. A
        negative edge lowers the metric. reference="patch" replaces what a head writes by what it writes on the
        counterfactual prompt."""
        from headwise.scores.edges import edges

        loaded, opened, columns = self._desk.opened(model, task, n, half, seed)
        options: dict[str, Any] = {"metric": metric, "reference": reference, "seed": seed}
        found = edges(loaded, opened, method, into=into, out_of=out_of, progress=self.progress, **options)
        columns |= {"metric": found.metric, "reference": reference}
        return Scored(method=method, **columns, **largest(found.table(), ["sender", "receiver"], top))

    def card(
        self,
        head: HeadName,
        task: Text,
        model: Text | None = None,
        n: Annotated[int, Field(ge=4, le=32)] = 16,
        half: Half = "all",
        reference: Reference = "mean",
        metric: Text | None = None,
        seed: Seed = 0,
    ) -> Card:
        """One head: what it does in `words`, its scores, the examples it helps and hurts most, the tokens that the
        position which predicts the answer attends to most, and what it writes: `target` is the right answer, `foil` the
        wrong one, with the logit that the head adds and its rank (1: the most promoted token, `of`: the most
        suppressed)."""
        from headwise.cards import card
        from headwise.charts.card import sentences

        loaded, opened, columns = self._desk.opened(model, task, n, half, seed)
        options: dict[str, Any] = {"metric": metric, "reference": reference, "seed": seed}
        found = card(loaded, head, opened, progress=self.progress, **options)
        words = [*sentences(found.table("tokens"), found.table("patterns")), *found.notes]
        columns |= {"metric": found.metric, "reference": found.reference}
        return Card(words=words, tables=card_tables(found.tables), **columns)

    def measure(
        self,
        task: Text,
        ablate: HeadNames | None = None,
        keep: HeadNames | None = None,
        model: Text | None = None,
        n: Examples = 64,
        half: Half = "test",
        reference: Reference = "mean",
        metric: Text | None = None,
        controls: Annotated[int, Field(ge=0, le=50)] = 0,
        seed: Seed = 0,
    ) -> Measured:
        """The task's metric with these heads removed (`ablate`), or with only these kept (`keep`; []: none of the
        heads). Give a list of heads: ["L23H3"]. `effect` is what is lost, so kept heads
        explain much where it is small. `controls`: so many sets of random heads of the same layers are removed
        (or kept) for comparison; each takes as long as the call without them. `as_good` counts those that do at least
        as well (more is lost without them, or less with them alone): 0 is what a real effect gives."""
        from headwise.heads import head_list
        from headwise.heads.controls import layer_matched_heads
        from headwise.scores.measure import measure

        if (ablate is None) == (keep is None):
            raise HeadwiseError("give the heads either as ablate or as keep; expected exactly one of them")
        loaded, opened, columns = self._desk.opened(model, task, n, half, seed)
        word, heads = ("ablate", ablate) if keep is None else ("keep", keep)
        options: dict[str, Any] = {"reference": reference, "metric": metric, "seed": seed}
        options["progress"] = self.progress
        found = measure(loaded, opened, **{word: heads, **options})
        row, drawn = found.table().iloc[0], []
        for draw in range(controls):
            matched = layer_matched_heads(loaded.heads(), head_list(heads), f"{seed}/{draw}").heads
            drawn.append(float(measure(loaded, opened, **{word: matched, **options}).effects.mean()))
        sign = 1 if keep is None else -1
        as_good = sum(sign * effect >= sign * row["effect"] for effect in drawn) if drawn else None
        columns |= {"metric": found.metric, "reference": found.reference, "ablate": ablate, "keep": keep}
        names = ("full", "mean", "effect", "effect_lo", "effect_hi", "p")
        numbers: dict[str, Any] = {name: number(row[name]) for name in names}
        return Measured(controls=[number(effect) for effect in drawn], as_good=as_good, **numbers, **columns)

    def generate(
        self,
        prompts: Annotated[
            list[Annotated[str, Field(max_length=40_000)]], Field(min_length=1, max_length=16)
        ],
        ablate: HeadNames | None = None,
        model: Text | None = None,
        max_new_tokens: Annotated[int, Field(ge=1, le=256)] = 32,
        chat: bool = False,
    ) -> Texts:
        """Continue prompts greedily, with heads removed (set to zero: there are no examples to take a mean from)."""
        from headwise.model.generation.generate import generate

        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "chat": chat, "progress": self.progress}
        opened = generate(self._desk.model(model), prompts, ablate=ablate, **options)
        return Texts(texts=[str(text) for text in opened.texts[0]])

    def certify(
        self,
        task: Text,
        heads: Annotated[HeadNames, Field(min_length=1)],
        model: Text | None = None,
        n: Examples = 80,
        half: Half = "test",
        reference: Reference = "mean",
        metric: Text | None = None,
        quick: bool = True,
        seed: Seed = 0,
    ) -> Verdict:
        """Is this set of heads really a circuit of the task? Use examples that did not find the heads (half="test").
        quick: the first four checks, which cannot certify, only reject or support. A half has about n/2 examples, and
        families with fewer than 20 are left out: n=160 judges more of them. Takes minutes on a CPU."""
        from headwise.certificates.certify import certify

        loaded, opened, columns = self._desk.opened(model, task, n, half, seed)
        options: dict[str, Any] = {"reference": reference, "metric": metric, "quick": quick, "seed": seed}
        found = certify(loaded, opened, heads, progress=self.progress, **options)
        columns |= {"metric": metric or opened.metric, "reference": found.reference}
        checks = rows(found.lines)
        return Verdict(verdict=found.verdict, sentence=found.sentence, checks=checks, **columns)

    def open_run(self, name: Text, table: Text | None = None) -> Run:
        """Findings, notices and tables of a finished run; `table` gives its first rows."""
        from headwise.report.opened import open_run

        run = open_run(self._desk.run(name))
        if table is not None and table not in run.tables:
            raise unknown("table of the run", table, list(run.tables))
        return Run(
            name=name,
            study=run.study,
            status=run.status,
            findings=[finding.sentence for finding in run.findings],
            notices=run.notices,
            tables=list(run.tables),
            rows=[] if table is None else rows(run.tables[table]),
        )
