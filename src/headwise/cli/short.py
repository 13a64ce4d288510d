"""The commands that are short for `headwise run STUDY`: options of their own, and the main table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan
from pathlib import Path
from typing import Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import (
    MODEL_HELP,
    STUDY,
    Components,
    MethodNames,
    ModelName,
    Positions,
    PositionsOrEach,
    TaskName,
    app,
    argument,
    option,
    with_options,
)
from headwise.cli.run import number_range, run_study
from headwise.errors import HeadwiseError
from headwise.names import component_name


@app.command()
@with_options(*STUDY)
def score(
    model: ModelName,
    task: TaskName,
    method: MethodNames = None,
    components: Components = None,
    positions: PositionsOrEach = None,
    precision: Annotated[
        str | None,
        option("ablation: run only as many examples as give ± this; auto: 5 % of the largest score"),
    ] = None,
    top: Annotated[int | None, option("ablation: run only as many examples as find the top K heads")] = None,
    confidence: Annotated[
        float | None, option("confidence level of --precision or --top; by default 0.95")
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Score every head of a model on a task; the same command again resumes.

    Short for `headwise run score MODEL TASK`. With --positions each: every head at every token position.
    """
    options = {
        "precision": _number(precision),
        "top": top,
        "confidence": confidence,
        "components": components,
    }
    settings: dict[str, Any] = {"models": [model], "tasks": [task], "method": method, "positions": positions}
    settings["method_options"] = {name: value for name, value in options.items() if value is not None}
    return {"model": model, "task": task, **run_study("score", settings, flags, show_scores)}


def show_scores(out: Path) -> dict[str, Any]:
    """Print the heads (or heads at positions, where the run has no others) that stand out; returns every row."""
    from headwise.charts.heatmap import position_name
    from headwise.runs import read_table
    from headwise.tables.frames import SKEWED, by_size, too_few

    has_scores = (out / "tables" / "scores.parquet").is_file()
    table = read_table(out, "scores" if has_scores else "positions")
    for (model, task, name), part in table.groupby(["model", "task", "method"], sort=False):
        n = number_range(part["n"].tolist())
        echo(f"{name} on {task}, {model}: {largest_of(len(part))}, n = {n}")
        for row in by_size(part)[:10].to_dict("records"):
            head = component_name(row["layer"], row["head"])
            if "position" in row:
                head += f" at {position_name(row['position'], row['token'])}"
            # One example or one seed has no interval, and what is not tested has no q.
            interval = "" if isnan(row["lo"]) else f"  [{row['lo']:+.3f}, {row['hi']:+.3f}]"
            q = "" if isnan(row["q"]) else f"  q = {row['q']:.2g}"
            skewed = "  skewed" if abs(row.get("skewness", 0)) > SKEWED else ""
            echo(f"  {head:<{24 if 'position' in row else 8}}{row['score']:+8.3f}{interval}{q}{skewed}")
        if few := too_few(part, "head-position pair" if "position" in part else "head"):
            echo(f"  {few}")
    return {"scores": table.to_dict("records")}


def largest_of(count: int) -> str:
    """What a list of at most ten rows shows of `count`.

    >>> largest_of(270), largest_of(3)
    ('the ten largest of 270', 'all 3')
    """
    return f"the ten largest of {count}" if count > 10 else f"all {count}"


def _number(given: str | None) -> float | str | None:
    """A number where it is one; `auto` and mistakes as they are, for the method to judge."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given


def _tested(row: Mapping[Any, Any], name: str) -> str:
    """A number with its interval and its q-value."""
    return f"{row[name]:+8.3f}  [{row['lo']:+.3f}, {row['hi']:+.3f}]  q = {row['q']:.2g}"


TUNED_HELP = "a model with the same architecture: alias, hub id, folder (also of an adapter)"


@app.command()
@with_options(*STUDY)
def diff(
    before: Annotated[str, argument("BASE", MODEL_HELP, "models")],
    tuned: Annotated[str, argument("TUNED", TUNED_HELP, "models")],
    task: TaskName,
    method: MethodNames = None,
    positions: Positions = None,
    **flags: Any,
) -> dict[str, Any]:
    """Compare the heads of two models on the same examples (tuned − base); the same command again resumes.

    Short for `headwise run diff --model BASE --model TUNED --task TASK`.
    """
    settings = {"models": [before, tuned], "tasks": [task], "method": method, "positions": positions}
    return {"base": before, "tuned": tuned, "task": task, **run_study("diff", settings, flags, show_diff)}


def show_diff(out: Path) -> dict[str, Any]:
    """Print the first ten changes by each method; returns the rows of the tables that compare the models."""
    from headwise.runs import read_table

    tables = {name: read_table(out, name) for name in ("diff", "outcomes")}
    for (task, name), part in tables["diff"].groupby(["task", "method"], sort=False):
        echo(f"{name} on {task}, tuned − base, {len(part)} heads; significant changes first (*: q < .05):")
        for row in part[:10].to_dict("records"):
            head = component_name(row["layer"], row["head"]) + "*" * (row["q"] < 0.05)
            share = row.get("weight_change", nan)
            weights = "" if isnan(share) else f"  weights {share:.2%}"
            scores = f"{row['base_score']:+.3f} → {row['tuned_score']:+.3f}"
            echo(f"  {head:<8}{_tested(row, 'difference')}  ({scores}){weights}")
    return {name: table.to_dict("records") for name, table in tables.items()}


@app.command()
@with_options(*STUDY)
def edges(
    model: ModelName,
    task: TaskName,
    into: Annotated[
        list[str] | None,
        option(
            "receiver: a head (L23H3: its Q, K and V), L23H3.Q, L23KV1.K, MLP4 or logits; repeat for several. By "
            "default the top heads of the task"
        ),
    ] = None,
    method: Annotated[str | None, option("edge method: exact (default), attribution or integrated")] = None,
    heads: Annotated[
        int | None, option("without --into: number of top heads whose edges are scored; by default 16", min=2)
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Score the direct edges into some heads, or among the top heads; the same command again resumes.

    Short for `headwise run wiring MODEL TASK`.
    """
    settings = {"models": [model], "tasks": [task], "into": into, "heads": heads}
    settings["method"] = [method] if method else None
    return {"model": model, "task": task, **run_study("wiring", settings, flags, show_edges)}


