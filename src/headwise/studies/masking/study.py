"""The study `masking`: does the model fail when its important heads are ablated, and not when random heads are?

Half of each ability's examples give an order of heads; text is generated from the other half, with the first K heads
of the order masked, with as many random ones, and with as many random ones of the same layers. Tables beside the
common ones: `texts` (everything that was written), `samples` (prompt, gold answer and texts side by side),
`orders` (which heads were masked), `cross` (mask one ability's heads, measure another), `interventions` (accuracy
before and after heads are amplified or shifted).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError
from headwise.heads import Order, mask_gates
from headwise.heads.controls import Draw, layer_matched_heads, random_heads
from headwise.metrics import text_metric
from headwise.runs import Call, Job, step
from headwise.runs.step import NEW_TOKEN
from headwise.scores.registry import method
from headwise.studies.abilities import abilities_of, check_labels_of, score_labels
from headwise.studies.base import study
from headwise.studies.masking.section import section
from headwise.studies.masking.settings import STRENGTHS, MaskingSettings
from headwise.studies.masking.texts import REFERENCE, Case, Judge, Written, accuracy_metric, golds, strengthen
from headwise.studies.plan import some_heads
from headwise.studies.run import Run
from headwise.studies.steps import Scored, input_table, make_cards, score_heads, top_cards
from headwise.tasks import Task

ABILITIES = ("Retrieval", "Knowledge Recall", "Math Calculation", "Inference")
"""The default abilities, in the order of the figure."""
EVERY = "all"
KS = (16, 32, 64, 128)
"""How many heads are masked where a model has at least 512 (Cognitive Mirrors, arXiv 2512.10978)."""
QUICK_KS = 2
"""With `quick`, how many K: the second and third of the grid."""
_MANY, _THEIRS = 512, 1024

# ---- which heads are masked --------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskSet:
    """One point of one curve: k heads, once for the order itself, several times for a random control."""

    series: str
    """`full`, `top`, `random`, `random_layer`; or `cross`: a draw is then the first heads of one ability."""
    k: int
    draws: tuple[Draw, ...]

    def gates(self, shape: tuple[int, int], scale: float = 0.0) -> np.ndarray:
        """`[draws, L, H]`: the drawn heads at `scale`, all others at 1."""
        return np.stack([mask_gates(draw.heads, shape, scale) for draw in self.draws])

    def table(self, columns: dict[str, Any]) -> pd.DataFrame:
        """Rows of `orders`."""
        rows = [
            {"draw": number, "place": place, "layer": head.layer, "head": head.head, "moved": draw.moved}
            for number, draw in enumerate(self.draws)
            for place, head in enumerate(draw.heads)
        ]
        return pd.DataFrame([columns | row for row in rows])

    @property
    def moved(self) -> int:
        """Heads that a layer-matched draw had to take from neighbouring layers, over all draws."""
        return sum(draw.moved for draw in self.draws)


FULL = MaskSet("full", 0, (Draw([], 0),))


def default_ks(heads: int) -> tuple[int, ...]:
    """16, 32, 64, 128 in a large model; in a smaller one the same shares, rounded to powers of two.

    >>> default_ks(1024), default_ks(270), default_ks(144)
    ((16, 32, 64, 128), (4, 8, 16, 32), (2, 4, 8, 16))
    """
    if heads >= _MANY:
        return KS
    powers = (2 ** max(0, round(math.log2(k * heads / _THEIRS))) for k in KS)
    return tuple(dict.fromkeys(k for k in powers if 2 * k <= heads))


def chosen_ks(s: MaskingSettings, heads: int, model: str) -> tuple[tuple[int, ...], int]:
    """The numbers of heads to mask, smallest first, and the one of everything that is measured at one K only."""
    ks = tuple(sorted(set(s.k))) or default_ks(heads)
    if not ks:
        raise HeadwiseError(f"{model} has only {heads} heads: too few to mask one and compare with another")
    few = s.quick and not s.k
    if few:
        ks = ks[1 : 1 + QUICK_KS] or ks
    for k in (*ks, s.cross_k or 0, s.intervene_k or 0, *(s.layer_matched or ())):
        if 2 * k > heads:
            raise HeadwiseError(
                f"k is {k}, but {model} has {heads} heads: a random control needs as many heads again, so mask "
                f"1 to {heads // 2}"
            )
    return ks, ks[-1] if few else ks[min(2, len(ks) - 1)]


def mask_sets(
    order: Order, ks: Sequence[int], layer_matched: Sequence[int], draws: int, seed: int | str
) -> list[MaskSet]:
    """Every point of one ability's curves; `order` holds every head of the model once."""
    sets = [MaskSet("top", k, (Draw(list(order[:k]), 0),)) for k in ks]
    controls = (("random", ks, random_heads), ("random_layer", layer_matched, layer_matched_heads))
    for series, points, drawing in controls:
        for k in points:
            drawn = tuple(drawing(order, order[:k], f"{seed}/{k}/{draw}") for draw in range(draws))
            sets.append(MaskSet(series, k, drawn))
    return sets


