"""Eight abilities of a language model, asked about in the same words (after Cognitive Mirrors, arXiv 2512.10978).

| ability | what the answer needs | an example from one scene |
|---|---|---|
| Knowledge Recall | a fact from memory | a pear is a kind of -> fruit |
| Retrieval | a detail stated in the text | the pears and the plums are for her -> mother |
| Logical Reasoning | a deduction from stated premises | all plums are ripe, and the plum in her hand is -> ripe |
| Decision-making | the best option for a stated aim | the plums cost more than the pears, and she buys more -> pears |
| Semantic Understanding | the meaning of words | a ripe and delicious plum will taste -> good |
| Syntactic Understanding | the grammar | she knows that all of these -> plums |
| Inference | what is implied but not said | she left her money at home, and now she cannot -> pay |
| Math Calculation | arithmetic | she knows that 3 plus 5 is -> 8 |

A probe that tells abilities apart must not be able to do it by their wording, so the examples come in scenes.
The eight examples of a scene, one per ability, begin with the same text and have the same form (a story, a
note, a dialogue, a question with its answer, a sign, a diary ...): names, things, numbers and form say
nothing about the ability. What is asked still shows in the words that ask it: a bag of words
(`headwise.tasks.wording`) names the ability of 39 % of the prompts of a scene it has not seen, and of 56 %
when given only the words after the shared beginning; chance is 12.5 %. Hold a probe against these numbers.
"""

from __future__ import annotations

import json
from functools import cache

from headwise.tasks.builtin.word_lists import read
from headwise.tasks.examples import Example
from headwise.tasks.files.mappings.questions import ABILITIES
from headwise.tasks.registry import register_list


# logit_diff rather than logprob: a head that only helps the model to write English lifts target and foils
# alike, and their difference leaves it out. Rather than accuracy: it has a gradient, and grades every example.
@register_list(
    "abilities",
    metric="logit_diff",
    about="eight abilities asked about in the same scenes: which answer fits?",
    ability=("all", *ABILITIES),
)
def abilities(ability: str = "all") -> tuple[Example, ...]:
    """`ability`: one of the eight, or all of them."""
    return tuple(example for example in _every_example() if ability in ("all", example.label))


@cache
def _every_example() -> tuple[Example, ...]:
    rows = [json.loads(line) for line in read("abilities.jsonl").splitlines()]
    return tuple(
        Example(r["prompt"], r["target"], tuple(r["foils"]), label=r["label"], family={"ability": r["label"]})
        for r in rows
    )
