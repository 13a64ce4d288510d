"""The ability probe (Cognitive Mirrors, arXiv 2512.10978): which heads hold information about the label of a text?

E examples, N heads, F features of a head, W = 64 numbers a head is projected to, L layers, H heads of a layer, D head
size, C classes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headwise import stats
from headwise.errors import HeadwiseError, unknown
from headwise.heads import Head, Scores
from headwise.model.model import Model
from headwise.model.outputs.answers import answer_outputs
from headwise.scores.registry import Setup, register, row_groups
from headwise.settings import Count, Text
from headwise.tasks.examples import Task

WIDTH, HIDDEN, DROPOUT = 64, 512, 0.3
RATE, BATCH = 1e-4, 32
PATIENCE, MOST_EPOCHS = 5, 100


class HeadClassifier(nn.Module):
    """One linear map shared by all heads, then a hidden layer over all of them together."""

    def __init__(self, heads: int, features: int, classes: int) -> None:
        super().__init__()
        # No constant: the hidden layer has one, and a head that writes nothing should count for nothing.
        self.project = nn.Linear(features, WIDTH, bias=False)
        self.decide = nn.Sequential(
            nn.Flatten(),  # E, N·W
            nn.Linear(heads * WIDTH, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, classes),
        )

    def forward(self, features: Tensor) -> Tensor:  # E, N, F -> E, C
        logits: Tensor = self.decide(self.project(features))
        return logits


class Split(NamedTuple):
    """Numbers of the examples for training, for early stopping and for the report."""

    train: np.ndarray
    stop: np.ndarray
    held_out: np.ndarray


def split(labels: np.ndarray, seed: int, groups: Sequence[Hashable] | None = None) -> Split:
    """A fifth of each class is held out; an eighth of the rest decides when to stop. Each part has every class.

    Stopping does not look at the held-out part: its accuracy would otherwise be the best of many. All examples of a
    group are in the part of its first example, so that no held-out group was trained on.
    """
    members_of: dict[Hashable, list[int]] = {}
    for number, group in enumerate(range(len(labels)) if groups is None else groups):
        members_of.setdefault(group, []).append(number)
    group_of_first = {members[0]: members for members in members_of.values()}
    first = np.array(list(group_of_first))
    random = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
    for label in np.unique(labels):
        members = random.permutation(first[labels[first] == label])
        assert len(members) >= 3, "the caller checks that every class has a member for each part"
        held = max(1, round(len(members) / 5))
        stop = max(1, round((len(members) - held) / 8))
        for part, chosen in zip(parts, np.split(members, [-held - stop, -held]), strict=True):
            part.append(np.array([number for leader in chosen for number in group_of_first[leader]]))
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


class Fitted(NamedTuple):
    """A trained classifier, how its training went, and how well it does on what was held out."""

    classifier: HeadClassifier
    epochs: int
    """Passes over the examples until the loss on the stopping part was lowest."""
    parts: Split
    hits: np.ndarray
    """Per held-out example: 1 where its class has the largest logit, else 0."""


def fit(
    features: Tensor, labels: np.ndarray, classes: int, seed: int, groups: Sequence[Hashable] | None = None
) -> Fitted:
    """Cross-entropy, AdamW, shuffled batches; ends when the stopping part has not improved for five passes.

    The same seed gives the same classifier on the same machine; torch's global random state is left alone.
    """
    device, parts = features.device, split(labels, seed, groups)
    target = torch.from_numpy(labels).to(device)
    train, stop, held_out = map(torch.from_numpy, parts)
    with _seeded(seed, device):
        classifier = HeadClassifier(features.shape[1], features.shape[2], classes).to(device)
        optimiser = torch.optim.AdamW(classifier.parameters(), lr=RATE)
        best, best_loss, best_epoch = copy.deepcopy(classifier.state_dict()), float("inf"), 0
        for epoch in range(1, MOST_EPOCHS + 1):
            classifier.train()
            for batch in train[torch.randperm(len(train))].split(BATCH):
                optimiser.zero_grad()
                cross_entropy(classifier(features[batch]), target[batch]).backward()
                optimiser.step()
            loss = float(cross_entropy(_predicted(classifier, features, stop), target[stop]))
            if loss < best_loss:
                best_loss, best_epoch = loss, epoch
                for name, value in classifier.state_dict().items():
                    best[name].copy_(value)
            elif epoch - best_epoch >= PATIENCE:
                break
        classifier.load_state_dict(best)
    hits = _predicted(classifier, features, held_out).argmax(1) == target[held_out]
    return Fitted(classifier, best_epoch, parts, hits.double().cpu().numpy())


def _predicted(classifier: HeadClassifier, features: Tensor, numbers: Tensor) -> Tensor:
    """Logits `[E, C]` of the examples at `numbers`, without dropout."""
    classifier.eval()
    with torch.no_grad():
        return torch.cat([classifier(features[batch]) for batch in numbers.split(256)])


def importance(classifier: HeadClassifier, features: Tensor, label: int) -> np.ndarray:
    """Gradient of the class's logit × activation at the projection, mean over its 64 numbers: `[E, N]`."""
    classifier.eval()
    parts = []
    for batch in features.split(64):
        projected = classifier.project(batch).detach().requires_grad_()  # E, N, W
        # The classifier does not mix examples, so one backward pass gives each its own gradient.
        (gradient,) = torch.autograd.grad(classifier.decide(projected)[:, label].sum(), projected)
        parts.append((gradient * projected.detach()).mean(2))
    return torch.cat(parts).double().cpu().numpy()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's random numbers from this seed inside the block; afterwards as if nothing had been drawn."""
    devices = [] if device.type == "cpu" else [device.index or 0]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.manual_seed(seed)
        yield


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
    found = {}
    for number, name in enumerate(classes):
        if name == REST and REST not in {e.label for e in task}:
            continue
        of_class = labels[parts.held_out] == number
        held_out = parts.held_out[of_class]
        signed = importance(fitted.classifier, features[torch.from_numpy(held_out)], number)  # E, N
        signs = np.where(signed.mean(axis=0) < 0, -1, 1)
        examples, sign_map = np.full((len(held_out), *model.shape), np.nan), np.zeros(model.shape, dtype=int)
        examples[:, model.exists], sign_map[model.exists] = signs * signed, signs
        details = {**report, "own_accuracy": float(fitted.hits[of_class].mean())}
        details |= {"held_out": held_out.tolist(), "signs": sign_map.tolist()}
        names_of = {"model": model.name, "task": name, "method": "probe", "metric": UNIT}
        of = row_groups(task, details)
        found[name] = Scores.from_examples(examples, **names_of, signed=False, details=details, groups=of)
    return found


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
            f"({', '.join(labels) or 'none'}); give label=…, or use headwise.scores.probe.probe for all at once"
        )
    label = labels[0] if label is None else label
    if label not in labels:
        raise unknown(f"label of task {setup.task.name!r}", label, labels)
    settings: dict[str, Any] = {"answer_tokens": answer_tokens, "batch_tokens": setup.batch_tokens}
    scores = probe(setup.model, setup.task, seed=setup.seed, advance=setup.advance, **settings)[label]
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
