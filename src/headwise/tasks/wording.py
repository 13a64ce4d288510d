"""How much of an example's label can be read off its words alone, before any model is asked.

A probe that tells abilities apart may only have noticed that sums contain digits and grammar questions the
word "verb". A bag of words knows nothing else, so its accuracy is the part of a probe's that proves nothing.

N texts, W different words, C classes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError

# scipy is imported where it is used: listing the tasks imports this module, and should not wait for it.

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
FOLDS = 5
"""Of the cross-validation."""
PENALTY = 1.0
"""Weight of the squared penalty of the regression."""


def lower_case_words(text: str) -> list[str]:
    """The lower-case words, numbers and punctuation marks of a text; signs such as + and = are words too.

    >>> lower_case_words("Ana's 12 pears?")
    ['ana', "'", 's', '12', 'pears', '?']
    """
    return _WORD.findall(text.lower())


def bag_of_words_accuracy(
    texts: Sequence[str],
    labels: Sequence[str],
    seed: int = 0,
    *,
    groups: Sequence[Hashable] | None = None,
) -> float:
    """Share of held-out texts, 0 to 1, whose label a multinomial logistic regression names from word counts.

    Cross-validated: every text is predicted once, by a classifier that has not seen it. Chance is one over
    the number of labels where they are balanced. `groups` keeps texts that belong together (the same scene)
    in one fold; without it, texts that share their words but never their label push the result below what a
    new text would get.
    """
    groups = range(len(texts)) if groups is None else groups
    if not len(texts) == len(labels) == len(groups):
        raise HeadwiseError(
            f"{len(texts)} texts, {len(labels)} labels and {len(groups)} groups; give one of each per text"
        )
    fold = np.array(_folds(labels, groups, seed))
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise HeadwiseError(f"{len(classes)} label; telling labels apart needs at least two")
    y = np.array([classes.index(label) for label in labels])
    hits = 0
    for held_out in range(FOLDS):
        train, test = (np.flatnonzero(part).tolist() for part in (fold != held_out, fold == held_out))
        column = {w: c for c, w in enumerate(sorted({w for i in train for w in lower_case_words(texts[i])}))}
        weights = _fit(_counts(texts, train, column), np.eye(len(classes))[y[train]])
        guess = (_counts(texts, test, column) @ weights).argmax(axis=1)
        hits += int((guess == y[test]).sum())
    return hits / len(texts)


def _folds(labels: Sequence[str], groups: Sequence[Hashable], seed: int) -> list[int]:
    """A fold for each text: shuffled groups dealt out in turn, sorted by label so that folds are balanced."""
    first_label = dict(zip(reversed(groups), reversed(labels), strict=True))
    names = list(first_label)
    if len(names) < FOLDS:
        raise HeadwiseError(f"{len(names)} texts or groups cannot be split into {FOLDS} folds; give more")
    random.Random(seed).shuffle(names)
    names.sort(key=lambda name: first_label[name])
    fold_of = {name: i % FOLDS for i, name in enumerate(names)}
    return [fold_of[name] for name in groups]


def _counts(texts: Sequence[str], rows: Sequence[int], column: dict[str, int]) -> Any:
    """How often each word is in each text, [N, W + 1], with a constant as last column; sparse, as texts are."""
    from scipy.sparse import csr_matrix

    counted = [(r, column[w]) for r, i in enumerate(rows) for w in lower_case_words(texts[i]) if w in column]
    cells = np.array(counted + [(r, len(column)) for r in range(len(rows))]).T
    return csr_matrix((np.ones(cells.shape[1]), cells), shape=(len(rows), len(column) + 1))  # repeats add up


def _fit(x: Any, onehot: np.ndarray) -> np.ndarray:
    """Weights [W, C] of the penalised maximum likelihood; the constant's are not penalised."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    shape = (x.shape[1], onehot.shape[1])

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(shape)
        log_p = log_softmax(x @ w, axis=1)
        penalty = w.copy()
        penalty[-1] = 0
        value = -(onehot * log_p).sum() + PENALTY / 2 * (penalty**2).sum()
        return value, (x.T @ (np.exp(log_p) - onehot) + PENALTY * penalty).ravel()

    return minimize(loss, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B").x.reshape(shape)
