"""Texts with named gaps, such as "Q: {question}\\nA:"; nothing but names goes into the braces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwise.errors import HeadwiseError, quoted, unknown

# str.format would also follow attributes and indices ("{x.__class__}"); a gap here is a bare name.
_PIECE = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}")


@dataclass(frozen=True)
class Template:
    """A text cut into literal pieces and gaps. `{{` and `}}` stand for plain braces."""

    pieces: tuple[tuple[str, bool], ...]
    """(text, False) for a literal, (name, True) for a gap, in order."""

    @classmethod
    def parse(cls, text: str) -> Template:
        """
        >>> Template.parse("Q: {question} {{sic}}").names
        ('question',)
        """
        pieces: list[tuple[str, bool]] = []
        end = 0
        for match in _PIECE.finditer(text):
            pieces.append((text[end : match.start()], False))
            is_gap = match["name"] is not None
            pieces.append((match["name"] if is_gap else match[0][0], is_gap))
            end = match.end()
        pieces.append((text[end:], False))
        return cls(tuple(piece for piece in pieces if piece[0] or piece[1]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the gaps, in order, as often as they occur."""
        return tuple(text for text, gap in self.pieces if gap)

    def fill(self, values: Mapping[str, str]) -> str:
        """
        >>> Template.parse("Q: {question}\\nA:").fill({"question": "Who?"})
        'Q: Who?\\nA:'
        """
        return "".join(values[text] if gap else text for text, gap in self.pieces)

    def before(self, name: str) -> Template:
        """The part that stands before the first gap of this name."""
        return Template(self.pieces[: self.pieces.index((name, True))])

    def after(self, name: str) -> Template:
        """The part that stands after the first gap of this name."""
        return Template(self.pieces[self.pieces.index((name, True)) + 1 :])


def shot_template(text: str) -> Template:
    """The template of a solved example: {prompt} and then {target}, each once."""
    expected = "expected {prompt} and then {target}, each once, as in 'Q: {prompt}\\nA:{target}'"
    if not isinstance(text, str):
        raise HeadwiseError(f"template={quoted(text)} is not text; {expected}")
    template = Template.parse(text)
    for name in template.names:
        if name not in ("prompt", "target"):
            raise unknown(f"gap in template {text!r}:", name, ("prompt", "target"))
    if template.names != ("prompt", "target"):
        raise HeadwiseError(f"template {text!r} does not fit; {expected}")
    return template
