"""What a metric of generated text is, and the built-in ones: each from 0 to 1 (`cosine` from −1), more is better.

A metric is one function from texts and their counterparts to one number per text, and one registration. The libraries
that metrics call are imported when first used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headwise.errors import HeadwiseError, unknown
from headwise.model.load import bundled
from headwise.registry import Registry
from headwise.settings import several

Gold = str | Sequence[str]
"""The right answer, or several of which the best counts."""


@dataclass(frozen=True)
class TextMetric:
    """A number from 0 to 1 per text; more is better."""

    name: str
    about: str
    per_pair: Callable[..., np.ndarray]
    """From texts and as many others (for `both`: gold and full texts) to a value each."""
    against: tuple[str, ...] = ("full", "gold")
    """What texts may be compared with, the default first: `gold` (the right answer), `full` (what the whole
    model wrote), `both` (needs the two at once)."""
    packages: tuple[str, ...] = ()
    """Importable modules it needs beyond headwise's own requirements."""
    weights: tuple[str, ...] = ()
    """Bundled models it needs."""
    check: Callable[[], None] | None = None
    """Whatever else must be there: raises with what is missing."""

    def ready(self) -> None:
        """Raise, before any text is generated, if something this metric needs is missing."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise HeadwiseError(
                f"the metric {self.name!r} needs {', '.join(name.replace('_', '-') for name in missing)}; "
                "install it with: pip install 'headwise[similarity]'"
            )
        for alias in self.weights:
            bundled.fetch(alias)
        if self.check is not None:
            self.check()

    def values(
        self,
        texts: Sequence[str],
        *,
        gold: Sequence[Gold] | None = None,
        full: Sequence[str] | None = None,
        against: str | None = None,
    ) -> np.ndarray:
        """The metric of each text `[n]`, compared with its gold answer or the full model's text."""
        texts = several(texts)
        against = against or self.against[0]
        if against not in self.against:
            raise unknown(f"comparison of the metric {self.name!r}", against, self.against)
        for name, others in (("gold", gold), ("full", full)):
            count = None if others is None else len(several(others))
            if against in (name, "both") and count != len(texts):
                raise HeadwiseError(
                    f"the metric {self.name!r} compares {len(texts)} texts with as many {name} texts; got "
                    f"{'none' if count is None else count}"
                )
        self.ready()
        if against == "full":
            return self.per_pair(texts, several(full))
        return self._best(texts, several(gold), several(full) if against == "both" else None)

    def _best(self, texts: list[str], gold: Sequence[Gold], full: list[str] | None) -> np.ndarray:
        """Every right answer of a text is tried, and the best counts."""
        right_answers = [several(right) for right in gold]
        if [] in right_answers:
            raise HeadwiseError(f"text {right_answers.index([]) + 1} has no gold answer to compare with")
        owners = [number for number, each in enumerate(right_answers) for _ in each]
        others = [[answer for each in right_answers for answer in each]]
        if full is not None:
            others.append([full[number] for number in owners])
        best = np.full(len(texts), -np.inf)
        np.maximum.at(best, owners, self.per_pair([texts[number] for number in owners], *others))
        return best


TEXT_METRICS: Registry[TextMetric] = Registry("text metric", "headwise.metrics.*")


