"""How often `hw.certify` is right: circuits that are known because they were made, whole and broken.

    python benchmarks/certificates.py --source planted compiled [--seeds 9] [-n 160] [--family gpt2 ...]
    python benchmarks/certificates.py --source smollm2 --random-sets 18

Three sources: tiny planted models (below), compiled programs and SmolLM2 with rewritten heads
(`certificates_outside.py`). The results of a source that is not named stay as they are.

Every planted model is tiny and random, but some of its heads are set by hand: they attend to all tokens alike, read
from an axis of the residual stream whether the prompt has the one or the other word of a pair, and write it onto the
axis of the answer, directly or by way of a second head in a later layer; some write against the answer. All other
heads and the MLPs are random: they read everything except for these axes, and write everywhere. So they change every
number a little, and nothing of the behaviour passes through them.

Each model gives one true circuit and, from it, broken ones: a head missing, one swapped for a random head of its
layer, passengers added, all heads of one family of prompts left out, and two errors of which one raises the effect on
one family as much as the other lowers it on the other family. False alarms: random sets of the same layers, the
circuit of another task, and true circuits on 8 examples. Written to `results/certificates.json`;
docs/certify-truth.md has the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

import headwise as hw
from certificates_outside import QUICK, Case, program_cases, random_set, smollm2_cases
from common import RESULTS, about
from compiled.rasp_programs import PROGRAMS
from headwise.certificates.certificate import CERTIFIED, LIMITED, VERDICTS
from headwise.model.verify.tiny import tiny_model
from headwise.tasks import Example, Task

PAGE = Path(__file__).parent.parent / "docs" / "certify-truth.md"
FAMILIES = ("gpt2", "llama", "gpt_neox", "gemma2", "qwen2", "qwen3")
SIZE, NOISE, EFFECT = 8, 0.03, 2.0
"""Head size; how much random heads and MLPs write; mean logit difference that a pair's heads make together."""
PAIRS = {"animals": ("cat", "dog"), "colours": ("red", "blue")}
OTHERS = "the a bird saw met liked then and one two big small ran sat he she it . ,".split()
WORDS = [*OTHERS, *(word for pair in PAIRS.values() for word in pair)]
# The paths of the two pairs: heads on the path, and its share of the pair's effect.
PLANS: list[tuple[list[tuple[int, float]], list[tuple[int, float]]]] = [
    ([(2, 0.75), (2, 0.75), (1, -0.5)], [(2, 0.5), (1, 0.5)]),
    ([(1, 1.5), (1, -0.5)], [(1, 0.5), (1, 0.5)]),
    ([(2, 1.0), (1, 0.5), (1, -0.5)], [(2, 0.5), (1, 0.5)]),
    ([(2, 0.5), (2, 0.5)], [(1, 0.4), (1, 0.3), (1, 0.3)]),
]


@dataclass(frozen=True)
class PlantedPath:
    """Heads that carry a pair from the word to the answer."""

    pair: str
    heads: tuple[hw.Head, ...]
    share: float


@dataclass
class Planted:
    """A model and what is known of it."""

    model: hw.Model
    paths: list[PlantedPath]
    shape: tuple[int, int]
    draw: random.Random = field(repr=False)

    @property
    def circuit(self) -> list[hw.Head]:
        return sorted(head for path in self.paths for head in path.heads)

    def of(self, pair: str) -> list[hw.Head]:
        return sorted(head for path in self.paths if path.pair == pair for head in path.heads)

    def idle(self, layers: Sequence[int] | None = None) -> list[hw.Head]:
        """The random heads, in these layers."""
        every = [hw.Head(layer, head) for layer in range(self.shape[0]) for head in range(self.shape[1])]
        taken = set(self.circuit)
        return [head for head in every if head not in taken and (layers is None or head.layer in layers)]


# ---- models ----------------------------------------------------------------------------------------------------------


