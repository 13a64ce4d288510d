"""The study `masking`: does the model fail when the important heads go, and not when random ones go?

Half of each ability's examples give an order of heads; the other half is written on from, with the first K heads
of the order masked, with as many random ones, and with as many random ones of the same layers. Tables beside the
contract's: `texts` (everything that was written), `samples` (prompt, gold answer and texts side by side),
`orders` (which heads were masked), `cross` (mask one ability's heads, measure another), `interventions` (accuracy
before and after heads are amplified or shifted).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pandas as pd

from headwise.constraints import Constraints, Number, OneOf
from headwise.errors import unknown
from headwise.heads import Scores
from headwise.metrics.text.registry import text_metrics
from headwise.runs import Cell, CellResult, RunFolder, execute, progress, read_table
from headwise.scores import method, score
from headwise.scores.registry import check_option_values
from headwise.studies.base import register
from headwise.studies.figures import save_figures
from headwise.studies.masking.charts import charts
from headwise.studies.masking.cross import cross_cells
from headwise.studies.masking.intervene import KINDS, intervention_cells
from headwise.studies.masking.plan import Plan
from headwise.studies.masking.samples import sample_cells
from headwise.studies.masking.texts import ANSWERS, AUTO, point_tables
from headwise.studies.score.study import example_table
from headwise.studies.settings.resolve import METHOD, METRIC, POSITIONS, TASKS, StudySettings
from headwise.studies.workbench import Workbench

RANKINGS = ("signed", "absolute", "hinders")
QUICK = {"n": 10, "new_tokens": 8}
"""Most of each with `quick`, which also takes fewer K."""
BAR = 0.5
"""Below this share of right answers with no head masked there is little that masking could take away."""


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(StudySettings):
    """Settings of the study `masking`."""

    CONSTRAINTS: ClassVar[Constraints] = {
        "tasks": TASKS,
        "limit": Number(least=1),
        "n": Number(least=2),
        "k": Number(least=1),
        "method": METHOD,
        "metric": METRIC,
        "order_by": OneOf("order_by", lambda: RANKINGS),
        "draws": Number(least=1),
        "layer_matched": Number(least=1),
        "scale": Number(least=0),
        "positions": POSITIONS,
        "new_tokens": Number(least=1),
        "accuracy": OneOf("text metric", lambda: (AUTO, *text_metrics())),
        "answer": OneOf("answer", lambda: ANSWERS),
        "similarity": OneOf("text metric", text_metrics),
        "cross_k": Number(least=1),
        "intervene": OneOf("intervention", lambda: KINDS),
        "intervene_k": Number(least=1),
        "strengths": Number(),
    }

    tasks: tuple[str, ...] = ()
    """Built-in names, files (CogQA, or your own with labels), or hub:owner/name; `abilities` by default."""
    data: str | None = None
    """A task file, beside `tasks` or instead."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of the tasks, of their prompts (shots, template, separator) or of their file (columns)."""
    limit: int | None = None
    """Most examples taken from a file, over all abilities."""
    abilities: tuple[str, ...] = ()
    """Labels; by default Retrieval, Knowledge Recall, Math Calculation and Inference where the examples have
    them, else every label. `all` is every label."""
    n: int = 40
    """Examples of each ability that are written on from; as many others give the order. Where there are fewer
    than twice as many, half of them."""
    k: tuple[int, ...] = ()
    """How many heads to mask; by default 16, 32, 64, 128, and the same shares of a model with fewer than 512."""
    method: str = "attribution"
    """The score that orders the heads."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the method."""
    metric: str = "logprob"
    """What the score measures: by default how probable the right answer is, because that is what a text needs."""
    order_by: str | None = None
    """`signed` (helps most first), `absolute` or `hinders`; by default signed where the method is, else absolute."""
    draws: int = 5
    """Random draws of heads for each control."""
    layer_matched: tuple[int, ...] | None = None
    """The K at which layer-matched draws are made too; by default the third, with [] none."""
    scale: float = 0.0
    """The gate of a masked head: 0 removes it; the paper has .001, its code .0001."""
    positions: str = "all"
    """Where gates act: `all`, or from the `last` prompt token on."""
    new_tokens: int = 16
    """Most tokens written after each prompt."""
    chat: bool = False
    """Put prompts into the model's chat template."""
    accuracy: str = AUTO
    """The text metric that decides what is right; `auto` is `contains`, or `math` where all answers are numbers."""
    answer: str = "sentence"
    """What of a text is judged for accuracy: its first `sentence`, or the whole `text`."""
    similarity: str = "chrf"
    """The text metric that compares with what the full model wrote: chrf, bleu, rouge1, cosine, comet."""
    cross: bool = False
    """Also mask each ability's heads and measure every other ability, at one K."""
    cross_k: int | None = None
    """By default the third K."""
    intervene: tuple[str, ...] = ()
    """Also make heads stronger: `amplify` (a gate above 1), `shift` (add α·σ·direction)."""
    intervene_k: int | None = None
    """How many of the order's first heads are made stronger; by default the first K."""
    strengths: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Gates to try for `amplify`, α for `shift`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.strengths:
            if kind not in KINDS:
                raise unknown("intervention", kind, KINDS)
        _check_method(self)


