"""More true circuits for `certificates.py`: those of compiled programs, and heads rewritten in SmolLM2.

Compiled programs (`compiled/`): the heads of the program are the circuit. The unused heads write a fifth of what leaves
the answers right, so that all of them together change little.

SmolLM2: four heads of the last layer, after which no head can react to them, get weights by hand; all others stay as
they are. A rewritten head attends to all tokens alike, reads which word of a pair the prompt has, by a direction that
ridge regression finds in the residual stream of its layer (on the prompts of the certificate, so that the heads are
right on them), and writes it onto the difference of two answer tokens that have nothing to do with the words.
The certificates are under patching, where all other heads keep what the word does not change.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import headwise as hw
from headwise.tasks import Example, Task

Case = tuple[str, list[hw.Head], Task, list[hw.Head], dict[str, Any]]
"""Kind, set of heads, task, passengers that were added, and options of `hw.certify`."""
QUIETER = 0.2
QUICK = {"quick": True}


def random_set(circuit: Sequence[hw.Head], heads: int, draw: random.Random) -> list[hw.Head]:
    """As many heads of each layer as the circuit has there."""
    places = Counter(head.layer for head in circuit)
    return sorted(
        hw.Head(layer, n) for layer, count in places.items() for n in draw.sample(range(heads), count)
    )


# ---- compiled programs -----------------------------------------------------------------------------------------------


def program_cases(
    name: str, n: int, kinds: dict[str, str], options: dict[str, Any]
) -> tuple[Any, list[Case]]:
    """The model of a program and what is asked about it."""
    from compiled.known import known

    made, draw = known(name, n=n, quieter=QUIETER), random.Random(f"program/{name}")
    circuit, shape = list(made.heads), made.model.exists.shape
    idle = [head for head in made.model.heads() if head not in circuit]
    task, cases = made.task, [(kinds["true"], circuit, made.task, [], options)]
    if len(circuit) > 1:
        dropped = draw.choice(circuit)
        cases.append((kinds["missing"], [h for h in circuit if h != dropped], task, [], options | QUICK))
    old = draw.choice(circuit)
    new = draw.choice([head for head in idle if head.layer == old.layer])
    swapped = sorted([*(h for h in circuit if h != old), new])
    cases.append((kinds["swapped"], swapped, task, [], options | QUICK))
    added = draw.sample(idle, min(len(idle) - 1, draw.randint(1, 3)))
    cases.append((kinds["passengers"], sorted([*circuit, *added]), task, added, options))
    for _ in range(2):
        heads = random_set(circuit, shape[1], draw)
        if heads != sorted(circuit):
            cases.append((kinds["random"], heads, task, [], options | QUICK))
    cases.append((kinds["few"], circuit, task.take(range(8)), [], options))
    return made.model, cases


# ---- SmolLM2 ---------------------------------------------------------------------------------------------------------

PAIRS = {"animals": (" cat", " dog"), "colours": (" red", " blue")}
ANSWERS = {"animals": (" seven", " nine"), "colours": (" north", " west")}
OTHERS = " the bird saw met liked then and one two big small ran sat he she it".split()
PATHS = [("animals", 1), ("animals", 0.5), ("colours", 2), ("colours", -0.5)]
"""The pair that each rewritten head serves, and its share; a head with a negative share writes against the answer."""
LAST, EFFECT = 29, 4.0
STEADY, RIDGE = 3.0, 1e-4
"""What it counts that a reader gives the same in both runs; penalty of its weights."""


def word_task(n: int, seed: int = 0) -> Task:
    """Word salad with one word of a pair; the answer is a token that the word has nothing to do with."""
    draw, examples = random.Random(f"words/{seed}"), []
    while len(examples) < n:
        for pair, words in PAIRS.items():
            others = [f" {draw.choice(OTHERS)}" for _ in range(draw.randint(4, 6))]
            place = draw.randint(1, len(others) - 1)
            prompts = ["".join([*others[:place], word, *others[place:]]).strip() for word in words]
            for which in (0, 1):
                family = {"pair": pair, "word": words[which].strip()}
                target, foil = ANSWERS[pair][which], ANSWERS[pair][1 - which]
                examples.append(Example(prompts[which], target, (foil,), prompts[1 - which], family=family))
    return Task("rewritten heads", tuple(examples[:n]), "logit_diff")


def rewritten(seed: int, n: int, device: str) -> tuple[hw.Model, list[hw.Head]]:
    """SmolLM2 with rewritten heads, and these heads."""
    model = hw.load("smollm2", device=device, dtype="float32")
    hf, tokenizer, draw = model.hf, model.text.tokenizer, random.Random(f"rewritten/{seed}")
    # Three heads share keys and values: each rewritten one takes one of its 64 lanes from the two others.
    heads = sorted(hw.Head(LAST, head) for head in draw.sample(range(9), len(PATHS)))
    with torch.no_grad():
        _plant(hf, tokenizer, heads, draw.sample(PATHS, len(PATHS)), word_task(n), _pooled(n, device))
    return hw.load(hf, tokenizer=tokenizer, name=f"SmolLM2 {seed}"), heads


def _plant(
    hf: Any,
    tokenizer: Any,
    heads: Sequence[hw.Head],
    paths: Sequence[tuple[str, float]],
    task: Task,
    pooled: torch.Tensor,
) -> None:
    """Rewrite what the heads read, then give each the strength with which it makes its share of the effect alone."""
    size, writers, attention = hf.config.head_dim, [], hf.model.layers[LAST].self_attn
    plain, patched = pooled
    rows = torch.cat([plain, patched, STEADY * (plain - patched)])
    ridge = RIDGE * len(rows) * torch.eye(rows.shape[1]).to(rows)
    for head, (pair, share) in zip(heads, paths, strict=True):
        lane, group = head.head % 3, head.head // 3
        signs = torch.tensor([_sign(example, pair) for example in task] * 2 + [0.0] * len(task)).to(rows)
        attention.q_proj.weight[head.head * size : (head.head + 1) * size] = 0
        attention.v_proj.weight[group * size + lane] = torch.linalg.solve(
            rows.T @ rows + ridge, rows.T @ signs
        )
        out = attention.o_proj.weight
        for other in range(3 * group, 3 * group + 3):
            out[:, other * size + lane] = 0
        out[:, head.head * size : (head.head + 1) * size] = 0
        one, two = (tokenizer.encode(word)[0] for word in ANSWERS[pair])
        axis = hf.lm_head.weight[one] - hf.lm_head.weight[two]
        writers.append((out, head.head * size + lane, axis / axis.norm(), pair, share))
    held, slopes = task.take(range(32)), []
    before = _differences(hf, tokenizer, held)
    for out, column, axis, pair, _ in writers:
        out[:, column] = 10 * axis
        slopes.append((_differences(hf, tokenizer, held)[pair] - before[pair]) / 10)
        out[:, column] = 0
    for (out, column, axis, _, share), slope in zip(writers, slopes, strict=True):
        out[:, column] = share * EFFECT / slope * axis


def _sign(example: Example, pair: str) -> float:
    """1 or −1 for the first or second word of the pair, 0 if the prompt has none of them."""
    if example.family["pair"] != pair:
        return 0.0
    return 1.0 if example.family["word"] == PAIRS[pair][0].strip() else -1.0


def _rows(hf: Any, tokenizer: Any, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts padded on the right, which no earlier token sees, and their lengths."""
    rows = [torch.tensor(tokenizer.encode(example.prompt)) for example in task]
    lengths = torch.tensor([len(row) for row in rows], device=hf.device)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(hf.device), lengths


