"""The ability probe: from which heads can it be read what a text asks for?

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
from headwise.scores.probe.classifier import Fitted, Split, fit, hits, importance, split
from headwise.scores.registry import Setup, register
from headwise.settings import Count, Text
from headwise.tasks.examples import Task

REST = "rest"
"""The class of examples without a label, so that one ability can be told from everything else."""
LEAST = 3
"""Examples a class needs: one to learn from, one to stop by, one to report on."""
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
    naming the commonest label), `shuffled` (the same with labels dealt out at random, with `shuffled_lo` and
    `shuffled_hi`) and `bag_of_words` (a classifier of word counts); `own_accuracy` is that of this label's
    examples, and `held_out` says which of the task's examples are behind the map.
    """
    from headwise.tasks.wording import bag_of_words_accuracy

    names = [e.label if e.label is not None else REST for e in task]
    groups = task.groups()
    classes = check_labels(names, task.name, groups)
    outputs = answer_outputs(
        model, task.examples, tokens=answer_tokens, batch_tokens=batch_tokens, advance=advance
    )
    heads = model.heads()
    # Where torch cannot set its dice aside (Apple's chips) the classifier, which is small, stays on the CPU.
    features = head_features(outputs, heads).to(model.device if model.device.type == "cuda" else "cpu")
    labels = np.array([classes.index(name) for name in names])
    fitted, parts = _fitted(features, labels, len(classes), seed, groups)
    right = _hits(fitted, parts, features, labels)
    dealt = np.random.default_rng(seed).permutation(labels)
    fitted_dealt, parts_dealt = _fitted(features, dealt, len(classes), seed)
    right_dealt = _hits(fitted_dealt, parts_dealt, features, dealt)
    lo, hi = stats.bootstrap_mean(right, groups=[groups[i] for i in parts.held_out], seed=seed)
    together = [groups[i] for i in parts_dealt.held_out]
    dealt_lo, dealt_hi = stats.bootstrap_mean(right_dealt, groups=together, seed=seed)
    report: dict[str, Any] = {
        "accuracy": float(right.mean()),
        "lo": _number(lo),
        "hi": _number(hi),
        "chance": _commonest(labels, parts),
        "shuffled": float(right_dealt.mean()),
        "shuffled_lo": _number(dealt_lo),
        "shuffled_hi": _number(dealt_hi),
        "bag_of_words": bag_of_words_accuracy(
            [e.prompt + e.target for e in task], names, seed, groups=groups
        ),
        "classes": len(classes),
        "trained_on": len(parts.train),
        "stopped_by": len(parts.stop),
        "tested_on": len(parts.held_out),
        "epochs": fitted.epochs,
        "answer_tokens": answer_tokens,
        "seed": seed,
    }
    return {
        name: _scores(model, name, report, fitted, features, labels, right, parts.held_out, number, task)
        for number, name in enumerate(classes)
        if name != REST or REST in {e.label for e in task}
    }


@register(
    "probe",
    signed=False,
    about="readable: gradient × activation in a classifier of labels over all heads",
    per_label=probe,
)
def probe_one(setup: Setup, label: Text | None = None, answer_tokens: Count | None = None) -> np.ndarray:
    """|gradient × activation| of one label's logit at a head's projection, in a classifier over all heads.

    After Cognitive Mirrors (arXiv 2512.10978). Unsigned: how far the verdict "this is `label`" rests on what can
    be read from the head, per example held out of the classifier's training; each example's value is turned by
    the sign of the head's mean, so that the mean is the absolute importance, and `details["signs"]` keeps the
    sign. It does not say that the model uses what is readable. `label` may be left out where the task has one
    label and examples without any. answer_tokens: average only over that many tokens of the answer, the least
    probable ones.

    Cost: one forward row per example, and a small classifier twice. Known failure: it finds whatever tells the
    labels apart, wording and length of the answer included (compare `accuracy` with `bag_of_words`), shares
    credit arbitrarily among heads that hold the same, and leaves noise above 0 in heads that hold nothing.
    """
    labels = sorted({e.label for e in setup.task if e.label is not None})
    if label is None and len(labels) != 1:
        raise HeadwiseError(
            f"the method 'probe' maps one label at a time and task {setup.task.name!r} has {len(labels)} "
            f"({', '.join(labels) or 'none'}); give label=…, or use headwise.scores.probe.probe.probe for all at once"
        )
    wanted = labels[0] if label is None else label
    if wanted not in labels:
        raise unknown(f"label of task {setup.task.name!r}", wanted, labels)
    every = probe(
        setup.model,
        setup.task,
        answer_tokens=answer_tokens,
        seed=setup.seed,
        batch_tokens=setup.batch_tokens,
        advance=setup.advance,
    )
    setup.details |= every[wanted].details
    setup.unit = UNIT
    return every[wanted].examples


