"""What `recipes.py` measured, as one file of numbers and as the tables of docs/nested.md.

    python benchmarks/recipes_table.py DIR     reads DIR, writes results/recipes.json and the tables of the page
    python benchmarks/recipes_table.py         writes the tables again from results/recipes.json

CPR and CMD are MIB's (arXiv 2504.13151): areas over ten fixed fractions of the components, of f by the signed order and
of |1 − f| by the absolute one. A recipe's number is the mean over its seeds. A difference is that of `nested` and a
recipe on the same examples, averaged over seeds; its interval has the variance over examples (bootstrap) and seeds,
with Satterthwaite's degrees of freedom. Positive is better for `nested`, of CMD as well.

S seeds, E examples, B resamples.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, write
from headwise.heads import Head
from headwise.stats.intervals import _t
from headwise.sweeps.curve import Sweep
from headwise.sweeps.mib import FRACTIONS, Mib

PAGE = Path(__file__).parent.parent / "docs" / "nested.md"
START, END = "<!-- recipes -->", "<!-- /recipes -->"
MARGIN = -0.02
"""A recipe is not shown to be better where the lower end of the difference is above it."""
FOR = {"cpr": "nested most", "cmd": "nested below=1"}
"""The objective of ours that asks for what each area rewards, chosen beforehand."""


# ---- from what was measured to numbers ----------------------------------------------------------------


class Case:
    """One part of one pair of model and task."""

    def __init__(self, file: Path) -> None:
        self.about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        with np.load(file.with_suffix(".npz")) as arrays:
            self.none, self.full = arrays["none"], arrays["full"]
            self.values = arrays["values"].astype(float)
        self.model, self.task = file.stem.rsplit("-", 2)[:2]
        self.listed = [Head.parse(name) for name in self.about["listed"]]
        groups = self.about["groups"]
        self.groups = None if groups is None else tuple(groups)

    @property
    def key(self) -> str:
        return f"{self.model}/{self.task}"

    def curve(self, name: str, ranked: dict[str, Any], by: str, sizes: list[int] | None = None) -> Sweep:
        """The curve of an order; at all measured sizes, or at these."""
        where = self.about["curves"][name][str(ranked["seed"])]
        total = len(self.listed)
        at = dict(zip(where[by], self.values[where[f"{by}_rows"]], strict=True))
        at |= {0: self.none, total: self.full}
        k = sorted(at) if sizes is None else sizes
        return Sweep(
            k=np.array(k),
            values=np.stack([at[one] for one in k]),
            none=self.none,
            full=self.full,
            order=[self.listed[i] for i in ranked[by]],
            model=self.model,
            task=self.task,
            series=name,
            action="keep",
            metric=self.about["metric"],
            reference=self.about["reference"],
            total=total,
            by=by,
            groups=self.groups,
            families=self.about["families"],
        )

    def mib(self, name: str, ranked: dict[str, Any]) -> Mib:
        sizes = [int(fraction * len(self.listed)) for fraction in FRACTIONS]
        both = {by: self.curve(name, ranked, by, sizes) for by in ("signed", "absolute")}
        return Mib(**both, scores=None)  # type: ignore[arg-type]


def row_of(case: Case, name: str, areas: list[Mib]) -> dict[str, Any]:
    """What is said of one recipe: areas over seeds, cost, and the curve of its first seed."""
    orders = case.about["ranked"][name]
    row: dict[str, Any] = {"seeds": len(orders)}
    for which in ("cpr", "cmd"):
        values = [getattr(one, which).value for one in areas]
        row[which] = round(float(np.mean(values)), 4)
        row[f"{which}_seeds"] = [round(value, 4) for value in values]
    row["rows"] = round(float(np.mean([one["rows"] for one in orders])))
    row["rows_forward"] = round(float(np.mean([one["rows_forward"] for one in orders])))
    row["score_s"] = round(float(np.mean([one["seconds"] for one in orders])), 2)
    summary = case.curve(name, orders[0], "signed").summary(0.9)
    names = ("k", "k_lo", "k_hi", "stays", "stays_lo", "stays_hi", "kept")
    names += ("r2", "r2_lo", "r2_hi", "lowest_family", "lowest_family_lo", "lowest_family_hi", "family")
    for key in names:
        value = summary[key]
        row[key] = value if isinstance(value, str) else None if np.isnan(value) else round(float(value), 3)
    return row


def difference(ours: list[Mib], other: list[Mib], which: str) -> list[float]:
    """Ours minus the other, better is positive: [mean over seeds, lo, hi]."""
    sign = 1.0 if which == "cpr" else -1.0
    pairs = [(one, other[min(place, len(other) - 1)]) for place, one in enumerate(ours)]
    points = sign * np.array([getattr(a, which).value - getattr(b, which).value for a, b in pairs])
    resampled = sign * np.mean([a.resampled(which) - b.resampled(which) for a, b in pairs], axis=0)
    n, seeds = ours[0].signed.n, len(points)
    by_example = float(resampled.var()) * n / (n - 1)
    by_seed = float(points.var(ddof=1)) / seeds if seeds > 1 else 0.0
    total = by_example + by_seed
    degrees = by_example**2 / (n - 1) + (by_seed**2 / (seeds - 1) if seeds > 1 else 0.0)
    half = float(_t(total**2 / degrees if degrees else np.inf, 0.95)) * np.sqrt(total)
    return [round(float(x), 4) for x in (points.mean(), points.mean() - half, points.mean() + half)]


def summarised(folder: Path) -> dict[str, Any]:
    """The numbers of all files in the folder; parts of one pair and reference are joined."""
    result: dict[str, Any] = {}
    for reference in ("patch", "mean"):
        joined: dict[str, dict[str, tuple[Case, list[Mib]]]] = {}
        for file in sorted(folder.glob("*-*-*.json")):
            case = Case(file)
            if case.about["reference"] != reference:
                continue
            for name, orders in case.about["ranked"].items():
                areas = [case.mib(name, one) for one in orders]
                joined.setdefault(case.key, {})[name] = (case, areas)
        cases = result[reference] = {}
        for key, recipes in joined.items():
            case = next(iter(recipes.values()))[0]
            ours = [name for name in recipes if name.startswith("nested")]
            cases[key] = {
                **{name: case.about[name] for name in ("date", "machine", "versions")},
                "n": case.about["n_tested"],
                "fit_rows": case.about["rows"],
                "components": len(case.listed),
                "metric": case.about["metric"],
                "refused": case.about["refused"],
                "recipes": {name: row_of(one, name, areas) for name, (one, areas) in recipes.items()},
                "differences": {
                    which: {
                        mine: {
                            name: difference(recipes[mine][1], areas, which)
                            for name, (_, areas) in recipes.items()
                            if name != mine
                        }
                        for mine in ours
                    }
                    for which in ("cpr", "cmd")
                },
            }
            print(reference, key, len(recipes), "recipes", flush=True)
    return result


# ---- from numbers to the page -------------------------------------------------------------------------


def grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def names_of(cases: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(name for case in cases.values() for name in case["recipes"]))
    return sorted(names, key=lambda name: not name.startswith("nested"))


def area_table(cases: dict[str, Any], which: str) -> str:
    """Mean over seeds, a column per pair; the best of each column is bold."""
    best = max if which == "cpr" else min
    tops = {key: best(row[which] for row in case["recipes"].values()) for key, case in cases.items()}
    rows = []
    for name in names_of(cases):
        cells = []
        for key, case in cases.items():
            row = case["recipes"].get(name)
            text = "–" if row is None else f"{row[which]:.3f}"
            cells.append(f"**{text}**" if row is not None and row[which] == tops[key] else text)
        rows.append([f"`{name}`", *cells])
    return grid([f"{which.upper()}", *[key.replace("/", " ") for key in cases]], rows)


def counted(cases: dict[str, Any], which: str, mine: str) -> dict[str, tuple[int, int, list[float], str]]:
    """Of each recipe: in how many pairs, of how many, the lower end is above the margin; the worst pair."""
    found = {}
    for name in names_of(cases):
        seen = {
            key: case["differences"][which][mine][name]
            for key, case in cases.items()
            if name in case["differences"][which].get(mine, {})
        }
        if seen:
            worst = min(seen, key=lambda key: seen[key][1])
            found[name] = (sum(one[1] > MARGIN for one in seen.values()), len(seen), seen[worst], worst)
    return found


def difference_table(cases: dict[str, Any], chosen: dict[str, str]) -> str:
    by = {which: counted(cases, which, mine) for which, mine in chosen.items()}
    rows = []
    for name in names_of(cases):
        if name.startswith("nested"):
            continue
        if not any(name in of for of in by.values()):
            continue
        cells = [f"`{name}`"]
        for which in chosen:
            if name not in by[which]:
                cells += ["–", "–"]
                continue
            above, of, (mean, lo, hi), worst = by[which][name]
            cells += [f"{above} of {of}", f"{mean:+.3f} [{lo:+.3f}, {hi:+.3f}] ({worst.replace('/', ' ')})"]
        rows.append(cells)
    head = ["recipe"]
    for which, mine in chosen.items():
        head += [f"{which.upper()}, `{mine}`: pairs", "worst pair"]
    return grid(head, rows)


def needed_table(cases: dict[str, Any]) -> str:
    """Components at which 90 % is reached, the lowest family and R² there; first seed."""
    rows = []
    for name in names_of(cases):
        cells = []
        for case in cases.values():
            row = case["recipes"].get(name)
            if row is None or row["k"] is None:
                cells.append("–")
                continue
            worst = "–" if row["lowest_family"] is None else f"{row['lowest_family']:.2f}"
            r2 = "–" if row["r2"] is None else f"{row['r2']:.2f}"
            stays = "–" if row["stays"] is None else f"{row['stays']:.0f}"
            cells.append(f"{row['k']:.0f}, {stays}; {worst}; {r2}")
        rows.append([f"`{name}`", *cells])
    return grid(["k, stays; lowest family; R²", *[key.replace("/", " ") for key in cases]], rows)


def cost_table(cases: dict[str, Any]) -> str:
    rows = []
    for name in names_of(cases):
        found = [case["recipes"][name] for case in cases.values() if name in case["recipes"]]
        cells = [f"{np.mean([row[key] for row in found]):,.0f}" for key in ("rows", "rows_forward")]
        rows.append([f"`{name}`", *cells, f"{np.mean([row['score_s'] for row in found]):.1f}"])
    return grid(["", "rows, forward and backward", "further rows, forward", "seconds"], rows)


def measured_on(key: str, case: dict[str, Any]) -> str:
    chip, *_, device, _ = case["machine"].split(", ")
    seeds = max(row["seeds"] for row in case["recipes"].values())
    return (
        f"{key.replace('/', ' ')} ({case['components']} components, {case['n']} test examples, {case['fit_rows']:,} "
        f"rows per fit, {seeds} seeds; {chip if device == 'cuda' else 'a CPU'}, {case['date'][:10]})"
    )


def tables(result: dict[str, Any]) -> str:
    """What stands between the marks of the page."""
    patch, mean = result["patch"], result["mean"]
    parts = [
        "MIB's areas under counterfactual patching of heads, MLPs and the input, mean over seeds:",
        area_table(patch, "cpr"),
        area_table(patch, "cmd"),
        "`nested` minus each recipe, better is positive. Pairs: those whose lower end is above −.02.",
        difference_table(patch, FOR),
        "The default objective (`match`, `below=4`) on both areas:",
        difference_table(patch, dict.fromkeys(FOR, "nested")),
        "Components at which 90 % of the effect is reached and from which on it stays, and at the latter the lowest "
        "explained effect of a family and R² over the prompts (first seed), under patching:",
        needed_table(patch),
        "Rows and seconds of a fit, mean over the pairs (several processes shared the device):",
        cost_table(patch),
        "Measured: " + "; ".join(measured_on(key, case) for key, case in patch.items()) + ".",
    ]
    if mean:
        parts += [
            "Under mean ablation of heads alone, one seed, the same fractions:",
            area_table(mean, "cmd"),
            needed_table(mean),
        ]
    return "\n\n".join(parts)


def page(text: str, result: dict[str, Any]) -> str:
    """The page with new tables."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{tables(result)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="what `recipes.py --out` wrote")
    parser.add_argument("--json", type=Path, default=RESULTS / "recipes.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    if args.folder is not None:
        write(args.json, summarised(args.folder))
    result = json.loads(args.json.read_text(encoding="utf-8"))
    text = args.page.read_text(encoding="utf-8")
    if START in text:
        args.page.write_text(page(text, result), encoding="utf-8")
    for which, mine in FOR.items():
        for name, found in counted(result["patch"], which, mine).items():
            print(f"{which} {mine} beside {name}: {found}")


if __name__ == "__main__":
    main()