@lru_cache(maxsize=1)
def _pooled(n: int, device: str) -> torch.Tensor:
    """Mean over tokens of what the attention of the last layer reads `[2, E, D]`: plainly, and with all heads patched.

    With every head's output replaced by that of the counterfactual, the word of the prompt itself is known only from
    what no head has moved; a reader that is right in both runs, and gives the same in both, needs no other head.
    """
    model = hw.load("smollm2", device=device, dtype="float32")
    hf, tokenizer, task = model.hf, model.text.tokenizer, word_task(n)
    projections = [block.self_attn.o_proj for block in hf.model.layers]
    outputs: dict[Any, torch.Tensor] = {}
    found: list[list[torch.Tensor]] = [[], []]

    def run(rows: torch.Tensor, edit: Any, real: torch.Tensor, note: Any = None) -> None:
        hooks = [one.register_forward_pre_hook(edit) for one in projections]
        if note is not None:
            norm = hf.model.layers[LAST].input_layernorm
            hooks.append(
                norm.register_forward_hook(
                    lambda _, args, output: note.append((output * real).sum(1) / real.sum(1))
                )
            )
        hf.model(rows)
        for hook in hooks:
            hook.remove()

    for start in range(0, len(task), 32):
        some = task.take(range(start, min(start + 32, len(task))))
        other = Task("", tuple(replace(e, prompt=e.counterfactual) for e in some), "logit_diff")
        (ids, lengths), (swapped, _) = _rows(hf, tokenizer, some), _rows(hf, tokenizer, other)
        real = (torch.arange(ids.shape[1], device=hf.device) < lengths[:, None])[..., None]
        run(ids, lambda module, args: None, real, found[0])
        run(swapped, lambda module, args: outputs.__setitem__(module, args[0]), real)
        run(ids, lambda module, args: (outputs[module],), real, found[1])
    return torch.stack([torch.cat(one) for one in found])