class Block:
    """Weights of one block as views that can be written to, alike in all families."""

    def __init__(self, hf: Any, number: int) -> None:
        self.width, self._norms = hf.config.hidden_size, None
        self.keys = getattr(hf.config, "num_key_value_heads", hf.config.num_attention_heads)
        self.group = hf.config.num_attention_heads // self.keys
        if hf.config.model_type == "gpt2":
            block = hf.transformer.h[number]
            read = block.attn.c_attn.weight.T
            self._read = [read[part * self.width : (part + 1) * self.width] for part in range(3)]
            self.out, self.mlp = block.attn.c_proj.weight.T, [block.mlp.c_fc.weight.T]
            self.mlp_out = block.mlp.c_proj.weight
        elif hf.config.model_type == "gpt_neox":
            block = hf.gpt_neox.layers[number]
            read = block.attention.query_key_value.weight.view(-1, 3, SIZE, self.width)
            self._read = [read[:, part] for part in range(3)]  # heads, size, width
            self.out, self.mlp = block.attention.dense.weight, [block.mlp.dense_h_to_4h.weight]
            self.mlp_out = block.mlp.dense_4h_to_h.weight
        else:
            block = hf.model.layers[number]
            attention, mlp = block.self_attn, block.mlp
            self._read = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
            self.out, self.mlp = attention.o_proj.weight, [mlp.gate_proj.weight, mlp.up_proj.weight]
            self.mlp_out = mlp.down_proj.weight
            self._norms = block if hf.config.model_type == "gemma2" else None
        self._read = [view.view(-1, SIZE, self.width) for view in self._read]

    def blind(self, axes: torch.Tensor) -> None:
        """No head and no MLP reads these axes `[A, width]`, and all write little."""
        for weight in (*self._read, *self.mlp):
            weight -= (weight @ axes.T) @ axes
        self.out *= NOISE
        self.mlp_out *= NOISE
        if self._norms is not None:
            _steady_norms(self._norms, axes)

    def plant(self, head: int, reads: torch.Tensor, writes: torch.Tensor) -> None:
        """The head attends to all tokens alike and writes `writes` as often as it finds `reads`."""
        first = head // self.group * self.group
        lane = head % self.group  # heads that share values have a lane each
        self._read[0][head] = 0
        self._read[2][head // self.group, lane] = reads
        for other in range(first, first + self.group):
            self.out[:, other * SIZE + lane] = 0
        self.out[:, head * SIZE : (head + 1) * SIZE] = 0
        self.write(head, writes)

    def write(self, head: int, writes: torch.Tensor) -> None:
        self.out[:, head * SIZE + head % self.group] = writes


def _steady_norms(block: Any, axes: torch.Tensor) -> None:
    """A constant in the attention's output is most of what the norm after it sees, which so has a steady scale."""
    constant = block.self_attn.o_proj.bias
    constant.copy_(torch.randn(len(constant), generator=torch.Generator().manual_seed(len(constant))))
    constant -= (constant @ axes.T) @ axes
    constant *= 3 / constant.norm()
    block.post_attention_layernorm.weight.fill_(3 / math.sqrt(len(constant)) - 1)
    block.post_feedforward_layernorm.weight.fill_(NOISE - 1)


def random_model(family: str, layers: int, heads: int, vocabulary: int, seed: int) -> Any:
    width = heads * SIZE
    if family == "gpt2":
        shape: dict[str, Any] = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": 32}
    else:
        shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
    if family not in ("gpt2", "gpt_neox"):
        shape |= {"num_key_value_heads": heads // 2, "layer_types": ["full_attention"] * layers}
    if family == "llama":
        shape.pop("layer_types")
    if family == "gemma2":
        shape |= {"attention_bias": True}
    return tiny_model(family, seed, vocab_size=vocabulary, tie_word_embeddings=False, **shape)


def planted(family: str, seed: int) -> Planted:
    """A model of this family; the seed gives its size, its plan and the places of the planted heads."""
    draw = random.Random(f"planted/{family}/{seed}")
    layers, heads = draw.choice([4, 5]), draw.choice([6, 8])
    tokenizer = word_tokenizer()
    hf = random_model(family, layers, heads, len(tokenizer), seed)
    plan = PLANS[seed % len(PLANS)]
    pairs = draw.sample(list(PAIRS), 2)
    paths, free = [], {layer: draw.sample(range(heads), heads // 2) for layer in range(layers)}
    for pair, shares in zip(pairs, plan, strict=True):
        for length, share in shares:
            open_layers = [layer for layer in range(layers) if free[layer]]
            where = sorted(draw.sample(open_layers, length))
            paths.append(
                PlantedPath(pair, tuple(hw.Head(layer, free[layer].pop()) for layer in where), share)
            )
    width = heads * SIZE
    relays = sum(len(path.heads) - 1 for path in paths)
    drawn = torch.randn(width, 4 + relays, generator=torch.Generator().manual_seed(seed))
    # At right angles to the constant vector, which a layer norm takes away.
    axes = torch.linalg.qr(torch.cat([torch.ones(width, 1), drawn], 1))[0].T[1:]
    with torch.no_grad():
        writers = _plant(hf, tokenizer, paths, axes)
        _calibrate(hf, tokenizer, paths, writers)
    model = hw.load(hf, tokenizer=tokenizer, name=f"{family} {seed}")
    return Planted(model, paths, (layers, heads), draw)


def _plant(
    hf: Any, tokenizer: Any, paths: Sequence[PlantedPath], axes: torch.Tensor
) -> list[Callable[[float], None]]:
    """Sets the heads of every path; returns for each what sets the strength with which it writes the answer."""
    blocks = [Block(hf, number) for number in range(hf.config.num_hidden_layers)]
    for block in blocks:
        block.blind(axes)
    embedding, unembedding = hf.get_input_embeddings().weight, hf.get_output_embeddings().weight
    embedding -= (embedding @ axes.T) @ axes
    embedding *= 5 / embedding.norm(dim=1, keepdim=True)
    seen, answer, relays = (
        dict(zip(PAIRS, axes, strict=False)),
        dict(zip(PAIRS, axes[2:], strict=False)),
        list(axes[4:]),
    )
    for pair, (one, other) in PAIRS.items():
        first, second = (tokenizer.encode(word)[0] for word in (one, other))
        same = embedding[first].clone()
        for row, sign in ((first, 1), (second, -1)):
            embedding[row] = same + sign * 4 * seen[pair]
            unembedding[row] = sign * answer[pair]
    if hf.config.model_type == "gemma2":  # which multiplies its embeddings
        embedding /= math.sqrt(hf.config.hidden_size)
    if hf.config.model_type == "gpt2":
        places = hf.transformer.wpe.weight
        places -= (places @ axes.T) @ axes

    def writer(head: hw.Head, axis: torch.Tensor) -> Callable[[float], None]:
        return lambda strength: blocks[head.layer].write(head.head, strength * axis)

    writers = []
    for path in paths:
        reads = seen[path.pair]
        for head in path.heads[:-1]:
            relay = relays.pop()
            blocks[head.layer].plant(head.head, reads, 3 * relay)
            reads = relay
        last = path.heads[-1]
        blocks[last.layer].plant(last.head, reads, 0 * reads)
        writers.append(writer(last, answer[path.pair]))
    return writers


def _calibrate(
    hf: Any, tokenizer: Any, paths: Sequence[PlantedPath], writers: Sequence[Callable[[float], None]]
) -> None:
    """Strengths with which every path makes its share of `EFFECT`, each measured alone."""
    task = pair_task(96, seed=-1)
    strengths = []
    for path, strength in zip(paths, writers, strict=True):
        chosen = [e for e in task if e.family["pair"] == path.pair]
        before = _difference(hf, tokenizer, chosen)
        strength(1.0)
        strengths.append(path.share * EFFECT / (_difference(hf, tokenizer, chosen) - before))
        strength(0.0)
    for value, strength in zip(strengths, writers, strict=True):
        strength(value)


def _difference(hf: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
    """Mean logit of the target minus that of the foil."""
    found = []
    for example in examples:
        logits = hf(torch.tensor([tokenizer.encode(example.prompt)])).logits[0, -1]
        target, foil = (tokenizer.encode(word)[0] for word in (example.target, example.foils[0]))
        found.append(float(logits[target] - logits[foil]))
    return float(np.mean(found))


def word_tokenizer() -> Any:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token=".")


# ---- prompts ---------------------------------------------------------------------------------------------------------


def pair_task(n: int, seed: int = 0, pairs: Sequence[str] = tuple(PAIRS)) -> Task:
    """Prompts with a word of a pair, which is the target; its partner is the foil. Pairs and words take turns."""
    draw, examples = random.Random(f"pairs/{seed}"), []
    while len(examples) < n:
        for pair in pairs:
            length, place = draw.randint(4, 10), draw.randint(0, 3)
            others = [draw.choice(OTHERS) for _ in range(length)]
            prompts = [" ".join([*others[:place], word, *others[place:]]) for word in PAIRS[pair]]
            for prompt, counterfactual, target, foil in zip(
                prompts, prompts[::-1], PAIRS[pair], PAIRS[pair][::-1], strict=True
            ):
                family = {"pair": pair, "word": target, "length": "short" if length < 7 else "long"}
                examples.append(Example(prompt, f" {target}", (f" {foil}",), counterfactual, family=family))
    return Task(" and ".join(pairs), tuple(examples[:n]), "logit_diff")


# ---- circuits, whole and broken --------------------------------------------------------------------------------------

WHOLE, PASSENGERS, UNSEEN = "true", "passengers added", "writer and suppressor of equal size left out"
BROKEN = ("a head missing", "a head swapped", PASSENGERS, "a family unserved", "two errors that cancel")
FALSE = ("random sets of the same layers", "circuit of another task", "true, 8 examples")
RANDOM_SETS = 100
SOURCES = {
    "planted": "tiny random models with heads set by hand",
    "compiled": "compiled programs",
    "smollm2": "SmolLM2 with rewritten heads",
}
NOTES = {
    "planted": "Without any one head of a true set the explained effect changes by at least .06, without a "
    "passenger by at most .002. The margin of check 6 (.05) was chosen among .01, .02, .03, .05 and .1 on every "
    "second model of this and the next table: there it names exactly the passengers in 63 of 63 sets, and no head of "
    "52 true sets of several heads; on the other half in 56 of 56, and no head of 46. The range of these changes over "
    "all models had been looked at before. The metric varies between examples by 21 to 54 % of the effect, so check 3 "
    "judges R².",
    "compiled": "The one facet is the answer. Eleven programs have an answer that the model gives without any head; "
    "check 2 leaves out that family, whose own effect is at most 11 % of the task's (the rule was made after these "
    "sets had been rejected by it). A head of a program changes the explained effect by at least .34, a passenger by "
    "at most .03. The metric varies between examples by 2 to 17 % of the effect, so check 3 judges the share within a "
    "fifth: R² had failed 36 of 65 true sets, and 12 sets were certified because their passengers make these small "
    "differences (this rule too was made after seeing that). Sets of one head have no check 5.",
    "smollm2": "Four heads of the last layer, after which no head can react, under patching; what they read is "
    "fitted on the prompts of the certificate, to be the same with all heads patched. Of three further "
    "such models the true sets are certified, those with a head missing or swapped and six random sets "
    "rejected, and those on 8 examples undecided; their sets with passengers were not measured. Two "
    "earlier constructions were at fault, not the checks. Of heads of the last three layers 22 % of nine "
    "true sets passed, presumably because other heads react to what they write. With readers fitted on "
    "other prompts, what they read depends on other heads: check 3 was undecided (one model: R² .60 [.38, "
    ".75]).",
}
KINDS = {"true": WHOLE, "missing": BROKEN[0], "swapped": BROKEN[1], "passengers": PASSENGERS,
         "random": FALSE[0], "few": FALSE[2]}  # fmt: skip


def without(circuit: Sequence[hw.Head], dropped: Sequence[hw.Head]) -> list[hw.Head]:
    return [head for head in circuit if head not in dropped]


def cases(made: Planted, n: int, random_sets: int) -> Iterator[Case]:
    """Everything that is asked about one model."""
    draw, circuit, task = made.draw, made.circuit, pair_task(n)
    yield WHOLE, circuit, task, [], {}
    yield "a head missing", without(circuit, [draw.choice(circuit)]), task, [], QUICK
    old = draw.choice(circuit)
    new = draw.choice(made.idle([old.layer]))
    yield "a head swapped", sorted([*without(circuit, [old]), new]), task, [], QUICK
    added = draw.sample(made.idle(), draw.randint(1, 4))
    yield PASSENGERS, sorted([*circuit, *added]), task, added, {}
    served, unserved = draw.sample(list(PAIRS), 2)
    yield "a family unserved", made.of(served), task, [], QUICK
    short = {(path.pair, path.share): path.heads for path in made.paths if len(path.heads) == 1}
    for (pair, share), suppressor in short.items():
        if share < 0:
            other = next(name for name in PAIRS if name != pair)
            dropped = [*suppressor, *short[other, 0.5]]
            yield "two errors that cancel", without(circuit, dropped), task, [], QUICK
            if (pair, 0.5) in short:
                yield UNSEEN, without(circuit, [*suppressor, *short[pair, 0.5]]), task, [], {}
    for _ in range(random_sets):
        yield FALSE[0], random_set(circuit, made.shape[1], draw), task, [], QUICK
    yield FALSE[1], made.of(unserved), pair_task(n, pairs=[served]), [], QUICK
    yield FALSE[2], circuit, pair_task(8), [], {}


def judged(model: hw.Model, case: Case) -> dict[str, Any]:
    """What the certificate says of one case, and whether that is right."""
    kind, heads, task, added, options = case
    found = hw.certify(model, task, heads, progress=False, **options)
    if "draws" in options and found.verdict == "undecided" and kind == FALSE[0]:
        # With few draws check 4 cannot pass: whoever is not rejected by the others gets all of them.
        found = hw.certify(model, task, heads, progress=False, **{**options, "draws": 100})
    passed = found.verdict in (CERTIFIED, LIMITED)
    named = {str(head) for head in added} <= set(found.passengers)
    right = (found.verdict != CERTIFIED and named) if kind == PASSENGERS else passed == (kind == WHOLE)
    return {
        "model": model.name,
        "kind": kind,
        "verdict": found.verdict,
        "right": right,
        "heads": [str(head) for head in heads],
        "added": [str(head) for head in added],
        "passengers": found.passengers,
        "states": {str(check): state for check, state in found.states.items() if check <= 6},
        **({} if right else {"sentence": found.sentence}),
    }


def of_model(
    source: str, name: str, seed: int, n: int, random_sets: int, device: str
) -> list[dict[str, Any]]:
    """All cases of one model of a source."""
    torch.set_num_threads(1)
    if source == "planted":
        made = planted(name, seed)
        model, asked = made.model, list(cases(made, n, random_sets))
    elif source == "compiled":
        model, asked = program_cases(name, n, KINDS, {})
    else:
        model, asked = smollm2_cases(seed, n, random_sets, KINDS, {"draws": 19}, device)
    rows = []
    for case in asked:
        rows.append({"source": source} | judged(model, case))
        print(model.name, case[0], rows[-1]["verdict"], rows[-1].get("sentence", ""), flush=True)
    return rows


# ---- the table -------------------------------------------------------------------------------------------------------


def matrix(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By kind: how many, every verdict, which checks failed, and how many are right."""
    found = []
    for kind in dict.fromkeys([WHOLE, *BROKEN, *FALSE, UNSEEN]):
        of = [row for row in rows if row["kind"] == kind]
        if not of:
            continue
        verdicts = Counter(row["verdict"] for row in of)
        failed = Counter(
            int(check) for row in of for check, state in row["states"].items() if state == "fail"
        )
        found.append(
            {
                "kind": kind,
                "n": len(of),
                **{verdict: verdicts[verdict] for verdict in VERDICTS},
                "failed": {check: failed[check] for check in sorted(failed)},
                "right": sum(row["right"] for row in of),
            }
        )
    return found


def compact(result: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    parts = [f'"about": {json.dumps(result["about"])}']
    for key in ("matrix", "cases"):
        parts.append(f'"{key}": [\n' + ",\n".join(map(json.dumps, result[key])) + "\n]")
    return "{" + ",\n".join(parts) + "}\n"


def page(result: dict[str, Any]) -> str:
    """The tables of the documentation, one for each source."""
    lines = [
        "# How often a certificate is right",
        "",
        "[Certificates](certify.md) of circuits that are known because they were made, whole and broken",
        "(`benchmarks/certificates.py`).",
        "",
        "<!-- truth -->",
    ]
    for source, what in SOURCES.items():
        of = [row for row in result["matrix"] if row["source"] == source]
        if not of:
            continue
        lines += [
            f"**{what[0].upper()}{what[1:]}** ({of[0]['models']} models, {of[0]['examples']} examples)",
            "",
            "| set of heads | n | " + " | ".join(VERDICTS) + " | checks that failed (sets) | right |",
            "|---|" + "---:|" * (1 + len(VERDICTS)) + "---|---:|",
        ]
        for row in of:
            checks = ", ".join(f"{check} ({count})" for check, count in row["failed"].items()) or "–"
            right = f"{row['right'] / row['n']:.0%}" if row["kind"] != UNSEEN else "–"
            counts = " | ".join(str(row[verdict]) for verdict in VERDICTS)
            lines.append(f"| {row['kind']} | {row['n']} | {counts} | {checks} | {right} |")
        lines.append("")
        if source in NOTES:
            lines += [*textwrap.wrap(NOTES[source], 120), ""]
    return "\n".join([*lines[:-1], "<!-- /truth -->", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--seeds", type=int, default=9, help="models of each family, and of SmolLM2")
    parser.add_argument("-n", type=int, default=160, help="examples")
    parser.add_argument("--family", nargs="+", default=list(FAMILIES))
    parser.add_argument(
        "--random-sets", type=int, default=RANDOM_SETS, help="random sets of each source, at least"
    )
    parser.add_argument("--device", default="cpu", help="for SmolLM2")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    path = RESULTS / "certificates.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    for source in given.source:
        rows: list[dict[str, Any]] = []
        models = {
            "planted": [(family, seed) for seed in range(given.seeds) for family in given.family],
            "compiled": [(name, 0) for name in PROGRAMS],
            "smollm2": [("smollm2", seed) for seed in range(given.seeds)],
        }[source]
        each = -(-given.random_sets // len(models))
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            done = pool.map(
                of_model,
                repeat(source),
                *zip(*models, strict=True),
                *map(repeat, (given.n, each, given.device)),
            )
            for number, found in enumerate(done):
                rows += found
                print(f"{source}: {number + 1} of {len(models)} models", flush=True)
                shape = {"source": source, "models": number + 1, "examples": given.n}
                for key, new in (("cases", rows), ("matrix", [shape | row for row in matrix(rows)])):
                    result[key] = [row for row in result[key] if row["source"] != source] + new
                result["about"][source] = about(given.device if source == "smollm2" else "cpu")
                path.write_text(compact(result), encoding="utf-8")
                PAGE.write_text(page(result), encoding="utf-8")
    print(page(result))


if __name__ == "__main__":
    main()
