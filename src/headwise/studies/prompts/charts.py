"""The figure of the study `prompts`: answers under each condition, and a head's attention. From tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headwise.charts.style import house_style
from headwise.charts.words import span
from headwise.studies.prompts.condition_style import BARS, FULL, LINES, bar_label, colours, short

LEVEL = 0.05
LEAD = 24
"""Tokens drawn before the insertion where a long beginning (solved examples) would fill the panel."""


def prompt_figure(
    accuracy: pd.DataFrame, comparisons: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> Any:
    """Left, the share of right answers by model and condition with intervals; right, one head's profile.

    `accuracy` and `comparisons` hold the rows of one set of problems, `profiles` those of one head of one model.
    The title says whether any difference is significant. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(accuracy["model"]))
    names = list(dict.fromkeys(accuracy["condition"]))
    width = max(3.0, 1.2 + 0.34 * len(models) * (len(names) + 1))
    beside = profiles is not None and len(profiles) > 0
    with house_style():
        figure = Figure(figsize=(width + (5.6 if beside else 0), 4.4), layout="constrained")
        if beside:
            assert profiles is not None
            halves: Any = figure.subfigures(1, 2, width_ratios=(width, 5.6))
            left, right = halves
            upper, lower = right.subplots(2, 1)
            _aligned(upper, profiles)
            _full(lower, profiles)
        else:
            left = figure
        _bars(left.subplots(), accuracy, comparisons, models, names)
        figure.suptitle(_folded(headline(comparisons), 13 * (width + (5.6 if beside else 0))), fontsize=9)
    return figure


def headline(comparisons: pd.DataFrame | None) -> str:
    """Whether any condition is better or worse than the baseline, Holm's correction over conditions included."""
    if comparisons is None or not len(comparisons):
        return "One condition: nothing is compared"
    rows = [{str(key): value for key, value in row.items()} for row in comparisons.to_dict("records")]
    found = [row for row in rows if row["p_holm"] < LEVEL]
    several = len({row["model"] for row in rows}) > 1
    if not any(row["difference"] > 0 for row in found):
        smallest = [row["detectable"] for row in rows if not np.isnan(row["detectable"])]
        could = (
            f"; at this size a difference under {100 * min(smallest):.0f} points would mostly be missed"
            if smallest
            else ""
        )
        worse = f"; significantly worse: {_listed(found, several)}" if found else ""
        return f"No gain is significant (Holm p ≥ {LEVEL}){worse}{could}"
    return f"Significant after Holm's correction: {_listed(found, several)}"


def _folded(sentence: str, most: float) -> str:
    """On several lines, broken at its semicolons, where it is longer than the figure is wide."""
    lines = [""]
    for part in sentence.split("; "):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += f"; {part}" if lines[-1] else part
    return ";\n".join(lines)


def _listed(rows: list[dict[str, Any]], several: bool) -> str:
    return "; ".join(
        f"{row['model'] + ', ' if several else ''}{short(row['condition'])} {_points(row['difference'])} points "
        f"[{_points(row['lo'])}, {_points(row['hi'])}]"
        for row in rows
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−").replace("+0.0", "0").replace("−0.0", "0")


def significance(row: Mapping[Any, Any]) -> str:
    """One comparison as a sentence."""
    p = f"{row['test']} p = {row['p']:.3g}, Holm {row['p_holm']:.3g}"
    verdict = "significant" if row["p_holm"] < LEVEL else "not significant"
    detectable = row["detectable"]
    could = (
        "so few problems that no difference could have been found"
        if np.isnan(detectable)
        else f"the smallest difference found with 80 % power is {100 * detectable:.1f} points"
    )
    return (
        f"{row['model']} on {row['task']}, {row['condition']} against {row['baseline']}: "
        f"{_points(row['difference'])} points [{_points(row['lo'])}, {_points(row['hi'])}], {p}, n = {row['n']}: "
        f"{verdict}; {could}"
    )


def _bars(
    axes: Any, accuracy: pd.DataFrame, comparisons: pd.DataFrame | None, models: list[str], names: list[str]
) -> None:
    palette = colours(names, BARS)
    step = 0.8 / len(names)
    for place, name in enumerate(names):
        part = accuracy[accuracy["condition"] == name].set_index("model").reindex(models)
        where = np.arange(len(models)) + (place - (len(names) - 1) / 2) * step
        values = 100 * part["accuracy"].to_numpy()
        errors = np.abs(100 * part[["lo", "hi"]].to_numpy().T - values)
        axes.bar(
            where,
            values,
            0.92 * step,
            color=palette[name],
            label=bar_label(name),
            yerr=None if np.isnan(errors).all() else errors,
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "0.25"},
        )
        for x, model, top in zip(where, models, 100 * part["hi"].to_numpy(), strict=True):
            if _is_significant(comparisons, model, name):
                axes.annotate("*", (x, top), ha="center", va="bottom", fontsize=11)
    axes.set_xticks(range(len(models)), [_wrapped(model) for model in models])
    axes.set_xlim(-0.6, len(models) - 0.4)
    top = float(np.nanmax(100 * accuracy["hi"].fillna(accuracy["accuracy"])))
    axes.set_ylim(0, min(max(1.28 * top, 10), 130))  # room for the legend
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])
    axes.set_ylabel(f"Right answers, % (n = {span(accuracy['n'])}, 95 % interval)")
    axes.set_title(f"Results on {accuracy['task'].iloc[0]}{_lost(accuracy)}")
    columns = 2 if len(names) == 4 else min(len(names), 3)
    axes.legend(frameon=False, fontsize=8, ncols=columns, loc="upper center", columnspacing=1.0)