def register_text(
    name: str, **fields: Any
) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Make a function from texts and their counterparts to values known under `name`; the other arguments are the
    fields of `TextMetric`, such as `about`."""
    return TEXT_METRICS.decorator(name, lambda per_pair: TextMetric(name, per_pair=per_pair, **fields))


text_metrics, text_metric = TEXT_METRICS.all, TEXT_METRICS.get


# ---- the metrics -----------------------------------------------------------------------------------------


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
    return _each(_same, texts, gold)


@register_text(
    "contains", against=("gold",), about="1 if the text contains the words of the gold answer in sequence"
)
def contains(texts: list[str], gold: list[str]) -> np.ndarray:
    return _each(_contains, texts, gold)


@register_text(
    "math",
    against=("gold",),
    packages=("math_verify",),
    about="1 if the boxed result, or else the last number or formula, equals the gold answer (math-verify)",
)
def math(texts: list[str], gold: list[str]) -> np.ndarray:
    return _each(_same_result, texts, gold)


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


# ---- sentence embeddings from the bundled MiniLM, with plain transformers --------------------------------
# Reimers and Gurevych 2019 (arXiv 1908.10084): mean of the last layer over a sentence's tokens, scaled to length 1,
# so that a product of two embeddings is their cosine.


@functools.lru_cache(maxsize=1)
def _loaded() -> tuple[Any, Any, int]:
    """The model, its tokenizer, and how many tokens of a sentence it was made to read."""
    from transformers import AutoModel, AutoTokenizer

    folder = bundled.fetch("minilm")
    settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder), int(settings["max_seq_length"])


def embed(texts: Sequence[str]) -> np.ndarray:
    """One vector of length 1 per text `[n, 384]`. Runs on the CPU, so results do not depend on the device."""
    model, tokenizer, longest = _loaded()
    vectors = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(texts), 64):
        chosen = by_length[start : start + 64]
        inputs = tokenizer(
            [texts[i] for i in chosen], padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state  # n, T, width
        real = inputs["attention_mask"][:, :, None].to(hidden.dtype)
        mean = (hidden * real).sum(1) / real.sum(1)
        vectors[chosen] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


# ---- whether a text gives an answer: the same words, or the same mathematical result (math-verify) -------------

# A number keeps its sign, its decimal point and its digits together; commas between thousands go.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# Scripts written without spaces are cut into characters, so that a word is found inside a sentence.
_WORD = re.compile(
    r"(?<![\w.])-?\d+(?:\.\d+)*|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)


def normalised_words(text: str) -> list[str]:
    """
    >>> normalised_words("The answer is: 1,234.50 — “Yes”!")
    ['the', 'answer', 'is', '1234.50', 'yes']
    >>> normalised_words("x = -5, not 3-5")
    ['x', '-5', 'not', '3', '5']
    """
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-").casefold()
    return _WORD.findall(_THOUSANDS.sub("", plain))


def _same(text: str, gold: str) -> bool:
    """Whether the two are the same words. An answer without words, such as a sign, is compared exactly."""
    expected = normalised_words(gold)
    return normalised_words(text) == expected if expected else text.strip() == gold.strip()


def _contains(text: str, gold: str) -> bool:
    """Whether the answer's words stand in the text, whole and in a row."""
    expected = normalised_words(gold)
    if not expected:
        return gold.strip() in text
    if re.fullmatch(r"[A-Za-z]", gold.strip()):
        # A letter that names a choice: in lower case it would be found in every "a".
        return re.search(rf"(?<!\w){gold.strip()}(?!\w)", text) is not None
    written, count = normalised_words(text), len(expected)
    return any(written[start : start + count] == expected for start in range(len(written) - count + 1))


# ---- the result that a text states: the boxed one, or else the last number or formula --------------------


_BOXED = re.compile(r"\\boxed\s*\{")


def result(text: str) -> str | None:
    """The result that the metric `math` would compare, as text; None where the text states none.

    >>> result("so 3 + 4 = 7 apples"), result("I do not know")
    ('7', None)
    """
    parsed = _parsed(text)
    return str(parsed[-1]) if parsed else None


def _same_result(text: str, gold: str) -> bool:
    """Whether the text states the gold result; a gold answer without mathematics is compared word for word."""
    from math_verify import verify

    expected = _parsed_gold(gold)
    if not expected:
        return _same(text, gold)
    parsed = _parsed(text)
    return bool(parsed) and bool(verify(expected, parsed, timeout_seconds=_seconds()))


def _seconds() -> int | None:
    # math-verify's timer is a signal, which only the main thread may set.
    return 5 if threading.current_thread() is threading.main_thread() else None


def _parsed(text: str) -> Any:
    from math_verify import parse

    return parse(text, parsing_timeout=_seconds())


@functools.lru_cache(maxsize=4096)
def _parsed_gold(gold: str) -> Any:
    return _parsed(gold if "\\boxed" in gold or "$" in gold else f"\\boxed{{{gold.strip()}}}")


def boxed(text: str) -> bool:
    r"""Whether a whole \\boxed{…} stands in the text, which is a result even where the text was cut off.

    >>> boxed(r"so \boxed{7} and"), boxed(r"so \boxed{7")
    (True, False)
    """
    for begin in _BOXED.finditer(text):
        depth = 1
        for character in text[begin.end() :]:
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return True
    return False
