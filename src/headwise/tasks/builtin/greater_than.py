"""Greater-Than (Hanna, Liu and Variengien 2023, arXiv 2305.00586).

"The war lasted from the year 1732 to the year 17" -> any ending above 32. The right answer is a set, so the
metric is the probability of everything that is right less that of everything that is wrong.

What one step of the model can say depends on its tokenizer, so the sentence is cut where the tokenizer cuts:

    year as tokens      the prompt ends   right after 1732   wrong
    17|42               "to the year 17"  "33" … "99"        "00" … "32"
    1|7|4|2             "to the year 17"  "4" … "9"          "0" … "2"     (the equal tens digit says nothing)
    174|2               "to the year "    "174" … "179"      "170" … "172"
    1742                "to the year"     " 1733" … " 1799"  " 1700" … " 1732"

The counterfactual starts as early in the century as the tokens allow, as the paper's "01", so that the wrong
endings become right. The bundled model is at the ceiling: in 100 of 100 examples the next tens digit beats every
smaller one. Only the metric, .58 on average, tells better from worse.

`greater_than_rewrite` asks the same in other words (lives and records, years without the word "year").
`greater_than_negative` has the sentences without the behaviour: "from the year of the flood to the year 17" tells no
first year, so the one that right and wrong are counted from is not in the prompt. The bundled
model is right in 99 of 100 rewrites (metric .51), and in 22 of 100 negatives (metric .04), which is chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from headwise.tasks.builtin.word_lists import Lists, lists, words
from headwise.tasks.examples import Example
from headwise.tasks.registry import Lengths, register_variants

PLAIN, REWRITE = lists("greater_than.txt"), lists("greater_than_rewrite.txt")


@dataclass(frozen=True)
class Cut:
    """A split of the end year: the part that the prompt ends with, and the piece that the model must write."""

    shown: str
    piece: str
    years: int
    """Endings that one piece stands for: 1, or 10 where it is the tens digit alone."""

    def pieces(self, century: int) -> dict[str, int]:
        """Every piece, with the number it says."""
        return {self.piece.format(c=century, n=n, nn=f"{n:02d}"): n for n in range(100 // self.years)}


# In order of preference, where a tokenizer allows several.
CUTS = (Cut(" {c}", "{nn}", 1), Cut(" {c}", "{n}", 10), Cut(" ", "{c}{n}", 10), Cut("", " {c}{nn}", 1))


@register_variants(
    "prob_diff",
    {
        "greater_than": ("a span of years: the year it ends comes after the year it began", {}),
        "greater_than_rewrite": (
            "greater_than in other words: lives and records instead of events",
            {"texts": REWRITE, "kind": "rewrite "},
        ),
        "greater_than_negative": (
            "the sentences of greater_than without the first year, which the answer would depend on",
            {"undated": True},
        ),
    },
)
def greater_than(
    draw: random.Random,
    tokens: Lengths | None = None,
    texts: Lists = PLAIN,
    kind: str = "",
    undated: bool = False,
) -> Example:
    if tokens is not None:
        tokens = cache(tokens)  # the cuts ask for the same hundred years
    century = draw.randint(11, 18)
    start = draw.randint(10, 89)  # some tens digits are smaller, some greater
    event, sentence = draw.choice(words(texts["events"])), draw.choice(texts["sentences"])

    def stem(year: int | str) -> str:
        """With a year of the century, or with what stands in its place."""
        return sentence.format(event=event, year=f"{century}{year:02d}" if isinstance(year, int) else year)

    first, instead = draw.sample(texts["undated"], 2) if undated else (start, 1)
    cut, pieces = _cut(stem(first), century, start, tokens)
    shown, start_part = cut.shown.format(c=century), start // cut.years
    right = [piece for piece, number in pieces.items() if number > start_part]
    wrong = [
        p for p, number in pieces.items() if number < start_part or (cut.years == 1 and number == start_part)
    ]
    if tokens is not None and not undated:
        same_length = (e for e in range(1, start) if len(tokens(stem(e))) == len(tokens(stem(start))))
        instead = next(same_length, 1)
    return Example(
        prompt=stem(first) + shown,
        target=right[0],
        foils=tuple(wrong),
        counterfactual=stem(instead) + shown,
        label="year" if cut.years == 1 else "tens",
        also=tuple(right[1:]),
        family={
            "century": str(century),
            "noun": event,
            "template": f"{kind}{texts['sentences'].index(sentence) + 1}",
        },
    )


def _cut(stem: str, century: int, start: int, tokens: Lengths | None) -> tuple[Cut, dict[str, int]]:
    """The cut that lets one token say the most years after this stem, and the pieces that are one token.

    Without a tokenizer, or where no cut leaves something on both sides of `start`, the whole ending is asked:
    as text it is right for every tokenizer, only in several steps.
    """
    best, best_pieces, best_years = CUTS[0], CUTS[0].pieces(century), 0
    if tokens is None:
        return best, best_pieces
    written = [tokens(f"{stem} {century}{ending:02d}") for ending in range(100)]
    for cut in CUTS:
        prompt = stem + cut.shown.format(c=century)
        before = tokens(prompt)
        single: dict[str, int] = {}
        for piece, number in cut.pieces(century).items():
            after = tokens(prompt + piece)
            endings = written[cut.years * number : cut.years * (number + 1)]
            if after[:-1] == before and all(year[: len(after)] == after for year in endings):
                single[piece] = number
        both_sides = bool(single) and min(single.values()) < start // cut.years < max(single.values())
        if both_sides and len(single) * cut.years > best_years:
            best, best_pieces, best_years = cut, single, len(single) * cut.years
    return best, best_pieces
