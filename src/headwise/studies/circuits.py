"""The study `circuits`: how few heads explain a behaviour, and does sparse attention need fewer?

Heads are ranked on one half of the examples and swept on the other. Tables beside the contract's: `circuits` (how
many heads each curve takes, its areas and the effect it explains), `ratios` (how many times more heads one model
of a pair needs than the other), `members` (which models are shown together), `attention` (the maps of the first
heads of each order).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError, unknown
from headwise.figures.attention import kept_heads
from headwise.figures.circuits import explained_panels
from headwise.figures.style import file_name, save
from headwise.model.attention import attention
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.scores import method, score
from headwise.studies.circuit_tables import (
    attention_rows,
    curve_fingerprint,
    order_fingerprint,
    ratio_row,
    scores_of,
)
from headwise.studies.registry import register
from headwise.studies.score import example_table
from headwise.studies.settings import StudySettings
from headwise.studies.workbench import Workbench
from headwise.sweeps import ACTIONS, CONTROLS, default_reference, most_rows, ranking, renamed, sweep
from headwise.tasks import Task

log = logging.getLogger("headwise")

# Counted in forward rows per example of a half: ranking about 22 (5 slopes, each with its reference), a curve
# points + 8, controls 6 per draw. Two models on the four tasks (116 tokens over one example of each) are then
# about 290,000 tokens, and 65,000 with `quick`; two cores do some 500 a second.
QUICK = {"n": 12, "points": 11, "draws": 1}
"""The most of each with `quick`, which also leaves out the layer-matched control."""
ROLES = ("dense", "sparse", "control")
RANKINGS = ("signed", "absolute", "hinders")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Models whose curves are compared."""

    dense: str
    sparse: str | None = None
    """Without it the dense model is shown alone."""
    control: str | None = None
    """A dense model trained as the sparse one was: what the training alone does."""
    tasks: tuple[str, ...] = ()
    """By default the study's."""

    @property
    def members(self) -> dict[str, str]:
        """Role and model."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


@dataclass(frozen=True, kw_only=True)
class CircuitsSettings(StudySettings):
    """Settings of the study `circuits`."""

    REPLACES: ClassVar[dict[str, str]] = {"models": "pairs"}
    """Models given by flag take the place of a file's pairs."""

    models: tuple[str, ...] = ()
    """One model; or a pair, the dense one first; or a pair and its dense control. By default smollm2."""
    pairs: tuple[Pair, ...] = ()
    """Several pairs, each with `dense`, `sparse`, `control`, `tasks`; instead of `models`."""
    tasks: tuple[str, ...] = ("greater_than", "ioi", "docstring", "ioi_long")
    """Built-in names, files, or hub:owner/name."""
    orders: tuple[str, ...] = ("integrated",)
    """Score methods that rank the heads."""
    by: tuple[str, ...] = ("signed",)
    """How a signed score ranks: `signed` (helps most first), `absolute`, `hinders`."""
    action: str = "keep"
    """`keep` only the first k heads, or `mask` them."""
    threshold: float = 0.9
    """The explained effect at which heads are counted."""
    n: int = 40
    """Examples per task: one half ranks the heads, the other tests them."""
    metric: str | None = None
    """By default each task's own."""
    reference: str | None = None
    """What a head that is not kept is replaced by; by default `patch` where there are counterfactuals, else `mean`."""
    k: tuple[int, ...] = ()
    """Numbers of heads to measure; by default at most `points`, chosen near the threshold."""
    points: int = 21
    controls: tuple[str, ...] = CONTROLS
    """Orders to compare with: `random`, and `random_layer`, which visits the layers as the order does."""
    draws: int = 1
    """Of each control."""
    maps: int = 4
    """Heads of each order whose attention is drawn."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the score methods."""

    def __post_init__(self) -> None:
        if self.pairs:
            named = tuple(dict.fromkeys(name for pair in self.pairs for name in pair.members.values()))
            if self.models and self.models != named:
                raise HeadwiseError(
                    f"models are {', '.join(self.models)} and pairs name {', '.join(named)}; give models or pairs"
                )
            object.__setattr__(self, "models", named)
            return
        models = self.models or ("smollm2",)
        if len(models) > len(ROLES):
            raise HeadwiseError(
                f"{len(models)} models are given; two are a pair (dense, sparse), a third is its dense control, and "
                "more are set as pairs: [{dense: …, sparse: …}, …]"
            )
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "pairs", (Pair(**dict(zip(ROLES, models, strict=False))),))

    def panels(self) -> Iterator[tuple[int, Pair, str]]:
        """(number of the pair, pair, task) of all that is compared."""
        for number, pair in enumerate(self.pairs):
            for task in pair.tasks or self.tasks:
                yield number, pair, task

    def curves(self) -> list[tuple[str, str]]:
        """(model, task), each once."""
        return list(
            dict.fromkeys((m, task) for _, pair, task in self.panels() for m in pair.members.values())
        )


