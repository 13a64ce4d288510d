"""The score method `nested`: a learned order of heads whose first k explain the behaviour at every k.

Finished seeds are kept in a run's folder (`Setup.folder` says where), so that a run that is stopped goes on after them.
Seeds run one by one where a device is no faster with more rows (a CPU).

S seeds, N components, L layers, H heads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from headwise.display import counted
from headwise.errors import HeadwiseError
from headwise.files import replacing
from headwise.heads import head_list, single_gates
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.progress import scaled_progress
from headwise.scores.nested.fit import PRICE, NestedFit, SeedFit, fit_orders, order_costs
from headwise.scores.nested.problem import Problem, grid_sizes
from headwise.scores.registry import BACKWARD_ROWS, Setup, register
from headwise.settings import Count, Share, one_of
from headwise.tables.codec import load_result, save_result
from headwise.tasks.examples import Task

log = logging.getLogger("headwise")

STARTS = ("zero", "ablation", "attribution")
UNIT = "rank"
DENSE_GRID = 40
"""Circuit sizes at which finished orders are compared, and at which the chosen one is shown."""
FLAT = 0.01
"""A component whose slope is exactly 0 on more than this share of the rows, and not on all, has steps: slopes say
nothing between them. Elsewhere a slope is exactly 0 only where a component equals what replaces it."""


class NestedOptions(NestedFit):
    """Options of the method `nested`: those of a fit, how many there are, and where they start."""

    seeds: Count = 3
    """Fits that see other examples and other circuit sizes; the one with the best curve on all given examples is the
    score. On a GPU all run in one batch."""
    start: Annotated[str, one_of("start", lambda: STARTS)] = "zero"
    """Strengths at the start: all equal (`zero`), or ranked by exact `ablation` or by gradient `attribution`; such a
    ranking is kept where no learned one is better on the held-back examples."""
    held_back: Share = 0.25
    """Share of the examples that training does not see: they choose between checkpoints."""


def _rows(model: Model, task: Task, reference: str, options: Mapping[str, Any]) -> float:
    """Of all seeds in backward passes, at most."""
    rows = options["rows"] or options["updates"] * options["examples"] * options["masks"]
    return float(BACKWARD_ROWS * options["seeds"] * rows)


@register(
    "nested",
    signed=False,
    about="learned nested masks: a ranking whose first k heads explain the behaviour at every k",
    steps=lambda *_: NestedOptions().updates,
    rows=_rows,
    options=NestedOptions,
    version=3,
    learned=True,
    components=True,
)
def nested(setup: Setup, **options: Any) -> np.ndarray:
    """A ranking: 1 for the first head, 1/N for the last, one value per seed (not per example). It has no sign.

    Trained so that, for every k, keeping the first k heads and replacing all others by the reference gives the metric
    of the whole model: the explained effect should be 1 (`match`), or as large as possible (`most`); `track` asks each
    example for its own metric, in units of the spread within its family. Less than 1 counts four times as much as more
    (`below`), so that a curve which has reached 1 stays there. The value is the rank in the seed whose curve is best on
    the given examples; `lo` and `hi` are the smallest and largest value over seeds, no confidence interval. It is not
    an effect size: the tenth head may matter a hundred times less than the ninth. To say how many heads suffice, sweep
    the order on examples that it was not found on.

    `details`: `order` (the chosen ranking), `training` (loss of every update and cost of every check, by seed), `curve`
    (explained effect on the held-back examples), `chosen` (the seed and its cost), `rows`, `effect`; `exact` (the seeds
    whose order is that of exact ablation: where slopes are exactly 0 on some rows, as in compiled programs, training
    learns little, and the exact order replaces each one that it beats on the held-back examples).

    Cost: 400 updates of 64 rows per seed, each a forward and a backward pass; `rows` bounds it. Known failures: heads
    that can replace one another are ranked by chance; few examples are overfitted (compare `curve` with a sweep on
    other examples); where the metric with all heads is not higher or lower than with none there is nothing to explain,
    and all heads get 0, with a note. Related: MAttr (arXiv 2609.25518), Edge Pruning (Bhaskar et
    al. 2024, arXiv 2406.16778).
    """
    request = NestedOptions(**options)
    if not setup.metric.differentiable:
        raise HeadwiseError(
            f"the metric {setup.metric.name!r} has no gradient, which the method 'nested' trains by; use one such as "
            "logit_diff or logprob"
        )
    setup.unit = UNIT
    seeds, size = list(range(setup.seed, setup.seed + request.seeds)), request.sized
    log.info(
        "nested on %s with %s: %s, each at most %s of %d rows; %d %s",
        setup.task.name,
        setup.model.name,
        counted(request.seeds, "seed"),
        counted(size.updates, "update"),
        size.examples * size.masks,
        len(setup.heads),
        setup.layout.components[0],
    )
    began, seconds = time.perf_counter(), {}
    setup.details |= {"replicates": "seeds", "seeds": seeds, "meaning": "a ranking, not an effect size"}
    silent = Engine(setup.model, setup.task, setup.metric, **setup.engine_options)  # progress counts updates
    problem = Problem.of(silent, setup.exists, request.held_back, setup.seed)
    if request.avoid:
        problem.prices = _prices(setup, request.avoid)
    lo, hi = problem.interval()
    setup.details["effect"] = [problem.effect, lo, hi]
    if problem.size < 2 or not (lo > 0 or hi < 0):
        return _nothing(setup, problem, request.seeds)
    start = _start(setup, problem, request.start)
    fits = _fits(setup, problem, start, seeds, request)
    if request.start != "ablation":
        _exact_on_steps(setup, problem, fits, request)
    seconds["training"] = time.perf_counter() - began
    orders = [np.argsort(-fit.strengths, kind="stable") for fit in fits]
    values = np.stack([_rank_values(order) for order in orders])  # S, N: strengths that rank as the orders do
    costs = np.array([fits[0].cost])  # of a single one, what its checks found
    if len(fits) > 1:
        costs = order_costs(problem, values, request, DENSE_GRID, np.arange(len(problem.full)))
    _estimates(setup, values, int(costs.argmin()))
    _details(setup, problem, fits, orders, costs)
    seconds["choice"] = time.perf_counter() - began - seconds["training"]
    setup.details["seconds"] = {name: round(one, 2) for name, one in seconds.items()}
    return setup.per_head(values.T)


def _prices(setup: Setup, avoid: Sequence[str]) -> np.ndarray:
    """What each ranked component costs `[N]`: those to be avoided have an equal share of the price."""
    listed = head_list(avoid)
    setup.layout.check(listed, setup.model.name)
    avoided = set(listed)
    return np.array([PRICE / len(avoided) if head in avoided else 0.0 for head in setup.heads])


def _fits(
    setup: Setup, problem: Problem, start: np.ndarray, seeds: list[int], request: NestedOptions
) -> list[SeedFit]:
    """The fit of every seed: together on a device that is faster with more rows, else one by one."""
    fit = NestedFit(**{name: getattr(request, name) for name in NestedFit.model_fields})
    together = setup.model.device.type != "cpu"
    steps = fit.sized.updates * (1 if together else len(seeds))
    advance = scaled_progress(setup.advance, NestedOptions().updates / steps)
    if together:
        return fit_orders(problem, start, seeds, fit, advance)
    files = [_finished_seed(setup, seed, fit, request) for seed in seeds]
    fits = [
        _kept(path, partial(fit_orders, problem, start, [seed], fit, advance))
        for seed, path in zip(seeds, files, strict=True)
    ]
    for path in filter(None, files):
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds what others have not finished yet
            path.parent.rmdir()
    return fits


def _kept(path: Path | None, train: Callable[[], list[SeedFit]]) -> SeedFit:
    """The fit of a seed: read, or trained and kept."""
    if path is None:
        return train()[0]
    with suppress(HeadwiseError):  # not finished before, or damaged
        return load_result(path, SeedFit)
    (fit,) = train()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        save_result(new, fit)
    return fit


def _exact_on_steps(setup: Setup, problem: Problem, fits: list[SeedFit], request: NestedOptions) -> None:
    """Where slopes were exactly 0, exact effects of single components say more: each order that they beat is theirs."""
    flat = np.stack([fit.flat for fit in fits])
    if not ((flat > FLAT) & (flat < 1)).any():
        return
    exact = _start(setup, problem, "ablation")
    cost = float(order_costs(problem, exact[None], request, request.grid, problem.held)[0])
    setup.details["exact"] = [
        seed for seed, fit in zip(setup.details["seeds"], fits, strict=True) if cost < fit.cost
    ]
    for fit in fits:
        if cost < fit.cost:
            fit.strengths, fit.cost = exact, cost


def _finished_seed(setup: Setup, seed: int, fit: NestedFit, request: NestedOptions) -> Path | None:
    """The file of a seed of this score, named by a hash of everything that it depends on; None to keep nothing."""
    if setup.folder is None:
        return None
    key_parts = [
        setup.model.fingerprint, str(setup.model.dtype), setup.task.fingerprint, setup.metric.name, setup.reference,
        setup.positions, setup.seed, list(setup.components), setup.exists.astype(int).tolist(),
        None if setup.reference_task is None else setup.reference_task.fingerprint,
        fit.model_dump(), request.start, request.held_back, setup.task.families(),
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:16]
    return setup.folder / f"{key}-{seed}.npz"


def _rank_values(order: np.ndarray) -> np.ndarray:
    """1 for the first component of an order, 1/N for its last `[N]`.

    >>> _rank_values(np.array([2, 0, 1])).round(2).tolist()
    [0.67, 0.33, 1.0]
    """
    values = np.empty(len(order))
    values[order] = 1 - np.arange(len(order)) / len(order)
    return values


def _start(setup: Setup, problem: Problem, start: str) -> np.ndarray:
    """Strengths `[N]` to begin with: 0, or from -1 to 1 by the rank of a cheaper score on the training examples."""
    if start == "zero":
        return np.zeros(problem.size)
    engine, train = problem.engine, problem.train
    if start == "attribution":
        _, gradients = engine.row_gradients(train.tolist(), np.ones((len(train), *problem.exists.shape)))
        cheap = gradients.mean(0)[problem.exists]
    else:
        cheap = engine.measure(single_gates(setup.heads, setup.layout), train).effects.mean(1)
    return 2 * _rank_values(np.argsort(-np.sign(problem.effect) * cheap, kind="stable")) - 1


def _nothing(setup: Setup, problem: Problem, seeds: int) -> np.ndarray:
    """All heads get 0: there is no behaviour that they explain."""
    mean, lo, hi = setup.details["effect"]
    message = (
        f"no circuit: {setup.metric.name} with all {setup.layout.components[0]} minus with none is {mean:+.3g} "
        f"[{lo:+.3g}, {hi:+.3g}] and may be 0, so there is nothing to explain and every head has the value 0; use more "
        "examples, or a behaviour that depends on the heads"
    )
    log.warning("nested: %s", message)
    setup.details |= {"said": message, "circuit": False, "order": []}
    if setup.advance:
        setup.advance(NestedOptions().updates)
    _estimates(setup, np.zeros((seeds, problem.size)), 0)
    return setup.per_head(np.zeros((problem.size, seeds)))


def _estimates(setup: Setup, values: np.ndarray, best: int) -> None:
    """The columns of the table from the values of every seed `[S, N]`, of which `best` is the score."""
    seeds = len(values)
    spread = values.std(0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.full(values.shape[1], np.nan)
    columns = {"value": values[best], "stderr": spread, "lo": values.min(0), "hi": values.max(0)}
    columns["p"] = np.full(values.shape[1], np.nan)
    setup.estimates |= {name: setup.per_head(column) for name, column in columns.items()}
    setup.estimates["n"] = np.where(setup.exists, seeds, 0)


def _details(
    setup: Setup, problem: Problem, fits: list[SeedFit], orders: list[np.ndarray], costs: np.ndarray
) -> None:
    """What the fits say beside their ranks; costs `[S]`: of each order."""
    best, heads = int(costs.argmin()), setup.heads
    sizes = grid_sizes(DENSE_GRID, problem.size)
    shares = problem.explained(_rank_values(orders[best])[None], sizes, problem.held)[0]
    named = [[str(heads[i]) for i in order] for order in orders]
    setup.details |= {
        "circuit": True,
        "order": named[best],
        "orders": named,
        "chosen": {"seed": setup.details["seeds"][best], "cost": float(costs[best])},
        "costs": costs.round(4).tolist(),
        "curve": {"k": sizes.tolist(), "explained_effect": np.round(shares, 4).tolist()},
        "training": {
            "loss": [np.round(fit.losses, 4).tolist() for fit in fits],
            "held_back": [[[update, round(cost, 4)] for update, cost in fit.checks] for fit in fits],
        },
        "updates": [len(fit.losses) for fit in fits],
        "rows": problem.rows,
        "rows_forward": problem.engine.rows_spent,
        "examples_trained": len(problem.train),
        "examples_held_back": len(problem.held),
    }
    if not (shares >= 0.9).any():
        setup.details["said"] = (
            f"no {len(heads) - 1} or fewer heads explain 90 % of the effect on the {len(problem.held)} held-back "
            f"examples (at most {shares.max():.0%}); train with more examples or updates"
        )
