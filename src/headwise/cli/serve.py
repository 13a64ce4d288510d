"""`headwise explore`, the live explorer in the browser; `headwise mcp`, the tools for agents."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from headwise.cli.output import echo
from headwise.cli.root import LOAD, MODEL_HELP, app, argument, option, with_options
from headwise.errors import HeadwiseError, visible
from headwise.files import named_source, user_path


@contextmanager
def private_page(url: str) -> Iterator[Path]:
    """A page that leads to `url` and that only this user can read: other users can see the arguments of a browser, and
    the token of the explorer must not be among them."""
    with tempfile.TemporaryDirectory(prefix="headwise-") as folder:  # for its owner alone
        page = Path(folder) / "explorer.html"
        page.touch(mode=0o600)
        page.write_text(f'<meta http-equiv="refresh" content="0; url={url}">\n', encoding="utf-8")
        yield page


@app.command()
@with_options(*LOAD, "as_json")
def explore(
    source: Annotated[
        str,
        argument("MODEL|RUN", "a model (alias, hub id, folder, GGUF file) or a run folder"),
    ],
    model: Annotated[
        str | None, option("the model of a run folder; by default the first that the run names")
    ] = None,
    port: Annotated[int, option("port of the page; 0 for any free one", min=0, max=65535)] = 0,
    host: Annotated[
        str, option("address to listen at; another one than this machine needs --remote")
    ] = "127.0.0.1",
    remote: Annotated[
        bool, option("allow other machines to reach the page (with its token)", "--remote")
    ] = False,
    browser: Annotated[bool, option("open the page in the browser")] = True,
    **options: Any,
) -> None:
    """Open the live explorer: switch heads off in the browser and watch the model change. Ctrl-C ends it."""
    from headwise.explorer.explorer import Explorer
    from headwise.explorer.guard import LOOPBACK
    from headwise.explorer.run_data import model_of_run
    from headwise.model.load.load import load

    as_json = options.pop("as_json")
    if host not in LOOPBACK and not remote:
        raise HeadwiseError(
            f"--host {host} lets other machines use this model; add --remote if that is meant, or keep 127.0.0.1 and "
            "forward the port: ssh -L 8000:127.0.0.1:8000 HOST"
        )
    run = user_path(source)
    is_run = (run / "run.json").is_file()
    if model is not None and not is_run:
        raise HeadwiseError(f"--model chooses a model of a run folder, and {source} is not one; leave it out")
    name = model_of_run(run, model) if is_run else source
    echo(visible(f"loading and verifying {name} …"), err=True)
    explorer = Explorer(load(name, **options), run if is_run else None)
    try:
        explorer.serve(host, port, remote=remote)
        if remote:
            echo(
                "warning: other machines can reach this page. Everybody who has the address can use the model; the "
                "connection is not encrypted.",
                err=True,
            )
        if as_json:  # at once, and not at the end: the page is there while the command runs
            print(json.dumps({"model": explorer.model.name, "url": explorer.url}), flush=True)
        else:
            echo(f"explorer of {explorer.model.name}: {explorer.url}  (Ctrl-C ends it)")
        with private_page(explorer.url) as page:
            if browser:
                webbrowser.open(page.as_uri())
            explorer.server.wait()
    except KeyboardInterrupt:
        echo("stopped", err=True)
        if not explorer.stop():  # Python would wait for the model, or crash in the middle of it
            os._exit(0)
    finally:
        explorer.stop()


@app.command()
@with_options(*LOAD)
def mcp(
    model: Annotated[
        list[str] | None, option(f"{MODEL_HELP}; repeat for several; by default smollm2")
    ] = None,
    data: Annotated[list[str] | None, option("NAME=FILE with examples; repeat for several")] = None,
    runs: Annotated[Path, option("the folder of runs that may be opened")] = Path("runs"),
    port: Annotated[
        int | None,
        option(
            "serve HTTP on this port of this machine (0: any free one) behind a token, instead of stdio",
            min=0,
            max=65535,
        ),
    ] = None,
    **options: Any,
) -> dict[str, Any]:
    """Serve headwise's tools to agents (Model Context Protocol): on stdin and stdout, or with --port over HTTP."""
    from headwise.mcp.server import server
    from headwise.mcp.tools import Desk

    files = _named(data or [])
    for source in files.values():
        if not user_path(source).is_file():
            raise HeadwiseError(f"--data {source} is no file; give NAME=FILE")
    chosen = {name: value for name, value in options.items() if value is not None}
    tools = server(Desk(_named(model or ["smollm2"]), files, user_path(runs), chosen))
    if port is None:
        tools.run("stdio")
        return {}
    from headwise.explorer.guard import Guard
    from headwise.explorer.server import Server

    token = secrets.token_urlsafe(24)
    http = Server(Guard(tools.streamable_http_app(), token), "127.0.0.1", port, lifespan="on")
    http.start()
    address = f"http://127.0.0.1:{http.port}/{token}/mcp"
    echo(f"{address}: whoever knows this address can use the models; Ctrl-C ends the server", err=True)
    try:
        http.wait()
    finally:
        http.stop()
    return {"address": address}


def _named(sources: list[str]) -> dict[str, str]:
    """`NAME=source`, or a source that is its own name."""
    pairs = [named_source(source) for source in sources]
    return {name or source: source for name, source in pairs}