@register(
    "circuits",
    question="How few heads explain the behaviour, and does sparse attention need fewer?",
    settings=CircuitsSettings,
)
def carry_out(settings: CircuitsSettings, bench: Workbench, folder: RunFolder) -> None:
    _check(settings)
    if settings.quick:
        small = {name: min(getattr(settings, name), most) for name, most in QUICK.items()}
        settings = replace(settings, **small, controls=settings.controls[:1])
    work = _Work(settings, bench)
    log.info(work.cost())
    execute(folder, work.order_cells(), work.rank, progress=bench.progress)
    scores = read_table(folder, "scores")
    execute(folder, work.curve_cells(scores), partial(work.measure, scores), progress=bench.progress)
    examples, summary = read_table(folder, "examples"), read_table(folder, "circuits")
    compare = partial(work.compare, examples, summary)
    execute(folder, work.pair_cells(examples, summary), compare, progress=False)
    _draw(folder, settings.threshold)
    _tell(folder)


def _check(settings: CircuitsSettings) -> None:
    """A mistake should end the run before it begins."""
    known = [method(name).options for name in settings.orders]
    for option in settings.method_options:
        if not any(option in options for options in known):
            raise unknown("option of the orders' methods", option, {name for o in known for name in o})
    choices = (("ranking", settings.by, RANKINGS), ("control", settings.controls, CONTROLS))
    for what, given, valid in (*choices, ("action", (settings.action,), ACTIONS)):
        for name in given:
            if name not in valid:
                raise unknown(what, name, valid)
    for pair in settings.pairs:
        names = list(pair.members.values())
        if len(set(names)) < len(names):
            raise HeadwiseError(f"a pair names {names[0]!r} twice; its models must differ")
    if settings.n < 4:
        raise HeadwiseError(f"n is {settings.n}; two halves with an interval each need at least 4 examples")
    if not 0 < settings.threshold <= 1:
        raise HeadwiseError(
            f"threshold is {settings.threshold}; expected a share of the effect, above 0 and up to 1"
        )
    if settings.points < 3 or settings.draws < 1 or settings.maps < 0:
        raise HeadwiseError("expected at least 3 points, 1 draw of each control and 0 maps")
    panels = [(number, task) for number, _, task in settings.panels()]
    if not settings.orders or not settings.by or len(set(panels)) < len(panels):
        raise HeadwiseError("expected at least one order and one ranking, and each task once per pair")