def _differences(hf: Any, tokenizer: Any, task: Task) -> dict[str, float]:
    """For each pair: mean logit of the target minus that of the foil over its examples."""
    ids, lengths = _rows(hf, tokenizer, task)
    stream = hf.model(ids).last_hidden_state[range(len(ids)), lengths - 1]
    found: dict[str, list[float]] = {pair: [] for pair in PAIRS}
    for example, x in zip(task, stream, strict=True):
        target, foil = (tokenizer.encode(word)[0] for word in (example.target, example.foils[0]))
        found[example.family["pair"]].append(float(x @ (hf.lm_head.weight[target] - hf.lm_head.weight[foil])))
    return {pair: float(np.mean(of)) for pair, of in found.items()}


def smollm2_cases(
    seed: int, n: int, random_sets: int, kinds: dict[str, str], options: dict[str, Any], device: str
) -> tuple[Any, list[Case]]:
    """SmolLM2 with rewritten heads and what is asked about it. Random sets meet few draws: most fail check 1 or 2."""
    model, circuit = rewritten(seed, n, device)
    draw, task = random.Random(f"cases/{seed}"), word_task(n)
    options = options | {"reference": "patch"}
    quick = options | QUICK
    cases: list[Case] = [(kinds["true"], circuit, task, [], options)]
    dropped, old = draw.sample(circuit, 2)
    cases.append((kinds["missing"], [h for h in circuit if h != dropped], task, [], quick))
    new = draw.choice([hw.Head(old.layer, i) for i in range(9) if hw.Head(old.layer, i) not in circuit])
    cases.append((kinds["swapped"], sorted([*(h for h in circuit if h != old), new]), task, [], quick))
    for _ in range(random_sets):
        cases.append((kinds["random"], random_set(circuit, 9, draw), task, [], quick | {"draws": 1}))
    cases.append((kinds["few"], circuit, task.take(range(8)), [], quick))
    added = draw.sample([head for head in model.heads() if head not in circuit], draw.randint(1, 3))
    cases.append((kinds["passengers"], sorted([*circuit, *added]), task, added, options))
    return model, cases