# ---- one model on one ability ------------------------------------------------------------------------


def cases_of(run: Run, s: MaskingSettings, source: str) -> dict[str, Case]:
    """One model's abilities, by label."""
    model, name = run.model(source), run.display_name(source)
    ks, middle = chosen_ks(s, len(model.heads()), name)
    options = {
        option: getattr(s, option) for option in ("max_new_tokens", "chat", "positions", "batch_tokens")
    }
    cases = {}
    for label, task in _chosen_abilities(run, s, source).items():
        find, test = task.halves()
        judge = Judge(accuracy_metric(s.accuracy, test), s.similarity, s.answer)
        text_metric(judge.accuracy).ready()
        columns = {"model": name, "task": label}
        cases[label] = Case(model, find, test, judge, **options, ks=ks, middle_k=middle, columns=columns)
        if len(test) < s.n:
            half = f"text is generated from {len(test)} of them instead of {s.n}"
            run.say(f"{label} has {len(task)} examples, so {half}")
    check_labels_of((s.method,), {label: case.find for label, case in cases.items()}, "abilities")
    return cases


def _chosen_abilities(run: Run, s: MaskingSettings, source: str) -> dict[str, Task]:
    """The abilities of the settings, with twice the examples: one half finds, the other tests."""
    requested = () if EVERY in s.abilities else s.abilities
    tasks = abilities_of(s.replaced(n=2 * s.n, abilities=requested), run.bench, run.model(source))
    if not s.abilities and set(ABILITIES) <= set(tasks):
        requested = ABILITIES
    # Their order in the settings is the order of the panels.
    return {label: tasks[label] for label in requested or tasks}


def _score(s: MaskingSettings, case: Case, abilities: dict[str, Case]) -> Call[Any]:
    """The call that scores the heads of a case."""
    if method(s.method).per_label:
        finds = {label: other.find for label, other in abilities.items()}
        return score_labels(case.model, finds, s.method, seed=s.seed, options=s.method_options)
    options: dict[str, Any] = {"metric": s.metric, "reference": REFERENCE, "options": s.method_options}
    return score_heads(case.model, case.find, s.method, seed=s.seed, **options)


# ---- steps -------------------------------------------------------------------------------------------


@step(
    unit=NEW_TOKEN,
    cost=lambda case, point, **_: len(point.draws) * len(case.test) * case.max_new_tokens,
    label="{point.series} k={point.k} on {case.test.name} with {case.model.name}",
)
def write(job: Job, case: Case, point: MaskSet, scale: float = 0.0, full: list[str] | None = None) -> Written:
    """What the model writes at one point of a curve, all draws in one batch; full: what it writes with all heads."""
    texts = case.write(job, case.test, gates=point.gates(case.model.shape, scale))
    values = [case.judge.values(written, full or texts[0], case.test) for written in texts]
    by_metric = {metric: np.stack([judged[metric] for judged in values]) for metric in values[0]}
    return Written(texts, by_metric, case.test.numbers, case.test.shared_groups())


