"""Joint effects of heads: time of all pairs, agreement with a loop of hooks, planted backups, freezing, the null.

    python benchmarks/interactions.py --device cuda                       every part; results/interactions-cuda.json
    python benchmarks/interactions.py --part matrix --device cpu          one part; the others in the file stay

The loop of hooks is one forward pass per pair, on the same device and weights; it is sampled and scaled.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headwise as hw
from common import RESULTS, about, timed, write
from headwise.heads import Head, heads_of, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine, Measured
from headwise.model.tokens.encode import batch_of
from headwise.runs import read_table
from headwise.scores.interactions.pairs import PairEffects, pair_effects
from headwise.scores.interactions.sets import backup_table, candidates_after, effects_given, primary_set
from ways.hooks import Hooks

PLANTS, RUNS = 20, 200


def examples_of(model: hw.Model, n: int) -> hw.Task:
    """`n` IOI prompts of one length, so that the loop of hooks needs no padding."""
    drawn = hw.task("ioi", 8 * n, model=model)
    lengths = [len(model.tokens(example.prompt)) for example in drawn]
    common = max(set(lengths), key=lengths.count)
    return drawn.take([i for i, length in enumerate(lengths) if length == common][:n])


def ready(device: str) -> hw.Model:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return hw.load("smollm2", device=device, dtype="float32")


# ---- time and agreement ---------------------------------------------------------------------------------------------


def loop_values(
    hf: Any, model: hw.Model, task: hw.Task, sets: Sequence[list[Head]], narrow: bool
) -> np.ndarray:
    """logit_diff without each set of heads `[sets, E]`, one forward pass of plain hooks for each."""
    engine = Engine(model, task, metric("logit_diff"))
    batch = {name: t.to(model.device) for name, t in batch_of(engine.rows).items()}
    rows, hooks, values = torch.arange(len(task)), Hooks(hf), []
    with torch.inference_mode():
        for off in sets:
            logits = hooks.logits(batch["ids"], off, narrow)
            right, wrong = (logits[rows, batch[name][:, 0, 1]] for name in ("rights", "wrongs"))
            values.append((right - wrong).double().cpu().numpy())
    return np.array(values)


def hook_loop(model: hw.Model, task: hw.Task, pairs: Sequence[tuple[Head, Head]]) -> tuple[float, np.ndarray]:
    """Seconds per pair of the faster loop (all logits, or those of the last token), and E({a, b}) `[P, E]`."""
    best, effects, sets = np.inf, np.empty(0), [list(pair) for pair in pairs]
    for narrow in (False, True):
        full = loop_values(model.hf, model, task, [[], []], narrow)[-1]
        seconds, found = timed(lambda n=narrow: loop_values(model.hf, model, task, sets, n), model.device)
        best, effects = min(best, seconds / len(pairs)), full - found
    return best, effects


def in_float64(
    device: str, task: hw.Task, pairs: Sequence[tuple[Head, Head]]
) -> tuple[np.ndarray, np.ndarray]:
    """E({a, b}) `[P, E]` with weights, norms and sums in float64: ours, and by the loop."""
    model = hw.load("smollm2", device=device, dtype="float64", compile=False)
    for norm in (part for part in model.hf.modules() if type(part).__name__.endswith("RMSNorm")):
        # The family's own norm goes through float32.
        norm.forward = lambda x, n=norm: (
            n.weight * x * (x.square().mean(-1, keepdim=True) + n.variance_epsilon).rsqrt()
        )
    units = [(head,) for head in dict.fromkeys(head for pair in pairs for head in pair)]
    numbers = np.array([[units.index((head,)) for head in pair] for pair in pairs])
    ours = pair_effects(Engine(model, task, metric("logit_diff")), units, numbers).joint.T
    values = loop_values(model.hf, model, task, [[], *map(list, pairs)], True)
    return ours, values[0] - values[1:]


def timed_pairs(device: str, heads: Any, n: int, sample: int) -> dict[str, Any]:
    """All pairs of the heads, the table with its intervals and tests, and the loop on a sample of the pairs."""
    model = ready(device)
    task = examples_of(model, n)
    hw.interactions(model, task, model.heads()[-4:], progress=False)  # warm
    chosen = (
        heads
        if heads == "all"
        else hw.score(model, task, "attribution", progress=False).top(heads, "absolute")
    )
    seconds, found = timed(lambda: hw.interactions(model, task, chosen, progress=False), model.device)
    table_seconds, table = timed(found.table)
    draw = np.random.default_rng(0).choice(
        len(found.pairs), size=min(sample, len(found.pairs)), replace=False
    )
    pairs = [(found.units[a][0], found.units[b][0]) for a, b in found.pairs[draw]]
    per_pair, loop = hook_loop(model, task, pairs)
    a, b = found.pairs[draw].T
    ours = (found.single[:, a] + found.single[:, b] + found.interaction[:, draw]).T
    exact, exact_loop = in_float64(device, task, pairs)
    result = {
        "pairs": len(found.pairs),
        "examples": n,
        "tokens": len(model.tokens(task.examples[0].prompt)),
        "seconds": seconds,
        "table_seconds": table_seconds,
        "loop_seconds_scaled": per_pair * len(found.pairs),
        "loop_pairs_sampled": len(pairs),
        "times_faster": per_pair * len(found.pairs) / seconds,
        "largest_difference": float(np.abs(ours - loop).max()),
        "largest_difference_from_float64": {
            "ours": float(np.abs(ours - exact).max()),
            "loop": float(np.abs(loop - exact).max()),
            "ours_median": float(np.median(np.abs(ours - exact))),
            "loop_median": float(np.median(np.abs(loop - exact))),
        },
        "largest_difference_in_float64": float(np.abs(exact - exact_loop).max()),
        "significant": int((table["q"] < 0.05).sum()),
        "largest": table.head(10)[["a", "b", "effect_a", "effect_b", "joint", "interaction", "lo", "hi", "q"]]
        .round(4)
        .to_dict("records"),
    }
    return result | about(device, model.dtype)


def pairs_part(device: str) -> dict[str, Any]:
    """All pairs on 32 prompts; agreement of the first-order estimate; fewer examples by precision."""
    result = timed_pairs(device, "all", 32, 40)
    model = ready(device)
    task = examples_of(model, 32)
    seconds, found = timed(
        lambda: hw.interactions(model, task, "all", precision=0.1, progress=False), model.device
    )
    result["estimate"] = found.agreement()._asdict()
    result["precision"] = {"precision": 0.1, "seconds": seconds, **found.details}
    return result


def matrix_part(device: str) -> dict[str, Any]:
    return timed_pairs(device, 40, 32, 12 if device == "cpu" else 40)


# ---- planted backups ------------------------------------------------------------------------------------------------


def planted_part(device: str) -> dict[str, Any]:
    """Areas under the curve over 20 plants: tiny models by weights, and the bundled model by a hook."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from helpers import make_word_tokenizer
    from planted import BackupByHook, area_under_curve, backup_model, second_words

    def areas(table: Any, backup: Head) -> dict[str, float]:
        planted = [head == backup for head in heads_of(table)]
        return {name: area_under_curve(table[name], planted) for name in ("difference", "ratio", "single")}

    tiny, sets = [], []
    for seed in range(PLANTS):
        model, primary, backup = backup_model(make_word_tokenizer(), seed)
        find, test = (Engine(model, half, metric("logit_diff")) for half in second_words(48, seed).halves())
        heads = model.heads()
        steps = primary_set(find, find.measure(single_gates(heads, model.shape)).effects.T, heads, most=4)
        removed = heads_of(steps[steps["accepted"]])
        candidates = candidates_after(heads, removed)
        tiny.append(
            areas(backup_table(effects_given(test, removed, candidates), candidates, least=0.02), backup)
        )
        sets.append(removed[0] == primary)
    model = ready(device)
    task = examples_of(model, 6 if device == "cpu" else 16)
    engine = Engine(model, task, metric("logit_diff"))
    ids = [list(row.ids) for row in engine.rows]
    effects = hw.score(model, task, progress=False)
    draw, hooked = np.random.default_rng(0), []
    for number in range(PLANTS):
        primary = [head for head in effects.order() if head.layer < model.shape[0] - 2][number % 10]
        later = candidates_after(model.heads(), [primary])
        backup = later[int(draw.integers(len(later)))]
        nearby = [head for head in later if abs(head.layer - backup.layer) <= 2 and head != backup]
        nearby = [nearby[i] for i in draw.permutation(len(nearby))[: 12 if device == "cpu" else None]]
        heads = sorted([backup, *nearby])
        with BackupByHook(model, primary, backup, ids):
            found = effects_given(engine, [primary], heads)
            table = backup_table(found, heads, least=0.02)
        at = {"primary": str(primary), "backup": str(backup), "heads": len(heads)}
        at |= {"set_effect": float(found.first.mean()), "without": float(effects[primary])}
        hooked.append(at | areas(table, backup))

    def mean(rows: list[dict[str, Any]]) -> dict[str, float]:
        return {
            name: float(np.mean([row[name] for row in rows])) for name in ("difference", "ratio", "single")
        }

    return {
        "weights": {"plants": PLANTS, "primary_found": int(np.sum(sets)), "area": mean(tiny)},
        "hook": {"plants": PLANTS, "examples": len(task), "area": mean(hooked), "each": hooked},
    } | about(device)


