"""The tools of the server. Each is checked by the SDK, and carried out by the thread that owns the models."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headwise.errors import HeadwiseError, unknown
from headwise.explorer.worker import LIVE, Event, Job, Worker
from headwise.mcp.answers import (
    MOST_REPORT,
    MOST_ROWS,
    Examples,
    Half,
    HeadName,
    HeadNames,
    HeadScore,
    Measured,
    ModelEntry,
    Models,
    Preview,
    Reference,
    Run,
    ScoreResult,
    Seed,
    Shown,
    Table,
    Text,
    Texts,
    Verdict,
    card_tables,
    number,
    rows,
    too_few,
)
from headwise.mcp.desk import Desk

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

INSTRUCTIONS = """headwise measures which attention heads a model uses for a behaviour. Ask in this order: list_models;
task_preview (can the model do the task at all?); score with half="find"; measure with half="test" and controls; certify
with half="test". n examples are drawn and split: a half has about n/2, and every answer says how many it used. A
positive number means that the heads help. Every number depends on its reference (ablation type)."""


def server(desk: Desk) -> Any:
    """The MCP server over what the user named; `run()` serves it on the standard streams."""
    try:
        from mcp.server import mcpserver
        from mcp.server.mcpserver.exceptions import ResourceError, ToolError
    except ImportError:
        raise HeadwiseError(
            "the MCP server needs the official SDK, version 2; install it: pip install 'headwise[mcp]'"
        ) from None
    globals()["Context"] = mcpserver.Context  # where the SDK looks the annotations of the tools up
    app = mcpserver.MCPServer("headwise", instructions=INSTRUCTIONS)
    worker = Worker()
    worker.start()

    async def on_model(context: Context, work: Callable[[Callable[[int], None]], Any]) -> Any:
        """Carry out work in the thread that owns the models: progress goes to the client, cancelling stops it."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

        def emit(event: Event | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def steps(job: Job) -> Iterator[Event]:
            from torch.nn.modules.module import register_module_forward_pre_hook

            def advance(done: int = 1) -> None:
                job.check()
                emit({"event": "progress", "steps": done})

            # A batch of a long call takes a minute on a CPU: the job also looks at every module that runs.
            watched = register_module_forward_pre_hook(lambda *_: job.check())
            try:
                yield {"event": "result", "result": work(advance)}
            finally:
                watched.remove()

        job = Job(uuid.uuid4().hex, "tool", LIVE, steps, emit)
        worker.submit(job)
        result, done = None, 0
        try:
            while (event := await events.get()) is not None:
                if event["event"] == "progress":
                    done += event["steps"]
                    await context.report_progress(done)
                elif event["event"] == "error":
                    raise ToolError(event["message"])
                else:
                    result = event.get("result")
        finally:
            job.cancel()  # where nobody waits any more, the worker is free at its next batch
        return result

    @app.tool()
    async def list_models() -> Models:
        """Models, tasks and runs that this server may use. `layers` and `heads` (of a layer) are known once a model is
        loaded, which its first call does."""
        shapes = {name: model.shape for name, model in desk.loaded.items()}
        entries = [
            ModelEntry(
                name=name,
                loaded=name in shapes,
                layers=shapes.get(name, (None, None))[0],
                heads=shapes.get(name, (None, None))[1],
            )
            for name in desk.models
        ]
        return Models(models=entries, tasks=desk.tasks(), runs=desk.run_names())

    @app.tool()
    async def task_preview(
        context: Context, task: Text, model: Text | None = None, n: Examples = 32, seed: Seed = 0
    ) -> Preview:
        """Three examples of a task, and the model's accuracy on n of them. Heads of a task that the model cannot do
        mean nothing."""

        def work(advance: Callable[[int], None]) -> Preview:
            from headwise.scores.measure import measure

            loaded, made = desk.opened(model, task, n, seed=seed)
            row = measure(loaded, made, metric="accuracy", progress=advance).table().iloc[0]
            shown = [
                Shown(prompt=e.prompt, target=e.target, foils=list(e.foils), counterfactual=e.counterfactual)
                for e in made.examples[:3]
            ]
            spread = {"accuracy": row["mean"], "accuracy_lo": row["lo"], "accuracy_hi": row["hi"]}
            return Preview(task=made.name, metric=made.metric, n=len(made), examples=shown, **spread)

        return await on_model(context, work)

    @app.tool()
    async def score(
        context: Context,
        task: Text,
        model: Text | None = None,
        method: Literal["attribution", "ablation", "integrated", "random"] = "attribution",
        n: Examples = 64,
        half: Half = "find",
        reference: Reference = "mean",
        metric: Text | None = None,
        seed: Seed = 0,
        top: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 20,
    ) -> ScoreResult:
        """Score every head on one half of n examples (half="all": on all n). `attribution` takes seconds and is a
        first-order estimate; `ablation` is exact and takes many times as long. The heads are listed by absolute score:
        positive ones help, negative ones hinder. Test what you find with half="test"."""

        def work(advance: Callable[[int], None]) -> ScoreResult:
            from headwise.scores import score as score_heads

            loaded, made = desk.opened(model, task, n, half, seed)
            options: dict[str, Any] = {"metric": metric, "reference": reference, "seed": seed}
            scores = score_heads(loaded, made, method, progress=advance, **options)
            table = scores.table()
            largest = table.reindex(table["score"].abs().sort_values(ascending=False).index).head(top)
            heads = [
                HeadScore(
                    head=f"L{row.layer}H{row.head}",
                    **{name: number(getattr(row, name)) for name in ("score", "lo", "hi", "q")},
                )
                for row in largest.itertuples()
            ]
            return ScoreResult(
                model=loaded.name,
                task=made.name,
                half=half,
                method=method,
                metric=scores.metric,
                reference=scores.reference,
                n=scores.n,
                of=len(table),
                significant=int((table["q"] < 0.05).sum()),
                heads=heads,
                notes=too_few(made, len(table)),
            )

        return await on_model(context, work)

    @app.tool()
    async def card(
        context: Context,
        head: HeadName,
        task: Text,
        model: Text | None = None,
        n: Annotated[int, Field(ge=4, le=32)] = 16,
    ) -> Table:
        """One head on n examples, reference mean: what it does in words (`notes`), its scores, the examples it helps
        and hurts most, the tokens that the position which predicts the answer attends to most, and what it writes:
        `target` is the right answer, `foil` the wrong one, with the logit that the head adds and its rank (1: the most
        promoted token, `of`: the most suppressed)."""

        def work(advance: Callable[[int], None]) -> Table:
            from headwise.cards import card as card_of
            from headwise.charts.card import sentences

            loaded, made = desk.opened(model, task, n)
            found = card_of(loaded, head, made, progress=advance)
            said = sentences(found.table("tokens"), found.table("patterns"))
            tables = {name: rows(table) for name, table in card_tables(found.tables).items()}
            return Table(title=f"{found.title} ({found.lead})", notes=[*said, *found.notes], tables=tables)

        return await on_model(context, work)

    @app.tool()
    async def edges(
        context: Context,
        into: Annotated[str, Field(max_length=32)],
        task: Text,
        model: Text | None = None,
        n: Annotated[int, Field(ge=4, le=128)] = 16,
        top: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 20,
    ) -> Table:
        """Which heads a head ("L23H3": Q, K and V; "L23H3.Q": its query alone) or the output ("logits") reads from: the
        largest direct edges in absolute value, by attribution (a first-order estimate, reference mean) on the half
        `find` of n examples. A negative edge lowers the metric."""

        def work(advance: Callable[[int], None]) -> Table:
            from headwise.scores.edges import edges as edges_of

            loaded, examples = desk.opened(model, task, n, "find")
            made = edges_of(loaded, examples, "attribution", into=into, progress=advance)
            table = made.table()
            table = table.reindex(table["score"].abs().sort_values(ascending=False).index)
            notes = too_few(examples, len(table), "edge")
            return Table(title=repr(made).splitlines()[0], notes=notes, tables={"edges": rows(table, top)})

        return await on_model(context, work)

    @app.tool()
    async def measure(
        context: Context,
        task: Text,
        ablate: HeadNames | None = None,
        keep: HeadNames | None = None,
        model: Text | None = None,
        n: Examples = 64,
        half: Half = "test",
        reference: Reference = "mean",
        metric: Text | None = None,
        controls: Annotated[int, Field(ge=0, le=50)] = 0,
        seed: Seed = 0,
    ) -> Measured:
        """The task's metric with these heads removed (`ablate`), or with only these kept (`keep`). `controls`: so many
        sets of random heads of the same layers are removed (or kept) for comparison; each takes as long as the call
        without them. `larger` counts those whose effect is as large: 0 is what a real effect gives. Give a list of
        heads: ["L23H3"]."""

        def work(advance: Callable[[int], None]) -> Measured:
            from headwise.heads import head_list
            from headwise.heads.controls import layer_matched_heads
            from headwise.scores.measure import measure as measured

            if (ablate is None) == (keep is None):
                raise HeadwiseError(
                    "give the heads either as ablate or as keep; expected exactly one of them"
                )
            loaded, made = desk.opened(model, task, n, half, seed)
            word, heads = ("ablate", ablate) if keep is None else ("keep", keep)
            options: dict[str, Any] = {"reference": reference, "metric": metric, "seed": seed}
            options["progress"] = advance
            found = measured(loaded, made, **{word: heads, **options})
            row = found.table().iloc[0]
            drawn: list[float | None] = []
            for draw in range(controls):
                heads_drawn = layer_matched_heads(loaded.heads(), head_list(heads), f"{seed}/{draw}").heads
                drawn.append(number(measured(loaded, made, **{word: heads_drawn, **options}).effects.mean()))
            names = ("full", "mean", "effect", "effect_lo", "effect_hi", "p")
            return Measured(
                task=made.name,
                half=half,
                metric=found.metric,
                reference=found.reference,
                n=found.n,
                controls=drawn,
                larger=sum(effect is not None and effect >= row["effect"] for effect in drawn)
                if drawn
                else None,
                **{name: number(row[name]) for name in names},
            )

        return await on_model(context, work)

    @app.tool()
    async def generate(
        context: Context,
        prompts: Annotated[
            list[Annotated[str, Field(max_length=40_000)]], Field(min_length=1, max_length=16)
        ],
        ablate: HeadNames | None = None,
        model: Text | None = None,
        max_new_tokens: Annotated[int, Field(ge=1, le=256)] = 32,
        chat: bool = False,
    ) -> Texts:
        """Continue prompts greedily, with heads removed (set to zero: there are no examples to take a mean from)."""

        def work(advance: Callable[[int], None]) -> Texts:
            from headwise.model.generation.generate import generate as generated

            options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "chat": chat, "progress": advance}
            made = generated(desk.model(model), prompts, ablate=ablate, **options)
            return Texts(texts=[str(text) for text in made.texts[0]])

        return await on_model(context, work)

    @app.tool()
    async def certify(
        context: Context,
        task: Text,
        heads: Annotated[list[HeadName], Field(min_length=1, max_length=1024)],
        model: Text | None = None,
        n: Examples = 80,
        half: Half = "test",
        reference: Reference = "mean",
        quick: bool = True,
        seed: Seed = 0,
    ) -> Verdict:
        """Is this set of heads really a circuit of the task? Use examples that did not find the heads (half="test").
        quick: the first four checks, which cannot certify, only reject or support. A half has about n/2 examples, and
        families with fewer than 20 are left out: n=160 judges more of them. Takes minutes on a CPU."""

        def work(advance: Callable[[int], None]) -> Verdict:
            from headwise.certificates.certify import certify as certified

            loaded, made = desk.opened(model, task, n, half, seed)
            options: dict[str, Any] = {"reference": reference, "quick": quick, "seed": seed}
            found = certified(loaded, made, heads, progress=advance, **options)
            checks = rows(found.lines)
            return Verdict(
                verdict=found.verdict,
                sentence=found.sentence,
                n=len(made),
                reference=found.reference,
                checks=checks,
            )

        return await on_model(context, work)

    @app.tool()
    async def open_run(context: Context, name: Text, table: Text | None = None) -> Run:
        """Findings, notices and tables of a finished run; `table` gives its first rows."""

        def work(advance: Callable[[int], None]) -> Run:
            from headwise.report.opened import open_run as opened

            run = opened(desk.run(name))
            if table is not None and table not in run.tables:
                raise unknown("table of the run", table, list(run.tables))
            return Run(
                name=name,
                study=run.study,
                status=run.status,
                findings=[finding.sentence for finding in run.findings],
                notices=run.notices,
                tables=list(run.tables),
                rows=[] if table is None else rows(run.tables[table]),
            )

        return await on_model(context, work)

    @app.resource("headwise://runs/{name}/report", mime_type="text/html")
    def report(name: str) -> str:
        """The report of a run, one HTML page."""
        from headwise.bounded import regular

        try:
            folder = desk.run(name)
            page = regular(folder / "report.html", root=folder, most=MOST_REPORT)
            return page.read_text(encoding="utf-8")
        except (HeadwiseError, OSError) as error:
            raise ResourceError(str(error)) from None

    for (
        tool
    ) in app._tool_manager.list_tools():  # by default the SDK ignores arguments that a tool does not have
        arguments = tool.fn_metadata.arg_model
        arguments.model_config["extra"] = "forbid"
        arguments.model_rebuild(force=True)
        tool.parameters["additionalProperties"] = False
    return app
