"""How often the 95 % intervals hold the true value, and how often the test finds heads where there are none.

Draws of 8 to 64 examples, with replacement, from pools whose mean is known: real scores (all heads of SmolLM2, IOI and
Greater-Than), the explained effect and the number of heads needed of a real curve, and distributions. The intervals are
those of `headwise.stats`; beside them stands the plain percentile bootstrap. Writes `results/coverage.json` and prints
the tables of docs/statistics.md.

    python benchmarks/coverage.py [--pool FILE.npz] [--repeats 400] [--method ablation --device cuda]

On two cores the real scores are those of `attribution` by default; exact ablation of 600 examples needs an accelerator.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headwise import stats
from headwise.stats.resampling import resampled_means
from headwise.sweeps.explained import heads_needed

SIZES = (8, 16, 32, 64)
EXAMPLES, THRESHOLD, SKEWED = 600, 0.9, 2.0
HERE = Path(__file__).parent
Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""From a generator, n and the number of repeats to values `[n, repeats]`."""


def real_pools(path: Path | None, method: str, device: str | None) -> dict[str, np.ndarray]:
    """Per-example scores `[E, heads]` of two tasks, and one curve: k, gains and effects."""
    if path is not None and path.exists():
        return dict(np.load(path))
    import headwise as hw

    model, pools = hw.load("smollm2", device=device, dtype="float32"), {}
    for name in ("ioi", "greater_than"):
        task = hw.task(name, EXAMPLES, model=model)
        scores = hw.score(model, task, method, reference="mean")
        pools[name] = scores.examples[:, model.exists]
        if name == "ioi":
            curve = hw.sweep(model, task, scores, reference="mean", points=25, controls=(), progress=False)
            pools |= {"k": curve.k, "gains": curve.gains, "effects": curve.effects}
    if path is not None:
        np.savez(path, **pools)
    return pools


DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda r, n, b: r.normal(size=(n, b)), 0.0),
    "exponential": (lambda r, n, b: r.exponential(size=(n, b)), 1.0),
    "lognormal": (lambda r, n, b: r.lognormal(size=(n, b)), float(np.exp(0.5))),
    "t, 3 degrees of freedom": (lambda r, n, b: r.standard_t(3, size=(n, b)), 0.0),
}
SHARES = (0.02, 0.05, 0.5)


def percentile_bootstrap(columns: np.ndarray, draws: int = 2_000) -> tuple[np.ndarray, np.ndarray]:
    lo, hi = np.quantile(resampled_means(columns, draws, 0), [0.025, 0.975], axis=0)
    return lo, hi


def coverage(interval: Any, truth: Any) -> float:
    lo, hi = interval
    return float(np.mean((lo <= truth) & (truth <= hi)))


