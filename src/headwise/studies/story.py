"""What the demo tells first: one behaviour, one head, a few sentences with the numbers that this run measured.

The head is chosen on some sentences and measured on others, so that the choice cannot flatter it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from headwise import stats
from headwise.charts.chart import GREY, Axis, Bars, Chart, Panel, names_axis, points
from headwise.charts.heatmap import head_panel, importance_scale
from headwise.charts.words import minus, percent
from headwise.heads import Head, Scores
from headwise.model.attention.attention import attention
from headwise.model.model import Model
from headwise.model.tokens.encode import pad_right
from headwise.report import Story
from headwise.scores import score
from headwise.scores.measure import Measurement, measure
from headwise.tasks import Example, Task, task

CHOOSE, TEST, TRIED = 16, 24, 4
"""Sentences that choose the head, sentences that measure it, and heads that are ablated exactly to choose."""
REFERENCE = "mean"
MARK = "#d9480f"
"""Colour of the head and of the right name in the picture."""


def tell_story(model: Model) -> Story:
    """The head that matters most for naming the right person (`ioi`), with and without it."""
    every = task("ioi", CHOOSE + TEST, model=model)
    choose, test = every.take(range(CHOOSE)), every.take(range(CHOOSE, CHOOSE + TEST))
    options = {"reference": REFERENCE, "progress": False}
    estimated = score(model, choose, "attribution", **options)
    tried = estimated.top(TRIED)
    (head,) = score(model, choose, "ablation", heads=tried, **options).top(1)
    measured = measure(model, test, ablate=[head], **options)  # type: ignore[arg-type]
    words = next_words(model, head, test)
    example = test.examples[telling(words, test, measured.effects)]
    looked = attention(model, example.prompt, head)
    return Story(
        title=title(model.name, head, measured),
        sentences=sentences(head, measured, example, words, len(model.heads())),
        chart=_picture(estimated, head, looked.tokens, looked.rows[0, 0], example),
    )


def next_words(model: Model, head: Head, test: Task) -> dict[str, tuple[str, str]]:
    """By prompt, the likeliest next word with the head and without it."""
    prompts = [one.prompt for one in test.examples]
    listed = [model.tokens(prompt) for prompt in prompts]
    ids = pad_right(listed).to(model.device)
    last = torch.tensor([len(of_prompt) - 1 for of_prompt in listed])

    def words() -> list[str]:
        with torch.no_grad():
            logits = model.hf(input_ids=ids).logits
        return [
            model.text.readable_token(int(t)).strip() for t in logits[torch.arange(len(ids)), last].argmax(-1)
        ]

    with_head = words()
    with model.gated(ablate=[head], reference=REFERENCE, reference_prompts=prompts):
        return dict(zip(prompts, zip(with_head, words(), strict=True), strict=True))


def telling(words: dict[str, tuple[str, str]], test: Task, effects: np.ndarray) -> int:
    """The example to show: best one that is answered right with the head alone, else one that is answered right."""

    def rank(number: int) -> tuple[bool, bool, float]:
        example = test.examples[number]
        before, after = words[example.prompt]
        right = before == example.target.strip()
        return right and before != after, right, float(effects[number])

    return max(range(len(test)), key=rank)


def title(model: str, head: Head, measured: Measurement) -> str:
    if measured.table()["effect_lo"].iloc[0] > 0:
        return f"Head {head.head} of layer {head.layer} helps {model} name the right person"
    return f"No single head of {model} is shown to name the right person"


def sentences(
    head: Head, measured: Measurement, example: Example, words: dict[str, tuple[str, str]], heads: int
) -> list[str]:
    """What happens in one sentence, in how many sentences the right name leads, and by how much."""
    (row,) = measured.table().to_dict("records")
    before, after = words[example.prompt]
    changed = sum(one != other for one, other in words.values())
    right = example.target.strip()
    first = (
        f"To continue “{example.prompt}”, {measured.model} says “{before}” "
        f"({'the right name' if before == right else f'the right name is “{right}”'}). Switch off {head}, one of its "
        f"{heads} attention heads (its output is replaced by its average: mean ablation), and it "
        f"{'still says' if before == after else 'says'} “{after}”. "
        f"In {measured.n} such sentences the next word changes in {changed}."
    )
    leads = [(values > 0).astype(float)[:, None] for values in (measured.full, measured.values)]
    with_head, without = (
        percent(float(x.mean()), *(float(end[0]) for end in stats.metric_interval(x, groups=measured.groups)))
        for x in leads
    )
    lo, hi = (float(end[0]) for end in stats.difference_interval(*leads, groups=measured.groups))
    noise = "" if lo > 0 or hi < 0 else "; this difference is within noise"
    second = (
        f"The right name beats the wrong one in {with_head} of the {measured.n} sentences with the head, and in "
        f"{without} without it{noise}."
    )
    numbers = {
        name: minus(f"{row[name]:.1f}") for name in ("full", "mean", "effect", "effect_lo", "effect_hi")
    }
    clear = row["effect_lo"] > 0
    verdict = (
        "so the head clearly helps"
        if clear
        else "which includes 0: these sentences do not show that it helps"
    )
    third = (
        f"The lead of the right name (its logit difference) goes from {numbers['full']} to {numbers['mean']}: the head "
        f"is worth {numbers['effect']}, with a 95 % interval of {numbers['effect_lo']} to {numbers['effect_hi']}, "
        f"{verdict}."
    )
    return [first, second, third]


def _picture(
    estimated: Scores, head: Head, tokens: list[str], attention: np.ndarray, example: Example
) -> Chart:
    """Left, the head among all heads; right, the words that it looks at when it must name the person."""
    rows = estimated.table()
    scale = importance_scale(rows["score"], True, "Estimated effect of the head (logit difference)")
    ring = points([head.head], [head.layer], name=str(head), size=14, hollow=True, width=3, colour=MARK)
    heads = head_panel(rows, scale, title=f"Where {head} is (ring)")
    right = example.target.strip()
    words = [token.strip() or repr(token) for token in tokens]
    first = 1 + int(np.argmax(attention[1:]))  # many heads rest on the first token
    most = f"Apart from the first word, most goes to “{words[first]}” ({percent(float(attention[first]))})"
    most += ", the wrong name." if words[first] == example.foils[0].strip() else "."
    bars = Bars(
        at=np.arange(len(tokens)),
        values=attention,
        colours=[MARK if word == right else GREY for word in words],
        horizontal=True,
        hover=[f"{word}: {share:.2f}" for word, share in zip(words, attention, strict=True)],
    )
    looks = Panel(
        title=f"Where {head} looks before the answer",
        marks=[bars],
        x=Axis(label="Share of attention", limits=(0, 1)),
        y=names_axis(words, down=True),
    )
    return Chart(
        title=f"{head}: one head of {len(rows)}, and where it looks",
        panels=[replace(heads, marks=[*heads.marks, ring]), looks],
        caption=f"Left: every head of {estimated.model}; blue helps to name the right person, red hinders (gradient "
        f"attribution, mean ablation, {CHOOSE} other sentences, which also chose the head). Right: the attention from "
        f"the end of the prompt to each word; orange: “{right}”, the right name. {most}",
        page_columns=2,
        height=440,
    )