# ---- the study ---------------------------------------------------------------------------------------


def plan(run: Run, s: MaskingSettings) -> Iterator[Call[Any]]:
    nothing: Any = None
    for source in s.models:
        abilities = cases_of(run, s, source)
        for case in abilities.values():
            heads = case.model.heads()
            points = [FULL, *_points(s, case, Start(nothing, heads, nothing))]
            if s.cross:
                points.append(MaskSet("cross", 1, tuple(Draw(heads[:1], 0) for _ in abilities)))
            yield from (write(case, point) for point in points)
            for kind in s.intervene:
                strengths = list(s.strengths.get(kind, STRENGTHS[kind]))
                yield strengthen(case, kind, [heads[:1]] * (1 + s.draws), strengths, [])
            if s.cards:
                yield make_cards(case.model, case.find, some_heads(case.model, s.cards))
        scores = [_score(s, case, abilities) for case in abilities.values()]
        yield from scores[:1] if method(s.method).per_label else scores


@study(
    "Does the model fail when its important heads are ablated, and not when random heads are?",
    MaskingSettings,
    section,
    plan,
)
def masking(run: Run, s: MaskingSettings) -> None:
    models = [cases_of(run, s, source) for source in s.models]
    cases = [case for abilities in models for case in abilities.values()]

    # One half of the examples ranks the heads. From the other half the full model generates text.
    calls: dict[Any, Call[Any]] = {("full", case): write(case, FULL) for case in cases}
    for abilities in models:
        calls |= {("scores", case): _score(s, case, abilities) for case in abilities.values()}
    first = run.all(calls, "scores, and texts of the full model")
    starts = {case: _start(s, case, first["scores", case], first["full", case]) for case in cases}
    for case, start in starts.items():
        run.tables(start.scored.tables(case.find), **case.columns)
        _add_point(run, case, FULL, start.full)
        run.table("inputs", input_table(case.test, "curves").assign(**case.columns))

    # The same with heads masked: the first of the order, as many random ones, as many of the same layers.
    points = {
        (case, point.series, point.k): point for case in cases for point in _points(s, case, starts[case])
    }
    masks = {key: write(key[0], point, s.scale, starts[key[0]].texts) for key, point in points.items()}
    masked = run.all(masks, "masks")
    for key, point in points.items():
        _add_point(run, key[0], point, masked[key])
    for case, start in starts.items():
        top, random = (masked[case, series, case.middle_k].texts[0] for series in ("top", "random"))
        run.table("samples", _sample_table(case, start.texts, top, random))

    if s.cross:
        _cross(run, s, models, starts)
    if s.intervene:
        _interventions(run, s, starts)
    options: dict[str, Any] = {"metric": s.metric, "reference": REFERENCE, "seed": s.seed}
    run.add_cards(
        (case.columns, top_cards(case.model, case.find, start.scored.table, s.cards, **options))
        for case, start in starts.items()
    )


class Start(NamedTuple):
    """What masking starts from: the ranked heads of a case, and what the full model has written."""

    scored: Scored
    order: Order
    full: Written

    @property
    def texts(self) -> list[str]:
        return self.full.texts[0]


def _start(s: MaskingSettings, case: Case, scored: Scored | dict[str, Scored], full: Written) -> Start:
    scored = scored if isinstance(scored, Scored) else scored[case.test.name]
    by = s.order or ("signed" if scored.scores.signed else "absolute")
    return Start(scored, scored.scores.order(by), full)