def _lost(accuracy: pd.DataFrame) -> str:
    """Answers that were cut off or hold no result are said, not hidden in the bars."""
    cut, none = int(accuracy["truncated"].sum()), int(accuracy["unparsed"].sum())
    total = int((accuracy["n"] * accuracy["samples"]).sum())
    return f"\n{cut} of {total} answers cut off, {none} without a result"


def _is_significant(comparisons: pd.DataFrame | None, model: str, condition: str) -> bool:
    if comparisons is None:
        return False
    own = comparisons[(comparisons["model"] == model) & (comparisons["condition"] == condition)]
    return bool((own["p_holm"] < LEVEL).any())


def _wrapped(name: str, most: int = 18) -> str:
    """A long model name on several lines, cut at its own hyphens and slashes."""
    lines, line = [], ""
    for part in name.replace("/", "/\0").replace("-", "-\0").split("\0"):
        if line and len(line + part) > most:
            lines.append(line)
            line = ""
        line += part
    return "\n".join([*lines, line])


def _title(profiles: pd.DataFrame) -> str:
    first = profiles.iloc[0]
    prompts = "one prompt" if first["n"] == 1 else f"mean of {first['n']} prompts"
    long = "\n" if len(first["model"]) > 24 else " "
    return f"Average attention on L{first['layer']}H{first['head']},{long}{first['model']}, {prompts}"


def _aligned(axes: Any, profiles: pd.DataFrame) -> None:
    """Original tokens only, so that all conditions share the axis."""
    names = list(dict.fromkeys(profiles["condition"]))
    palette = colours(names, LINES)
    begin = first_shown(profiles)
    for name in names:
        part = profiles[(profiles["condition"] == name) & profiles["aligned"].notna()].sort_values("aligned")
        part = part[part["aligned"] >= begin]
        x, y = part["aligned"].to_numpy(dtype=float), part["attention"].to_numpy(dtype=float)
        axes.fill_between(x, 0, y, color=palette[name], alpha=0.12, linewidth=0)
        axes.plot(x, y, color=palette[name], linewidth=0.9, label=short(name))
    axes.set(ylabel="Attention", title=_title(profiles), xlabel=f"Original tokens{_from(begin)}")
    _tidy(axes)


def _full(axes: Any, profiles: pd.DataFrame) -> None:
    """The whole sequence of the conditions that insert something, with the inserted span shaded."""
    inserting = profiles.groupby("condition", sort=False)["inserted"].any()
    names = [name for name in dict.fromkeys(profiles["condition"]) if inserting[name]]
    if not names:
        names = list(dict.fromkeys(profiles["condition"]))
    palette = colours(names, FULL)
    shaded, begin = set(), first_shown(profiles)
    for name in names:
        part = profiles[profiles["condition"] == name].sort_values("position")
        part = part[part["position"] >= begin]
        axes.plot(part["position"], part["attention"], color=palette[name], linewidth=0.9, label=short(name))
        for first, last in spans(part["inserted"].to_numpy(dtype=bool)):
            if (first, last) not in shaded:
                axes.axvspan(
                    begin + first - 0.5, begin + last - 0.5, color="0.6", alpha=0.22, linewidth=0, zorder=0
                )
            shaded.add((first, last))
    label = "shaded: inserted" if shaded else "nothing is inserted"
    axes.set(ylabel="Attention", xlabel=f"Full sequence{_from(begin)} ({label})")
    _tidy(axes)


def first_shown(profiles: pd.DataFrame) -> int:
    """The first token drawn: where much stands before the insertion, only the end of it is shown."""
    places = profiles.loc[profiles["inserted"], "position"]
    return max(int(places.min()) - LEAD, 0) if len(places) and places.min() > 4 * LEAD else 0


def _from(begin: int) -> str:
    return f" from {begin} on" if begin else ""


def spans(inserted: np.ndarray) -> list[tuple[int, int]]:
    """[from, to) of each run of inserted tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inserted, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _tidy(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylim(0, 1.18 * axes.get_ylim()[1])  # room for the legend
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=4)