# ---- false discoveries ----------------------------------------------------------------------------------------------


class Swapped:
    """An engine on examples some of whose targets and foils are swapped: logit_diff changes its sign there."""

    def __init__(self, engine: Engine, sign: np.ndarray) -> None:
        self.engine, self.sign = engine, sign
        self.model, self.task, self.metric = engine.model, engine.task, engine.metric

    def measure(self, *arguments: Any, **options: Any) -> Measured:
        found = self.engine.measure(*arguments, **options)
        return replace(found, values=found.values * self.sign, full=found.full * self.sign)


def null_part(device: str) -> dict[str, Any]:
    """200 runs of the whole search with targets and foils swapped at random; and with the real primary set given."""
    model = ready(device)
    # A CPU runs every tenth head on 24 examples: each primary set that a run finds is a measurement of its own.
    heads = model.heads()[:: 10 if device == "cpu" else 1]
    task = hw.task("ioi", 24 if device == "cpu" else 64, model=model)
    find, test = (Engine(model, half, metric("logit_diff")) for half in task.halves())
    single = find.measure(single_gates(heads, model.shape)).effects.T
    steps = primary_set(find, single, heads, most=4)
    known = heads_of(steps[steps["accepted"]])
    given: dict[str, PairEffects] = {}
    draw, counts = (
        np.random.default_rng(0),
        {"sets_found": 0, "reported": 0, "reported_with_the_set_given": 0},
    )

    def reports(removed: list[Head], sign: np.ndarray, least: float) -> bool:
        candidates = candidates_after(heads, removed)
        if not candidates:
            return False
        key = str(sorted(removed))
        if key not in given:
            given[key] = effects_given(test, removed, candidates)
        swapped = PairEffects(*(part * sign[:, None] for part in given[key]))
        return bool(backup_table(swapped, candidates, least=least)["backup"].any())

    for _ in range(RUNS):
        signs = [draw.choice([-1.0, 1.0], size=len(engine.task)) for engine in (find, test)]
        wrapped: Any = Swapped(find, signs[0])
        steps = primary_set(wrapped, single * signs[0][:, None], heads, most=4)
        removed = heads_of(steps[steps["accepted"]])
        counts["sets_found"] += bool(removed)
        counts["reported"] += bool(removed) and reports(removed, signs[1], 0.02)
        counts["reported_with_the_set_given"] += reports(known, signs[1], -np.inf)
    sizes = {"heads": len(heads), "examples_of_each_half": len(test.task)}
    return {"runs": RUNS, **sizes, "set": list(map(str, known)), **counts} | about(device)


