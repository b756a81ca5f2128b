"""A receiver behind the standard library's HTTP server: for tests, benchmarks, and programs without a web framework."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from .receive import Receiver
from .receive_body import BadRequest
from .signals import Signal

_TEXT: Final = "text/plain; charset=utf-8"


class SignalServer(ThreadingHTTPServer):
    """Listens on loopback and calls ``on_signal`` with each new signal, in the thread of its connection.

    A context manager: serves until the block ends. ``url`` is the engine address for its clients. ``key`` is the
    bearer key that requests must bear. Subclasses of :class:`SignalHandler` may answer other paths as well.
    """

    daemon_threads = True

    def __init__(
        self,
        on_signal: Callable[[Signal], None],
        *,
        port: int = 0,
        key: str | None = None,
        handler: type[SignalHandler] | None = None,
    ) -> None:
        self.on_signal = on_signal
        self.receiver = Receiver()
        self.key = key
        self._thread: threading.Thread | None = None
        super().__init__(("127.0.0.1", port), handler or SignalHandler)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> SignalServer:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
        if self._thread is not None:
            self._thread.join()
        self.server_close()


class SignalHandler(BaseHTTPRequestHandler):
    """Hands every POST to the receiver."""

    server: SignalServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer in one write
    timeout = 30  # a client that stops in the middle of a request frees its thread

    def do_POST(self) -> None:
        """Receive one request."""
        content_type = self.headers.get("Content-Type", "")
        try:
            received = self.server.receiver.receive(
                self._body(), content_type, self.headers.get("Content-Encoding"), path=self.path
            )
        except BadRequest as error:
            self.answer(error.status, *error.response(content_type))
            return
        for signal in received.signals:
            self.server.on_signal(signal)
        self.answer(received.status, received.response_body, received.response_content_type)

    def answer(self, status: int, body: bytes, content_type: str = _TEXT) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self.close_connection = True
            raise BadRequest(411, "the request does not say how long it is: send Content-Length")
        if int(length) > self.server.receiver.limits.body_bytes:
            self.close_connection = True
            raise BadRequest(413, f"the body has {length} bytes, too many: send smaller batches")
        body = self.rfile.read(int(length))
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            raise BadRequest(401, "the bearer key is missing or wrong")
        return body
