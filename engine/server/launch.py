"""The server as a process: socket, signals, the event loop, and the thread that loads. Imports no torch by itself."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn

from ..errors import EngineError
from .app import create_app
from .heads import BoundedHead
from .loading import PhaseListener, Started, start_engine
from .service import Service
from .settings import ServerSettings

_BACKLOG: Final = 512
_KEEP_ALIVE_S: Final = 75
_PROBE_S: Final = 0.5
_log = logging.getLogger(__name__)


class PortTaken(EngineError):
    """Somebody else listens at the address."""


class Launched:
    """A server about to run; its socket is bound, so ``url`` is certain.

    Args:
        settings: what to serve and how.
        on_phase: told each phase of the start and its seconds, in the loading thread.
        on_ready: told what runs when requests are answered, in the loading thread.

    Raises:
        PortTaken: the address is in use, or not this machine's.
    """

    def __init__(
        self,
        settings: ServerSettings,
        on_phase: PhaseListener = lambda phase, seconds: None,
        on_ready: Callable[[Started], None] = lambda started: None,
    ) -> None:
        self.service = Service(settings)
        self.forced = False
        self.error: BaseException | None = None
        self._socket = _bind(settings.host, settings.port)
        self._on_phase = on_phase
        self._on_ready = on_ready
        self._loader = threading.Thread(target=self._load, name="kvtrace-load", daemon=True)
        config = uvicorn.Config(
            create_app(self.service),
            http=BoundedHead,
            loop="auto",  # uvloop, where it is
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what clients get wrong is told to them
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        )
        self._server = _Server(config, self.service)

    @property
    def url(self) -> str:
        """Base URL for clients on this machine."""
        host, port = self._socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def loading(self) -> bool:
        """Whether the loading thread is at work.

        Nothing stops it: after a stop that came so early, leave the process by ``os._exit``. The interpreter's own end
        would halt that thread amid torch's C++ code, which answers with ``abort()`` if it was in the wrong place.
        """
        return self._loader.is_alive()

    def run(self) -> None:
        """Serve until told to stop; what made the start fail is raised then.

        SIGTERM and SIGINT let open requests end, at most ``drain_s``; a second one does not wait (``forced``).
        """
        self._loader.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.forced = self._server.force_exit
            self.service.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Do what a first signal does; from any thread."""
        self._server.handle_exit(signal.SIGTERM, None)

    def _load(self) -> None:
        try:
            started = start_engine(self.service, self._on_phase)
            self._on_ready(started)
        except BaseException as error:
            self.error = error
            self.service.failed(f"the start failed: {error}")
            self.stop()


class _Server(uvicorn.Server):
    """uvicorn with our signals: the second of either kind ends at once, and none is raised again afterwards."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM meanwhile, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, or stop waiting."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._service.stop()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Small pieces of streams go out at once; accepted connections take this over.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        # Resolvers have numbers of their own, below zero.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise PortTaken(f"cannot listen on {host} port {port}: {why}{_advice(error, host, port)}") from error
    listener.setblocking(False)
    return listener


def _advice(error: OSError, host: str, port: int) -> str:
    """What to do, by what was wrong: the address, the rights, or the port."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "; give an address of this machine as --host"
    if error.errno == errno.EACCES:
        return "; ports below 1024 need rights: give another --port"
    return _holder(host, port)


def _holder(host: str, port: int) -> str:
    """Who answers there, as far as it tells, and what to do."""
    advice = "; give another --port (0 takes a free one)"
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=_PROBE_S) as answer:
            known = "phase" in json.load(answer)
    except OSError as error:
        known = getattr(error, "code", None) == 503
    except ValueError:
        known = False
    return f" (by a kvtrace serve that already runs){advice}" if known else advice
