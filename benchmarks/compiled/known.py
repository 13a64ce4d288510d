"""Compiled programs as headwise models and tasks with their true heads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import headwise as hw
from compiled.model import (
    BOS,
    Converted,
    add_unused_heads,
    convert,
    largest_gap,
    let_write,
    scale_unused,
    true_edges,
)
from compiled.rasp_programs import PROGRAMS, Program, Tokens
from headwise.tasks import Example, Task

WEIGHTS = Path(__file__).parent / "weights"
SLOTS = 4
"""Heads per layer at least; where a layer of a program has more than two, two more than that."""
ACCURACY = {False: 0.985, True: 0.965}
"""Share of right answers that the unused heads must leave: first while they write only into directions that later parts
of the program read (False), then also into the directions of the answers (True)."""


@dataclass(frozen=True)
class Known:
    """A model with a program in it."""

    name: str
    model: hw.Model
    task: Task
    heads: tuple[hw.Head, ...]
    """The heads that the program uses."""
    edges: frozenset[str]
    """The direct edges that carry something of the program, such as "L0H1->L1KV2.K"."""
    facts: dict[str, float]
    """Measured: `gap` to tracr's own logits, `accuracy` with the unused heads, the scale of what they
    write for later parts of the program (`scale_inside`) and into the answers (`scale_answers`), and the mean absolute
    effect of removing one on the logit difference, of that with the least effect (`moved_least`) and of the median."""


def programs(names: Iterable[str] | None = None, folder: Path = WEIGHTS, n: int = 48) -> Iterator[Known]:
    """Every compiled program (or those named) as model, task of `n` examples, and true heads."""
    for name in PROGRAMS if names is None else names:
        if not (folder / f"{name}.npz").exists():
            raise FileNotFoundError(
                f"{folder} has no {name}.npz; run `make compiled-weights`, which needs tracr"
            )
        yield known(name, folder, n)


def known(name: str, folder: Path = WEIGHTS, n: int = 48, quieter: float = 1.0) -> Known:
    """One compiled program. quieter: a factor on what the unused heads write, once they leave the answers right."""
    program, seed = PROGRAMS[name], list(PROGRAMS).index(name)
    plain = convert(folder, name)
    gap = largest_gap(plain)
    busiest = max(np.bincount([layer for layer, _ in plain.used]))
    converted = convert(folder, name, max(SLOTS, busiest + 2), seed)
    edges = true_edges(converted)
    unused = add_unused_heads(converted, seed)
    pool = _by_answer(program, converted, seed)
    scales = {}
    for answers, share in ACCURACY.items():
        directions, scale = let_write(converted, unused, answers, seed), 1.0
        while _accuracy(converted, pool) < share:
            scale_unused(converted, unused, directions, 0.8)
            scale *= 0.8
        scale_unused(converted, unused, directions, quieter)
        scales[answers] = scale * quieter
    model = hw.load(converted.hf, tokenizer=converted.tokenizer, name=name, bos=False)
    task = _task(name, pool, n, random.Random(seed))
    effects = hw.score(
        model, task, "ablation", reference="zero", heads=[hw.Head(*slot) for slot in unused], progress=False
    )
    moved = np.abs(effects.examples).mean(0)
    moved = moved[np.isfinite(moved)]
    facts = {"gap": gap, "accuracy": _accuracy(converted, pool),
             "scale_inside": scales[False], "scale_answers": scales[True],
             "moved_least": float(moved.min()), "moved_median": float(np.median(moved))}  # fmt: skip
    return Known(name, model, task, tuple(hw.Head(*slot) for slot in converted.used), edges, facts)


def text(tokens: Tokens) -> str:
    return " ".join([BOS, *tokens])


def _by_answer(program: Program, converted: Converted, seed: int) -> dict[str, list[Tokens]]:
    """Valid inputs by their answer: all of them, or 4,000 at random."""
    draw = random.Random(seed)
    inputs = list(itertools.product(program.vocabulary, repeat=program.length))
    draw.shuffle(inputs)
    pool: dict[str, list[Tokens]] = {answer: [] for answer in converted.answers}
    for tokens in itertools.islice(filter(program.valid, inputs), 4000):
        pool[str(program.answer(tokens))].append(tokens)
    return {answer: found for answer, found in pool.items() if len(found) >= 8}


def _balanced(pool: dict[str, list[Tokens]], n: int, draw: random.Random) -> list[Tokens]:
    """Inputs with every answer equally often."""
    answers = list(pool)
    return [draw.choice(pool[answers[i % len(answers)]]) for i in range(n)]


def _accuracy(converted: Converted, pool: dict[str, list[Tokens]]) -> float:
    """Share of inputs at whose last position the right answer has the highest logit of all tokens, answers balanced."""
    inputs = [text(tokens) for found in pool.values() for tokens in found]
    rows = converted.tokenizer(inputs, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        top = converted.hf(rows).logits[:, -1].argmax(-1)
    ends = np.cumsum([len(found) for found in pool.values()])[:-1].tolist()
    ids = converted.tokenizer.convert_tokens_to_ids(list(pool))
    return float(
        np.mean([(some == i).float().mean() for i, some in zip(ids, top.tensor_split(ends), strict=True)])
    )


def _task(name: str, pool: dict[str, list[Tokens]], n: int, draw: random.Random) -> Task:
    """The answer against that of a random other input, which is the counterfactual; answers are balanced."""
    examples = []
    for tokens, answer in zip(_balanced(pool, n, draw), itertools.cycle(pool), strict=False):
        foil = draw.choice([other for other in pool if other != answer])
        counterfactual = text(draw.choice(pool[foil]))
        family = {"answer": answer}
        examples.append(Example(text(tokens), f" {answer}", (f" {foil}",), counterfactual, family=family))
    return Task(name, tuple(examples), "logit_diff")
