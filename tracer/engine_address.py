"""Where the engine listens, and how a request reaches it: one write for the request, a short look at the answer.

Over a plain socket rather than ``http.client``: that one writes head and body apart, and each write gives the
interpreter lock away, to be waited for again while a tool computes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from . import attributes as names
from .diagnostics import warn_once

TRACES_PATH: Final = "/v1/traces"
_PORTS: Final = {"http": 80, "https": 443}
_MOST_ANSWER: Final = 1 << 20  # bytes; no engine says that much


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """A parsed engine URL; ``path`` is where traces go."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> EngineAddress:
        """Read ``http://host:port``, with or without a path; raises :class:`ValueError`."""
        hint = f"cannot use {url!r} as the engine's address: write it like http://127.0.0.1:8177"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{hint} ({error})") from None
        path = parts.path.rstrip("/")
        if parts.scheme not in _PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError(hint)
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise ValueError(f"{hint}, in printable ASCII")
        path = path if path.endswith(TRACES_PATH) else path + TRACES_PATH
        return cls(url, parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme], path)

    def connect(self, timeout_s: float) -> socket.socket:
        """Open a connection whose every operation takes at most ``timeout_s``; raises :class:`OSError`."""
        connection = socket.create_connection((self.host, self.port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.secure:
            return connection
        import ssl  # most engines are on this host, and loading it takes longer than a request

        try:
            return ssl.create_default_context().wrap_socket(connection, server_hostname=self.host)
        except BaseException:
            connection.close()
            raise

    def head(self, content_type: str, key: str | None, *, keep: bool = True) -> bytes:
        """Return what every request begins with, up to its length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        connection = "keep-alive" if keep else "close"
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nUser-Agent: kvtrace\r\n{authorization}"
            f"Connection: {connection}\r\nContent-Type: {content_type}\r\nContent-Length: "
        ).encode("ascii")


def read_answer(connection: socket.socket) -> tuple[int, bool]:
    """Read an HTTP answer to its end; its status, and whether the connection may be used again.

    Raises :class:`ConnectionError` where the peer closed or does not speak HTTP, :class:`TimeoutError` where it is silent.
    """
    data = _read_until(connection, b"", lambda data: b"\r\n\r\n" in data)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    try:
        protocol, status = first.split(maxsplit=2)[:2]
        code = int(status)
    except ValueError:
        raise ConnectionError("answered with something that is not HTTP") from None
    pairs = [line.partition(b":") for line in lines]
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    length = headers.get(b"content-length", b"")
    keep = protocol == b"HTTP/1.1" and length.isdigit() and headers.get(b"connection") != b"close"
    if keep:
        size = int(length)
        _read_until(connection, body, lambda data: len(data) >= size)
    return code, keep


def read_key(environment: Mapping[str, str]) -> str | None:
    """Return the bearer key from ``KVTRACE_ENGINE_KEY``, else from the file that ``KVTRACE_ENGINE_KEY_FILE`` names."""
    key: str | None = environment.get(names.ENV_ENGINE_KEY)
    if key is None and (path := environment.get(names.ENV_ENGINE_KEY_FILE)):
        try:
            key = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            warn_once("key", "kvtrace: cannot read the engine's key from %s: %s.", path, type(error).__name__)
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        warn_once("key", "kvtrace: the engine's key is no printable ASCII, so none is sent.")
        return None
    return key or None


def _read_until(connection: socket.socket, data: bytes, complete: Callable[[bytes], bool]) -> bytes:
    while not complete(data):
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionResetError("closed the connection")
        data += chunk
        if len(data) > _MOST_ANSWER:
            raise ConnectionError("answered at too great length")
    return data
