"""Minimal pairs: two sentences or prompts that differ in one point.

Of prompts with an answer each, the other prompt is the counterfactual and its answer the foil; `equally_long` says what
becomes of pairs whose prompts differ in length.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from typing import Annotated, Any

from headwise.errors import hint
from headwise.settings import one_of
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.registry import contrast_metric, each_pair, each_row, register
from headwise.tasks.files.rows import Row, RowError, kind, named

# ---- BLiMP (arXiv 1912.00582): pairs of sentences that differ in one point of grammar ----------------------
# Where the paradigm allows the one-prefix method, its files give the words before the point and the two words that may
# follow. Otherwise whole sentences are compared, from an empty prompt. Under `method="two_prefix"` the word is the same
# and the words before it differ, so the ungrammatical beginning is the counterfactual.


_METHODS = ("auto", "sentence", "two_prefix")


def _metric(examples: Sequence[Example]) -> str:
    # logit_diff looks at one token; only accuracy weighs the whole of a sentence against the other.
    return contrast_metric(examples) if all(example.prompt for example in examples) else "accuracy"


@register(
    "blimp",
    about="{sentence_good, sentence_bad, …}: the shared beginning and the two words, where given, else the "
    "two sentences; the label is the phenomenon",
    fields=(
        *("sentence_good", "sentence_bad", "linguistics_term"),
        *("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"),
        *("two_prefix_prefix_good", "two_prefix_prefix_bad", "two_prefix_word"),
    ),
    recognises=lambda row: {"sentence_good", "sentence_bad"} <= set(row.values),
    metric=_metric,
)
@each_row
def blimp(row: Row, method: Annotated[str, one_of("method", lambda: _METHODS)] = "auto") -> Example:
    label = row.text("linguistics_term") if row.get("linguistics_term") else None
    if method == "two_prefix":
        if row.get("two_prefix_word") is None:
            raise RowError(
                f"no field 'two_prefix_word', expected for the method 'two_prefix'; use {hint('method', 'auto')}"
            )
        good, bad = row.filled("two_prefix_prefix_good"), row.filled("two_prefix_prefix_bad")
        return Example(good, f" {row.filled('two_prefix_word')}", counterfactual=bad, label=label)
    if method == "auto" and row.get("one_prefix_prefix") is not None:
        right, wrong = row.filled("one_prefix_word_good"), row.filled("one_prefix_word_bad")
        return Example(row.filled("one_prefix_prefix"), f" {right}", (f" {wrong}",), label=label)
    return Example("", row.filled("sentence_good"), (row.filled("sentence_bad"),), label=label)


# ---- prompts with an answer each --------------------------------------------------------------------------

_COLUMNS = (
    ("base", "base_label", "src", "src_label"),  # CausalGym (arXiv 2402.12560): prompts are lists of spans
    ("input", "label", "source_input", "source_label"),  # RAVEL (2402.17700)
    ("clean_prefix", "clean_answer", "patch_prefix", "patch_answer"),  # sparse feature circuits (2403.19647)
    ("clean", "answers", "corrupted", "corrupted_answers"),  # EAP-IG's hypernymy (2403.17806)
    ("clean", "country", "corrupted", "corrupted_country"),  # EAP-IG's facts
)
"""A prompt, its answer, the other prompt and its answer."""
_FACETS = {"base_type": "type", "case": "case"}
_NESTED = "_counterfactual"
"""How the columns of MIB (2504.13151) end that hold the other prompt with its own fields."""


def _names(row: Row) -> tuple[str, ...] | None:
    return next((names for names in _COLUMNS if set(names) <= set(row.values)), None)


def _nested(row: Row) -> list[str]:
    return [
        name
        for name, value in row.values.items()
        if name.endswith(_NESTED) and isinstance(value, dict) and "prompt" in value
    ]


@register(
    "pairs",
    about="{base, base_label, src, src_label} of CausalGym; pairs of RAVEL, sparse feature circuits, EAP-IG, MIB: the "
    "other prompt is the counterfactual, its answer the foil; `counterfactual` names the column in MIB",
    fields=(
        *dict.fromkeys(name for names in _COLUMNS for name in names),
        *(*_FACETS, "src_type", "task", "prompt", "choices", "answerKey", "metadata"),
    ),
    recognises=lambda row: _names(row) is not None or bool(_nested(row)),
    question=lambda row: _plain(row.get((_names(row) or ("prompt",))[0])),
)
@each_pair
def pairs(row: Row, counterfactual: str = "") -> Example:
    names = _names(row)
    if names is None:
        prompt, right, other, wrong = _mib(row, counterfactual)
    else:
        prompt, other = (_plain(row.need(names[i])) for i in (0, 2))
        right, wrong = (_answers(row, names[i]) for i in (1, 3))
    if names is None or names[0] == "clean":
        right, wrong = ([_spaced(prompt, answer) for answer in answers] for answers in (right, wrong))
    foils = tuple(answer for answer in dict.fromkeys(wrong) if answer not in right)
    family = {facet: str(row.get(name)) for name, facet in _FACETS.items() if row.get(name) is not None}
    label = row.get("task") if names is None or "label" in names else row.get("task") or row.get("label")
    return Example(prompt, right[0], foils, other, label, tuple(right[1:]), family=family)


def _plain(prompt: Any) -> str:
    """A text, or spans of one, without the token that begins a text in CausalGym."""
    text = "".join(prompt) if isinstance(prompt, list) else prompt
    if not isinstance(text, str):
        raise RowError(f"the prompt is {kind(prompt)}, expected text")
    return text.removeprefix("<|endoftext|>")


def _answers(row: Row, name: str) -> list[str]:
    """One text, or a list of them; in CSV as Python writes it."""
    value = row.need(name)
    try:
        listed = literal_eval(value) if isinstance(value, str) and value.startswith("['") else [value]
    except (ValueError, SyntaxError, RecursionError):
        listed = [value]
    if not all(isinstance(item, str) and item.strip() for item in listed):
        raise RowError(f"{name!r} is {kind(value)}, expected text or a list of texts")
    return list(dict.fromkeys(listed))


def _spaced(prompt: str, answer: str) -> str:
    return answer if prompt[-1:].isspace() else f" {answer}"


# ---- MIB ---------------------------------------------------------------------------------------------


def _mib(row: Row, chosen: str) -> tuple[str, list[str], str, list[str]]:
    """Prompt, right answer, other prompt, wrong answers: all other choices, or what the other prompt asks for."""
    there = _nested(row)
    if not there or (chosen and chosen not in there):
        raise RowError(
            f"no column {chosen or '…' + _NESTED} with a prompt in it, expected one of {named(there or _COLUMNS[0])}"
        )
    other = Row(row.number, row.unit, row.values[chosen or there[0]])
    right, wrong = _mib_answer(row)
    return row.text("prompt"), [right], other.text("prompt"), wrong or [_mib_answer(other)[0]]


def _mib_answer(row: Row) -> tuple[str, list[str]]:
    """The right answer and the other choices."""
    metadata, choices, key = row.get("metadata"), row.get("choices"), row.get("answerKey")
    if isinstance(metadata, dict) and "indirect_object" in metadata:
        return str(metadata["indirect_object"]), [str(metadata["subject"])]
    if choices is None or key is None:
        return str(row.need("label")).strip(), []
    labels = [str(label) for label in (choices["label"] if isinstance(choices, dict) else choices)]
    right = labels[key] if isinstance(key, int) and key < len(labels) else str(key)
    return right, [label for label in labels if label != right]