def check_labels(names: Sequence[str], task: str, groups: Sequence[Hashable] | None = None) -> list[str]:
    """The classes, each with enough examples and at least two of them, or an error.

    Of examples that belong together the first counts.
    """
    own = range(len(names)) if groups is None else groups
    counts = Counter(dict(zip(reversed(own), reversed(names), strict=True)).values())
    counts.update(dict.fromkeys(names, 0))
    if len(counts) < 2:
        raise HeadwiseError(
            f"a probe tells labels apart, and task {task!r} has {len(counts)} ({', '.join(counts)}); "
            "give examples of at least two labels"
        )
    grouped = len(set(own)) < len(names)
    for name, count in sorted(counts.items()):
        if count < LEAST:
            raise HeadwiseError(
                f"label {name!r} of task {task!r} has {count} {'group' if grouped else 'example'}{'s' * (count != 1)}"
                f"{' of examples' * grouped}, and a probe needs at least "
                f"{LEAST} of each (to learn from, to stop by, to report on); give more of it, or leave it out"
            )
    return sorted(counts)


def head_features(outputs: np.ndarray, heads: Sequence[Head]) -> Tensor:
    """What is known of each head: its own output beside the mean over the heads of its layer.

    `outputs[E, L, H, D]` and the heads that exist, to `[E, N, 2·D]`.
    """
    members: dict[int, list[int]] = {}
    for layer, head in heads:
        members.setdefault(layer, []).append(head)
    means = {layer: outputs[:, layer, own].mean(axis=1) for layer, own in members.items()}
    both = [np.concatenate([outputs[:, layer, head], means[layer]], axis=1) for layer, head in heads]
    return torch.from_numpy(np.stack(both, axis=1).astype(np.float32))


def _fitted(
    features: Tensor,
    labels: np.ndarray,
    classes: int,
    seed: int,
    groups: Sequence[Hashable] | None = None,
) -> tuple[Fitted, Split]:
    parts = split(labels, seed, groups)
    return fit(features, torch.from_numpy(labels).to(features.device), parts, classes, seed), parts


def _hits(fitted: Fitted, parts: Split, features: Tensor, labels: np.ndarray) -> np.ndarray:
    return hits(fitted, features, torch.from_numpy(labels).to(features.device), parts.held_out)


def _commonest(labels: np.ndarray, parts: Split) -> float:
    """Held-out accuracy of always naming the label that is commonest among what is learned from."""
    return float((labels[parts.held_out] == np.bincount(labels[parts.train]).argmax()).mean())


def _number(value: np.ndarray) -> float | None:
    return None if np.isnan(value) else float(value)


def _scores(
    model: Model,
    name: str,
    report: dict[str, Any],
    fitted: Fitted,
    features: Tensor,
    labels: np.ndarray,
    right: np.ndarray,
    held_out: np.ndarray,
    number: int,
    task: Task,
) -> Scores:
    """The map of one class, from its held-out examples."""
    mine = labels[held_out] == number
    chosen = held_out[mine]
    signed = importance(fitted.classifier, features[torch.from_numpy(chosen)], number)  # E, N
    signs = np.where(signed.mean(axis=0) < 0, -1, 1)
    examples = np.full((len(chosen), *model.shape), np.nan)
    sign_map = np.zeros(model.shape, dtype=int)
    for n, (layer, head) in enumerate(model.heads()):
        examples[:, layer, head] = signs[n] * signed[:, n]
        sign_map[layer, head] = signs[n]
    details = {
        **report,
        "own_accuracy": float(right[mine].mean()),
        "held_out": chosen.tolist(),
        "signs": sign_map.tolist(),
    }
    shared = task.shared_groups()
    return Scores.from_examples(
        examples,
        model=model.name,
        task=name,
        method="probe",
        signed=False,
        metric=UNIT,
        details=details,
        groups=None if shared is None else tuple(shared[i] for i in chosen),
    )