def _points(s: MaskingSettings, case: Case, start: Start) -> list[MaskSet]:
    """Every point of one ability's curves."""
    matched = (case.middle_k,) if s.layer_matched is None else sorted(set(s.layer_matched))
    return mask_sets(start.order, case.ks, matched, s.draws, f"{s.seed}/{case.test.name}")


def _add_point(run: Run, case: Case, point: MaskSet, written: Written) -> None:
    """Add one point of a curve to the tables."""
    columns = {**case.columns, "series": point.series, "action": "mask", "k": point.k}
    run.table("curves", written.curve_table(columns).assign(reference=REFERENCE))
    run.table("examples", written.example_table(columns))
    run.table("texts", written.text_table(columns))
    if point.k:
        run.table("orders", point.table(columns))
    if point.moved:
        run.say_of(
            case.columns,
            f"{point.moved} of {point.k * len(point.draws)} heads of the layer-matched draws at K = {point.k} come "
            "from neighbouring layers, because their own layers have too few other heads",
        )


def _sample_table(case: Case, full: list[str], top: list[str], random: list[str]) -> pd.DataFrame:
    """For people who want to read: prompt, gold answer, and what three models wrote."""
    prompts = [example.prompt for example in case.test]
    gold = [" / ".join(answers) for answers in golds(case.test)]
    columns = {**case.columns, "example": case.test.numbers, "prompt": prompts, "gold": gold}
    texts = {"full": full, "top_masked": top, "random_masked": random}
    return pd.DataFrame({**columns, **texts, "k": case.middle_k})


def _cross(run: Run, s: MaskingSettings, models: list[dict[str, Case]], starts: dict[Case, Start]) -> None:
    """The heads of each ability are masked, and every ability is measured.

    An ability's own heads should hurt it more than another ability's do; where every column falls alike, the heads
    serve the writing of text rather than the ability.
    """
    calls = {}
    for abilities in models:
        for case in abilities.values():
            k = s.cross_k or case.middle_k
            tops = MaskSet("cross", k, tuple(Draw(starts[c].order[:k], 0) for c in abilities.values()))
            calls[case, k, tuple(abilities)] = write(case, tops, s.scale, starts[case].texts)
    for (case, k, labels), written in run.all(calls, "ablation across abilities").items():
        for number, label in enumerate(labels):
            columns = {**case.columns, "series": f"heads of {label}", "action": "mask", "k": k}
            run.table("cross_texts", written.text_table({**columns, "heads_of": label}, number))
            rows = []
            for metric, variants in written.values.items():
                values, before = variants[number], starts[case].full.values[metric][0]
                lo, hi = stats.metric_interval(values[:, None], groups=written.groups)
                less, more = stats.difference_interval(
                    values[:, None], before[:, None], groups=written.groups
                )
                row = {"model": case.columns["model"], "heads_of": label, "task": case.test.name, "k": k}
                row |= {"metric": metric, "value": values.mean(), "lo": lo[0], "hi": hi[0]}
                row |= {"full": before.mean(), "change": values.mean() - before.mean()}
                row |= {"change_lo": less[0], "change_hi": more[0], "n": len(values)}
                rows.append(row | {"reference": REFERENCE})
            run.table("cross", pd.DataFrame(rows))


def _interventions(run: Run, s: MaskingSettings, starts: dict[Case, Start]) -> None:
    """The order's first heads are made stronger, and random ones as a control."""
    calls = {}
    for case, start in starts.items():
        top = start.order[: s.intervene_k or case.ks[0]]
        seeds = [f"intervene/{s.seed}/{case.test.name}/{draw}" for draw in range(s.draws)]
        sets = [top, *(random_heads(start.order, top, seed).heads for seed in seeds)]
        for kind in s.intervene:
            strengths = list(s.strengths.get(kind, STRENGTHS[kind]))
            calls[case, kind] = strengthen(case, kind, sets, strengths, start.texts)
    for (case, _), table in run.all(calls, "interventions").items():
        run.table("interventions", table.assign(**case.columns))
