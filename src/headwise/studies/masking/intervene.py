"""Make heads stronger instead of taking them away: does the model then answer better?

`amplify` sets the gates of chosen heads above 1. `shift` adds α·σ·direction to their outputs, the direction being
mean output on right texts minus mean output on wrong ones (inference-time intervention, Li et al. 2023, arXiv
2306.03341, as Cognitive Mirrors, arXiv 2512.10978, uses it). Directions come from one half of the examples, accuracy
before and after from the other.

S strengths, R sets of heads, E examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headwise import stats
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Head, head_list
from headwise.model.generation.generate import generate
from headwise.model.outputs.directions import Directions, directions
from headwise.studies.masking.sets import scaled_gates
from headwise.studies.masking.settings import KINDS
from headwise.studies.masking.texts import AUTO, Judge, accuracy_metric, prompts
from headwise.tasks import Task

if TYPE_CHECKING:
    from headwise.model.model import Model

STRENGTHS = {"amplify": (1.25, 1.5, 2.0), "shift": (1.0, 3.0, 10.0)}
"""Gates to try, and values of α."""
Write = Callable[[list[str]], list[str]]


def intervene(
    model: Model,
    task: Task,
    heads: Head | str | Sequence[Head | str],
    kind: str = "amplify",
    strengths: Sequence[float] = (),
    *,
    max_new_tokens: int = 16,
    **judging: str,
) -> pd.DataFrame:
    """Accuracy before and after the given heads are made stronger, a row for each strength.

    kind: `amplify` (strengths are gates) or `shift` (strengths are α). judging: `accuracy` (a text metric, `auto` by
    default) and `answer` (`sentence` or `text`), as in the study's settings. The first half of the task's examples
    (`task.halves()`) gives the directions, the second is used for generation. `change` is after minus before with
    its interval over examples; above 0 the intervention helps.
    """
    if kind not in KINDS:
        raise unknown("intervention", kind, KINDS)
    strengths = tuple(strengths) or STRENGTHS[kind]
    heads = head_list(heads)
    find, test = task.halves()
    accuracy = accuracy_metric(judging.pop("accuracy", AUTO), test)
    judge = Judge(accuracy, "chrf", **judging)

    def write(texts: list[str]) -> list[str]:
        return generate(model, texts, max_new_tokens=max_new_tokens, progress=False).texts[0]

    options = variants(model, find, [heads], kind, strengths, judge, write)
    after = generate(model, prompts(test), max_new_tokens=max_new_tokens, progress=False, **options).texts
    full = write(prompts(test))
    values = np.stack([judge.right(texts, test, full) for texts in after])[:, None]  # S, 1, E
    before = judge.right(full, test, full)
    return intervention_rows(kind, strengths, before, values, test.shared_groups())


def variants(
    model: Model,
    find: Task,
    sets: Sequence[Sequence[Head]],
    kind: str,
    strengths: Sequence[float],
    judge: Judge,
    write: Write,
) -> dict[str, Any]:
    """What `generate` is given: gates or shifts `[S·R, …]`, strength by strength, and where they act."""
    if kind == "amplify":
        gates = [scaled_gates(heads, model.shape, strength) for strength in strengths for heads in sets]
        return {"gates": np.stack(gates)}
    right_from_wrong = contrast(model, find, judge, write)
    shifts = [right_from_wrong.shifts(heads, strength) for strength in strengths for heads in sets]
    # As in the source: the prompt is read undisturbed, what is written is pushed.
    return {"shifts": np.stack(shifts), "positions": "last"}


def contrast(model: Model, find: Task, judge: Judge, write: Write) -> Directions:
    """Directions from wrong to right, from examples that are not tested.

    With foils: the prompt with its right answer against the prompt with its wrong ones, at the answer's last
    token. Without: prompts that the model answers rightly against those that it does not, at their last token.
    """
    if all(example.foils for example in find):
        right = [example.prompt + example.target for example in find]
        wrong = [example.prompt + foil for example in find for foil in example.foils]
        return directions(model, right, wrong)
    written = write(prompts(find))
    answered = judge.right(written, find, written) > 0
    asked = [(example.prompt, done) for example, done in zip(find, answered, strict=True)]
    right, wrong = [p for p, done in asked if done], [p for p, done in asked if not done]
    if not right or not wrong:
        raise HeadwiseError(
            f"the examples of {find.name!r} have no foils, and {model.name} answers "
            f"{'all' if right else 'none'} of {len(find)} correctly, so there is no direction from wrong to correct "
            "answers; give foils or other examples"
        )
    return directions(model, right, wrong)


def intervention_rows(
    kind: str,
    strengths: Sequence[float],
    before: np.ndarray,
    after: np.ndarray,
    groups: Sequence[str | None] | None = None,
) -> pd.DataFrame:
    """Rows from right answers before `[E]` and after `[S, R, E]`; groups `[E]` of the examples, if some share one."""
    low, high = stats.metric_interval(before[:, None], groups=groups)
    rows = []
    for strength, values in zip(strengths, after, strict=True):
        lo, hi = stats.crossed_interval(values, groups=groups)
        less, more = stats.crossed_interval(values, before=before, groups=groups)
        row = {"kind": kind, "strength": float(strength)}
        row |= {"before": before.mean(), "before_lo": low[0], "before_hi": high[0]}
        row |= {"after": values.mean(), "lo": lo, "hi": hi, "change": values.mean() - before.mean()}
        row |= {"change_lo": less, "change_hi": more, "n": len(before), "draws": len(values)}
        rows.append(row)
    return pd.DataFrame(rows)
