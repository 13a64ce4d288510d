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
from compiled.model import BOS, Converted, add_unused_heads, convert, largest_gap, scale_unused
from compiled.rasp_programs import PROGRAMS, Program, Tokens
from headwise.tasks import Example, Task

WEIGHTS = Path(__file__).parent / "weights"
SLOTS = 4
"""Heads per layer at least; where a layer of a program has more than two, two more than that."""
ACCURACY = 0.97
"""Share of right answers that heads beside the program must leave, on inputs that set their size."""


@dataclass(frozen=True)
class Known:
    """A model with a program in it."""

    name: str
    model: hw.Model
    task: Task
    heads: tuple[hw.Head, ...]
    """The heads that the program uses."""
    facts: dict[str, float]
    """Measured: `gap` to tracr's own logits, `accuracy` with the unused heads on fresh inputs, the `scale` of what they
    write, and the mean absolute effect of removing one on the logit difference (`moved_least`, `moved_median`)."""


def programs(names: Iterable[str] | None = None, folder: Path = WEIGHTS, n: int = 48) -> Iterator[Known]:
    """Every compiled program (or those named) as model, task of `n` examples, and true heads."""
    for name in PROGRAMS if names is None else names:
        if not (folder / f"{name}.npz").exists():
            raise FileNotFoundError(
                f"{folder} has no {name}.npz; run `make compiled-weights`, which needs tracr"
            )
        yield known(name, folder, n)


def known(name: str, folder: Path = WEIGHTS, n: int = 48) -> Known:
    """One compiled program."""
    program, seed = PROGRAMS[name], list(PROGRAMS).index(name)
    plain = convert(folder, name)
    gap = largest_gap(plain)
    busiest = max(np.bincount([layer for layer, _ in plain.used]))
    converted = convert(folder, name, max(SLOTS, busiest + 2), seed)
    unused = add_unused_heads(converted, seed)
    pool = _by_answer(program, converted, seed)
    sizing, fresh = (_balanced(pool, 256, random.Random(s)) for s in (seed + 1000, seed + 2000))
    scale = 1.0
    while _accuracy(program, converted, sizing) < ACCURACY:
        scale_unused(converted, unused, 0.8)
        scale *= 0.8
    model = hw.load(converted.hf, tokenizer=converted.tokenizer, name=name, bos=False)
    task = _task(name, pool, n, random.Random(seed))
    effects = hw.score(
        model, task, "ablation", reference="zero", heads=[hw.Head(*slot) for slot in unused], progress=False
    )
    moved = np.abs(effects.examples).mean(0)
    moved = moved[np.isfinite(moved)]
    facts = {"gap": gap, "accuracy": _accuracy(program, converted, fresh), "scale": scale,
             "moved_least": float(moved.min()), "moved_median": float(np.median(moved))}  # fmt: skip
    return Known(name, model, task, tuple(hw.Head(*slot) for slot in converted.used), facts)


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


def _accuracy(program: Program, converted: Converted, inputs: list[Tokens]) -> float:
    """Share of inputs at whose last position the right answer has the highest logit of all tokens."""
    rows = converted.tokenizer([text(tokens) for tokens in inputs], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        top = converted.hf(rows).logits[:, -1].argmax(-1).tolist()
    right = converted.tokenizer.convert_tokens_to_ids([str(program.answer(tokens)) for tokens in inputs])
    return float(np.mean(np.array(top) == np.array(right)))


def _task(name: str, pool: dict[str, list[Tokens]], n: int, draw: random.Random) -> Task:
    """The answer against that of a random other input, which is the counterfactual; answers are balanced."""
    examples = []
    for tokens, answer in zip(_balanced(pool, n, draw), itertools.cycle(pool), strict=False):
        foil = draw.choice([other for other in pool if other != answer])
        examples.append(Example(text(tokens), f" {answer}", (f" {foil}",), text(draw.choice(pool[foil]))))
    return Task(name, tuple(examples), "logit_diff")
