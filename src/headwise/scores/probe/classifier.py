"""A small classifier over all heads at once, and what each head contributes to its verdict. Plain torch.

E examples, N heads, F features of a head, W = 64 numbers a head is projected to, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Split:
    """Numbers of the examples that are learned from, stopped by and reported on."""

    train: np.ndarray
    stop: np.ndarray
    held_out: np.ndarray


def split(labels: np.ndarray, seed: int, groups: Sequence[Hashable] | None = None) -> Split:
    """A fifth of each class is held out; an eighth of the rest says when to stop. Each part has every class.

    Stopping does not look at what is held out: its accuracy would otherwise be the best of many. Examples of one group
    all go where the first of them goes, so that nothing of what is held out was learned from.
    """
    members_of: dict[Hashable, list[int]] = {}
    for number, group in enumerate(range(len(labels)) if groups is None else groups):
        members_of.setdefault(group, []).append(number)
    whole = {members[0]: members for members in members_of.values()}
    first = np.array(list(whole))
    random = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
    for label in np.unique(labels):
        members = random.permutation(first[labels[first] == label])
        assert len(members) >= 3, "the caller checks that every class has a member for each part"
        held = max(1, round(len(members) / 5))
        stop = max(1, round((len(members) - held) / 8))
        for part, chosen in zip(parts, np.split(members, [-held - stop, -held]), strict=True):
            part.append(np.array([number for leader in chosen for number in whole[leader]]))
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


@dataclass(frozen=True)
class Fitted:
    """A trained classifier and how its training went."""

    classifier: HeadClassifier
    epochs: int
    """Passes over the examples until the loss on the stopping part was lowest."""


def fit(features: Tensor, labels: Tensor, parts: Split, classes: int, seed: int) -> Fitted:
    """Cross-entropy, AdamW, shuffled batches; ends when the stopping part has not improved for five passes.

    The same seed gives the same classifier on the same machine; the state of torch's own dice is left alone.
    """
    device = features.device
    train, stop = torch.from_numpy(parts.train), torch.from_numpy(parts.stop)
    with _dice(seed, device):
        classifier = HeadClassifier(features.shape[1], features.shape[2], classes).to(device)
        optimiser = torch.optim.AdamW(classifier.parameters(), lr=RATE)
        best, best_loss, best_epoch = copy.deepcopy(classifier.state_dict()), float("inf"), 0
        for epoch in range(1, MOST_EPOCHS + 1):
            classifier.train()
            for batch in train[torch.randperm(len(train))].split(BATCH):
                optimiser.zero_grad()
                cross_entropy(classifier(features[batch]), labels[batch]).backward()
                optimiser.step()
            loss = float(cross_entropy(predicted(classifier, features, stop), labels[stop]))
            if loss < best_loss:
                best, best_loss, best_epoch = copy.deepcopy(classifier.state_dict()), loss, epoch
            elif epoch - best_epoch >= PATIENCE:
                break
        classifier.load_state_dict(best)
    classifier.eval()
    return Fitted(classifier, best_epoch)


def predicted(classifier: HeadClassifier, features: Tensor, numbers: Tensor) -> Tensor:
    """Logits `[E, C]` of the examples at `numbers`, without dropout."""
    classifier.eval()
    with torch.no_grad():
        return torch.cat([classifier(features[batch]) for batch in numbers.split(256)])


def hits(fitted: Fitted, features: Tensor, labels: Tensor, numbers: np.ndarray) -> np.ndarray:
    """1 where the example's own class has the largest logit, else 0."""
    chosen = torch.from_numpy(numbers)
    right = predicted(fitted.classifier, features, chosen).argmax(1) == labels[chosen]
    return right.double().cpu().numpy()


def importance(classifier: HeadClassifier, features: Tensor, label: int) -> np.ndarray:
    """Gradient of the class's logit × activation at the projection, mean over its 64 numbers: `[E, N]`."""
    classifier.eval()
    found = []
    for batch in features.split(64):
        projected = classifier.project(batch).detach().requires_grad_()  # E, N, W
        # Examples do not meet in the classifier, so one backward pass gives each its own gradient.
        (slope,) = torch.autograd.grad(classifier.decide(projected)[:, label].sum(), projected)
        found.append((slope * projected.detach()).mean(2))
    return torch.cat(found).double().cpu().numpy()


@contextmanager
def _dice(seed: int, device: torch.device) -> Iterator[None]:
    """torch's random numbers from this seed while it holds; afterwards as if nothing had been drawn."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
        return
    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
        torch.manual_seed(seed)
        yield
