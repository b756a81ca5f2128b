"""Who may reach the server: the bearer key, and no web page. Pure ASGI, in front of everything."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, UnreadBody
from .settings import MOST_BODY_BYTES, ServerSettings

MOST_SILENCE_S: Final = 20.0  # in the middle of a body; less than --drain, so that nobody holds up the end
_OPEN: Final = frozenset({"/health", "/v1/health"})
_LOOPBACK: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
_PAGES: Final = frozenset({"cross-site", "same-site"})
_HOST: Final = "give it with --allow-host where that is right"
_ORIGIN: Final = "give it with --allow-origin where that is right"


class Guard:
    """Refuses requests before any route sees them.

    * The ``Host`` must be an address, loopback, this machine's name or an allowed name: a page whose own name was
      pointed here (DNS rebinding) bears its own.
    * A request that a browser sends for a page (``Origin``, ``Sec-Fetch-Site``) must come from an allowed origin, or
      from this server itself.
    * The key is compared in constant time; ``/health`` needs none.
    * A body has no more bytes than ``most_body`` says for its path.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, most_body: Callable[[str], int]) -> None:
        self._app = app
        self._most_body = most_body
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        own = {socket.gethostname().lower(), settings.host.lower()}
        self._hosts = _LOOPBACK | own | {name.lower().rstrip(".") for name in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.lower() in self._origins:
            send = _allowing(send, origin)
            if scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, send)
                return
        most = self._most_body(scope["path"])
        refusal = (
            self._host(headers)
            or self._page(headers)
            or self._bearer(scope["path"], headers)
            or _too_large(headers, most)
        )
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, _limited(receive, most), send)

    def _host(self, headers: Mapping[str, str]) -> ApiError | None:
        name = _host_name(headers.get("host", ""))
        if name is None or name in self._hosts or name.endswith(".localhost") or _is_address(name):
            return None
        return ApiError(403, f"the host name {name[:100]!r} is not this server's: {_HOST}", code="host_not_allowed")

    def _page(self, headers: Mapping[str, str]) -> ApiError | None:
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") in _PAGES:
                return ApiError(403, "web pages may not ask this server", code="origin_not_allowed")
            return None
        if origin.lower() in self._origins or _is_own(origin, headers.get("host", "")):
            return None
        return ApiError(403, f"web pages of {origin[:100]!r} may not ask: {_ORIGIN}", code="origin_not_allowed")

    def _bearer(self, path: str, headers: Mapping[str, str]) -> ApiError | None:
        if self._key is None or path in _OPEN:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Both sides are bytes, so that a key beyond ASCII is compared and not refused with an exception.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip(" \t").encode("latin-1"), self._key):
            return None
        message = "the API key is missing or wrong: send Authorization: Bearer KEY"
        return ApiError(401, message, code="invalid_api_key")


def _too_large(headers: Mapping[str, str], most: int) -> ApiError | None:
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or int(length) <= most:
        return None
    return _excess(f"{length} bytes", most)


def _excess(size: str, most: int) -> ApiError:
    """What is answered to a body of ``size`` where ``most`` bytes are taken."""
    if most == MOST_BODY_BYTES:
        return ApiError(413, f"the body has {size}, {most} are taken: send less")
    # What agents shorten their history for, in the words of :class:`.parameters.Room`.
    why = f"more than {most}, which cannot fit into the context: the prompt is too long, shorten it"
    return ApiError(400, f"the body has {size}, {why}", code="context_length_exceeded")


def _limited(receive: Receive, most: int) -> Receive:
    """For bodies that do not say how long they are, and for those that do not come."""
    size, whole = 0, False

    async def limited() -> Message:
        nonlocal size, whole
        try:
            # After the body one waits for the client to go away, which takes as long as the answer.
            async with asyncio.timeout(None if whole else MOST_SILENCE_S):
                message = await receive()
        except TimeoutError:
            why = f"no more of the body came for {MOST_SILENCE_S:g} s: send it again"
            raise UnreadBody(ApiError(408, why)) from None
        whole = whole or not message.get("more_body", False)
        size += len(message.get("body", b""))
        if size > most:
            raise UnreadBody(_excess(f"{size} bytes and more", most))
        return message

    return limited


def _host_name(host: str) -> str | None:
    """The name in a ``Host`` header, without its port; ``None`` where there is none, as in HTTP/1.0."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") or None


def _is_own(origin: str, host: str) -> bool:
    """Whether a page's origin is the server that it asks; no page comes from a server without a name."""
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _allowing(send: Send, origin: str) -> Send:
    async def with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Allow-Headers"] = "*, Authorization"
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers.add_vary_header("Origin")
        await send(message)

    return with_cors
