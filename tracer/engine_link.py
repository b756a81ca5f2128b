"""The sink across processes: tool starts and ends to the engine's ``/v1/traces``, from one thread over one connection.

A tool's own thread only puts its signal into a queue. An engine that is down, hangs or is slow makes signals wait, up to
a bound, and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import socket
import threading
import time
from queue import Empty, SimpleQueue
from typing import Final

from . import attributes as names
from .diagnostics import COUNTS, internal_error, warn_once
from .engine_address import EngineAddress, read_answer, read_key
from .engine_backlog import LIMIT, Backlog
from .otlp_proto import Sender, encode_request
from .runtime import SCOPE_NAME, package_version
from .signals import Signal
from .sinks import subscribe, unsubscribe

CONNECT_TIMEOUT_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
EXIT_TIMEOUT_S: Final = 1.0
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0
_FORK_WAIT_S: Final = 0.2
_BATCH: Final = 256  # signals of one request
_BUSY: Final = 429


class RefusedError(Exception):
    """The engine answered, but not with success: the batch will not be taken however often it is sent."""


class _Flush:
    """Stands in the queue behind what is to be sent first."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.complete = False


class _Stop:
    """Wakes the thread so that it ends."""


class EngineLink:
    """A sink that sends signals to one engine. Calling it never blocks; ``flush`` and ``close`` are bounded.

    There is no lock that a fork could leave taken. :meth:`pause` stops the thread before a fork; in the child,
    :meth:`restart` begins anew with its own connection.
    """

    def __init__(self, address: EngineAddress, service_name: str) -> None:
        self.address = address
        resource = {names.SERVICE_NAME: service_name, names.TELEMETRY_SDK_NAME: "kvtrace"}
        self._sender = Sender.of(resource, SCOPE_NAME, package_version())
        self._random = random.Random()  # noqa: S311 - spreads retries, and leaves the program's own generator alone
        self._connection: socket.socket | None = None
        self._head = b""
        self.restart()

    def __call__(self, signal: Signal) -> None:
        """Queue a signal, or count it as lost where the thread is far behind."""
        if self._queue.qsize() >= LIMIT:
            _lose(1)
            return
        self._queue.put(signal)
        if self._thread is None:
            self._start_thread()

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits to be sent."""
        return not self._backlog and self._queue.empty()

    def restart(self) -> None:
        """Begin with nothing queued and no thread, as a new process does."""
        # Only this process's copy of the descriptor: the parent goes on talking.
        self._disconnect()
        self._queue: SimpleQueue[Signal | _Flush | _Stop] = SimpleQueue()
        self._backlog = Backlog()
        self._thread: threading.Thread | None = None
        self._paused = False
        self._starting = threading.Lock()
        self._failures = 0
        self._retry_at = 0.0

    def flush(self, timeout_s: float) -> bool:
        """Send what waits, at once even while a retry is due later; tell whether all went out within ``timeout_s``."""
        if self._thread is None and (self.idle or self._paused):
            return self.idle
        marker = _Flush()
        self._queue.put(marker)
        if self._thread is None:
            self._start_thread()
        marker.done.wait(timeout_s)
        return marker.complete

    def pause(self, timeout_s: float = _FORK_WAIT_S) -> None:
        """End the thread, or give up after ``timeout_s``; there is none until :meth:`resume`."""
        self._paused = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(_Stop())
            thread.join(timeout_s)

    def resume(self) -> None:
        """Let there be a thread again, and start it if something waits for it."""
        self._paused = False
        if self._thread is None and not self.idle:
            self._start_thread()

    def close(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Flush, and end thread and connection."""
        self.flush(timeout_s)
        self.pause(timeout_s)
        if self._thread is None:
            self._disconnect()

    def _start_thread(self) -> None:
        # Whoever comes second leaves it to the first: a signal may come from a finalizer inside this very function.
        if self._paused or not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="kvtrace-engine-link", daemon=True)
                self._thread = thread
                thread.start()
        except RuntimeError:  # no more threads, or the interpreter is going down
            self._thread = None
        finally:
            self._starting.release()

    def _run(self) -> None:
        while True:
            markers, stop = self._collect()
            if self._backlog and (markers or time.monotonic() >= self._retry_at):
                try:
                    self._send_all()
                except Exception as error:
                    self._put_off()
                    internal_error("sending signals to the engine", error)
            for marker in markers:
                marker.complete = not self._backlog
                marker.done.set()
            if stop:
                break
        # Signed off before the last look, so that a signal put meanwhile is seen here or starts the thread itself.
        self._thread = None
        if not self.idle:
            self._start_thread()

    def _collect(self) -> tuple[list[_Flush], bool]:
        """Wait for something to do, and take over all that is queued: flushes, and whether to stop."""
        markers: list[_Flush] = []
        timeout = max(0.0, self._retry_at - time.monotonic()) if self._backlog else None
        with contextlib.suppress(Empty):
            item = self._queue.get(timeout=timeout)
            while True:
                if isinstance(item, _Stop):
                    return markers, True
                if isinstance(item, _Flush):
                    markers.append(item)
                else:
                    _lose(self._backlog.add(item))
                item = self._queue.get_nowait()
        return markers, False

    def _send_all(self) -> None:
        while spans := self._backlog.first(_BATCH):
            body = encode_request(spans, self._sender)
            try:
                self._post(body)
            except RefusedError as error:
                self._backlog.drop_first(len(spans))
                _lose(len(spans))
                self._fail(str(error))
                return
            except OSError as error:
                self._fail(error.strerror or str(error) or type(error).__name__)
                return
            self._backlog.drop_first(len(spans))
            self._failures = 0
            self._retry_at = 0.0

    def _post(self, body: bytes) -> None:
        """Send one request, on a new connection where the engine closed the idle one; what it has twice it ignores."""
        if self._connection is not None:
            try:
                self._exchange(self._connection, body)
                return
            except ConnectionError:
                self._disconnect()
        self._connection = self.address.connect(CONNECT_TIMEOUT_S)
        self._connection.settimeout(ANSWER_TIMEOUT_S)
        self._head = self.address.head("application/x-protobuf", read_key(os.environ))
        self._exchange(self._connection, body)

    def _exchange(self, connection: socket.socket, body: bytes) -> None:
        connection.sendall(self._head + b"%d\r\n\r\n" % len(body) + body)
        status, keep = read_answer(connection)
        if not keep:
            self._disconnect()
        if 200 <= status < 300:
            return
        if status == _BUSY or status >= 500:
            raise OSError(f"it answered with HTTP {status}")
        hint = f"; see {names.ENV_ENGINE_KEY}" if status in (401, 403) else ""
        raise RefusedError(f"it answered with HTTP {status}{hint}")

    def _fail(self, reason: str) -> None:
        self._put_off()
        warn_once(
            "engine",
            "kvtrace: the engine at %s does not take signals: %s. Tools run as ever; signals wait for it, %d at most, "
            "and are counted beyond. Start that engine, or unset %s.",
            self.address.url,
            reason,
            LIMIT,
            names.ENV_ENGINE,
        )

    def _put_off(self) -> None:
        self._disconnect()
        _lose(self._backlog.drop_finished())
        delay = min(LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        # Many agents lose the same engine at once, and should not all come back at once.
        self._retry_at = time.monotonic() + delay * self._random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def _lose(count: int) -> None:
    if count:
        COUNTS.lost_signals += count
        warn_once("signals", "kvtrace: signals to the engine were dropped, as it takes them too slowly or not at all.")


_link: EngineLink | None = None
_linking = threading.Lock()


def link_engine(url: str | None, service_name: str) -> None:
    """Signal tool calls to the engine at ``url`` from now on instead of where they went before; ``None``: nowhere.

    Raises :class:`ValueError` for a URL that cannot be used.
    """
    global _link
    link = EngineLink(EngineAddress.parse(url), service_name) if url else None
    # Agents that start in several threads at once must not make a link each.
    with _linking:
        before = _link
        if link is None or before is None or before.address != link.address:
            _link = link
    if before is not None and before is not _link:
        unsubscribe(before)
        before.close()
    if _link is not None:
        subscribe(_link)


def flush_engine(timeout_s: float) -> bool:
    """Send what waits for the engine; tell whether all went out within ``timeout_s``."""
    return _link.flush(timeout_s) if _link is not None else True


def _at_exit() -> None:
    flush_engine(EXIT_TIMEOUT_S)


def _before_fork() -> None:
    if _link is not None:
        _link.pause()


def _after_fork_in_parent() -> None:
    if _link is not None:
        _link.resume()


def _after_fork_in_child() -> None:
    global _linking
    _linking = threading.Lock()
    if _link is not None:
        _link.restart()
        subscribe(_link)


atexit.register(_at_exit)
# Registered after the runtime's own, which clears the subscribers in a child.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