class _Work:
    """What the cells of the study are, and how each is computed."""

    def __init__(self, settings: CircuitsSettings, bench: Workbench) -> None:
        self.settings, self.bench = settings, bench
        self.shown = bench.shown(settings.models)
        self.tasks = {(model, task): self._halves(model, task) for model, task in settings.curves()}

    def _halves(self, model: str, task: str) -> tuple[Task, Task]:
        s = self.settings
        return self.bench.task(task, self.bench.model(model), s.n, s.seed, s.task_options).halves()

    def _reference(self, model: str, task: str) -> str:
        found, tested = self.tasks[model, task]
        references = {self.settings.reference or default_reference(half) for half in (found, tested)}
        return references.pop() if len(references) == 1 else "mean"

    def _about(self, model: str, task: str) -> dict[str, Any]:
        return {
            "n": self.settings.n,
            "seed": self.settings.seed,
            "metric": self.settings.metric or self.tasks[model, task][0].metric,
            "reference": self._reference(model, task),
            "dtype": str(self.bench.model(model).dtype).removeprefix("torch."),
        }

    def _kinds(self, name: str, by: str) -> tuple[str, ...]:
        """A random order is the same whatever it is compared with: only the first order brings it along."""
        first = (name, by) == (self.settings.orders[0], self.settings.by[0])
        return tuple(kind for kind in self.settings.controls if first or kind != "random")

    def cost(self) -> str:
        """How much is to be done, in the unit that time is made of."""
        s = self.settings
        rows = tokens = 0
        for (model, _), (found, tested) in self.tasks.items():
            lengths = [len(self.bench.model(model).tokens(example.prompt)) for example in found]
            points = len(s.k) or s.points
            per_curve = sum(
                most_rows(points, len(self._kinds(o, by)), s.draws) for o in s.orders for by in s.by
            )
            rows += per_curve * len(tested)
            tokens += int(per_curve * len(tested) * np.mean(lengths))
        return (
            f"circuits: {len(self.tasks)} curves per order of up to {rows:,} rows (about {tokens:,} tokens) in all, "
            f"after ranking the heads by {', '.join(s.orders)} on {s.n - s.n // 2} examples each"
        )

    # ---- orders ----------------------------------------------------------------------------------------

    def order_cells(self) -> list[Cell]:
        cells = []
        for (model, task), (found, _) in self.tasks.items():
            prints = {"model": self.bench.model(model).fingerprint, "task": found.fingerprint}
            for name in self.settings.orders:
                about = self._about(model, task) | {"options": self._options(name)}
                cells.append(Cell("circuits", model, task, name, about, prints))
        return cells

    def _options(self, name: str) -> dict[str, Any]:
        known = method(name).options
        return {option: value for option, value in self.settings.method_options.items() if option in known}

    def rank(self, cell: Cell) -> CellResult:
        """Scores of all heads on the even examples."""
        model, (found, _) = self.bench.model(cell.model), self.tasks[cell.model, cell.task]
        with progress(cell.label, method(cell.part).steps(model, found), show=self.bench.progress) as advance:
            scores = score(
                model,
                found,
                cell.part,
                metric=self.settings.metric,
                reference=self._reference(cell.model, cell.task),
                seed=self.settings.seed,
                advance=advance,
                **self._options(cell.part),
            )
        if np.isnan(scores.values[model.exists]).all():
            raise HeadwiseError(
                f"{cell.part} gave no finite score for any head of {cell.model} on {cell.task}"
            )
        scores = replace(scores, model=self.shown[cell.model], task=cell.task)
        examples = example_table(scores)
        examples["example"] *= 2
        return CellResult(
            {"scores": scores.table(self.settings.seed), "examples": examples}, dict(scores.details)
        )

    # ---- curves ----------------------------------------------------------------------------------------

    def curve_cells(self, scores: pd.DataFrame) -> list[Cell]:
        s = self.settings
        cells = {}
        for (model, task), (_, tested) in self.tasks.items():
            for name in s.orders:
                ranked = scores_of(self._rows(scores, model, task, name))
                for by in s.by:
                    # An unsigned score gives one order, however many rankings are asked for.
                    by, series = ranking(name, ranked.signed, by)
                    order = ranked.order(by if by != "unsigned" else "signed")
                    prints = {"model": self.bench.model(model).fingerprint, "task": tested.fingerprint}
                    prints |= {"order": order_fingerprint(order)}
                    about = self._about(model, task) | {"order": name, "by": by, "threshold": s.threshold}
                    about |= {"action": s.action, "k": s.k, "points": s.points, "draws": s.draws}
                    about |= {"controls": self._kinds(name, by if by != "unsigned" else s.by[0])}
                    cells[model, task, series] = Cell(
                        "circuits", model, task, f"curve {series}", about, prints
                    )
                    if s.maps:
                        part = f"attention {series}"
                        about = {"order": name, "by": by, "maps": s.maps}
                        cells[model, task, part] = Cell("circuits", model, task, part, about, prints)
        return list(cells.values())

    def _rows(self, scores: pd.DataFrame, model: str, task: str, name: str) -> pd.DataFrame:
        own = (scores["model"] == self.shown[model]) & (scores["task"] == task) & (scores["method"] == name)
        return scores[own]

    def measure(self, scores: pd.DataFrame, cell: Cell) -> CellResult:
        """One curve with its controls on the odd examples, or where the first heads of its order look."""
        name, by = cell.settings["order"], cell.settings["by"]
        ranked = scores_of(self._rows(scores, cell.model, cell.task, name))
        by = by if by != "unsigned" else "signed"
        if cell.part.startswith("attention "):
            return self._attend(cell, ranked.order(by)[: self.settings.maps])
        return self._sweep(cell, ranked, by)

    def _sweep(self, cell: Cell, ranked: Any, by: str) -> CellResult:
        s, model = self.settings, self.bench.model(cell.model)
        tested, kinds = self.tasks[cell.model, cell.task][1], tuple(cell.settings["controls"])
        rows = most_rows(len(s.k) or s.points, len(kinds), s.draws) * len(tested)
        with progress(cell.label, rows, show=self.bench.progress) as advance:
            found = sweep(
                model,
                tested,
                ranked,
                s.action,
                reference=cell.settings["reference"],
                metric=s.metric,
                # The ends are always there: they are known, and the ratio is read between them.
                k=[0, *s.k, len(model.heads())] if s.k else None,
                controls=kinds,
                draws=s.draws,
                by=by,
                threshold=s.threshold,
                points=s.points,
                seed=s.seed,
                advance=advance,
            )
        found = renamed(found, model=self.shown[cell.model], task=cell.task)
        examples = found.example_table()
        examples["example"] = examples["example"] * 2 + 1
        summary = pd.DataFrame([{**found.summary(s.threshold), "examples": tested.fingerprint}])
        return CellResult({"curves": found.table(), "examples": examples, "circuits": summary}, found.details)

    def _attend(self, cell: Cell, heads: list[Any]) -> CellResult:
        prompt = self.tasks[cell.model, cell.task][1].examples[0].prompt
        seen = attention(self.bench.model(cell.model), prompt, heads, maps=True)
        series = cell.part.removeprefix("attention ")
        about = {"model": self.shown[cell.model], "task": cell.task, "series": series}
        return CellResult({"attention": attention_rows(seen, about)})

    # ---- pairs -----------------------------------------------------------------------------------------

    def pair_cells(self, examples: pd.DataFrame, summary: pd.DataFrame) -> list[Cell]:
        cells = []
        for number, pair, task in self.settings.panels():
            about = {"pair": number, "members": pair.members, "threshold": self.settings.threshold}
            about |= {"seed": self.settings.seed}
            prints = {
                f"{role}/{series}": curve_fingerprint(_curve_rows(examples, self.shown[name], task, series))
                for role, name in pair.members.items()
                for series in dict.fromkeys(summary["series"])
            }
            cells.append(Cell("circuits", pair.dense, task, f"pair {number}", about, prints))
        return cells

    def compare(self, examples: pd.DataFrame, summary: pd.DataFrame, cell: Cell) -> CellResult:
        """Which models are shown together, and how many times more heads one needs than another."""
        members = {
            role: self.shown[cell.settings["members"][role]]
            for role in ROLES
            if role in cell.settings["members"]
        }
        pair = {"pair": cell.settings["pair"], "task": cell.task}
        rows = [{**pair, "role": role, "model": model} for role, model in members.items()]
        tables = {"members": pd.DataFrame(rows)}
        ratios = []
        of_task = summary[summary["task"] == cell.task].set_index(["series", "model"])
        for series in dict.fromkeys(summary["series"]):
            # Dense over sparse first, as in the figure; the control comes between the two.
            for (role, model), (other_role, other) in combinations(_from_dense(members), 2):
                first, second = of_task.loc[(series, model)], of_task.loc[(series, other)]
                found = ratio_row(
                    _curve_rows(examples, model, cell.task, series),
                    _curve_rows(examples, other, cell.task, series),
                    threshold=self.settings.threshold,
                    defined=bool(first["defined"] and second["defined"]),
                    paired=first["examples"] == second["examples"],
                    seed=self.settings.seed,
                )
                about = {"series": series, "by": first["by"], "compared": f"{role}/{other_role}"}
                ratios.append({**pair, **about, "model": model, "other": other, **found})
        if ratios:
            tables["ratios"] = pd.DataFrame(ratios).assign(threshold=self.settings.threshold)
        return CellResult(tables)


