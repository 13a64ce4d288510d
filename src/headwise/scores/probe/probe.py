"""The ability probe: which heads hold information about the ability that a text asks for?

E examples, N heads, L layers, H heads of a layer, D head size, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise import stats
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Head, Scores
from headwise.model.model import Model
from headwise.model.outputs.answers import answer_outputs
from headwise.scores.probe.classifier import Fitted, fit, importance
from headwise.scores.registry import Setup, register, row_groups
from headwise.settings import Count, Text
from headwise.tasks.examples import Task

REST = "rest"
"""The class of examples without a label, so that one ability can be separated from everything else."""
LEAST = 3
"""Examples a class needs: one for training, one for early stopping, one for the report."""
UNIT = "class logit"


def probe(
    model: Model,
    task: Task,
    *,
    answer_tokens: int | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Scores]:
    """The map of every label of the task, from one classifier; `probe_one` says what the numbers mean.

    `details` of each hold the classifier's held-out `accuracy` (with `lo` and `hi`), beside it `chance` (always
    naming the commonest label), `shuffled` (the same with shuffled labels, with `shuffled_lo` and
    `shuffled_hi`) and `bag_of_words` (a classifier of word counts); `own_accuracy` is that of this label's
    examples, and `held_out` says which of the task's examples are behind the map.
    """
    from headwise.tasks.wording import bag_of_words_accuracy

    names = [REST if e.label is None else e.label for e in task]
    groups = task.groups()
    classes = check_labels(names, task.name, groups)
    outputs = answer_outputs(
        model, task.examples, tokens=answer_tokens, batch_tokens=batch_tokens, advance=advance
    )
    # Where torch cannot fork its random state (Apple's chips) the classifier, which is small, stays on the CPU.
    device = model.device if model.device.type == "cuda" else "cpu"
    features = head_features(outputs, model.heads()).to(device)
    labels = np.array([classes.index(name) for name in names])
    shuffled = np.random.default_rng(seed).permutation(labels)
    fitted = fit(features, labels, len(classes), seed, groups)
    control = fit(features, shuffled, len(classes), seed)
    parts = fitted.parts
    commonest = np.bincount(labels[parts.train]).argmax()
    texts = [e.prompt + e.target for e in task]
    report: dict[str, Any] = {
        **_accuracy(fitted, groups, ("accuracy", "lo", "hi")),
        "chance": float((labels[parts.held_out] == commonest).mean()),
        **_accuracy(control, groups, ("shuffled", "shuffled_lo", "shuffled_hi")),
        "bag_of_words": bag_of_words_accuracy(texts, names, seed, groups=groups),
        "classes": len(classes),
        "trained_on": len(parts.train),
        "stopped_by": len(parts.stop),
        "tested_on": len(parts.held_out),
        "epochs": fitted.epochs,
        "answer_tokens": answer_tokens,
        "seed": seed,
    }
    return {
        name: _scores(model, task, name, number, fitted, features, labels, report)
        for number, name in enumerate(classes)
        if name != REST or REST in {e.label for e in task}
    }


@register(
    "probe",
    ablates=False,
    signed=False,
    about="probe: gradient × activation of a classifier that predicts the label from all heads",
    per_label=probe,
    learned=True,
)
def probe_one(setup: Setup, label: Text | None = None, answer_tokens: Count | None = None) -> np.ndarray:
    """|gradient × activation| of one label's logit at a head's projection, in a classifier over all heads.

    After Cognitive Mirrors (arXiv 2512.10978). Unsigned: how far the verdict "this is `label`" rests on what can
    be read from the head, per example held out of the classifier's training; each example's value is turned by
    the sign of the head's mean, so that the mean is the absolute importance, and `details["signs"]` keeps the
    sign. It does not say that the model uses what is readable. `label` may be left out where the task has one
    label and examples without any. answer_tokens: average only over that many tokens of the answer, the least
    probable ones.

    Cost: one forward row per example, and a small classifier twice. Known failure: it finds whatever distinguishes
    the labels, wording and length of the answer included (compare `accuracy` with `bag_of_words`), shares
    credit arbitrarily among heads that hold the same, and leaves noise above 0 in heads that hold nothing.
    """
    labels = sorted({e.label for e in setup.task if e.label is not None})
    if label is None and len(labels) != 1:
        raise HeadwiseError(
            f"the method 'probe' maps one label at a time, but task {setup.task.name!r} has {len(labels)} "
            f"({', '.join(labels) or 'none'}); give label=…, or use headwise.scores.probe.probe.probe for all at once"
        )
    label = labels[0] if label is None else label
    if label not in labels:
        raise unknown(f"label of task {setup.task.name!r}", label, labels)
    how: dict[str, Any] = {"answer_tokens": answer_tokens, "batch_tokens": setup.batch_tokens}
    scores = probe(setup.model, setup.task, seed=setup.seed, advance=setup.advance, **how)[label]
    setup.details |= scores.details
    setup.unit = UNIT
    return scores.examples


def check_labels(names: Sequence[str], task: str, groups: Sequence[Hashable] | None = None) -> list[str]:
    """The classes, at least two and each with enough examples, or an error. Of a group the first example counts."""
    groups = range(len(names)) if groups is None else groups
    counts = Counter(dict(zip(reversed(groups), reversed(names), strict=True)).values())
    counts.update(dict.fromkeys(names, 0))
    if len(counts) < 2:
        raise HeadwiseError(
            f"a probe distinguishes labels, but task {task!r} has {len(counts)} ({', '.join(counts)}); "
            "give examples of at least two labels"
        )
    unit = "groups of examples" if len(set(groups)) < len(names) else "examples"
    for name, count in sorted(counts.items()):
        if count < LEAST:
            raise HeadwiseError(
                f"label {name!r} of task {task!r} has {count} {unit}, but a probe needs at least {LEAST} of each (for "
                "training, early stopping and the report); give more of it, or leave it out"
            )
    return sorted(counts)


def head_features(outputs: np.ndarray, heads: Sequence[Head]) -> Tensor:
    """Features of each head: its output, and the mean output of the heads of its layer.

    `outputs[E, L, H, D]` and the heads that exist, to `[E, N, 2·D]`.
    """
    members: dict[int, list[int]] = {}
    for layer, head in heads:
        members.setdefault(layer, []).append(head)
    means = {layer: outputs[:, layer, some].mean(axis=1) for layer, some in members.items()}
    both = [np.concatenate([outputs[:, layer, head], means[layer]], axis=1) for layer, head in heads]
    return torch.from_numpy(np.stack(both, axis=1).astype(np.float32))


def _accuracy(
    fitted: Fitted, groups: Sequence[Hashable], names: tuple[str, str, str]
) -> dict[str, float | None]:
    """Held-out accuracy and its interval under these names; None where there is no interval."""
    held_out = [groups[i] for i in fitted.parts.held_out]
    lo, hi = stats.share_interval(fitted.hits, groups=held_out)
    numbers = (fitted.hits.mean(), lo, hi)
    return {name: None if np.isnan(x) else float(x) for name, x in zip(names, numbers, strict=True)}


def _scores(
    model: Model,
    task: Task,
    label: str,
    number: int,
    fitted: Fitted,
    features: Tensor,
    labels: np.ndarray,
    report: dict[str, Any],
) -> Scores:
    """The map of one class, from its held-out examples."""
    of_class = labels[fitted.parts.held_out] == number
    held_out = fitted.parts.held_out[of_class]
    signed = importance(fitted.classifier, features[torch.from_numpy(held_out)], number)  # E, N
    signs = np.where(signed.mean(axis=0) < 0, -1, 1)
    examples = np.full((len(held_out), *model.shape), np.nan)
    examples[:, model.exists] = signs * signed
    sign_map = np.zeros(model.shape, dtype=int)
    sign_map[model.exists] = signs
    details = {
        **report,
        "own_accuracy": float(fitted.hits[of_class].mean()),
        "held_out": held_out.tolist(),
        "signs": sign_map.tolist(),
    }
    return Scores.from_examples(
        examples,
        model=model.name,
        task=label,
        method="probe",
        signed=False,
        metric=UNIT,
        details=details,
        groups=row_groups(task, details),
    )
