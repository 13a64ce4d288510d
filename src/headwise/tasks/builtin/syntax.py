"""Grammatical choices: sixteen phenomena, each a choice between two words that one earlier word decides.

    The key near the cabinets    -> " is", not " are"
    The keys near the cabinets   -> " are", not " is"

Both lines are examples, each the other's counterfactual: flipping the deciding word turns the foil into the
right answer. So the two words' own frequencies cancel over a task, and what is left is the grammar. Choices
follow the paradigms of BLiMP (Warstadt et al. 2020, arXiv 1912.00582); the sentences are our own.

The bundled model is right in 97 of 100. It makes no error in fifty of `agreement_coordination`,
`reflexive_number`, `polarity`, `participle`, `question_word` and `pronoun_case`, and most in `determiner_noun`
(84 %); none is at chance.

`data/phenomena.txt` says how an example of each phenomenon is drawn; a new phenomenon is a few lines there.

`syntax_rewrite` has the same phenomena in sentences and words of its own (`data/phenomena_rewrite.txt`).
`syntax_negative` has the sentences with a blank in the place of the deciding word ("The ____ near the cabinets"), so
nothing says which of the two words is right. The bundled model is right in 97 of 100 rewrites (mean logit
difference 4.38), and in 47 of 100 negatives (−.18), where chance is 50.
"""

from __future__ import annotations

import random
import re

from headwise.tasks.builtin.word_lists import Lists, lists, two_blanks
from headwise.tasks.examples import Example
from headwise.tasks.registry import register_variants

PLAIN = lists("syntax.txt"), lists("phenomena.txt")
REWRITE = lists("syntax_rewrite.txt"), lists("phenomena_rewrite.txt")
"""Word lists, and rules."""
PHENOMENA = tuple(
    name for name in PLAIN[1] if ":" not in name
)  # "tense: week" continues the rules of "tense"


@register_variants(
    "logit_diff",
    {
        "syntax": (
            "sixteen grammatical choices between two words: agreement, reflexives, tense, polarity and more",
            {},
        ),
        "syntax_rewrite": ("syntax in other words: sentences and words of its own", {"texts": REWRITE}),
        "syntax_negative": (
            "the sentences of syntax with a blank in the place of the word that decides",
            {"negative": True},
        ),
    },
    phenomenon=("mixed", *PHENOMENA),
)
def syntax(
    draw: random.Random,
    phenomenon: str = "mixed",
    texts: tuple[Lists, Lists] = PLAIN,
    negative: bool = False,
) -> Example:
    """`phenomenon`: one of them, or all in equal parts."""
    word_lists, every_rule = texts
    name = draw.choice(PHENOMENA) if phenomenon == "mixed" else phenomenon
    values = {"continue": name}
    while "continue" in values:
        rules = every_rule[values.pop("continue")]
        for names, equals, source in (line.partition(" = ") for line in rules):
            if equals:
                values.update(_drawn(draw, names, values.get(source, source), word_lists))
    sentence, *choices = (_filled(line, values) for line in rules[-3:])
    if sentence.startswith("(opening) "):
        sentence = sentence.removeprefix("(opening) ")
        if draw.random() >= 0.5:
            sentence = f"{draw.choice(_entries('openings', word_lists))}, {sentence[0].lower()}{sentence[1:]}"
    (deciding, right), (other, wrong) = draw.sample([choice.split(" -> ") for choice in choices], 2)
    if negative:
        deciding, other = two_blanks(draw)
    prompt, counterfactual = sentence.replace("___", deciding), sentence.replace("___", other)
    return Example(
        prompt, f" {right}", (f" {wrong}",), counterfactual, label=name, family={"phenomenon": name}
    )


def _drawn(draw: random.Random, names: str, source: str, word_lists: Lists) -> dict[str, str]:
    """An entry of the source for each group of names: {"one": "boy", "many": "boys"} for "one/many"."""
    chance, percent, likely = source.partition("% ")
    if percent:
        likely, _, otherwise = likely.partition(" else ")
        source = likely if draw.random() < int(chance) / 100 else otherwise
    entries, count = _entries(source, word_lists), len(names.split())
    if len(entries) > 1:  # a text without alternatives takes no draw
        entries = draw.sample(entries, count) if count > 1 else [draw.choice(entries)]
    return dict(zip(re.split("[ /]", names), "/".join(entries).split("/"), strict=True))


def _entries(source: str, word_lists: Lists) -> list[str]:
    """The entries of a word list, or the texts that a rule gives itself, between bars."""
    text = " ".join(word_lists.get(source, (source,)))
    return text.split() if source in word_lists and " | " not in text else text.split(" | ")


def _filled(text: str, values: dict[str, str]) -> str:
    """The text with every gap filled, also those inside what fills a gap; an empty word leaves no double space."""
    while "{" in text:
        text = text.format(**values)
    return " ".join(text.split())