def _from_dense(members: dict[str, str]) -> list[tuple[str, str]]:
    """(role, model) such that every pair of them is read "the first over the second": dense, control, sparse."""
    return [(role, members[role]) for role in ("dense", "control", "sparse") if role in members]


def _curve_rows(examples: pd.DataFrame, model: str, task: str, series: str) -> pd.DataFrame:
    own = (examples["model"] == model) & (examples["task"] == task) & (examples["series"] == series)
    return examples[own]


# ---- what the user sees --------------------------------------------------------------------------------


def _draw(folder: RunFolder, threshold: float) -> None:
    curves, summary = read_table(folder, "curves"), read_table(folder, "circuits")
    members = read_table(folder, "members")
    ratios = read_table(folder, "ratios") if "ratios" in folder.written else None
    place = folder.path / "figures"
    for series in dict.fromkeys(summary["series"]):
        figure = explained_panels(
            curves[(curves["order"] == series) | (curves["series"] == "random")],
            members=members,
            ratios=None if ratios is None else ratios[ratios["series"] == series],
            threshold=threshold,
        )
        save(figure, place, f"circuits-{file_name(series)}")
    if "attention" in folder.written:
        maps = read_table(folder, "attention")
        for (task, series), part in maps.groupby(["task", "series"], sort=False):
            save(kept_heads(part), place, f"heads-{file_name(task)}-{file_name(series)}")