def show_edges(out: Path) -> dict[str, Any]:
    """The ten largest edges on the terminal; returns all of them."""
    from headwise.runs import read_table
    from headwise.tables.frames import by_size

    table = read_table(out, "edges")
    largest = by_size(table)
    echo(f"{largest_of(len(table))} edges on held-out examples (*: q < .05)")
    for row in largest[:10].to_dict("records"):
        star = "*" if row["q"] < 0.05 else ""
        shared = f"  shared by {row['heads']}" if " " in row["heads"] else ""
        echo(f"  {row['sender']:>7} → {row['receiver']:<10}{star:<2}{_tested(row, 'score')}{shared}")
    columns = ["sender", "receiver", "slot", "score", "lo", "hi", "q"]
    return {"edges": largest[columns].to_dict("records")}


@app.command()
@with_options(*STUDY)
def interactions(
    model: ModelName,
    task: TaskName,
    heads: Annotated[
        list[str] | None,
        option("a head such as L23H3; repeat for several; or: all. By default the study chooses 40"),
    ] = None,
    given: Annotated[
        list[str] | None,
        option("a removed head; repeat for a set: the effect of each other head without the set"),
    ] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Show which heads back each other up and which need each other; the same command again resumes.

    Short for `headwise run backups MODEL TASK`.
    """
    settings = {"models": [model], "tasks": [task], "heads": heads, "primary": given}
    return {"model": model, "task": task, **run_study("backups", settings, flags, show_interactions)}


def show_interactions(out: Path) -> dict[str, Any]:
    """The ten largest interactions on the terminal; returns all of them, and the backups."""
    from headwise.runs import read_table
    from headwise.runs.reader import RunTables

    pairs = read_table(out, "interactions").sort_values(
        "interaction", key=abs, ascending=False, kind="stable"
    )
    metric = pairs["metric"].iloc[0]
    echo(f"interactions: {largest_of(len(pairs))} pairs ({metric}; positive: the two back each other up)")
    for row in pairs.head(10).to_dict("records"):
        echo(
            f"  {row['a']} {row['b']:<8}{_tested(row, 'interaction')}  "
            f"(alone {row['effect_a']:+.3f}, {row['effect_b']:+.3f}; both {row['joint']:+.3f})"
        )
    backups = RunTables(out).get("backups")
    found = [] if backups is None else backups.to_dict("records")
    return {"pairs": pairs.to_dict("records"), "backups": found}


@app.command()
@with_options(*STUDY)
def certify(
    source: Annotated[str, argument("MODEL|RUN", f"{MODEL_HELP}; or a run of score or circuits", "models")],
    task: Annotated[
        str | None,
        argument("TASK", "a built-in task (headwise list tasks), a file; of a run: its own", "tasks"),
    ] = None,
    heads: Annotated[
        str | None,
        option(
            "the set: names (L23H3,L20H0), a heads file, or a run folder or scores with --top; by default a set "
            "is found on other examples than it is tested on"
        ),
    ] = None,
    top: Annotated[int | None, option("how many of the first heads form the set", min=1)] = None,
    **flags: Any,
) -> dict[str, Any]:
    """Test whether a set of heads is a circuit of a behaviour: six checks decide, five inform; one page.

    A run gives model, task, ablation type and ranking; the set is tested on other examples. --quick: checks 1 to 4 on
    fewer examples. Exit code 0 whatever the verdict; --json has it.
    """
    settings: dict[str, Any] = {"models": [source], "tasks": [task], "heads": heads}
    if (Path(source) / "run.json").is_file():
        from headwise.studies.certify.settings import from_run

        if heads is not None:
            raise HeadwiseError(
                f"{source} is a run, whose heads are the set; leave --heads out, or name the model"
            )
        settings = from_run(source, task)
    elif task is None:
        raise HeadwiseError("the task is missing: headwise certify MODEL TASK, or headwise certify RUN")
    names = {"model": settings["models"][0], "task": settings["tasks"][0]}
    return names | run_study("certify", settings | {"top": top}, flags, show_certificate)


def show_certificate(out: Path) -> dict[str, Any]:
    """Print every check; returns verdict, sentence and checks."""
    from headwise.certificates.certificate import in_words
    from headwise.runs import read_table

    certificate, checks = read_table(out, "certificates").iloc[0], read_table(out, "checks")
    echo(f"{certificate['verdict'].upper()}: {certificate['sentence']}")
    echo(f"  the set: {certificate['heads']}; n = {certificate['n']}")
    echo("\n".join(in_words(checks)))
    names = ("verdict", "sentence", "k", "of", "heads", "core", "shell", "n", "reference")
    return {name: certificate[name] for name in names} | {"checks": checks.to_dict("records")}