@register(
    "masking",
    question="Does the model fail when the important heads go, and not when random ones go?",
    settings=MaskingSettings,
)
def carry_out(settings: MaskingSettings, bench: Workbench, folder: RunFolder) -> None:
    if settings.quick:
        settings = settings.at_most(**QUICK)
    plans = [Plan(settings, bench, name) for name in settings.models]
    for plan in plans:
        for judge in plan.judges.values():
            judge.ready()
    first = [cell for plan in plans for cell in plan.first_cells()]
    by_name = {plan.given: plan for plan in plans}
    execute(folder, first, partial(_first, by_name), progress=bench.progress)
    scores, texts = read_table(folder, "scores"), read_table(folder, "texts")
    for plan in plans:
        plan.read(scores, texts)
    masks = [cell for plan in plans for cell in plan.mask_cells()]
    execute(folder, masks, partial(_masked, by_name), progress=bench.progress)
    if settings.cross:
        cross_cells(folder, plans)
    if settings.intervene:
        intervention_cells(folder, plans)
    sample_cells(folder, plans)
    save_figures(folder, charts)
    _tell(folder, plans)


def _check_method(settings: MaskingSettings) -> None:
    # The study maps all labels at once, so the probe's `label` is none of its options.
    options = ("answer_tokens",) if settings.method == "probe" else method(settings.method).options
    for option in settings.method_options:
        if option not in options:
            raise unknown(f"option of method {settings.method!r}", option, options)
    check_option_values(settings.method, settings.method_options)


def _first(plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan = plans[cell.model]
    if cell.part == "full":
        texts = plan.write(cell.task, "full model")
        judge, about = plan.judges[cell.task], plan.about(cell.task, "full", 0)
        return CellResult(
            point_tables(texts, texts[0], plan.test[cell.task], judge, about, plan.settings.seed)
        )
    settings, task = plan.settings, plan.find[cell.task]
    if settings.method == "probe":
        return _order_tables(plan, cell, plan.probe()[cell.task])
    with progress(
        cell.part, method(settings.method).steps(plan.model, task), show=plan.bench.progress
    ) as advance:
        found = score(
            plan.model,
            task,
            settings.method,
            metric=settings.metric,
            positions="all",
            seed=settings.seed,
            batch_tokens=settings.batch_tokens,
            advance=advance,
            **settings.method_options,
        )
    return _order_tables(plan, cell, found)


def _order_tables(plan: Plan, cell: Cell, found: Scores) -> CellResult:
    found = replace(found, model=plan.shown, task=cell.task)
    tables = {"scores": found.table(plan.settings.seed), "examples": example_table(found)}
    return CellResult(tables, dict(found.details))


def _masked(plans: dict[str, Plan], cell: Cell) -> CellResult:
    plan = plans[cell.model]
    one = next(one for one in plan.sets(cell.task) if one.name == cell.part)
    texts = plan.write(cell.task, cell.part, gates=one.gates(plan.model.shape, plan.settings.scale))
    about = plan.about(cell.task, one.series, one.k)
    tables = point_tables(
        texts, plan.full[cell.task], plan.test[cell.task], plan.judges[cell.task], about, plan.settings.seed
    )
    tables["orders"] = pd.DataFrame(
        [
            {
                **about,
                "draw": draw,
                "place": place,
                "layer": head.layer,
                "head": head.head,
                "moved": drawn.moved,
            }
            for draw, drawn in enumerate(one.draws)
            for place, head in enumerate(drawn.heads)
        ]
    )
    return CellResult(tables, {"moved": one.moved})


def _tell(folder: RunFolder, plans: list[Plan]) -> None:
    """What the reader of the curves must know: a low start, and controls that are not quite what they should be."""
    curves = read_table(folder, "curves")
    for plan in plans:
        own = curves[(curves["model"] == plan.shown) & (curves["metric"] == "accuracy")]
        low = own[(own["k"] == 0) & (own["value"] < BAR)]
        if len(low):
            listed = ", ".join(f"{row.task} {row.value:.0%}" for row in low.itertuples())
            folder.notice(
                f"{plan.shown} answers few examples rightly with every head in place ({listed}), so masking has little "
                "to take away there; give examples it can do, shots (task_options: {shots: 3}) or another accuracy"
            )
        for label, test in plan.test.items():
            if len(test) < plan.settings.n:
                folder.notice(
                    f"{label} has {len(test) + len(plan.find[label])} examples, so {len(test)} are written on from "
                    f"instead of {plan.settings.n}"
                )
            for one in plan.sets(label):
                if one.moved:
                    folder.notice(
                        f"{label}, {plan.shown}: {one.moved} of {one.k * len(one.draws)} heads of the layer-matched "
                        f"draws at K = {one.k} come from neighbouring layers, because theirs had too few free heads"
                    )
