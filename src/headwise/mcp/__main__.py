"""The command line of the server: `python -m headwise.mcp`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.files import named_source, user_path
from headwise.mcp.desk import Desk
from headwise.mcp.server import server


def _named(sources: list[str]) -> dict[str, str]:
    """`NAME=source`, or a source that is its own name."""
    pairs = [named_source(source) for source in sources]
    return {name or source: source for name, source in pairs}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and serve until the client goes away."""
    parser = argparse.ArgumentParser(
        prog="python -m headwise.mcp", description="headwise for agents (MCP, stdio)"
    )
    parser.add_argument("--model", action="append", help="[NAME=]MODEL, repeatable; by default smollm2")
    parser.add_argument("--data", action="append", default=[], help="NAME=FILE with examples, repeatable")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of runs that may be opened"
    )
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    given = parser.parse_args(arguments)
    options = {"device": given.device, "dtype": given.dtype}
    try:
        data = _named(given.data)
        for source in data.values():
            if not user_path(source).is_file():
                raise HeadwiseError(f"--data {source} is no file; give NAME=FILE")
        chosen = {name: value for name, value in options.items() if value is not None}
        desk = Desk(_named(given.model or ["smollm2"]), data, user_path(given.runs), chosen)
        app = server(desk)
    except HeadwiseError as error:
        print(f"headwise: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    app.run("stdio")


if __name__ == "__main__":
    main()
