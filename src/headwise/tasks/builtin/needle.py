"""Long prompts in which one sentence matters: a needle in a haystack, and something said early in a long chat.

`needle`: "… The secret word of Anna is copper. … The secret word of Anna is" -> " copper", with plain sentences around.
`recall_from_context`: "User: My dog is called Max. … User: What is my dog called? Assistant: Your dog is called" ->
" Max", with other requests and answers between.

A prompt has at most `length` tokens (words where there is no tokenizer), and not less by more than the filler that did
not fit. The counterfactual says a foil in the needle's place; the needle is the span `needle`, its answer the span
`answer`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from headwise.errors import HeadwiseError, quoted
from headwise.files import user_path
from headwise.tasks.builtin.word_lists import lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import Lengths, register, text_file, whole_number

TEXTS = lists("needle.txt")
SHORTEST, LONGEST = 100, 131_072
N_FOILS = 4
DEPTHS = ("early", "middle", "late")
LATEST = 0.9
"""Share of the filler after which no needle stands: it would be close to the question."""

_long = {"length": whole_number(512, SHORTEST, LONGEST), "filler": text_file("sentences")}
Sentences = Iterator[str]


@register(
    "needle",
    metric="logit_diff",
    about="a sentence hidden in a long text (length=1000, depth=early): what is the secret word of Anna?",
    depth=("mixed", *DEPTHS),
    answer=("word", "phrase", "code"),
    needles=whole_number(1, least=1, most=8),
    distractors=whole_number(0, least=0, most=4),
    **_long,
)
def needle(
    draw: random.Random,
    length: int = 512,
    depth: str = "mixed",
    needles: int = 1,
    distractors: int = 0,
    answer: str = "word",
    filler: str = "sentences",
    tokens: Lengths | None = None,
) -> Example:
    """`length`: of the prompt in tokens. `depth`: the third of the text with the needle. `needles`: sentences of the
    same kind about as many people, one of whom is asked for. `distractors`: other facts about the same person. The
    answers of both are the first foils. `answer`: a word, a phrase of two words, or a code of five digits. `filler`:
    our sentences, or a text file whose sentences are taken in order from a random one on."""
    (fact,), (question,) = TEXTS["fact"], TEXTS["question"]
    names, kinds = draw.sample(words(TEXTS["names"]), needles), draw.sample(TEXTS["kinds"], 1 + distractors)
    pairs = [(kinds[0], name) for name in names] + [(kind, names[0]) for kind in kinds[1:]]
    answers = _answers(draw, answer, max(len(pairs), N_FOILS + 1))
    facts = [
        fact.format(kind=kind, name=name, answer=a) for (kind, name), a in zip(pairs, answers, strict=False)
    ]
    level = draw.choice(DEPTHS) if depth == "mixed" else depth
    places = [LATEST * (DEPTHS.index(level) + draw.random()) / len(DEPTHS)]
    places += [LATEST * draw.random() for _ in facts[1:]]
    question_text = question.format(kind=kinds[0], name=names[0])
    room = _Room(tokens, length - _count(tokens, " ".join([*facts, question_text])))
    hay = room.fill(sentences_of(draw, filler))
    return _example(
        [*hay, question_text], facts, places, answers, " ", {"depth": level, "length": str(length)}
    )


@register(
    "recall_from_context",
    metric="logit_diff",
    about="a long chat (length=1000) whose beginning says what its last question asks for",
    **_long,
)
def recall_from_context(
    draw: random.Random, length: int = 512, filler: str = "sentences", tokens: Lengths | None = None
) -> Example:
    """`length`: of the prompt in tokens. `filler`: as for `needle`."""
    statement, question, beginning, kind = draw.choice(TEXTS["facts of a chat"]).split(" | ")
    answers = draw.sample(words(TEXTS[kind]), N_FOILS + 1)
    fact, last = f"User: {statement.format(answer=answers[0])}", f"User: {question}\nAssistant: {beginning}"
    ok = "Assistant: Thank you, I will remember that."
    sentences = sentences_of(draw, filler)
    room = _Room(tokens, length - _count(tokens, "\n".join([fact, ok, last])))
    turns: list[str] = []
    while True:
        turn = f"User: {draw.choice(TEXTS['requests']).format(where=draw.choice(TEXTS['where']))}\nAssistant:"
        if not room.takes(turn, "\n") or not (added := room.fill(sentences, draw.randint(2, 4))):
            break
        turns.append(" ".join([turn, *added]))
    family = {"fact": kind, "length": str(length)}
    return _example([ok, *turns, last], [fact], [0.0], answers, "\n", family)


def _example(
    parts: list[str],
    facts: list[str],
    places: list[float],
    answers: list[str],
    separator: str,
    family: dict[str, str],
) -> Example:
    """Put the facts among the parts, the last of which asks for the first fact. places: shares of the parts."""
    where = sorted(range(len(facts)), key=lambda i: places[i], reverse=True)
    for i in where:  # from the back, so that the others stay where they are
        parts.insert(round(places[i] * (len(parts) - 1)), facts[i])
    prompt = separator.join(parts)
    start = prompt.index(facts[0])
    at = start + facts[0].rindex(answers[0])
    return Example(
        prompt=prompt,
        target=f" {answers[0]}",
        foils=tuple(f" {other}" for other in answers[1 : N_FOILS + 1]),
        counterfactual=prompt[:at] + answers[1] + prompt[at + len(answers[0]) :],
        spans={"needle": (start, start + len(facts[0])), "answer": (at, at + len(answers[0]))},
        family=family,
    )


def _answers(draw: random.Random, kind: str, count: int) -> list[str]:
    """Different answers, the right one first."""
    listed = words(TEXTS["answers"])
    if kind == "code":
        return [str(number) for number in draw.sample(range(10_000, 100_000), count)]
    if kind == "phrase":
        return [" ".join(draw.sample(listed, 2)) for _ in range(count)]
    return draw.sample(listed, count)


# ---- filler ------------------------------------------------------------------------------------------


def _count(tokens: Lengths | None, text: str) -> int:
    return len(tokens(text) if tokens else text.split())


class _Room:
    """Room for filler, in tokens."""

    def __init__(self, tokens: Lengths | None, room: int) -> None:
        self.tokens, self.left = tokens, room
        self._before = _count(tokens, "The end.")  # with what a tokenizer puts before every text

    def takes(self, text: str, separator: str = " ") -> bool:
        """Take the tokens of a text out of the room, if it fits."""
        size = _count(self.tokens, f"The end.{separator}{text}") - self._before
        self.left -= size if (fits := size <= self.left) else 0
        return fits

    def fill(self, sentences: Sentences, most: int | None = None) -> list[str]:
        """Sentences until the room is full, or so many."""
        taken: list[str] = []
        while len(taken) != most and self.takes(sentence := next(sentences)):
            taken.append(sentence)
        return taken


def sentences_of(draw: random.Random, filler: str) -> Sentences:
    """Endless sentences: of ours, or those of a text file from a random one on, again from its beginning."""
    if filler == "sentences":
        while True:
            yield " ".join(draw.choice(TEXTS[part]) for part in ("who", "did", "where", "when")) + "."
    listed = _file(filler)
    at = draw.randrange(len(listed))
    while True:
        yield listed[at % len(listed)]
        at += 1


@cache
def _file(path: str) -> list[str]:
    """The sentences of a text file."""
    try:
        text = Path(user_path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise HeadwiseError(f"the filler {quoted(path)} cannot be read: {error}") from None
    found = [" ".join(one.split()) for one in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)]
    if len(listed := [one for one in found if one]) < 20:
        raise HeadwiseError(
            f"the filler {quoted(path)} has {len(listed)} sentences; expected a plain text of at least 20"
        )
    return listed
