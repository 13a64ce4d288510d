"""`hw.score`: one method on one model and task.

L layers, H heads, E examples, T positions.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from headwise.errors import HeadwiseError, unknown, warn_once
from headwise.heads import PositionScores, Scores, head_list, mask_gates
from headwise.metrics import metric as metric_named
from headwise.metrics.leading_space import note_leading_space
from headwise.model.measure.positions import EACH
from headwise.model.measure.rows import MeasureSettings
from headwise.model.model import Model
from headwise.progress import Progress, reporting
from headwise.scores.registry import (
    METHODS,
    Method,
    Setup,
    check_method_positions,
    check_metric,
    methods,
    note_too_few,
    row_groups,
    row_numbers,
)
from headwise.tasks.examples import Task
from headwise.tasks.opening import TaskLike, as_task

Where = str | int | Sequence[int] | Sequence[str]

log = logging.getLogger(__name__)


@overload
def score(
    model: Model, task: TaskLike, method: str = ..., *, positions: Literal["each"], **options: Any
) -> PositionScores: ...


@overload
def score(model: Model, task: TaskLike, method: str = ..., **options: Any) -> Scores: ...


def score(
    model: Model,
    task: TaskLike,
    method: str = "ablation",
    *,
    heads: Any = None,
    metric: str | None = None,
    reference: str | None = None,
    positions: Where = "all",
    seed: int = 0,
    reference_task: Task | None = None,
    batch_tokens: int | None = None,
    progress: Progress = True,
    **options: Any,
) -> Scores | PositionScores:
    """One number per head, with its per-example values and standard error.

    task: a task, or what `hw.task` makes one of: a name, a path, a list of examples, a DataFrame. Options of a file
        (`columns`) can be given too.
    method: how heads are scored ("ablation", "attribution", "random", …; `headwise list methods`).
    heads: score only these, such as ["L3H2"]. `ablation` and `keep` then run only these; gradient methods compute all
        heads in one pass anyway. q-values correct for the heads that are scored.
    metric: by default that of the task.
    reference: what replaces an ablated head (zero, mean, position_mean, resample, patch, window); by default `mean`.
        Methods that ablate nothing ignore it, except `direct`: by default `zero` there, so the head's whole output
        counts. With `window` the head sees the last `window=64` tokens and the first `sink=4`.
    positions: where heads are ablated: `all` tokens, from the `last` prompt token on, token positions such as [3, -1],
        or spans, such as "S2" or ["S2", "end"]. "each" gives a score for every head and position
        (`headwise.heads.PositionScores`).
    progress: False for no progress bar.
    options: the method's own. Most have `components`: ["heads", "mlps", "input"] scores the output of each MLP
        (`MLP12`) and the embeddings (`input`) beside the heads, ["kv_heads"] each key/value head (`L12KV1`) with all
        query heads of its group.
    """
    chosen = METHODS.get(method)
    task = as_task(task, model, options)
    _check_options(chosen, options)
    note_leading_space(model, task)
    reference, each = reference or chosen.reference, positions == EACH
    check_method_positions(chosen, positions, options)
    where: Any = "all" if each else positions
    settings = MeasureSettings(reference=reference, positions=where, seed=seed, batch_tokens=batch_tokens)
    measured = metric_named(metric or task.metric)
    check_metric(chosen, measured, options)
    setup = Setup(
        model, task, measured, settings.reference, settings.positions, seed, reference_task, batch_tokens
    )
    setup.folder = getattr(progress, "folder", None)  # of a step
    method_options = dict(options)
    if chosen.components:
        setup.components = chosen.settings(**options).components  # type: ignore[attr-defined]
        method_options.pop("components", None)
    setup.chosen = None if heads is None else _chosen_heads(setup, heads)
    steps = chosen.steps(model, task, setup.components)
    if steps == len(setup.layout.listed()) * len(task):  # one step per head and example
        steps = len(setup.heads) * len(task)
    prompts = _prompt_tokens(setup) if each else []
    if not each and chosen.signed and not getattr(chosen.settings(**options), "stops_early", False):
        note_too_few(task, len(setup.heads))
    with reporting(f"{method} on {task.name}", steps, progress) as setup.advance:
        if each:
            assert chosen.each is not None
            by_position = chosen.each(setup)
        else:
            values = _checked_values(setup, method, chosen.run(setup, **method_options))
    fields = _about(setup, chosen, EACH if each else settings.positions, options)
    if each:
        return PositionScores(setup.heads, by_position, _shared_tokens(prompts, by_position), **fields)
    fields |= {
        "signed": chosen.signed if setup.signed is None else setup.signed,
        "exists": np.array(setup.exists),
        "components": setup.layout.components,
    }
    examples = np.where(setup.exists, values, np.nan)
    columns = dict(setup.estimates)
    if columns:
        return Scores(columns.pop("value"), columns.pop("stderr"), examples, **fields, own=columns)
    return Scores.from_examples(examples, **fields)


def _about(setup: Setup, chosen: Method, positions: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of itself beside its numbers."""
    task, unit = setup.task, setup.unit or setup.metric.name
    reference = setup.reference if chosen.ablates else None
    details: dict[str, Any] = {"reference": reference, "positions": positions, "seed": setup.seed, **options}
    details |= {**setup.spent, **setup.details, "options": options, "examples": task.fingerprint}
    rows = {"groups": row_groups(task, setup.details), "numbers": row_numbers(task, setup.details)}
    names = {"model": setup.model.name, "task": task.name, "method": chosen.name, "metric": unit}
    return {**names, "details": details, **rows}


