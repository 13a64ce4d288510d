"""What makes an example unusable, whatever file or mapping it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwise.errors import hint, quoted
from headwise.tasks.examples import Example
from headwise.tasks.files.rows import Log, Row, RowError
from headwise.tasks.registry import Lengths

_SURROGATE = re.compile("[\ud800-\udfff]")


def check(example: Example, tokens: Lengths | None = None) -> None:
    """Raises `RowError` for an example that no metric can score as it is meant."""
    prompt, target, other = example.prompt, example.target, example.counterfactual
    for text in (prompt, target, other or "", *example.foils, *example.also):
        if half := _SURROGATE.search(text):
            raise RowError(
                f"{quoted(text)} holds half a character ({half[0]!r}), which no tokenizer can read"
            )
    if not target.strip():
        raise RowError(f"the target is empty ({target!r}), expected the text that should follow the prompt")
    for name, texts in (("foil", example.foils), ("further target", example.also)):
        for i, text in enumerate(texts):
            if not text.strip():
                raise RowError(
                    f"a {name} is empty ({text!r}), expected text; leave it out where there is none"
                )
            if text in texts[:i]:
                raise RowError(f"the {name} {quoted(text)} is listed twice, expected each once")
    if target in example.also:
        raise RowError(f"'also' repeats the target {quoted(target)}, expected further right answers only")
    for foil in example.foils:
        if foil in (target, *example.also):
            raise RowError(f"the foil {quoted(foil)} equals the target, expected a wrong answer")
    if other == prompt:
        raise RowError("the counterfactual equals the prompt, expected a prompt that should give a foil")
    if tokens is not None and other is not None:
        length, other_length = len(tokens(prompt)), len(tokens(other))
        if length != other_length:
            raise RowError(
                f"the counterfactual has {other_length} tokens and the prompt {length}, expected as many"
            )


def check_all(
    pairs: Sequence[tuple[Row, Example]], log: Log, *, duplicates: str, tokens: Lengths | None
) -> list[Example]:
    """The examples that pass. `duplicates`: `drop` exact repeats with a notice, `refuse` or `keep` them."""
    seen: dict[Example, Row] = {}
    passed = []
    dropped = 0
    for row, example in pairs:
        with log.at(row):
            check(example, tokens)
            repeats = example in seen
            first = seen.setdefault(example, row)
            if not repeats or duplicates == "keep":
                passed.append(example)
            elif duplicates == "drop":
                dropped += 1
            else:
                raise RowError(
                    f"the same example as in {first.location}, expected each once; {hint('duplicates', 'drop')} "
                    "leaves repeats out"
                )
    if dropped:
        log.notices.append(f"left out {dropped} of {len(pairs)} examples that repeat an earlier one exactly")
    return passed
