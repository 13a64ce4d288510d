"""The comparison tables of README.md and docs/benchmarks.md, from `results/` alone.

python benchmarks/table.py            write them between their markers
python benchmarks/table.py --check    say whether they are what would be written
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
Results = dict[str, Any]
"""What `peers.py` wrote on one device; empty where it has not run."""

SHORT = {
    "a": "exact ablation of every head",
    "b": "gradient attribution and integrated gradients",
    "c": "every head to ± 0.1 logit, against hooks on every example",
    "d": "ablation curve, 0 to 50 heads, three orders",
    "e": "faithfulness curve, only the top k heads kept",
    "f": "one update of learned gates, against hooks",
    "g": "generation with 40 ablation masks, against hooks with batched prompts",
    "h": "attention profiles at 8,192 tokens, against eager maps",
}
SPEED_UP = "speed-up over the fastest of TransformerLens, nnsight, pyvene, plain hooks"


GROWN = {
    "examples": "examples",
    "length": "tokens per prompt",
    "heads": "heads",
    "size": "parameters",
    "masks": "masks of a generation",
}


def load(device: str, kind: str = "peers") -> Results:
    path = RESULTS / f"{kind}-{device}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# ---- README ------------------------------------------------------------------------------------------------


def readme(cpu: Results, cuda: Results) -> str:
    """One row per job: the speed-up over the fastest peer on each device; then one line about larger models."""
    if not cpu and not cuda:
        return "Not measured yet."
    lines = [
        _where(cpu, cuda),
        "",
        f"| work | {SPEED_UP}: {_column(cpu, 'CPU')} | the same: {_column(cuda, 'GPU')} |",
        "|---|---|---|",
    ]
    for letter, title in SHORT.items():
        cells = [_ratio(letter, results) for results in (cpu, cuda)]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_larger(cuda)])


def _larger(cuda: Results) -> list[str]:
    """The speed-up of exact ablation on the largest shape."""
    cases = _job(cuda, "shapes").get("cases", [])
    largest = [case for case in cases if case["shape"] == cases[-1]["shape"]]
    if not largest:
        return []
    ratios, lengths = ([case[name] for case in largest] for name in ("ratio", "tokens"))
    return [
        "",
        f"The speed-up is smaller on larger models and longer prompts. Exact ablation with the shape of "
        f"{largest[0]['shape']} in bfloat16 on a GPU: {_times(min(ratios))} to {_times(max(ratios))} over plain hooks, "
        f"at {max(lengths)} to {min(lengths)} tokens.",
    ]


def _where(cpu: Results, cuda: Results) -> str:
    machines = [f"{results['machine']} ({results['date'][:10]})" for results in (cpu, cuda) if results]
    return (
        "SmolLM2-135M in float32; the same work on the same machine, with equal results. Measured on "
        f"{' and on '.join(machines)}. [Benchmarks](docs/benchmarks.md) has the method, every number of every tool, "
        "and the lower bound."
    )


def _column(results: Results, otherwise: str) -> str:
    return str(results["machine"]).split(",")[0] if results else otherwise


def _job(results: Results, letter: str) -> dict[str, Any]:
    return dict(results.get("jobs", {}).get(letter, {}))


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.0f} ×" if ratio >= 9.95 else f"{ratio:.1f} ×"


def _exhaustive(job: dict[str, Any]) -> str:
    """Time of all examples with hooks and with headwise; older result files have only the latter."""
    ours = f"{job['exhaustive_s']:.1f} s with headwise"
    return (
        f"{job['exhaustive_by_hooks_s']:.1f} s with hooks, {ours}" if "exhaustive_by_hooks_s" in job else ours
    )


def _ratio(letter: str, results: Results) -> str:
    job = _job(results, letter)
    if letter == "h" and job:
        return f"{_times(job['memory_ratio'])} less memory"
    return _times(job.get("ratio"))


# ---- docs --------------------------------------------------------------------------------------------------


def full(cpu: Results, cuda: Results) -> str:
    """The time of each tool for each job, by device."""
    parts = []
    for device, results in (("cpu", cpu), ("cuda", cuda)):
        if results:
            parts += [
                _device(results),
                *_picture(f"peers-{device}", "Time of each tool relative to headwise"),
            ]
    return "\n\n".join(parts)


def growth(device: str) -> str:
    """The exponent of every curve, and the page of curves."""
    found = load(device, "growth")
    if not found:
        return ""
    lines = [f"{found['machine']}, {found['date'][:10]}:", "", "| against | time | memory |", "|---|---|---|"]
    for name, curve in found["curves"].items():
        lines.append(f"| {GROWN[name]} | x^{curve['time_exponent']:.2f} | x^{curve['memory_exponent']:.2f} |")
    picture = _picture(f"growth-{device}", "Time and memory against examples, length, heads, size and masks")
    return "\n".join([*lines, "", *picture])


def _picture(name: str, about: str) -> list[str]:
    path = RESULTS / f"{name}.png"
    return [f"![{about}](../benchmarks/results/{path.name})"] if path.exists() else []


def _device(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines = [
        f"### {results['machine']}",
        "",
        f"{results['date'][:10]}; {versions}.",
        f"Matrix products in float32 run at {results['matrix_rate'] / 1e9:,.0f} GFLOP/s.",
    ]
    for name, why in results.get("left_out", {}).items():
        lines.append(f"{name} was left out ({why}).")
    timed = [letter for letter in SHORT if _job(results, letter).get("ways")]
    if timed:
        lines += ["", "| job | way | seconds | × headwise | MB |", "|---|---|---|---|---|"]
    for letter in timed:
        lines += _rows(letter, _job(results, letter))
    lines += [""] + [
        text for letter in ("a", "c", "f", "h", "startup") for text in _said(letter, _job(results, letter))
    ]
    cases = _job(results, "shapes").get("cases", [])
    if cases:
        rate = _job(results, "shapes")["matrix_rate"] / 1e12
        lines += [
            "",
            f"Random weights in bfloat16, matrix products at {rate:.0f} TFLOP/s; headwise without and with "
            "`compile=True`; ratio and rate of the faster one:",
            "",
            "| shape | tokens | hook loop, ms per head | headwise | compiled | ratio | TFLOP/s | of the matrix rate |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {c['shape']} | {c['tokens']} "
            f"| {min(c['loop_all_logits_ms_per_head'], c['loop_last_logits_ms_per_head']):.2f} "
            f"| {c['headwise_ms_per_head']:.2f} | {_ms(c.get('compiled_ms_per_head'))} "
            f"| {c['ratio']:.1f} | {c['tflops']:.0f} | {c['share_of_matrix_rate']:.0%} |"
            for c in cases
        ]
    return "\n".join(lines).rstrip()


def _ms(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:.2f}"


def _rows(letter: str, job: dict[str, Any]) -> list[str]:
    lines = [f"| **{letter}** {job['work']} | | | | |"]
    for name, way in job["ways"].items():
        memory = f"{way['peak_mb']:.0f}" if "peak_mb" in way else ""
        bold = "**" if name == job.get("fastest_peer") else ""
        lines.append(
            f"| | {bold}{name}{bold} | {way['seconds']:.2f} | {bold}{way['times_headwise']:.2f}{bold} | {memory} |"
        )
    if "floor_s" in job:
        lines.append(f"| | floor: operations needed / matrix rate | {job['floor_s']:.2f} | | |")
    if "floor_without_sharing_s" in job:
        lines.append(f"| | floor without prefix sharing | {job['floor_without_sharing_s']:.2f} | | |")
    return lines


def _said(letter: str, job: dict[str, Any]) -> list[str]:
    """A sentence on what is not a row of times."""
    if not job:
        return []
    if letter == "a":
        memory = job["memory"]
        return [
            f"- **a**, memory at {memory['tokens_per_pass']:,} tokens per pass: {memory['times_one_pass']:.2f} × one "
            f"forward pass ({memory['one_forward_pass_mb']:.0f} MB); "
            + ", ".join(
                f"{mb:.0f} MB for {heads} heads" for heads, mb in memory["scoring_mb_by_heads"].items()
            )
            + (" (the few do not fill a pass)." if memory["growth_with_heads"] > 1.05 else ".")
        ]
    if letter == "c":
        return [
            f"- **c** {job['work']}: {job['seconds']:.1f} s; every example {_exhaustive(job)}; "
            f"{job['rows']:,.0f} rows against {job['rows_exhaustive']:,.0f}, {job['fewer_rows']:.1f} × fewer."
        ]
    if letter == "f":
        tasks = "; ".join(
            f"{name} {one['ratio']:.2f} ×, {one['memory_ratio']['tensors']:.1f} × less memory"
            for name, one in job["tasks"].items()
        )
        return [f"- **f** {job['work']}: {tasks}."]
    if letter == "h":
        ways = "; ".join(
            f"{name} {way['peak_mb']:,.0f} MB, {way['seconds']:.0f} s"
            for name, way in job["memory_ways"].items()
        )
        return [
            f"- **h** {job['work']}: {ways}. The maps of all heads at once would be "
            f"{job['maps_of_all_heads_mb'] / 1024:.0f} GB."
        ]
    return [
        f"- `headwise --help` {job['help_s']:.2f} s, `headwise check` {job['check_s']:.1f} s with a warm cache."
    ]


# ---- pages -------------------------------------------------------------------------------------------------


def replaced(page: str, marker: str, table: str) -> str:
    """The page with the table between its markers."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    cpu, cuda = load("cpu"), load("cuda")
    front, long = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
    detailed = replaced(long.read_text(encoding="utf-8"), "benchmarks", full(cpu, cuda))
    curves = "\n\n".join(filter(None, map(growth, ("cpu", "cuda"))))
    return {
        front: replaced(front.read_text(encoding="utf-8"), "benchmarks", readme(cpu, cuda)),
        long: replaced(detailed, "growth", curves),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if arguments.check and stale:
        raise SystemExit(f"{stale[0].name} is not what benchmarks/table.py writes; run it")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
