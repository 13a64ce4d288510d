"""The MCP server: the tools, carried out one call at a time by the thread that owns the models."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from pydantic import ValidationError

from headwise._version import __version__
from headwise.bounded import regular
from headwise.errors import HeadwiseError, noticing, out_of_memory, unknown
from headwise.mcp.answers import MOST_REPORT, Answer
from headwise.mcp.tools import Desk, Tools

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ResourceError, ToolError
except ImportError:
    raise HeadwiseError(
        "the MCP server needs the official SDK, version 2; install it: pip install 'headwise[mcp]'"
    ) from None

INSTRUCTIONS = """headwise measures which attention heads a model uses for a behaviour. Ask in this order: list_models;
task_preview (can the model do the task at all?); score with half="find"; measure with half="test" and controls; certify
with half="test". n examples are drawn and split: a half has about n/2, and every answer says how many it used. A
positive number means that the heads help. Every number depends on its reference (ablation type)."""
EVERY = 5.0
"""Seconds between two reports of progress."""
MOST_WAITING = 64
"""Calls that may wait; further ones are refused."""


class Stopped(BaseException):
    """Nobody waits for this call any more."""


class Call:
    """One call of a tool: counts its steps, and can be stopped."""

    def __init__(self) -> None:
        self.steps, self.stopped = 0, threading.Event()

    def __call__(self, steps: int = 1) -> None:
        self.check()
        self.steps += steps

    def check(self, *_: Any) -> None:
        if self.stopped.is_set():
            raise Stopped

    def carry_out(self, tools: Tools, work: Callable[[], Answer]) -> Answer:
        """The answer with its notices; in the thread that owns the models."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.check()
        tools.progress = self
        # A batch of a long call takes a minute on a CPU: the call also looks at every module that runs.
        watched = register_module_forward_pre_hook(self.check)
        try:
            with noticing() as notices:
                answer = work()
            return answer.model_copy(update={"notices": [*answer.notices, *notices]})
        finally:
            watched.remove()


class Server(MCPServer):
    """The SDK ignores arguments that a tool does not have; this server refuses them."""

    async def list_tools(self) -> list[Any]:
        tools = await super().list_tools()
        closed = {"additionalProperties": False}
        return [tool.model_copy(update={"input_schema": tool.input_schema | closed}) for tool in tools]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        for tool in await super().list_tools():
            accepted = tool.input_schema.get("properties", {})
            for argument in arguments if tool.name == name else ():
                if argument not in accepted:
                    raise ToolError(str(unknown(f"argument of {name}", argument, accepted)))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = error.__cause__.errors(include_url=False)
            reasons = dict.fromkeys(
                f"{'.'.join(map(str, one['loc'][:1]))} = {one['input']!r:.80}: {one['msg']}" for one in wrong
            )
            raise ToolError(f"{name}: {'; '.join(reasons)}") from None


def server(desk: Desk) -> MCPServer:
    """The MCP server over what the user named; `run()` serves it on the standard streams."""
    app, tools = Server("headwise", instructions=INSTRUCTIONS, version=__version__), Tools(desk)
    models, waiting = ThreadPoolExecutor(1, "models"), set[Call]()

    async def answered(context: Context, work: Callable[[], Answer]) -> Answer:
        """Carry out a call; meanwhile the client is told how far it is, and what it cancels stops."""
        if len(waiting) >= MOST_WAITING:
            raise ToolError(f"{MOST_WAITING} calls wait for the models already; try again in a moment")
        call, began = Call(), time.monotonic()
        waiting.add(call)
        job = asyncio.get_running_loop().run_in_executor(models, call.carry_out, tools, work)
        try:
            while not job.done():
                seconds = time.monotonic() - began
                await context.report_progress(seconds, None, f"{seconds:.0f} s, {call.steps} steps done")
                await asyncio.wait([job], timeout=EVERY)
            return job.result()
        except HeadwiseError as error:
            raise ToolError(str(error)) from None
        except Exception as error:
            if out_of_memory(error):
                raise ToolError("the model ran out of memory; give a smaller n, or shorter prompts") from None
            raise
        finally:
            call.stopped.set()
            waiting.discard(call)

    def add(work: Callable[..., Answer]) -> None:
        @wraps(work)
        async def tool(context: Context, **arguments: Any) -> Answer:
            return await answered(context, partial(work, **arguments))

        tool.__annotations__ = {**work.__annotations__, "context": Context}  # the SDK looks for it there
        app.add_tool(tool)

    for name, work in vars(Tools).items():
        if not name.startswith("_"):
            add(work.__get__(tools))

    @app.resource("headwise://runs/{name}/report", mime_type="text/html")
    def report(name: str) -> str:
        """The report of a run, one HTML page."""
        try:
            folder = desk.run(name)
            page = regular(folder / "report.html", root=folder, most=MOST_REPORT)
            return page.read_text(encoding="utf-8")
        except (HeadwiseError, OSError) as error:
            raise ResourceError(str(error)) from None

    return app
