"""A server's state over HTTP: asked for each sample, over one connection that is kept.

Asked, rather than streamed, so that the interval a person chooses is that of the samples themselves.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from kvtrace.tracer import attributes as names
from kvtrace.tracer.engine_address import read_key

from .contract import FeedError, Sample
from .decode import printable, sample_from

STATE_PATH: Final = "/v1/kv/state"
DEFAULT_URL: Final = "http://127.0.0.1:8177"
_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 64 << 20
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A parsed server URL; ``base`` is the path before ``/v1``."""

    secure: bool
    host: str
    port: int
    base: str

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read ``http://host:port``, with or without a path, or ``host:port``. Raises ``ValueError``."""
        hint = f"cannot use {url!r} as a server's address: write it like {DEFAULT_URL}"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{hint} ({error})") from None
        sound = url.isascii() and url.isprintable() and " " not in url
        if not sound or parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError(hint)
        base = parts.path.rstrip("/").removesuffix(STATE_PATH).removesuffix("/v1/traces").removesuffix("/v1")
        return cls(parts.scheme == "https", parts.hostname, port or (443 if parts.scheme == "https" else 80), base)

    @property
    def text(self) -> str:
        """Host and port, as people write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return self.host in _LOOPBACK


class HttpFeed:
    """Samples of the server at ``address``."""

    speed = None
    over = False

    def __init__(self, address: ServerAddress, key: str | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self.address = address
        self.where = address.text
        self._headers = {"Accept": "application/json", "User-Agent": "kvtrace"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def read(self) -> list[Sample]:
        """The state now. Raises :class:`FeedError` where the server does not tell."""
        kept = self._connection is not None
        try:
            body = self._ask()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not kept:
                raise FeedError(_why(error)) from error
            # The server may have closed a connection that it had kept, or have been started anew.
            try:
                body = self._ask()
            except (OSError, http.client.HTTPException) as again:
                self.close()
                raise FeedError(_why(again)) from again
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FeedError(f"{self.where} answered with something that is not JSON") from error
        return [sample_from(document, self.where)]

    def play_at(self, speed: float) -> None:
        """The present goes at its own pace."""

    def close(self) -> None:
        """Close the connection; the next read opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self) -> bytes:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self.address.secure else http.client.HTTPConnection
            self._connection = kind(self.address.host, self.address.port, timeout=self._timeout_s)
        self._connection.request("GET", self.address.base + STATE_PATH, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read(_MOST_BYTES)
        if answer.status != http.HTTPStatus.OK:
            self.close()
            raise FeedError(_refused(answer.status, self.where, body, "Authorization" in self._headers))
        if not answer.isclosed():
            self.close()
            raise FeedError(f"{self.where} answered with more than {_MOST_BYTES >> 20} MiB")
        return body


def default_address(environment: Mapping[str, str] = os.environ) -> ServerAddress:
    """The server to look for where nobody names one: ``KVTRACE_ENGINE``, else the local one. Raises ``ValueError``."""
    return ServerAddress.parse(environment.get(names.ENV_ENGINE) or DEFAULT_URL)


def http_feed(address: ServerAddress, environment: Mapping[str, str] = os.environ) -> HttpFeed:
    """A feed with the key that the environment gives for the engine."""
    return HttpFeed(address, read_key(environment))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error) or type(error).__name__


def _refused(status: int, where: str, body: bytes, keyed: bool) -> str:
    if status == http.HTTPStatus.UNAUTHORIZED:
        ways = f"{names.ENV_ENGINE_KEY_FILE} or {names.ENV_ENGINE_KEY}"
        return f"{where} does not take the key of {ways}" if keyed else f"{where} wants a key: set {ways}"
    if status == http.HTTPStatus.FORBIDDEN:
        return f"{where} refuses: {_phase(body) or 'HTTP 403'}"
    if status == http.HTTPStatus.NOT_FOUND:
        return f"{where} has no {STATE_PATH}: it is no kvtrace server"
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        return f"{where}: {_phase(body) or 'not ready yet'}"
    return f"{where} answered HTTP {status}"


def _phase(body: bytes) -> str | None:
    """What a server that still loads says it is doing."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return printable(message[:120]) if isinstance(message, str) else None
