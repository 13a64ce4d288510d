"""A small classifier over all heads at once, and what each head contributes to its verdict. Plain torch.

E examples, N heads, F features of a head, W = 64 numbers a head is projected to, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
