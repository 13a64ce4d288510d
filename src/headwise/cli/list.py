"""`headwise list`: what is registered, as tables a person can read and a pipe can cut."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

from headwise.cli.root import app, argument, option
from headwise.errors import HeadwiseError, unknown

Rows = tuple[list[str], list[list[str]]]


@app.command("list")
def list_(
    what: Annotated[
        str,
        argument(
            "WHAT", "models, tasks, metrics, methods, studies, settings (of studies) or families", "lists"
        ),
    ],
    study: Annotated[str | None, argument("STUDY", "with settings: only this study", "studies")] = None,
    live: Annotated[bool, option("with families: try each with the installed transformers")] = False,
) -> list[dict[str, str]]:
    """List models, tasks, metrics, methods, studies and their settings, or families."""
    kinds: dict[str, Callable[[], Rows]] = {
        "models": _models,
        "tasks": _tasks,
        "metrics": _metrics,
        "methods": _methods,
        "studies": _studies,
        "settings": lambda: settings_of(study) if study else _settings(),
        "families": lambda: _families(live),
    }
    if what not in kinds:
        raise unknown("list", what, kinds)
    if study and what != "settings":
        raise HeadwiseError(
            f"`headwise list {what}` takes no further name, but {study!r} is given; only settings do: "
            f"headwise list settings {study}"
        )
    header, rows = kinds[what]()
    print_table(header, rows)
    return [dict(zip(header, cells, strict=True)) for cells in rows]


def _models() -> Rows:
    from headwise.model.load import bundled
    from headwise.model.load.bundled import companions

    embeddings = " (sentence embeddings, for the metric cosine)"
    rows = [
        [model.alias, model.title + ("" if model.gguf else embeddings), model.licence, model.source]
        for model in bundled.aliases().values()
    ]
    rows += [[model.alias, model.title, model.licence, model.source] for model in companions().values()]
    return ["alias", "model", "licence", "source"], rows


def _tasks() -> Rows:
    from headwise.tasks import families, task

    rows = []
    for family in families().values():
        valid = {k: ", ".join(v) if type(v) is tuple else str(v) for k, v in family.options.items()}
        options = "; ".join(f"{name}: {values}" for name, values in valid.items())
        examples = task(family.name, 8).examples
        foils = _how_many([bool(example.foils) for example in examples])
        counterfactuals = _how_many([bool(example.counterfactual) for example in examples])
        first = f"{examples[0].prompt!r} → {examples[0].target!r}"
        size = str(family.size or "any")
        rows.append([family.name, size, family.metric, foils, counterfactuals, family.about, first, options])
    return ["task", "size", "metric", "foils", "counterfactuals", "about", "example", "options"], rows


def _how_many(having: list[bool]) -> str:
    return "yes" if all(having) else "some" if any(having) else "no"


def _metrics() -> Rows:
    from headwise.metrics import metrics, text_metrics

    rows = [[m.name, "logits", "yes" if m.first_order else "no", m.about] for m in metrics().values()]
    rows += [[m.name, "text", "no", m.about] for m in text_metrics().values()]
    return ["metric", "from", "gradient", "about"], rows


def _methods() -> Rows:
    from headwise.scores import methods

    rows = [[m.name, "yes" if m.signed else "no", m.about] for m in methods().values()]
    return ["method", "signed", "about"], rows


def _studies() -> Rows:
    from headwise.studies.base import studies

    return ["study", "question"], [[s.name, s.question] for s in studies().values()]


def _settings() -> Rows:
    from headwise.studies.base import studies
    from headwise.studies.settings.shared import described

    rows = [[study.name, *one] for study in studies().values() for one in described(study.settings)]
    return ["study", "setting", "default", "about"], rows


def settings_of(study: str) -> Rows:
    """The settings of one study, its own before those that all studies share."""
    from headwise.studies.base import study_named as find_study
    from headwise.studies.settings.shared import described

    return ["setting", "default", "about"], [list(one) for one in described(find_study(study).settings)]


def _families(live: bool) -> Rows:
    from headwise.model.verify import families

    if live:
        from headwise.progress import progress

        with progress("Trying families", len(families.names())) as advance:
            tried = list(families.survey(advance))
    else:
        version, tried = families.shipped()
        print(f"tried with transformers {version}; --live tries the installed version", file=sys.stderr)
    rows = [[f.name, f.status, f.how, "yes" if f.shares else "no", f.edges or "–"] for f in tried]
    return ["family", "status", "how, or why not", "prefix sharing", "edges, or why not"], rows


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """A table on a terminal; tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        print("\n".join("\t".join(cells) for cells in [header, *rows]))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for cells in rows:
        table.add_row(*map(escape, cells))
    Console().print(table)
