"""Who may talk to the explorer, or to the tools for agents: whoever has its token, on this machine.

Every path begins with a random token. `Host` must name this machine, so that a page of another site cannot reach the
explorer through a name of its own (DNS rebinding); `Origin`, where a browser sends one, must be the explorer itself.
All answers carry a content security policy that allows the page's own files and nothing else.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)
_NOTEBOOKS = "http://127.0.0.1:* http://localhost:* https://localhost:*"


class Guard:
    """An ASGI app that passes on what may be answered, and refuses the rest without touching the model."""

    def __init__(self, app: App, token: str, *, remote: bool = False, framed: bool = False) -> None:
        """remote: the server is reachable from other machines. framed: a notebook may show the page."""
        self.app, self.token, self.remote = app, token, remote
        self.headers = [
            (b"content-security-policy", _POLICY.format(frames=_NOTEBOOKS if framed else "'none'").encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # nobody uses a websocket; returning closes it
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        reason = self.refusal(scope["path"], headers)
        if reason is not None:
            return await _refuse(send, self.headers, *reason)
        scope = {**scope, "path": scope["path"][len(self.token) + 1 :] or "/", "root_path": ""}

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        return await self.app(scope, receive, send_with_headers)

    def refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and reason where a request is not answered."""
        host = headers.get("host", "")
        if not self._is_us(host):
            return 421, "this name is not the server's; use the address that was printed"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from other sites are refused"
        given = path.split("/")[1] if path.startswith("/") else ""
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return 403, "the token is missing or wrong; use the address that was printed"
        return None

    def _is_us(self, host: str) -> bool:
        name = _without_port(host).lower()
        if name in LOOPBACK:
            return True
        # An address cannot be rebound; of names, only this machine's own is taken.
        return self.remote and (
            _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())
        )


def _without_port(host: str) -> str:
    """The name in a Host header.

    >>> _without_port("localhost:80"), _without_port("[::1]:80"), _without_port("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(send: Send, headers: list[tuple[bytes, bytes]], status: int, reason: str) -> None:
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*headers, (b"content-type", b"text/plain; charset=utf-8")]})
    await send({"type": "http.response.body", "body": reason.encode()})