def _check_options(chosen: Method, options: Mapping[str, Any]) -> None:
    """Refuse options that the method does not take."""
    if "components" in options and not chosen.components:
        able = ", ".join(name for name, other in methods().items() if other.components)
        raise HeadwiseError(
            f"the method {chosen.name!r} scores heads alone; components other than heads have scores by {able}"
        )
    for option in options:
        if option not in chosen.options:
            parameters = inspect.signature(score).parameters.values()
            shared = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
            raise unknown(f"option of method {chosen.name!r}", option, [*chosen.options, *shared])


def _checked_values(setup: Setup, method: str, values: Any) -> np.ndarray:
    """What a method returned, if it has a value per example and head: `[L, H]` alone would be spread over examples."""
    values, expected = np.asarray(values), setup.layout.shape
    if values.ndim != 3 or values.shape[1:] != expected or not len(values):
        raise HeadwiseError(
            f"the method {method!r} returned an array of shape {list(values.shape)}; expected "
            f"[{len(setup.task)}, {expected[0]}, {expected[1]}] (examples, layers, heads)"
        )
    return values


def _chosen_heads(setup: Setup, heads: Any) -> np.ndarray:
    """`[L, H]`: True for these heads, which the model must have."""
    listed = head_list(heads)
    setup.layout.check(listed, setup.model.name)
    if not listed:
        raise HeadwiseError(
            "heads is empty; name at least one head, such as 'L0H0', or leave heads out for all"
        )
    return mask_gates(listed, setup.layout) == 0


def _prompt_tokens(setup: Setup) -> list[list[str]]:
    """The tokens of every prompt; what scores at positions cannot show is logged."""
    text, task = setup.model.text, setup.task
    whole = text.encode_whole(text.trimmed([example.prompt for example in task]))
    prompts = [text.readable(ids or text.start()) for ids in whole]
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    note_too_few(task, len(setup.heads) * longest, "head-position pair")
    if shortest != longest:  # one position then is not one place in the sentence
        warn_once(
            log,
            f"the prompts of {task.name} have {shortest} to {longest} tokens: position 5 is the sixth token of each, "
            "whatever stands there; a position is named by its token only where all examples have the same one (spans "
            "compare the same words: positions='NAME')",
        )
    return prompts


def _shared_tokens(prompts: Sequence[Sequence[str]], values: np.ndarray) -> list[str]:
    """`[T]`: the token at each position of `values[E, heads, T]` that all examples have there; else empty."""
    found: list[set[str]] = [set() for _ in range(values.shape[-1])]
    lengths = (~np.isnan(values[:, 0])).sum(axis=-1).tolist()
    for tokens, length in zip(prompts, lengths, strict=True):
        # A prompt that was too long has lost its first tokens.
        for place, token in enumerate(tokens[-length:] if length else ()):
            found[place].add(token)
    return [one.pop() if len(one) == 1 else "" for one in found]
