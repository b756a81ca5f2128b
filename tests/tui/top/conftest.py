"""Snapshots, samples, and a real HTTP server that tells them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvtrace.engine.records import AgentRecord, AgentState, EngineEvent, Snapshot
from kvtrace.tui.feed.contract import Sample, SourceKind
from kvtrace.tui.feed.simulation import SimulatedEngine

START_NS = 1_790_000_000_000_000_000
NS = 1_000_000_000


def record(name: str = "api-1", state: AgentState = AgentState.GENERATING, **values: Any) -> AgentRecord:
    """An agent with plausible figures."""
    plain: dict[str, Any] = {
        "tool": None,
        "since_s": 1.0,
        "context_tokens": 1000,
        "vram_bytes": 148_635_648,  # 63 blocks of 16 tokens of Qwen3-8B
        "host_bytes": 0,
        "tokens_per_s": None,
        "b": 0.5,
        "parks": 0,
        "restores": 0,
        "kept_tokens": 1000,
    }
    return AgentRecord(agent=name, state=state, **(plain | values))


def sample(
    *agents: AgentRecord,
    at_s: float = 0.0,
    events: tuple[EngineEvent, ...] = (),
    kind: SourceKind = SourceKind.ENGINE,
    **values: Any,
) -> Sample:
    """These agents on an otherwise real snapshot of the simulated engine."""
    engine = SimulatedEngine(3, 0, START_NS)
    engine.advance(START_NS + 30 * NS)
    at_ns = START_NS + round(at_s * NS)
    snapshot = replace(engine.snapshot(), time_unix_ns=at_ns, agents=agents, events=events, **values)
    return Sample(snapshot, kind, "test")


class StateServer:
    """A server of ``/v1/kv/state`` that can be killed and started again on the same port.

    ``answer`` gives status and body of the next answers; without it the simulated engine's snapshot is told.
    """

    def __init__(self, agents: int = 5) -> None:
        self.answer: Callable[[], tuple[int, bytes]] | None = None
        self.asked: list[dict[str, str]] = []
        self._engine = SimulatedEngine(agents, 0, START_NS)
        self._ticks = 30
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def snapshot(self) -> Snapshot:
        self._ticks += 1
        self._engine.advance(START_NS + self._ticks * NS)
        return self._engine.snapshot()

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._connections.append(self.connection)
                outer.asked.append({"path": self.path, **{key.lower(): value for key, value in self.headers.items()}})
                status, body = (
                    outer.answer() if outer.answer else (200, json.dumps(outer.snapshot().as_json()).encode())
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def kill(self) -> None:
        """Close the port and every connection, as the death of a process does."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            self._connections.clear()


@pytest.fixture
def state_server() -> Iterator[StateServer]:
    server = StateServer()
    server.start()
    yield server
    server.kill()
