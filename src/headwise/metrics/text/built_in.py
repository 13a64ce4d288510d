"""Metrics of generated text, each from 0 to 1 (`cosine` from −1), more is better.

Each is one function from texts and their counterparts to one number per text, and one registration. The
libraries they call are imported when first used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwise.metrics.text import normal
from headwise.metrics.text.mathematics import same_result
from headwise.metrics.text.registry import register_text

_LEAST_BLEU, _LEAST_ROUGE, _LEAST_COSINE = 0.8, 0.6, 0.6


def _each(judge: Any, texts: list[str], others: list[str]) -> np.ndarray:
    return np.array([float(judge(text, other)) for text, other in zip(texts, others, strict=True)])


def _overlap(judge: Any, texts: list[str], others: list[str]) -> np.ndarray:
    """Texts that are the same overlap fully, also where neither has anything to count (two empty ones)."""
    return _each(lambda text, other: 1.0 if text == other else judge(text, other), texts, others)


@register_text(
    "exact", against=("gold",), about="1 if the text equals the gold answer, ignoring case and punctuation"
)
def exact(texts: list[str], gold: list[str]) -> np.ndarray:
    return _each(normal.same, texts, gold)


@register_text(
    "contains", against=("gold",), about="1 if the text contains the words of the gold answer in sequence"
)
def contains(texts: list[str], gold: list[str]) -> np.ndarray:
    return _each(normal.contains, texts, gold)


@register_text(
    "math",
    against=("gold",),
    packages=("math_verify",),
    about="1 if the boxed result, or else the last number or formula, equals the gold answer (math-verify)",
)
def math(texts: list[str], gold: list[str]) -> np.ndarray:
    return _each(same_result, texts, gold)


@register_text("chrf", packages=("sacrebleu",), about="character n-gram overlap (chrF2 of sacrebleu)")
def chrf(texts: list[str], others: list[str]) -> np.ndarray:
    """Popović 2015, aclanthology W15-3049."""
    from sacrebleu.metrics.chrf import CHRF

    measure = CHRF()
    return _overlap(lambda text, other: measure.sentence_score(text, [other]).score / 100, texts, others)


@register_text(
    "bleu", packages=("sacrebleu",), about="word n-gram overlap (sentence BLEU of sacrebleu, effective order)"
)
def bleu(texts: list[str], others: list[str]) -> np.ndarray:
    """Papineni et al. 2002, aclanthology P02-1040. Effective order: short answers have no four words in a row."""
    from sacrebleu.metrics.bleu import BLEU

    measure = BLEU(effective_order=True)
    return _overlap(lambda text, other: measure.sentence_score(text, [other]).score / 100, texts, others)


@register_text("rouge1", packages=("rouge_score",), about="ROUGE-1 F-measure: shared words (rouge-score)")
def rouge1(texts: list[str], others: list[str]) -> np.ndarray:
    """Lin 2004, aclanthology W04-1013."""
    from rouge_score.rouge_scorer import RougeScorer

    measure = RougeScorer(["rouge1"])
    return _overlap(lambda text, other: measure.score(other, text)["rouge1"].fmeasure, texts, others)


@register_text(
    "cosine", weights=("minilm",), about="cosine similarity of sentence embeddings (all-MiniLM-L6-v2)"
)
def cosine(texts: list[str], others: list[str]) -> np.ndarray:
    from headwise.metrics.text.embed import embed

    distinct = list(dict.fromkeys([*texts, *others]))
    row = {text: number for number, text in enumerate(distinct)}
    vectors = embed(distinct)
    left, right = (vectors[[row[text] for text in side]] for side in (texts, others))
    return (left * right).sum(1, dtype=np.float64)


@register_text(
    "agreement",
    against=("both",),
    packages=("sacrebleu", "rouge_score"),
    weights=("minilm",),
    about="1 if BLEU with the full model's text > .8, or ROUGE-1 or cosine with the gold answer > .6",
)
def agreement(texts: list[str], gold: list[str], full: list[str]) -> np.ndarray:
    """The rule of Cognitive Mirrors (arXiv 2512.10978).

    It counts a wrong answer as right where the full model gives the same one: it measures that nothing
    changed as much as that the answer is true.
    """
    like_full = bleu(texts, full) > _LEAST_BLEU
    like_gold = (rouge1(texts, gold) > _LEAST_ROUGE) | (cosine(texts, gold) > _LEAST_COSINE)
    return (like_full | like_gold).astype(float)
