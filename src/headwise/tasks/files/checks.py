"""What makes an example unusable, whatever file or mapping it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, RowError, quoted
from headwise.tasks.registry import Lengths

_HALF = re.compile("[\ud800-\udfff]")


def check(example: Example, tokens: Lengths | None = None) -> None:
    """Raises `RowError` for an example that no metric can score as it is meant."""
    for text in (example.prompt, example.target, example.counterfactual or "", *example.foils, *example.also):
        if found := _HALF.search(text):
            raise RowError(
                f"{quoted(text)} holds half a character ({found[0]!r}), which no tokenizer can read"
            )
    if not example.target.strip():
        raise RowError(
            f"the target is empty ({example.target!r}), expected the text that should follow the prompt"
        )
    right = (example.target, *example.also)
    for name, texts in (("foil", example.foils), ("further target", example.also)):
        for i, text in enumerate(texts):
            if not text.strip():
                raise RowError(
                    f"a {name} is empty ({text!r}), expected text; leave it out where there is none"
                )
            if text in texts[:i]:
                raise RowError(f"the {name} {quoted(text)} is listed twice, expected each once")
    if example.target in example.also:
        raise RowError(
            f"'also' repeats the target {quoted(example.target)}, expected further right answers only"
        )
    for foil in example.foils:
        if foil in right:
            raise RowError(f"the foil {quoted(foil)} equals the target, expected a wrong answer")
    if example.counterfactual is not None:
        _check_counterfactual(example.prompt, example.counterfactual, tokens)


def _check_counterfactual(prompt: str, other: str, tokens: Lengths | None) -> None:
    if other == prompt:
        raise RowError("the counterfactual equals the prompt, expected a prompt that should give a foil")
    if tokens is not None and (here := len(tokens(prompt))) != (there := len(tokens(other))):
        raise RowError(f"the counterfactual has {there} tokens and the prompt {here}, expected as many")


def check_all(
    pairs: Sequence[tuple[Row, Example]], log: Log, *, duplicates: str, tokens: Lengths | None
) -> list[Example]:
    """The examples that pass. `duplicates`: `refuse`, `drop` (with a notice) or `keep` exact repeats."""
    seen: dict[Example, Row] = {}
    kept = []
    dropped = 0
    for row, example in pairs:
        with log.at(row):
            check(example, tokens)
            first = seen.get(example)
            if first is not None and duplicates == "refuse":
                raise RowError(
                    f"the same example as in {first.place}, expected each once; duplicates='drop' leaves "
                    "repeats out"
                )
            if first is not None and duplicates == "drop":
                dropped += 1
                continue
            seen.setdefault(example, row)
            kept.append(example)
    if dropped:
        log.notices.append(f"left out {dropped} of {len(pairs)} examples that repeat an earlier one exactly")
    return kept
