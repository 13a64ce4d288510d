"""The part of docs/scores.md about compiled programs, from results/compiled.json: `python -m compiled.table`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "scores.md"
RESULTS = ROOT / "benchmarks" / "results" / "compiled.json"
BEGIN, END = "<!-- compiled: begin -->", "<!-- compiled: end -->"
NOT_DONE = "–"


def interval(values: list[float]) -> str:
    """The mean over programs with its 95 % bootstrap interval."""
    if not values:
        return NOT_DONE
    drawn = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
    lo, hi = np.quantile(drawn, [0.025, 0.975])
    return f"{np.mean(values):.2f} ({lo:.2f} to {hi:.2f})"


def mean_of(programs: list[dict[str, Any]], label: str, key: str = "auroc", of: str = "scores") -> float:
    return float(np.mean([one[of][label][key] for one in programs if label in one[of]]))


def table(result: dict[str, Any]) -> str:
    programs = result["programs"]
    several = {one["name"] for one in programs if one["layers_used"] > 1}
    lines = [
        f"{len(programs)} programs, {sum(one['heads'] for one in programs)} heads, of which "
        f"{sum(len(one['used']) for one in programs)} are used; {len(several)} programs use heads in several layers. "
        f"With the unused heads the models answer {min(one['accuracy'] for one in programs):.1%} (worst program) to "
        f"{max(one['accuracy'] for one in programs):.1%} of the inputs correctly. Removing an unused head moves the "
        f"logit difference by {np.median([one['moved_median'] for one in programs]):.2f} (median over programs of the "
        f"median head; the least of all: {min(one['moved_least'] for one in programs):.3f}), where the whole "
        "difference is about 1. Intervals: 95 %, bootstrap over programs. All of it took at most "
        f"{sum(one['cpu_seconds'] for one in programs) / 60:.0f} minutes of one core.",
        "",
        "| method, reference | AUROC | average precision | AUROC, one layer | several layers | AUROC of the size |",
        "|---|---|---|---|---|---|",
    ]
    for label in dict.fromkeys(label for one in programs for label in one["scores"]):
        found = {one["name"]: one["scores"][label] for one in programs if label in one["scores"]}
        deep = [
            [row["auroc"] for name, row in found.items() if (name in several) == is_deep]
            for is_deep in (0, 1)
        ]
        whole = [[row[key] for row in found.values()] for key in ("auroc", "ap", "auroc_size")]
        shown = " | ".join(interval(values) for values in (*whole[:2], *deep, whole[2]))
        fewer = "" if len(found) == len(programs) else f" ({len(found)} programs)"
        lines.append(f"| {label}{fewer} | {shown} |")
    lines += [
        "",
        f"Edges: {sum(one['edges'] for one in programs)} direct edges from heads and MLPs to the queries, keys and "
        f"values of later heads, to MLPs and to the logits, of which "
        f"{sum(len(one['edges_used']) for one in programs)} carry something of the program (read off its weights).",
        "",
        "| edges: method, reference | AUROC | average precision | AUROC of the size |",
        "|---|---|---|---|",
    ]
    for label in programs[0]["edge_scores"]:
        rows = [one["edge_scores"][label] for one in programs]
        shown = " | ".join(interval([row[key] for row in rows]) for key in ("auroc", "ap", "auroc_size"))
        lines.append(f"| {label} | {shown} |")
    return "\n".join(wrapped(line) for line in [*lines, "", *which(programs)])


def wrapped(line: str) -> str:
    """A paragraph or an item of a list in lines of the documentation's width."""
    if line.startswith("|"):
        return line
    return textwrap.fill(line, 120, subsequent_indent="  " * line.startswith("- "), break_long_words=False)


def which(programs: list[dict[str, Any]]) -> list[str]:
    """Which method for what, with the numbers of the table."""

    def of(label: str, key: str = "auroc") -> str:
        return f"{mean_of(programs, label, key):.2f}"

    def edges(label: str, key: str = "auroc") -> str:
        return f"{mean_of(programs, label, key, 'edge_scores'):.2f}"

    missed = [one["name"] for one in programs if one["scores"]["nested, mean"]["auroc"] < 1]
    return [
        "Which method for what, on these programs:",
        "",
        f"- **Which heads does the behaviour need?** `ablation`: {of('ablation, mean')} with `mean`.",
        f"- **The same from a few passes.** `sensitivity` ({of('sensitivity, mean')}) and `integrated` "
        f"({of('integrated, mean')}) before `attribution` ({of('attribution, mean')}; its size without sign "
        f"{of('attribution, mean', 'auroc_size')}): the MLPs of programs that count are staircases, on which the slope "
        "at one point says little.",
        f'- **A ranking for circuits.** `nested`: {of("nested, mean")}; with `start="ablation"` '
        f"{of('nested from ablation, mean')}. It learns from slopes, and a staircase has none, or only jumps. Where it "
        "meets slopes that are exactly 0, the exact ranking replaces each learned one that it beats on the held-back "
        f"examples. `nested` missed a head in {len(missed)} of {len(programs)} programs"
        + (f" ({', '.join(missed)})" if missed else "")
        + "; by what it learned alone it was in seven, with an AUROC of 0.96 (0.93 to 0.99), and there the number is "
        "now that of `ablation`. In count_of_back_1 the slope of one used head was exactly 0 in 937 of 960 updates.",
        f"- **Heads that suffice alone.** `keep` ({of('keep, mean')}) misses heads that need others; `direct` "
        f"({of('direct, mean')}) misses heads whose output is read by a later layer.",
        f"- **Which component reads which?** Exact edges: {edges('exact, mean')}; from gradients "
        f"{edges('integrated, mean')} (`integrated`) and {edges('attribution, mean')} (`attribution`).",
        "",
        "Not scored: `pattern` and `probe` ask other questions (where a head looks, what can be read from it). "
        "Not measured: `gating`, and `nested` with other references than `mean`.",
    ]


def page() -> str:
    """The page with its table written anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    return f"{before}{BEGIN}\n{table(result)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
