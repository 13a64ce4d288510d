"""`headwise demo`: five studies, small, on the bundled model, and one report over them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.cli.look import check
from headwise.cli.output import Failed, echo
from headwise.cli.root import app, option, with_options
from headwise.cli.run import resumable
from headwise.errors import HeadwiseError, first_line
from headwise.files import DiskError

if TYPE_CHECKING:
    from headwise.report import Story
    from headwise.studies.workbench import Workbench

# Chosen by measuring, so that each takes 60 to 90 seconds on two cores: large enough to show what a study says,
# too small for its bands to be narrow.
STUDIES: dict[str, dict[str, Any]] = {
    "functions": {"models": ["smollm2"], "n": 12},
    "roles": {"models": ["smollm2"], "tasks": ["syntax"], "quick": True},
    # Under mean ablation the few examples of `quick` leave no effect to explain, and the panels would be empty.
    "circuits": {
        "models": ["smollm2", "smollm2-sparse"],
        "orders": ["integrated"],
        "references": ["patch"],
        "quick": True,
    },
    "masking": {"models": ["smollm2"], "abilities": ["Retrieval", "Knowledge Recall"], "quick": True},
    "prompts": {"models": ["smollm2"], "quick": True, "n": 16},
}
SHOWN = 3
"""Findings on the terminal."""


@app.command()
@with_options("device", "dtype", "trust_remote_code")
def demo(
    out: Annotated[Path, option("the folder for the runs and the report")] = Path("demo"),
    **flags: Any,
) -> dict[str, Any]:
    """Run five studies, small, on the bundled model, and write one report: a few minutes."""
    check("smollm2", **flags)
    with resumable():
        result = run_demo(out, tell=typer.echo, **{name: value for name, value in flags.items() if value})
    if result["report"]:
        echo(f"{result['report']}: open it in a browser")
        echo(
            f"headwise explore {explored(result['runs'])}: switch heads off in the browser and watch the model change"
        )
    for name, reason in result["failed"].items():
        echo(f"headwise: the study {name} failed: {reason}", err=True)
    if result["failed"]:
        raise Failed(result)
    return result


def run_demo(
    out: Path, *, progress: bool = True, tell: Callable[[str], None] = print, **further: Any
) -> dict[str, Any]:
    """Run the studies into `out`, or resume where an earlier call stopped; then write the report over all of them.

    further: settings of every study, such as `device`.

    A study that fails does not stop the others: `failed` says why, by study.
    """
    from headwise.model.load.bundled import companions
    from headwise.report import findings, write_report
    from headwise.studies.base import run, study_named
    from headwise.studies.workbench import Workbench

    chosen = {name: {**settings, **further} for name, settings in STUDIES.items()}
    failed: dict[str, str] = {}
    for name, settings in chosen.items():
        missing = set(settings["models"]) - {"smollm2", *companions()}
        if missing:
            tell(f"(without {', '.join(sorted(missing))}: docs/sparsify.md says how to install it)")
            settings["models"] = [model for model in settings["models"] if model not in missing]
        try:
            study_named(name).settings(**settings).before_run()
        except HeadwiseError as error:  # known before minutes are spent on the others
            failed[name] = str(error)
            tell(f"the study {name} is left out: {error}")
    bench = Workbench(progress=progress)
    folders: dict[Path, Any] = {}
    for number, (name, settings) in enumerate(chosen.items(), start=1):
        if name in failed:
            continue
        tell(f"{number} of {len(STUDIES)}: {name}")
        try:
            folder = run(name, out / name, workbench=bench, **settings)
            folders[folder.path] = folder.shown
        except Exception as error:
            if isinstance(error, DiskError):  # the others would fail too
                raise
            if not isinstance(error, HeadwiseError):
                traceback.print_exc()
            failed[name] = str(error) if isinstance(error, HeadwiseError) else first_line(error)
            tell(f"the study {name} failed: {failed[name]}")
    story = _story(bench, tell) if folders else None
    page = write_report([*folders], out / "report.html", story, folders) if folders else None
    found = findings([*folders], folders)
    for finding in found[:SHOWN]:
        tell(f"- {'' if finding.found else 'Not found: '}{finding.plain or finding.sentence}")
    sentences = [finding.sentence for finding in found]
    story_sentences = list(story.sentences) if story else []
    return {
        "report": page,
        "runs": [*folders],
        "failed": failed,
        "story": story_sentences,
        "findings": sentences,
    }


def _story(bench: Workbench, tell: Callable[[str], None]) -> Story | None:
    """The story that the report begins with; a report without one is better than none."""
    from headwise.studies.story import tell_story

    try:
        story = tell_story(bench.model("smollm2"))
    except HeadwiseError as error:
        tell(f"the report has no story: {error}")
        return None
    tell(story.title + ":")
    for sentence in story.sentences:
        tell(f"  {sentence}")
    return story


def explored(runs: list[Path]) -> str:
    """The run that the explorer shows best: one with circuits, else the first; a model where there is none."""
    named = {run.name: run for run in runs}
    return str(named.get("circuits") or next(iter(runs), "smollm2"))
