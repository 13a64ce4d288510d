"""Learned gates: what an update costs beside a plain implementation, and whether the fits are to be trusted.

    python benchmarks/gating.py --part cost --threads 2                    time and memory of one update
    python benchmarks/gating.py --part stopping --device cuda              the stopping rule against the full schedule
    python benchmarks/gating.py --part clip --device cuda                  two-sided against one-sided clip
    python benchmarks/gating.py --part planted --device cuda               heads silenced and heads made noisy
    python benchmarks/gating.py --part agreement --device cuda --run DIR   the study: curves, ablation, random sets
    python benchmarks/gating.py --part full --device cuda                  one task, 5 seeds, batch 64, timed

Several parts: `--part cost --part full`. `--out FILE.json` says where the numbers go; a file that is there gets
the new parts beside the old ones.

`cost`: the plain implementation has hooks on the output projections, logits of all positions, a batch padded to its
longest row, and frozen weights. Both do the same update on the same batches, in turns, in one process; their
objectives must agree. Peak memory is of a process of its own, above the loaded model: what the process holds
(RSS), and what torch has allocated for tensors, which is free of what libraries keep for themselves.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import headwise as hw
from headwise.heads import mask_gates, single_gates
from headwise.metrics import metric
from headwise.model.measure.engine import Engine
from headwise.model.model import Model
from headwise.model.tokens.encode import batch_of, encode_rows
from headwise.scores.gates.fit import Fit, FitSettings, fit_logits, random_logits, regulariser
from headwise.scores.gates.gating import FITS, LABELS, one_fit, role_labels
from headwise.scores.gates.likelihood import GateLikelihood
from headwise.scores.gates.row_gradients import batches as example_batches
from headwise.tasks import Task

RESULTS = Path(__file__).parent / "results"
TASKS = ("syntax", "commonsense", "math")


# ---- cost ------------------------------------------------------------------------------------------


class Plain:
    """The loss as one writes it down: hooks, all logits, one padded batch."""

    def __init__(self, model: Model, task: Task, start: np.ndarray, settings: FitSettings) -> None:
        self.model, self.settings = model, settings
        self.rows = encode_rows(model.text, task.examples, "target")
        self.logits = torch.tensor(start, dtype=torch.float32, device=model.device, requires_grad=True)
        self.optimiser = torch.optim.Adam([self.logits], lr=settings.rate[0])
        for parameter in model.hf.parameters():
            parameter.requires_grad_(False)

    def update(self, examples: np.ndarray) -> float:
        batch = {
            name: t.to(self.model.device) for name, t in batch_of([self.rows[e] for e in examples]).items()
        }
        size = self.model.hooks.sites[0].head_dim
        handles = []
        for layer, block in enumerate(self.model.hf.model.layers):

            def gate(
                _: torch.nn.Module, args: tuple[torch.Tensor], layer: int = layer
            ) -> tuple[torch.Tensor]:
                z = args[0].unflatten(-1, (-1, size))
                return ((z * torch.sigmoid(self.logits[layer]).to(z.dtype)[:, None]).flatten(-2),)

            handles.append(block.self_attn.o_proj.register_forward_pre_hook(gate))
        logits = self.model.hf(input_ids=batch["ids"], use_cache=False).logits
        for handle in handles:
            handle.remove()
        labels = torch.full_like(batch["ids"], -100)
        labels.scatter_(1, batch["positions"], batch["tokens"])
        losses = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
        )
        per_row = losses.reshape(labels.shape).sum(1) / (labels != -100).sum(1)
        bound = self.settings.bound
        loss = per_row.mean() - self.settings.strength * self.logits.clamp(-bound, bound).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return float(loss.detach())


class Ours:
    """The same updates by `fit_gates`, one at a time: it asks for gradients, and we count."""

    def __init__(self, model: Model, task: Task, start: np.ndarray, settings: FitSettings) -> None:
        self.likelihood = GateLikelihood(model, task)
        self.start, self.settings, self.model = start, settings, model

    def updates(
        self, batches: list[np.ndarray], between: Callable[[], None]
    ) -> tuple[list[float], list[float]]:
        """Seconds and objective of each update; `between` runs after each, outside the clock."""
        seconds: list[float] = []
        began = [time.perf_counter()]

        def gradients(gates: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.likelihood.gradients(gates, batches[len(seconds)][None])

        def advance(count: int) -> None:
            if count and len(seconds) < len(batches):
                seconds.append(time.perf_counter() - began[0])
                between()
                began[0] = time.perf_counter()

        settings = FitSettings(
            updates=len(batches), batch=len(batches[0]), rate=self.settings.rate, stop=None
        )
        fit = fit_logits(gradients, self.start[None], self.model.exists, settings, sign=1, advance=advance)
        return seconds, fit.objective[:, 0].tolist()


def cost(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds per update and peak memory, per task."""
    found = {}
    for name in TASKS:
        task = hw.task(name, 64, model=model)
        draw = example_batches(len(task), arguments.batch, (0, 1))
        batches = [next(draw) for _ in range(arguments.updates)]
        start = random_logits(model.shape, [0], 4.0)[0]
        settings = FitSettings(rate=(0.5, 0.5))
        plain, ours = Plain(model, task, start, settings), Ours(model, task, start, settings)
        theirs, losses, seconds, objective = in_turns(plain, ours, batches)
        gap = abs(objective[0] - losses[0])  # from the same gates; later on, Adam magnifies the last digit
        memory = {way: peak_memory(name, way, arguments) for way in ("plain", "ours")}
        found[name] = {
            "plain_s": float(np.median(theirs[1:])),
            "ours_s": float(np.median(seconds[1:])),
            "ratio": float(np.sum(theirs[1:]) / np.sum(seconds[1:])),
            "largest_difference": gap,
            "plain_mb": memory["plain"],
            "ours_mb": memory["ours"],
            "memory_ratio": {kind: mb / memory["ours"][kind] for kind, mb in memory["plain"].items()},
            "s_per_seed": per_seed(ours.likelihood, batches[: arguments.updates // 2]),
        }
        said = found[name]
        print(
            f"{name}: plain {said['plain_s']:.3f} s, ours {said['ours_s']:.3f} s per update, {said['ratio']:.2f}×; "
            f"largest difference {gap:.1e}"
        )
        for kind, times in said["memory_ratio"].items():
            print(
                f"  peak memory ({kind}): {memory['plain'][kind]:.0f} MB against {memory['ours'][kind]:.0f} MB, "
                f"{times:.1f}×"
            )
        together = ", ".join(f"{s:.3f} s with {seeds}" for seeds, s in said["s_per_seed"].items())
        print(f"  seconds per update and seed: {together}")
    return found


def per_seed(likelihood: GateLikelihood, batches: list[np.ndarray]) -> dict[str, float]:
    """Seconds per update and seed, with one seed and with five in one pass."""
    found = {}
    for seeds in (1, 5):
        gates = np.full((seeds, *likelihood.model.shape), 0.5)
        seconds = []
        for batch in batches:
            began = time.perf_counter()
            likelihood.gradients(gates, np.tile(batch, (seeds, 1)))
            seconds.append((time.perf_counter() - began) / seeds)
        found[str(seeds)] = float(np.median(seconds))
    return found


def in_turns(
    plain: Plain, ours: Ours, batches: list[np.ndarray]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Seconds and objectives of the plain updates, then of ours; one of each at a time."""
    theirs: list[float] = []
    losses: list[float] = []

    def turn() -> None:
        began = time.perf_counter()
        losses.append(plain.update(batches[len(losses)]))
        theirs.append(time.perf_counter() - began)

    seconds, objective = ours.updates(batches, turn)
    return theirs, losses, seconds, objective


def peak_memory(task: str, way: str, arguments: argparse.Namespace) -> dict[str, float]:
    """MB above the loaded model: of the process, and of tensors alone; in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", f"{task}/{way}", "--batch", str(arguments.batch)]
    command += ["--device", arguments.device, "--threads", str(arguments.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    process, tensors = map(float, done.stdout.split()[-2:])
    return {"process": process, "tensors": tensors}


def memory_of(which: str, arguments: argparse.Namespace) -> None:
    name, way = which.split("/")
    model = loaded(arguments)
    task = hw.task(name, 64, model=model)
    draw = example_batches(len(task), arguments.batch, (0, 1))
    batches = [next(draw) for _ in range(4)]
    start = random_logits(model.shape, [0], 4.0)[0]
    settings = FitSettings(rate=(0.5, 0.5))
    plain, ours = Plain(model, task, start, settings), Ours(model, task, start, settings)

    def update(some: list[np.ndarray]) -> None:
        if way == "ours":
            ours.updates(some, lambda: None)
        else:
            for batch in some:
                plain.update(batch)

    update([batches[0][:1]])  # libraries set up what they keep for good
    if model.device.type != "cpu":
        before = torch.cuda.memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        update(batches)
        peak = torch.cuda.max_memory_allocated() / 2**20 - before
        print(peak, peak)
        return
    before = process_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    update(batches)
    peak = process_mb("VmHWM") - before
    print(peak, tensor_peak(lambda: update(batches)))


def tensor_peak(work: Callable[[], None]) -> float:
    """The most MB of tensors alive at once, from torch's own record of what it allocates and frees."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return float(sizes.max()) / 2**20


def process_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


# ---- fits ------------------------------------------------------------------------------------------


def three_fits(
    model: Model, task: Task, seeds: list[int], settings: FitSettings
) -> tuple[dict[str, Fit], dict[str, np.ndarray], float]:
    """The three fits on one half, their held-out objectives `[S]`, and the seconds they took."""
    fitted_on, tested_on = task.halves()
    likelihood = GateLikelihood(model, fitted_on)
    fits: dict[str, Fit] = {}
    began = time.perf_counter()
    for name in FITS:
        start = fits["free"].logits if fits else None
        fits[name] = one_fit(likelihood, name, seeds, settings, start)
    seconds = time.perf_counter() - began
    test = GateLikelihood(model, tested_on)
    held_out = {
        name: -test.values(fit.gates).mean(axis=1)
        - FITS[name] * settings.strength * regulariser(fit.logits, model.exists, FITS[name], settings)[0]
        for name, fit in fits.items()
    }
    return fits, held_out, seconds


def labels_of(fits: dict[str, Fit]) -> np.ndarray:
    return role_labels(fits["plus"].gates, fits["minus"].gates)


def stopping(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rule of `FitSettings` against all updates: held-out objective and labels."""
    found = {}
    for name in arguments.task or TASKS:
        task = hw.task(name, arguments.examples, model=model)
        seeds = list(range(arguments.seeds))
        runs = {
            stop: three_fits(
                model, task, seeds, FitSettings(stop=stop, updates=arguments.most, batch=arguments.big)
            )
            for stop in (None, FitSettings().stop)
        }
        (full, full_end, full_s), (early, early_end, early_s) = runs.values()
        same = labels_of(full)[:, model.exists] == labels_of(early)[:, model.exists]
        found[name] = {
            "held_out_full": {fit: end.tolist() for fit, end in full_end.items()},
            "held_out_early": {fit: end.tolist() for fit, end in early_end.items()},
            "relative_difference": {
                fit: float(np.abs(early_end[fit] / full_end[fit] - 1).max()) for fit in FITS
            },
            "difference_nats": {
                # Where pull and likelihood nearly cancel, a small part of the objective is next to nothing.
                fit: float(np.abs(early_end[fit] - full_end[fit]).max())
                for fit in FITS
            },
            "mean_relative_difference": {
                fit: float(early_end[fit].mean() / full_end[fit].mean() - 1) for fit in FITS
            },
            "labels_equal": same.mean(axis=1).tolist(),
            "updates_early": {fit: early[fit].updates.tolist() for fit in FITS},
            "seconds_full": full_s,
            "seconds_early": early_s,
            "objective_full": {fit: _windows(full[fit]) for fit in FITS},
            "moved_after_last_windows": _settled(full),
        }
        said = found[name]
        print(
            f"{name}: held-out objective within {max(said['relative_difference'].values()):.2%} "
            f"({max(said['difference_nats'].values()):.4f} nats per token) in every seed, "
            f"{min(said['labels_equal']):.1%} to {max(said['labels_equal']):.1%} of labels equal; updates "
            f"{said['updates_early']}, {early_s:.0f} s instead of {full_s:.0f}"
        )
    return found


def _windows(fit: Fit, window: int = 25) -> list[list[float]]:
    """Means of the objective over windows, per seed."""
    whole = fit.objective[: len(fit.objective) // window * window]
    return whole.reshape(-1, window, whole.shape[1]).mean(axis=1).T.round(4).tolist()


def _settled(fits: dict[str, Fit]) -> dict[str, dict[str, float]]:
    """Share of gates that lie on the other side of .5 at the end than at each kept update."""
    return {
        name: {str(step): float(((kept > 0) != (fit.logits > 0)).mean()) for step, kept in fit.kept.items()}
        for name, fit in fits.items()
    }


def clip(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """Gates stranded beyond the bound on the wrong side, labels and held-out objective under both clips."""
    found: dict[str, Any] = {}
    for name in arguments.task or TASKS[:1]:
        task = hw.task(name, arguments.examples, model=model)
        seeds = list(range(arguments.seeds))
        fitted = {
            kind: three_fits(
                model, task, seeds, FitSettings(clip=kind, updates=arguments.most, batch=arguments.big)
            )
            for kind in ("two_sided", "one_sided")
        }
        found[name] = {}
        for kind, (fits, held_out, _) in fitted.items():
            labels = labels_of(fits)[:, model.exists]
            found[name][kind] = {
                "beyond_after_free": float((np.abs(fits["free"].logits) > 4)[:, model.exists].mean()),
                "stranded_plus": float((fits["plus"].logits < -4)[:, model.exists].mean()),
                "stranded_minus": float((fits["minus"].logits > 4)[:, model.exists].mean()),
                "held_out": {fit: float(end.mean()) for fit, end in held_out.items()},
                "shares": {label: float((labels == label).mean()) for label in LABELS},
            }
        two, one = (labels_of(fitted[kind][0])[:, model.exists] for kind in ("two_sided", "one_sided"))
        found[name]["labels_equal"] = float((two == one).mean())
        print(f"{name}: {json.dumps(found[name])}")
    return found


# ---- planted roles ---------------------------------------------------------------------------------


def planted(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ten heads whose output projection is zeroed, some whose is replaced by noise, at several strengths."""
    draw = np.random.default_rng(7)
    heads = [model.heads()[i] for i in draw.permutation(len(model.heads()))[: 10 + arguments.noisy]]
    silent, noisy = heads[:10], heads[10:]
    found: dict[str, Any] = {"silent": list(map(str, silent)), "noisy": list(map(str, noisy))}
    for strength in arguments.noise:
        hf = copy.deepcopy(model.hf)
        size = model.hooks.sites[0].head_dim
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for head in heads:
                weight = hf.model.layers[head.layer].self_attn.o_proj.weight
                columns = slice(head.head * size, (head.head + 1) * size)
                drawn = torch.randn(weight[:, columns].shape, generator=noise).to(weight)
                weight[:, columns] = drawn * weight.std() * strength if head in noisy else 0
        changed = hw.load(hf, tokenizer=model.text.tokenizer, name="planted")
        for name in arguments.task or TASKS[:1]:
            task = hw.task(name, arguments.examples, model=changed)
            settings = FitSettings(updates=arguments.most, batch=arguments.big)
            harm = Engine(changed, task, metric("mean_logprob"))
            without = harm.measure(
                np.stack([mask_gates(noisy, model.shape), *single_gates(noisy, model.shape)])
            )
            fits, held_out, seconds = three_fits(changed, task, list(range(arguments.seeds)), settings)
            plus, minus = fits["plus"].gates, fits["minus"].gates
            at = tuple(np.array(part) for part in zip(*silent, strict=True))
            among = tuple(np.array(part) for part in zip(*noisy, strict=True))
            labels = role_labels(plus, minus)
            key = f"{name}, {len(noisy)} heads, noise {strength:g}"
            found[key] = {
                "gain_without_all_noisy": float(-without.effects[0].mean()),
                "gain_without_each_noisy": (-without.effects[1:].mean(axis=1)).round(3).tolist(),
                "silent_largest_facilitation": float(minus[:, at[0], at[1]].max()),
                "silent_largest_interference": float((1 - plus)[:, at[0], at[1]].max()),
                "silent_irrelevant": float((labels[:, at[0], at[1]] == "irrelevant").mean()),
                "noisy_interfering": float((labels[:, among[0], among[1]] == "interfering").mean()),
                "noisy_labels": labels[:, among[0], among[1]].T.tolist(),
                "updates": {fit: one.updates.tolist() for fit, one in fits.items()},
                "held_out": {fit: end.tolist() for fit, end in held_out.items()},
                "seconds": seconds,
            }
            print(f"{key}: {json.dumps(found[key])}")
    return found


# ---- the study, and the full size ------------------------------------------------------------------


def agreement(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole study on one model: expected order, random sets of ten, rank correlation with exact ablation."""
    from headwise.runs import read_table
    from headwise.studies.workbench import Workbench

    bench = Workbench(progress=False)
    bench.add(model)
    began = time.perf_counter()
    folder = hw.run(
        "roles",
        arguments.run,
        workbench=bench,
        models=[model.name],
        tasks=list(arguments.task or TASKS),
        n=arguments.examples,
        seeds=arguments.seeds,
        fit={"updates": arguments.most, "batch": arguments.big},
    )
    print("\n".join([*folder.findings, *folder.notices]))
    tables = {name: read_table(folder.path, name) for name in ("order", "joint", "shares", "fits")}
    found: dict[str, Any] = {name: json.loads(t.to_json(orient="records")) for name, t in tables.items()}
    return found | {"seconds": time.perf_counter() - began, "findings": folder.findings}


def full(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """One task with 5 seeds at batch 64: the default rule, then every update."""
    found = {}
    for name in arguments.task or TASKS[-1:]:
        task = hw.task(name, arguments.examples, model=model)
        for stop in (FitSettings().stop, None):
            settings = FitSettings(stop=stop, updates=arguments.most, batch=arguments.big)
            fits, _, seconds = three_fits(model, task, list(range(arguments.seeds)), settings)
            updates = {fit: int(one.updates.max()) for fit, one in fits.items()}
            key = f"{name}, {'default rule' if stop else 'all updates'}"
            found[key] = {
                "seconds": seconds,
                "updates": updates,
                "s_per_update": seconds / sum(updates.values()),
                "seeds": arguments.seeds,
                "batch": min(arguments.big, len(task) // 2),
            }
            print(f"{key}: {json.dumps(found[key])}")
    return found


PARTS = {
    "cost": cost,
    "stopping": stopping,
    "clip": clip,
    "planted": planted,
    "agreement": agreement,
    "full": full,
}


def loaded(arguments: argparse.Namespace) -> Model:
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    return hw.load("smollm2", device=arguments.device, dtype=arguments.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="repeat for several; cost by default"
    )
    parser.add_argument("--task", action="append", help="repeat for several")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--threads", type=int, default=0, help="0 leaves it to torch")
    parser.add_argument("--batch", type=int, default=8, help="of the part cost")
    parser.add_argument("--updates", type=int, default=8, help="of the part cost")
    parser.add_argument("--big", type=int, default=64, help="batch of the other parts")
    parser.add_argument("--most", type=int, default=500, help="updates of the other parts")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=128, help="half to fit, half held out")
    parser.add_argument(
        "--noise", type=float, nargs="+", default=[20.0], help="in spreads of the real weights"
    )
    parser.add_argument("--noisy", type=int, default=4, help="heads made noisy in the part planted")
    parser.add_argument("--run", default="runs/benchmark-roles", help="run folder of the part agreement")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        memory_of(arguments.memory_of, arguments)
        return
    model = loaded(arguments)
    path = arguments.out or RESULTS / f"gating-{model.device.type}.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for part in arguments.part or ["cost"]:
        result[part] = {
            "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {model.device}, {model.dtype}",
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            **PARTS[part](model, arguments),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
