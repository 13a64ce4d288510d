"""`hw.explore`: the live explorer of a loaded model, from Python, a notebook or the command line."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from html import escape
from pathlib import Path
from typing import Any

from headwise._version import __version__
from headwise.errors import HeadwiseError
from headwise.explorer import requests
from headwise.explorer.guard import Guard
from headwise.explorer.live import LISTED, Live
from headwise.explorer.opened_head import OpenedHeads
from headwise.explorer.run_data import RunData
from headwise.explorer.significance import changed_heads, check, control_gates, held_out
from headwise.explorer.worker import BACKGROUND, LIVE, URGENT, Event, Job, Worker
from headwise.model.model import Model
from headwise.tasks import registry, task

PROMPT = "When Mary and John went to the store, John gave a drink to"
COUNTERFACTUAL = "When Mary and John went to the store, Anna gave a drink to"
_HEIGHT = 900
"""Height of the page in a notebook, in pixels."""


class Explorer:
    """A running explorer: open `url` in a browser; `stop` ends it. In a notebook it shows the page."""

    def __init__(self, model: Model, run: str | Path | None = None) -> None:
        if not model.has_text:
            raise HeadwiseError(f"{model.name} has no tokenizer; pass it: hw.load(model, tokenizer=...)")
        self.model = model
        self.run = None if run is None else RunData(Path(run), model)
        self.worker = Worker()
        self.live = Live(model)
        self.heads = OpenedHeads(self.live, self.run)
        self.token = secrets.token_urlsafe(16)
        self.server: Any = None
        self._seen: dict[str, list[str]] = {}

    # ---- the server ------------------------------------------------------------------------------------

    def serve(
        self, host: str = "127.0.0.1", port: int = 0, *, remote: bool = False, framed: bool = False
    ) -> None:
        """Answer at this address. remote: other machines may reach it. framed: a notebook may show the page."""
        try:
            from headwise.explorer.server import Answer, Server, make_app
        except ModuleNotFoundError as error:
            raise HeadwiseError(
                f"the explorer needs the package {error.name}; install it with: pip install 'headwise[explore]'"
            ) from None
        answers = {
            "run": Answer(requests.Run, self.live.run, LIVE, "next"),
            "attribution": Answer(requests.Attribution, self.live.attribution, URGENT),
            "head": Answer(requests.OpenHead, self.heads.open, URGENT),
            "control": Answer(requests.Control, self.control, URGENT),
            "check": Answer(requests.Check, self.check, BACKGROUND),
            "card": Answer(requests.Card, self.card, BACKGROUND),
        }
        with nullcontext() if self.run is None else self.run.run.explained():
            start = self.start()
        app = make_app(self.worker, start, answers)
        self.server = Server(Guard(app, self.token, remote=remote, framed=framed), host, port)
        self.worker.start()
        self.worker.submit(Job("server", "warm", URGENT, self.live.warm, lambda event: None, "warm"))
        self.server.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        if self.server is None:
            raise HeadwiseError("the explorer is stopped; call hw.explore again")
        host = self.server.host
        name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
        return f"http://{name}:{self.server.port}/{self.token}/"

    def stop(self) -> bool:
        """End the server and the thread that owns the model; False where that thread is still computing."""
        ended = self.worker.stop()
        if self.server is not None:
            self.server.stop()
            self.server = None
        return ended

    def __repr__(self) -> str:
        where = "stopped" if self.server is None else self.url
        return f"Explorer({self.model.name!r}, {where})"

    def _repr_html_(self) -> str:
        """In a notebook, the page itself."""
        if self.server is None:
            return escape(repr(self))
        address = escape(self.url, quote=True)
        return (
            f'<iframe src="{address}" title="headwise explorer" style="width:100%;height:{_HEIGHT}px;border:1px solid '
            f'#ccc"></iframe><p><a href="{address}" target="_blank" rel="noopener">Open it in its own tab</a></p>'
        )

    # ---- answers that are not about one prompt ---------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """What the page begins with."""
        model, run = self.model, self.run
        prompt, counterfactual = self._first_prompt()
        return {
            "model": model.name,
            "source": model.origin.source if model.origin is not None else model.name,
            "version": __version__,
            "shape": list(model.shape),
            "exists": model.exists.tolist(),
            "chat": model.text.has_chat,
            "prompt": prompt,
            "counterfactual": counterfactual,
            "tasks": self.tasks(),
            "run": None if run is None else {"name": run.run.path.resolve().name, "study": run.run.study},
            "maps": [] if run is None else run.maps(),
            "presets": [] if run is None else run.presets(),
            "limits": {"tokens": requests.MOST_TOKENS, "new": requests.MOST_NEW, "listed": LISTED},
        }

    def _first_prompt(self) -> tuple[str, str]:
        """An example of the run's task, so that the page begins with what the run is about."""
        for source in self.run.tasks() if self.run is not None else ():
            try:
                first = task(source, 1, model=self.model).examples[0]
            except HeadwiseError:  # the file is gone, say
                continue
            return first.prompt, first.counterfactual or ""
        return PROMPT, COUNTERFACTUAL

    def tasks(self) -> list[str]:
        """Tasks that the page may name: the run's own first, then the built-in ones."""
        of_run = [] if self.run is None else self.run.tasks()
        return list(dict.fromkeys([*of_run, *registry.FAMILIES.all()]))

    def _source(self, name: str) -> str:
        if name not in self.tasks():  # a file may be opened only if the run names it
            raise HeadwiseError(f"the explorer has no task {name!r}; it has {', '.join(self.tasks())}")
        return name

    def control(self, request: requests.Control, job: Job) -> Iterator[Event]:
        """Random heads of the same layers with the same gates."""
        gates = control_gates(self.model, request.gate_array(self.model), request.seed)
        changed = [(layer, head, float(gates[layer, head])) for layer, head in changed_heads(gates)]
        yield {"event": "control", "gates": changed}

    def check(self, request: requests.Check, job: Job) -> Iterator[Event]:
        """“Is this real?” on held-out examples of a task."""
        source = self._source(request.task)
        yield {"event": "progress", "done": 0, "of": request.n}
        examples = held_out(self.model, source, request.n, self._prompts_of_run(source))
        yield from check(self.model, request, examples, job)

    def card(self, request: requests.Card, job: Job) -> Iterator[Event]:
        """The card of a head on a task."""
        return self.heads.card(request, self._source(request.task), job)

    def _prompts_of_run(self, source: str) -> list[str]:
        """The prompts behind the run's scores, which a check must not use again."""
        if self.run is None or source not in self.run.tasks():
            return []
        if source not in self._seen:
            settings = self.run.settings
            options = settings.get("task_options") or {}
            given = {"seed": settings.get("seed", 0), **(options if isinstance(options, dict) else {})}
            examples = task(source, settings.get("n"), model=self.model, **given).examples
            self._seen[source] = [example.prompt for example in examples]
        return self._seen[source]


def explore(model: Model, run: str | Path | None = None, *, port: int = 0) -> Explorer:
    """Start the live explorer of a model and show it: in a notebook the page is the result of the cell.

    run: a run folder; its scores colour the map, its circuits and roles are presets, its edges are shown with a head.
    port: by default any free one. The server listens on this machine only; `.url` is the address of the page, and
    `.stop()` ends it.

    >>> hw.explore(model)                # doctest: +SKIP
    """
    explorer = Explorer(model, run)
    explorer.serve(port=port, framed=True)
    return explorer