def rows(pools: dict[str, np.ndarray], repeats: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    for name in ("ioi", "greater_than"):
        pool = pools[name]
        truth = pool.mean(axis=0)
        for n in SIZES:
            samples = [pool[random.integers(0, len(pool), n)] for _ in range(repeats)]
            held = [coverage(stats.effect_interval(sample), truth) for sample in samples]
            plain = [coverage(percentile_bootstrap(sample), truth) for sample in samples[: repeats // 4]]
            yield row(f"scores of all heads, {name}", n, np.mean(held), np.mean(plain))
    for name, (draw, truth) in DISTRIBUTIONS.items():
        for n in SIZES:
            sample = draw(random, n, 20 * repeats)
            held = coverage(stats.mean_interval(sample), truth)
            yield row(name, n, held, coverage(percentile_bootstrap(sample[:, : 2 * repeats]), truth))
    for n in SIZES:
        group = np.arange(n) // 4
        sample = random.normal(size=(n // 4, 20 * repeats))[group] + random.normal(size=(n, 20 * repeats))
        held = coverage(stats.mean_interval(sample, groups=group), 0.0)
        yield row(
            "normal, groups of 4", n, held, coverage(percentile_bootstrap(sample[:, : 2 * repeats]), 0.0)
        )
    for share in SHARES:
        for n in (*SIZES, 37):
            sample = (random.random((n, 20 * repeats)) < share).astype(float)
            held = coverage(stats.share_interval(sample), share)
            yield row(
                f"share, p = {share}",
                n,
                held,
                coverage(percentile_bootstrap(sample[:, : 2 * repeats]), share),
            )
    for n in (*SIZES, 128):
        group = np.arange(n) // 4
        chance = random.beta(1, 9, size=(n // 4, 20 * repeats))[group]  # a group's examples have one chance
        sample = (random.random(chance.shape) < chance).astype(float)
        held = coverage(stats.share_interval(sample, groups=group), 0.1)
        yield row("share, p = 0.1, groups of 4", n, held, None)
    yield from curve_rows(pools, repeats, random)
    for n in SIZES:
        held = [crossed(random, n) for _ in range(10 * repeats)]
        yield row("mean over 5 draws of heads", n, np.mean(held), None)


def crossed(random: np.random.Generator, n: int) -> bool:
    draws, examples = random.normal(size=(5, 1)), random.normal(size=(1, n))
    lo, hi = stats.crossed_interval(0.5 * draws + examples + random.normal(size=(5, n)))
    return lo <= 0 <= hi


def curve_rows(
    pools: dict[str, np.ndarray], repeats: int, random: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Explained effect at every k, and the heads that reach 90 %, from a real curve."""
    k, gains, effects = pools["k"], pools["gains"], pools["effects"]
    truth = gains.mean(1) / effects.mean()
    needed = float(heads_needed(k, truth, THRESHOLD))
    inner = (k > 0) & (k < k[-1])
    for n in SIZES:
        ratios, plain, counts = [], [], []
        for _ in range(repeats):
            some = random.integers(0, len(effects), n)
            ratio = stats.ratio_interval(gains[:, some].T, effects[some])
            ratios.append(coverage((ratio.lo[inner], ratio.hi[inner]), truth[inner]))
            resampled = stats.resampled_ratio(gains[:, some].T, effects[some], draws=2_000)
            plain.append(coverage(np.quantile(resampled, [0.025, 0.975], axis=0)[:, inner], truth[inner]))
            found = heads_needed(k, resampled, THRESHOLD)
            lo, hi = stats.resampled_interval(found, n)
            counts.append(lo <= needed and (np.isnan(hi) or needed <= hi))
        yield row("explained effect, ioi", n, np.mean(ratios), np.mean(plain))
        yield row("heads that reach 90 %, ioi", n, np.mean(counts), None)


def row(what: str, n: int, held: Any, plain: Any) -> dict[str, Any]:
    found = {"what": what, "n": n, "coverage": round(float(held), 4)}
    return found | ({} if plain is None else {"percentile_bootstrap": round(float(plain), 4)})


def null_rows(pools: dict[str, np.ndarray], draws: int = 1_000) -> Iterator[dict[str, Any]]:
    """Draws in which any head has q < .05 although no head has an effect: real scores, centred."""
    random = np.random.default_rng(1)
    for name in ("ioi", "greater_than"):
        centred = pools[name] - pools[name].mean(axis=0)
        with np.errstate(invalid="ignore"):
            skewness = np.abs((centred**3).mean(axis=0) / (centred**2).mean(axis=0) ** 1.5)
        for which, columns in (
            ("all heads", centred),
            ("skewness at most 2", centred[:, skewness <= SKEWED]),
        ):
            for n in (16, 64):
                found = 0
                for _ in range(draws):
                    sample = columns[random.integers(0, len(columns), n)]
                    found += bool((stats.benjamini_hochberg(stats.sign_flip(sample)) < 0.05).any())
                yield {
                    "scores": name,
                    "heads": which,
                    "of": columns.shape[1],
                    "n": n,
                    "draws": draws,
                    "any": found,
                }


def tables(found: dict[str, Any]) -> str:
    """The Markdown tables of docs/statistics.md."""
    by = {(one["what"], one["n"]): one for one in found["coverage"]}
    sizes = [8, 16, 32, 64]
    lines = [f"| values | {' | '.join(f'n = {n}' for n in sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for what in dict.fromkeys(one["what"] for one in found["coverage"]):
        cells = []
        for n in sizes:
            one = by[what, n]
            plain = one.get("percentile_bootstrap")
            cells.append(
                f"{100 * one['coverage']:.1f} %" + ("" if plain is None else f" ({100 * plain:.1f} %)")
            )
        lines.append(f"| {what} | {' | '.join(cells)} |")
    lines += ["", "| scores | heads | n | draws with any q < .05 |", "|---|---|---|---|"]
    lines += [
        f"| {r['scores']} | {r['heads']} ({r['of']}) | {r['n']} | {r['any']} of {r['draws']} |"
        for r in found["null"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, help="keep the real scores in this .npz file")
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--method", default="attribution", help="of the real scores")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    pools = real_pools(chosen.pool, chosen.method, chosen.device)
    found = {
        "coverage": list(rows(pools, chosen.repeats)),
        "null": list(null_rows(pools)),
        "repeats": chosen.repeats,
    }
    (HERE / "results" / "coverage.json").write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))


if __name__ == "__main__":
    main()