def _tell(folder: RunFolder) -> None:
    """Each curve's answer in one sentence, then each ratio's."""
    for row in read_table(folder, "circuits").to_dict("records"):
        what = f"{row['model']} on {row['task']}, order {row['series']}"
        if not row["defined"]:
            folder.notice(
                f"{what}: the explained effect is undefined, because {row['metric']} with all heads minus with none "
                f"is {row['effect']:+.3g} [{row['effect_lo']:+.3g}, {row['effect_hi']:+.3g}] and may be 0; use more "
                "examples, or a behaviour that the heads make a difference to"
            )
            continue
        verb = "explain" if row["action"] == "keep" else "take away"
        sentence = (
            f"{what}: {row['k']:.0f} of {row['of']} heads [{row['k_lo']:.0f}, {row['k_hi']:.0f}] {verb} "
            f"{row['threshold']:.0%} of the effect, n = {row['n']}"
        )
        if row["stays"] > row["k"]:
            sentence += f"; it stays there from {row['stays']:.0f} on"
        if row["effect"] < 0:
            sentence += (
                "; with all heads the model does worse than with none, and it is this loss that is explained"
            )
        folder.notice(sentence)
    if "ratios" not in folder.written:
        return
    for row in read_table(folder, "ratios").to_dict("records"):
        if row["compared"] == "dense/sparse" and np.isfinite(row["ratio"]):
            folder.notice(
                f"{row['task']}, order {row['series']}: {row['model']} needs {row['ratio']:.2f}x the heads of "
                f"{row['other']} [{row['lo']:.2f}, {row['hi']:.2f}]"
            )
