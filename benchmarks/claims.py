"""Published claims about kinds of heads, tried again on small models.

    python benchmarks/claims.py [--model smollm2 --model Gemma=gemma.gguf] [--only dormant]

Three claims: a head's output norm says better than its attention to the first token which heads are dormant (arXiv
2504.03889); heads that carry a few-shot task are other heads than induction heads and matter more (2502.14010); some
heads lower the logit of the token that they attend to (2310.04625). Written to `results/claims.json`, and the tables of
docs/claims.md are written from it. What was measured before is kept unless it is measured again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import headwise as hw
from common import RESULTS, about, write
from headwise.heads import mask_gates
from headwise.heads.controls import layer_matched_heads
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.stats.intervals import difference_interval, metric_interval
from headwise.tasks import Example, Task
from table import replaced

Found = dict[str, Any]
PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
SHARES, DRAWS, WORDS = (0.1, 0.2), 2, 24


def interval(values: np.ndarray) -> list[float]:
    """Mean over examples and its 95 % interval."""
    lo, hi = metric_interval(values[:, None])
    return [float(values.mean()), float(lo[0]), float(hi[0])]


def difference(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Mean of the paired difference and its 95 % interval."""
    lo, hi = difference_interval(a[:, None], b[:, None])
    return [float((a - b).mean()), float(lo[0]), float(hi[0])]


def names(heads: Sequence[hw.Head]) -> list[str]:
    return [str(head) for head in heads]


# ---- dormant heads -------------------------------------------------------------------------------------


def passages(n: int) -> Task:
    """The beginning of one prompt of each scene of `abilities` as plain text."""
    first = {example.group or example.prompt[:40]: example.prompt for example in hw.task("abilities", 600)}
    texts = sorted(set(first.values()))
    drawn = random.Random("passages").sample(texts, min(n, len(texts)))
    return Task(
        "passages", tuple(Example("", " ".join(text.split()[:WORDS])) for text in drawn), "mean_logprob"
    )


def dormant(model: hw.Model) -> Found:
    """Remove the heads that either criterion calls dormant, and look what that costs."""
    text = passages(32)
    # As prompts, because attention is read at the tokens of a prompt.
    finding = Task("texts", tuple(Example(e.target, " The") for e in text.take(range(16))), "logprob")
    testing = text.take(range(16, 32))
    small = hw.score(model, finding, "norm").order("signed")[::-1]
    sinks = hw.score(model, finding, "pattern", kind="first").order("signed")
    heads = model.heads()
    sets: dict[str, list[hw.Head]] = {}
    for share in SHARES:
        k = round(share * len(heads))
        sets |= {f"norm {k}": list(small[:k]), f"first {k}": list(sinks[:k])}
        pool = [random.Random(f"dormant/{k}/{draw}").sample(heads, k) for draw in range(DRAWS)]
        sets |= {f"random {k} {draw}": drawn for draw, drawn in enumerate(pool)}
    gates = np.stack([mask_gates(of, model.shape) for of in sets.values()])
    found: Found = {"heads": len(heads), "found with": len(finding), "costs": {}}
    for task, reference in ((testing, "zero"), (testing, "mean"), (hw.task("ioi", 24, model=model), "zero")):
        engine = Engine(model, task, metric(task.metric), reference=reference)
        effects = dict(zip(sets, engine.measure(gates).effects, strict=True))
        rows = {}
        for share in SHARES:
            k = round(share * len(heads))
            norm, first = effects[f"norm {k}"], effects[f"first {k}"]
            drawn = np.mean([effects[f"random {k} {draw}"] for draw in range(DRAWS)], axis=0)
            rows[str(k)] = {
                "norm": interval(norm),
                "first": interval(first),
                "random": interval(drawn),
                "first - norm": difference(first, norm),
                "in both": len(set(sets[f"norm {k}"]) & set(sets[f"first {k}"])),
            }
        found["costs"][f"{task.name}, {reference}"] = {"metric": task.metric, "n": len(task), "sets": rows}
    return found


# ---- few-shot heads and induction heads ----------------------------------------------------------------

PAIRS = {
    "opposites": "hot cold, big small, up down, old new, fast slow, rich poor, high low, open closed, dark light, "
    "hard soft, long short, early late, full empty, good bad, strong weak, wet dry, left right, young old, day night, "
    "happy sad, loud quiet, thick thin, north south, true false, win lose, buy sell, push pull, in out",
    "capitals": "France Paris, Italy Rome, Spain Madrid, Japan Tokyo, Egypt Cairo, Germany Berlin, Russia Moscow, "
    "China Beijing, Greece Athens, Austria Vienna, Peru Lima, Cuba Havana, Norway Oslo, Ireland Dublin, Poland Warsaw, "
    "Portugal Lisbon, Kenya Nairobi, Canada Ottawa, Iran Tehran, Sweden Stockholm, Hungary Budapest, Turkey Ankara, "
    "England London, Belgium Brussels, Syria Damascus, Iraq Baghdad, Finland Helsinki, Denmark Copenhagen",
    "past": "go went, see saw, take took, come came, run ran, eat ate, give gave, find found, make made, write wrote, "
    "speak spoke, buy bought, think thought, know knew, sit sat, win won, send sent, keep kept, fall fell, grow grew, "
    "drive drove, sing sang, teach taught, catch caught, sleep slept, break broke, hold held, stand stood",
}
SHOTS = 5