# ---- IOI ------------------------------------------------------------------------------------------------------------


def ioi_part(device: str) -> dict[str, Any]:
    """The study on IOI: the dense model and its sparse companion."""
    models = ["smollm2", "smollm2-sparse"]
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"models": models, "tasks": ["ioi"], "n": 128, "device": device}
        seconds, run = timed(
            lambda: hw.run("backups", folder, dtype="float32", progress=False, **settings), device
        )
        names = ("primary", "backups", "freezing", "groups", "curves", "agreement")
        found = [name for name in names if (run.path / "tables" / f"{name}.parquet").exists()]
        tables = {name: read_table(run.path, name) for name in found}
    tables["backups"] = tables["backups"][tables["backups"]["backup"]]
    rows = {name: table.round(4).astype(object).to_dict("records") for name, table in tables.items()}
    return {"seconds": seconds, **json.loads(json.dumps(rows, default=str))} | about(device)


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "pairs": pairs_part,
    "matrix": matrix_part,
    "planted": planted_part,
    "null": null_part,
    "ioi": ioi_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=list(PARTS), action="append", help="by default every part")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="results file")
    arguments = parser.parse_args()
    path = arguments.out or RESULTS / f"interactions-{torch.device(arguments.device).type}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part in arguments.part or PARTS:
        seconds, result[part] = timed(lambda part=part: PARTS[part](arguments.device), arguments.device)
        print(f"{part}: {seconds:.1f} s", flush=True)
        write(path, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
