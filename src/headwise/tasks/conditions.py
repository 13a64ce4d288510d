"""What is inserted into a prompt (nothing, meaningless or meaningful filler, or a text of the user's), and where.

A prompt is a list of pieces, each marked as part of the problem or as inserted, so the character range of the inserted
text is known. Conditions as in arXiv 2510.01032.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from headwise.errors import HeadwiseError, unknown
from headwise.settings import several
from headwise.tasks.templates import Template, shot_template

UNITS = {"none": "", "meaningless": "/", "meaningful": "he"}
"""The built-in fillers: what is repeated."""
COPIES = 55
"""How often a filler is repeated by default."""
ARM = "arm"
"""A condition of the model, not of the prompt: its first MLP is changed (`model/arm.py`)."""
PLACES = ("between", "before", "end")
"""Right before the question, after system prompt and solved examples; before everything; after the question."""


@dataclass(frozen=True)
class Condition:
    """One way to ask the same problems."""

    name: str
    """As the user wrote it: `none`, `meaningless`, `meaningless:20`, `arm`, or a filler of the user's."""
    text: str = ""
    """What is inserted; with the gap `{question}` it stands around the question."""
    copies: int = 0
    """How often its unit is repeated; 0 where nothing is inserted."""

    @property
    def kind(self) -> str:
        """The name without the number of copies."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Piece:
    """A part of a prompt."""

    text: str
    inserted: bool = False


@dataclass(frozen=True)
class Asked:
    """A problem as it is asked: what stands before it, and itself."""

    question: str
    system: str = ""
    shots: tuple[tuple[str, str], ...] = ()
    """Solved examples: (question, answer)."""


def conditions(
    names: Sequence[str], fillers: Mapping[str, str] | None = None, lengths: Sequence[int] = ()
) -> list[Condition]:
    """The conditions of these names, in their order.

    `name:k` repeats a filler k times, separated by spaces. `fillers` are the user's own, by name. With `lengths`
    every filler appears once for each length instead.

    >>> [c.text for c in conditions(["none", "meaningless:3", "dots"], {"dots": ". . ."})]
    ['', '/ / /', '. . .']
    >>> [c.name for c in conditions(["none", "meaningful"], lengths=(5, 50))]
    ['none', 'meaningful:5', 'meaningful:50']
    """
    fillers = fillers or {}
    taken = [name for name in fillers if name in UNITS or name == ARM or ":" in name or not name]
    if taken:
        raise HeadwiseError(
            f"a filler cannot be called {taken[0]!r}: {', '.join((*UNITS, ARM))} are built in, and a colon begins the "
            "number of copies; choose another name"
        )
    if any(length < 1 for length in lengths):
        raise HeadwiseError(
            f"lengths are {list(lengths)}; each is a number of copies, at least 1 (`none` is the condition without)"
        )
    built: list[Condition] = []
    for name in several(names):
        condition = _condition(name, fillers)
        is_sweep = lengths and condition.copies and ":" not in name
        built += [_condition(f"{name}:{length}", fillers) for length in lengths] if is_sweep else [condition]
    if not built:
        raise HeadwiseError(
            "no condition was given; name at least one, such as conditions=[none, meaningless]"
        )
    twice = [name for name, count in Counter(c.name for c in built).items() if count > 1]
    if twice:
        raise HeadwiseError(f"the condition {min(twice)!r} is given twice; name each once")
    return built


def _condition(name: str, fillers: Mapping[str, str]) -> Condition:
    kind, colon, count = name.partition(":")
    if kind not in UNITS and kind not in fillers and kind != ARM:
        raise unknown("condition", kind, (*UNITS, ARM, *fillers))
    if kind in ("none", ARM) and colon:
        raise HeadwiseError(f"{kind!r} inserts nothing, so {name!r} has no number of copies; write {kind!r}")
    if kind in ("none", ARM):
        return Condition(kind)
    if colon and not (count.isdecimal() and int(count) > 0):
        raise HeadwiseError(f"{name!r} does not say how many copies; write for example {kind}:20")
    copies = int(count) if colon else COPIES if kind in UNITS else 1
    unit = UNITS[kind] if kind in UNITS else fillers[kind]
    if not unit:
        raise HeadwiseError(f"the filler {kind!r} is empty; the condition without one is called none")
    gaps = Template.parse(unit).names if kind in fillers else ()
    if gaps and (gaps != ("question",) or colon):
        raise HeadwiseError(
            f"the filler {kind!r} may have one gap, {{question}}, and is then not repeated; it is {unit!r}"
        )
    return Condition(name, " ".join([unit] * copies), copies)


# ---- where it goes ----------------------------------------------------------------------------------------


def inserted_texts(condition: Condition, place: str, joint: str) -> tuple[str, str, str]:
    """What is inserted at the beginning of everything, right before the question, and right after it."""
    if place not in PLACES:
        raise unknown("place", place, PLACES)
    if not condition.text:
        return "", "", ""
    parsed = Template.parse(condition.text)
    if condition.kind not in UNITS and parsed.names:
        return "", parsed.before("question").fill({}), parsed.after("question").fill({})
    return {
        "before": (condition.text + joint, "", ""),
        "between": ("", condition.text + joint, ""),
        "end": ("", "", joint + condition.text),
    }[place]


def plain_pieces(
    problem: Asked,
    condition: Condition,
    *,
    template: str,
    separator: str,
    place: str = "between",
    joint: str = "\n",
) -> list[Piece]:
    """A prompt as plain text: system prompt, solved examples, question, and what is inserted.

    >>> problem = Asked("1 + 1?", shots=(("2 + 2?", " 4"),))
    >>> slashes = conditions(["meaningless:2"])[0]
    >>> pieces = plain_pieces(problem, slashes, template="Q: {prompt} A:{target}", separator="; ", joint=" ")
    >>> [piece.text for piece in pieces], [piece.inserted for piece in pieces]
    (['Q: 2 + 2? A: 4; ', '/ / ', 'Q: 1 + 1? A:'], [False, True, False])
    """
    solved = shot_template(template)
    head = solved.before("prompt").fill({})
    cue = solved.before("target").after("prompt").fill({})
    first, before, after = inserted_texts(condition, place, joint)
    context = f"{problem.system}{separator}" if problem.system else ""
    context += "".join(solved.fill({"prompt": q, "target": a}) + separator for q, a in problem.shots)
    label = [Piece(before, True), Piece(head)]
    if condition.kind not in UNITS and before and after:
        # A text around the question stands inside the template; a filler stands before the question's own label.
        label.reverse()
    end = [Piece(problem.question), Piece(after, True), Piece(cue)]
    return merged_pieces([Piece(first, True), Piece(context), *label, *end])


def merged_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """The same text in as few pieces as possible, none of them empty."""
    groups = groupby((piece for piece in pieces if piece.text), key=lambda piece: piece.inserted)
    return [Piece("".join(piece.text for piece in group), inserted) for inserted, group in groups]


MARKS = ("\ue0a1", "\ue0a2", "\ue0a3")
"""Private characters that stand for the inserted texts while a chat template is filled in."""


def marked_messages(
    problem: Asked, condition: Condition, place: str, joint: str, *, system_role: bool = True
) -> list[dict[str, str]]:
    """A chat of system prompt, solved turns and question, with a mark wherever something is inserted.

    What a template does to a message's text (many trim it) happens to the text around the mark, and the mark says
    where the inserted text belongs in the result, whatever the template puts around it. `system_role`: where a
    template knows no system messages, the system prompt stands at the beginning of the user's first one.
    """
    first, before, after = (
        mark if text else ""
        for mark, text in zip(MARKS, inserted_texts(condition, place, joint), strict=True)
    )
    messages = []
    for question, answer in problem.shots:
        messages.append({"role": "user", "content": question.strip()})
        messages.append({"role": "assistant", "content": answer.strip()})
    messages.append({"role": "user", "content": f"{before}{problem.question.strip()}{after}"})
    if problem.system and system_role:
        messages.insert(0, {"role": "system", "content": problem.system})
    elif problem.system:
        messages[0]["content"] = f"{problem.system}\n\n{messages[0]['content']}"
    messages[0]["content"] = first + messages[0]["content"]
    return messages


def filled_marks(rendered: str, condition: Condition, place: str, joint: str) -> list[Piece]:
    """A rendered chat cut at its marks, with the inserted texts in their places."""
    pieces, rest = [], rendered
    for mark, text in zip(MARKS, inserted_texts(condition, place, joint), strict=True):
        if rest.count(mark) != bool(text):
            raise HeadwiseError(
                f"the chat template repeats or drops the message that the condition {condition.name!r} is put into, so "
                "it cannot be located; use another place, or chat=false"
            )
        if text:
            before, _, rest = rest.partition(mark)
            pieces += [Piece(before), Piece(text, True)]
    return merged_pieces([*pieces, Piece(rest)])
