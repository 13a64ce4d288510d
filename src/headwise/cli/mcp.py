"""`headwise mcp`: the tools of headwise for agents."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.cli.output import echo
from headwise.cli.root import LOAD, MODEL_HELP, app, with_options
from headwise.errors import HeadwiseError
from headwise.files import named_source, user_path


@app.command()
@with_options(*LOAD)
def mcp(
    model: Annotated[
        list[str] | None, typer.Option(help=f"{MODEL_HELP}; repeat for several; by default smollm2")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE with examples; repeat for several")
    ] = None,
    runs: Annotated[Path, typer.Option(help="the folder of runs that may be opened")] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            help="serve HTTP on this port of this machine (0: any free one) behind a token, instead of stdio",
            min=0,
            max=65535,
        ),
    ] = None,
    **options: Any,
) -> dict[str, Any]:
    """Serve headwise's tools to agents (Model Context Protocol): on stdin and stdout, or with --port over HTTP."""
    from headwise.mcp.desk import Desk
    from headwise.mcp.server import server

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