def few_shot(n: int) -> Task:
    """Five solved pairs before each question; in the counterfactual the same answers stand behind other questions."""
    examples = []
    for kind, written in PAIRS.items():
        pairs = [tuple(pair.split()) for pair in written.split(", ")]
        for number in range(n // len(PAIRS)):
            draw = random.Random(f"{kind}/{number}")
            asked = pairs[number % len(pairs)]
            shown = draw.sample([pair for pair in pairs if not set(pair) & set(asked)], SHOTS)
            outputs = [output for _, output in shown]
            others = [output for _, output in pairs if output not in (asked[1], *outputs)]
            foils = tuple(f" {other}" for other in draw.sample(others, 2) + outputs[:2])

            def prompt(answers: Sequence[str], shown: Any = shown, asked: Any = asked) -> str:
                lines = [f"{one} -> {answer}" for (one, _), answer in zip(shown, answers, strict=True)]
                return "\n".join([*lines, f"{asked[0]} ->"])

            turned = outputs[1:] + outputs[:1]
            examples.append(
                Example(prompt(outputs), f" {asked[1]}", foils, prompt(turned), family={"kind": kind})
            )
    return Task("few-shot pairs", tuple(examples), "logit_diff")


def few_shot_heads(model: hw.Model) -> Found:
    """Heads that carry a few-shot task, beside induction heads: overlap, and what their removal costs."""
    task = few_shot(72)
    fits = [
        i for i, e in enumerate(task) if len(model.tokens(e.prompt)) == len(model.tokens(e.counterfactual))
    ]
    task = task.take(fits)
    halves = [task.take(range(half, len(task), 2)) for half in (0, 1)]
    # What a head brings into the shuffled prompt from the solved one, at the last token (Todd et al. 2023).
    swapped = replace(
        halves[0],
        examples=tuple(replace(e, prompt=e.counterfactual, counterfactual=e.prompt) for e in halves[0]),
    )
    brought = -hw.score(model, swapped, "attribution", reference="patch", positions="last").values
    pattern = hw.score(model, hw.task("induction", 32, model=model), "pattern", kind="induction")
    heads, k = model.heads(), max(3, round(0.05 * len(model.heads())))
    carriers = sorted(heads, key=lambda head: -brought[head])
    inducers = list(pattern.order("signed"))
    top = {"few-shot": carriers[:k], "induction": inducers[:k]}
    both = set(top["few-shot"]) & set(top["induction"])
    top["few-shot, not induction"] = [head for head in carriers if head not in inducers[:k]][:k]
    top["induction, not few-shot"] = [head for head in inducers if head not in carriers[:k]][:k]
    sets = dict(top)
    for name in ("few-shot", "induction"):
        matched = {f"beside {name} {i}": layer_matched_heads(heads, top[name], i).heads for i in range(DRAWS)}
        sets |= {label: list(drawn) for label, drawn in matched.items()}
    gates = np.stack([mask_gates(of, model.shape) for of in sets.values()])
    accuracy = Engine(model, halves[1], metric("accuracy"), reference="mean")
    full, left = accuracy.full(), dict(zip(sets, accuracy.measure(gates).values, strict=True))
    rows = {name: {"accuracy": interval(left[name]), "cost": difference(full, left[name])} for name in top}
    for name in ("few-shot", "induction"):
        drawn = np.mean([left[f"beside {name} {i}"] for i in range(DRAWS)], axis=0)
        rows[f"layer-matched with {name}"] = {"accuracy": interval(drawn), "cost": difference(full, drawn)}
    a, b = (np.array([of[head] for head in heads]).argsort().argsort() for of in (brought, pattern.values))
    return {
        "heads": len(heads),
        "k": k,
        "n": len(halves[1]),
        "found with": len(halves[0]),
        "in both": len(both),
        "by chance": k * k / len(heads),
        "rank correlation": float(np.corrcoef(a, b)[0, 1]),
        "full": interval(full),
        "sets": rows,
        "few-shot heads": names(top["few-shot"]),
        "induction heads": names(top["induction"]),
        "few-shot minus induction": difference(left["induction"], left["few-shot"]),
        "exclusive: few-shot minus induction": difference(
            left["induction, not few-shot"], left["few-shot, not induction"]
        ),
    }


# ---- copy suppression ----------------------------------------------------------------------------------

STRANGERS = (
    "Peter Laura Simon Julia Martin Helen Frank Alice Jack Emma Kate Paul Anna Mark Sarah David".split()
)


def suppression(model: hw.Model) -> Found:
    """Heads that attend to the answer of IOI and write against it: does that follow the name in the prompt?"""
    ioi = hw.task("ioi", 64, model=model)
    finding, testing = ioi.take(range(32)), ioi.take(range(32, 64))
    direct = hw.score(model, finding, "direct")
    attention = hw.score(model, finding, "pattern", kind="retrieval")
    looking = [head for head in model.heads() if attention[head] >= 0.1]
    writers = {
        "suppressing": min(looking, key=lambda h: direct[h]),
        "copying": max(looking, key=lambda h: direct[h]),
    }
    here, elsewhere = [], []
    for number, example in enumerate(testing):
        name = example.target.strip()
        draw = random.Random(f"stranger/{number}")
        free = [
            other
            for other in STRANGERS
            if other not in example.prompt
            and len(model.tokens(f" {other}")) == len(model.tokens(example.target))
        ]
        other = draw.choice(free)
        changed = example.prompt.replace(name, other)
        if len(model.tokens(changed)) == len(model.tokens(example.prompt)):
            here.append(Example(example.prompt, example.target, (f" {other}",)))
            elsewhere.append(Example(changed, example.target, (f" {other}",)))
    asked = [Task(label, tuple(of), "logit_diff") for label, of in (("there", here), ("replaced", elsewhere))]
    written = [hw.score(model, task, "direct") for task in asked]
    effects = hw.score(model, testing, "ablation", heads=list(writers.values()))
    shares = hw.score(model, testing, "pattern", kind="retrieval")
    found: Found = {"n": len(here), "found with": len(finding), "looking": len(looking), "heads": {}}
    for label, head in writers.items():
        at = (slice(None), head.layer, head.head)
        found["heads"][label] = {
            "head": str(head),
            "direct when found": float(direct[head]),
            "attention to the answer": interval(shares.examples[at]),
            "direct, name there": interval(written[0].examples[at]),
            "direct, name replaced": interval(written[1].examples[at]),
            "difference": difference(written[0].examples[at], written[1].examples[at]),
            "ablation": interval(effects.examples[at]),
        }
    return found


CLAIMS: dict[str, Callable[[hw.Model], Found]] = {
    "dormant": dormant,
    "few-shot": few_shot_heads,
    "suppression": suppression,
}


# ---- the tables of the page ----------------------------------------------------------------------------


def said(values: Sequence[float], digits: int = 2) -> str:
    mean, lo, hi = values
    return f"{mean:.{digits}f} [{lo:.{digits}f}, {hi:.{digits}f}]"


def dormant_table(models: dict[str, Found]) -> list[str]:
    lines = [
        "| model | measured on, ablation type | heads removed | lowest norm | most first-token attention | random | "
        "first − norm | in both sets |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, found in models.items():
        for where, costs in found["costs"].items():
            for k, row in costs["sets"].items():
                cells = [said(row[name], 3) for name in ("norm", "first", "random", "first - norm")]
                on = f"{where} ({costs['metric']}, n = {costs['n']})"
                of = f"{k} of {found['heads']}"
                lines.append(f"| {model} | {on} | {of} | {' | '.join(cells)} | {row['in both']} |")
    return lines


def few_shot_table(models: dict[str, Found]) -> list[str]:
    lines = ["| model | removed | accuracy left | cost |", "|---|---|---|---|"]
    for model, found in models.items():
        lines.append(f"| {model} | nothing (n = {found['n']}) | {said(found['full'])} | |")
        for name, row in found["sets"].items():
            lines.append(
                f"| {model} | {found['k']}: {name} | {said(row['accuracy'])} | {said(row['cost'])} |"
            )
    return lines


def suppression_table(models: dict[str, Found]) -> list[str]:
    keys = (
        "attention to the answer",
        "direct, name there",
        "direct, name replaced",
        "difference",
        "ablation",
    )
    lines = [f"| model | head | {' | '.join(keys)} |", "|---" * (len(keys) + 2) + "|"]
    for model, found in models.items():
        for label, row in found["heads"].items():
            lines.append(f"| {model} | {row['head']} ({label}) | {' | '.join(said(row[k]) for k in keys)} |")
    return lines


TABLES = {"dormant": dormant_table, "few-shot": few_shot_table, "suppression": suppression_table}


def page(before: str, result: dict[str, Any]) -> str:
    """docs/claims.md with the tables of a result."""
    for claim, lines in TABLES.items():
        before = replaced(before, claim, "\n".join(lines(result[claim])))
    return before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="NAME, or LABEL=NAME")
    parser.add_argument("--only", choices=CLAIMS, action="append")
    parser.add_argument("--device")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    out = RESULTS / "claims.json"
    result: dict[str, Any] = {}
    for named in arguments.model or ["SmolLM2=smollm2"]:
        label, _, name = named.rpartition("=")
        model = hw.load(name, dtype="float32", device=arguments.device)
        for claim in arguments.only or CLAIMS:
            found = CLAIMS[claim](model)
            before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
            result = {name: before.get(name, {}) for name in CLAIMS}
            result[claim][label or name] = found | {"about": about(model.device, model.dtype)}
            print(label or name, claim, json.dumps(found), flush=True)
            write(out, result)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
