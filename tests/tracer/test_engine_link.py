from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.tracer import COUNTS, agent, traced_tool
from kvtrace.tracer.engine_address import EngineAddress, read_answer, read_key
from kvtrace.tracer.engine_backlog import Backlog
from kvtrace.tracer.engine_link import EngineLink, flush_engine, link_engine
from kvtrace.tracer.receive_server import SignalServer
from kvtrace.tracer.runtime import RANDOM_IDS
from kvtrace.tracer.settings import read_settings
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted
from kvtrace.tracer.testing import Captured, capture

if TYPE_CHECKING:
    from tests.tracer.conftest import Program


def start_of(number: int) -> ToolStarted:
    return ToolStarted(f"{1:032x}", f"{number + 1:016x}", 100 + number, "tool", agent="a")


def end_of(number: int) -> ToolEnded:
    return ToolEnded(f"{1:032x}", f"{number + 1:016x}", 200 + number, "tool", agent="a")


@contextmanager
def linked(url: str) -> Iterator[EngineLink]:
    link = EngineLink(EngineAddress.parse(url), "test")
    try:
        yield link
    finally:
        link.close(0.2)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """An engine that gives each connection one of ``answers`` and closes it; the last one for all that follow."""
    seen: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                seen.append(connection.recv(65536))
                connection.sendall(answers[min(len(seen), len(answers)) - 1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_decorated_tool_signals_another_process_address(captured: Captured) -> None:
    arrived: list[Signal] = []

    @traced_tool
    def search() -> None:
        assert eventually(lambda: len(arrived) == 1)

    with SignalServer(arrived.append) as server:
        link_engine(server.url, "test")
        try:
            with agent("worker", id="a-1", conversation="c-1"):
                search()
            assert flush_engine(5)
        finally:
            link_engine(None, "")
    assert arrived == captured.signals
    assert [type(one) for one in arrived] == [ToolStarted, ToolEnded]
    assert (arrived[0].agent, arrived[0].conversation) == ("a-1", "c-1")


def test_thousands_of_signals_arrive_in_order_on_one_connection() -> None:
    arrived: list[Signal] = []
    sent = [signal for number in range(1500) for signal in (start_of(number), end_of(number))]
    with SignalServer(arrived.append) as server, linked(server.url) as link:
        for signal in sent:
            link(signal)
        assert link.flush(10)
        connection = link._connection
        link(start_of(5000))
        assert link.flush(10)
        assert link._connection is connection is not None
    assert arrived == [*sent, start_of(5000)]


def test_complete_span_has_the_start_of_its_call() -> None:
    bodies: list[bytes] = []
    with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as (url, seen),
        linked(url) as link,
    ):
        link(start_of(1))
        assert link.flush(5)
        link(end_of(1))
        assert link.flush(5)
        bodies += seen
    assert (101).to_bytes(8, "little") in bodies[0]
    assert (101).to_bytes(8, "little") in bodies[1]
    assert (201).to_bytes(8, "little") in bodies[1]


def test_idle_connection_that_the_engine_closed_is_replaced_at_once() -> None:
    kept_alive = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(kept_alive) as (url, seen), linked(url) as link:
        for number in range(3):
            link(start_of(number))
            assert link.flush(5)
        assert len(seen) == 3
    assert COUNTS.lost_signals == 0


def test_engine_that_starts_later_gets_what_still_matters() -> None:
    arrived: list[Signal] = []
    port = free_port()
    with linked(f"http://127.0.0.1:{port}") as link:
        for signal in (start_of(1), start_of(2), end_of(2), start_of(3)):
            link(signal)
        assert not link.flush(5)
        with SignalServer(arrived.append, port=port):
            assert eventually(lambda: len(arrived) == 2)
    assert arrived == [start_of(1), start_of(3)]
    assert COUNTS.lost_signals == 2


def test_hanging_engine_holds_up_neither_tools_nor_flush(captured: Captured) -> None:
    done: list[int] = []

    @traced_tool
    def search() -> None:
        done.append(1)

    # A listener that never accepts takes the request and says nothing. It goes first, so that the thread goes too.
    listener = socket.create_server(("127.0.0.1", 0))
    with linked(f"http://127.0.0.1:{listener.getsockname()[1]}") as link, listener:
        for number in range(10_000):
            link(start_of(number))
        assert not link.flush(0.1)
        assert link._queue.qsize() + len(link._backlog) <= 2 * 4096 + 1
    assert COUNTS.lost_signals >= 10_000 - 2 * 4096 - 1
    search()
    assert done == [1]


@pytest.mark.parametrize("status", [b"503 Busy", b"429 Slow down"])
def test_busy_engine_is_asked_again(status: bytes) -> None:
    busy = b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"
    with answering(busy, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (url, seen), linked(url) as link:
        link(start_of(1))
        assert eventually(lambda: len(seen) == 2)
        assert link.flush(5)
    assert COUNTS.lost_signals == 0


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 401 No\r\n\r\n"])
def test_refused_batch_is_dropped_and_said_once(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with answering(answer) as (url, _), linked(url) as link:
        for number in range(3):
            link(start_of(number))
            assert link.flush(5)
    assert COUNTS.lost_signals == 3
    assert len([one for one in caplog.messages if "does not take signals" in one]) == 1


def test_what_is_no_http_server_loses_nothing_but_time(caplog: pytest.LogCaptureFixture) -> None:
    with answering(b"220 mail.example ESMTP\r\n\r\n") as (url, _), linked(url) as link:
        link(start_of(1))
        assert not link.flush(5)
    assert "not HTTP" in caplog.text


def test_key_is_sent_and_a_wrong_one_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arrived: list[Signal] = []
    with SignalServer(arrived.append, key="secret") as server:
        monkeypatch.setenv("KVTRACE_ENGINE_KEY", "wrong")
        with linked(server.url) as link:
            link(start_of(1))
            assert link.flush(5)
        monkeypatch.setenv("KVTRACE_ENGINE_KEY", "secret")
        with linked(server.url) as link:
            link(start_of(2))
            assert link.flush(5)
    assert arrived == [start_of(2)]
    assert "KVTRACE_ENGINE_KEY" in caplog.text
    assert "wrong" not in caplog.text


def test_key_comes_from_a_file_or_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    path.write_text("secret\n", encoding="utf-8")
    assert read_key({"KVTRACE_ENGINE_KEY_FILE": str(path)}) == "secret"
    assert read_key({"KVTRACE_ENGINE_KEY": "mine", "KVTRACE_ENGINE_KEY_FILE": str(path)}) == "mine"
    assert read_key({}) is None
    assert read_key({"KVTRACE_ENGINE_KEY": "two\r\nlines: x"}) is None
    assert "printable" in caplog.text
    assert read_key({"KVTRACE_ENGINE_KEY_FILE": str(tmp_path / "missing")}) is None


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8177", "127.0.0.1", 8177, "/v1/traces"),
        ("http://engine/", "engine", 80, "/v1/traces"),
        ("https://engine/base/", "engine", 443, "/base/v1/traces"),
        ("http://[::1]:1/v1/traces", "::1", 1, "/v1/traces"),
    ],
)
def test_addresses_are_read(url: str, host: str, port: int, path: str) -> None:
    address = EngineAddress.parse(url)
    assert (address.host, address.port, address.path) == (host, port, path)
    assert address.head("x", None).startswith(f"POST {path} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8177",
        "ftp://x",
        "http://",
        "http://x:y",
        "http://x:99999",
        "http://ü/",
        "http://u:p@x",
        "http://x/a b",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="write it like http"):
        EngineAddress.parse(url)
    with pytest.raises(ValueError, match=re.escape(repr(url))):
        read_settings({}, new_run_id="new", engine=url)
    assert read_settings({"KVTRACE_ENGINE": url}, new_run_id="new").engine is None


def test_empty_argument_turns_an_inherited_engine_off() -> None:
    inherited = {"KVTRACE_ENGINE": "http://x:1"}
    assert read_settings(inherited, new_run_id="new").engine == "http://x:1"
    assert read_settings(inherited, new_run_id="new", engine="").engine is None


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(1, 8))
def test_backlog_keeps_order_and_bound(steps: list[tuple[int, bool]], limit: int) -> None:
    backlog = Backlog(limit)
    kept = dropped = 0
    for number, ended in steps:
        before = len(backlog)
        lost = backlog.add(end_of(number) if ended else start_of(number))
        assert len(backlog) <= limit
        assert len(backlog) in (before - lost, before - lost + 1)
        dropped += lost
    kept = len(backlog)
    assert len(backlog.first(100)) == kept
    assert kept + dropped <= len(steps)
    finished = backlog.drop_finished()
    assert len(backlog) == kept - finished
    assert backlog.drop_finished() == 0


def test_answers_in_pieces_are_read_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo")
        threading.Timer(0.05, theirs.sendall, (b"dyHTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",)).start()
        assert read_answer(ours) == (200, True)


def test_forked_child_signals_over_a_connection_of_its_own() -> None:
    arrived: list[Signal] = []

    @traced_tool
    def search() -> None:
        pass

    # Ids that count would be the same in parent and child.
    with capture(ids=RANDOM_IDS) as captured, SignalServer(arrived.append) as server:
        link_engine(server.url, "test")
        try:
            with agent("worker", id="a-1"):
                search()
                child = os.fork()
                if child == 0:
                    try:
                        search()
                        os._exit(0 if flush_engine(5) else 1)
                    finally:
                        os._exit(2)
                assert os.waitpid(child, 0)[1] == 0
                search()
            assert flush_engine(5)
        finally:
            link_engine(None, "")
    assert len(arrived) == 6
    assert [type(one) for one in arrived] == [ToolStarted, ToolEnded] * 3
    assert arrived[:2] + arrived[4:] == captured.signals


def test_program_needs_only_the_variable_and_flushes_at_exit(program: Program) -> None:
    arrived: list[Signal] = []
    with SignalServer(arrived.append) as server:
        done = program(
            """
import os, sys
from kvtrace.tracer import agent, traced_tool
tool = traced_tool(lambda: None, name="search")
with agent("worker", id="a-1"):
    tool()
print([name for name in sys.modules if name.startswith(("google", "opentelemetry.proto", "http", "ssl"))])
""",
            KVTRACE_ENGINE=server.url,
        )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert [(type(one), one.tool, one.agent) for one in arrived] == [
        (ToolStarted, "search", "a-1"),
        (ToolEnded, "search", "a-1"),
    ]


def test_configured_engine_is_for_children_and_until_shutdown(program: Program) -> None:
    arrived: list[Signal] = []
    with SignalServer(arrived.append) as server:
        done = program(
            """
import os
from kvtrace.tracer import configure, shutdown, traced_tool
tool = traced_tool(lambda: None, name="search")
assert configure(engine=os.environ["URL"]).engine == os.environ["KVTRACE_ENGINE"]
tool()
shutdown()
configure(engine="")
tool()
print(repr(os.environ["KVTRACE_ENGINE"]))
""",
            URL=server.url,
        )
    assert (done.stdout, done.stderr) == ("''\n", "")
    assert [type(one) for one in arrived] == [ToolStarted, ToolEnded]


def test_disabled_tracer_signals_nothing(program: Program) -> None:
    arrived: list[Signal] = []
    with SignalServer(arrived.append) as server:
        source = "from kvtrace.tracer import traced_tool; print(traced_tool(lambda: 1, name='search')())"
        done = program(source, KVTRACE_ENGINE=server.url, KVTRACE_DISABLED="1")
    assert (done.stdout, done.stderr, arrived) == ("1\n", "", [])


def test_program_without_its_engine_runs_and_exits(program: Program) -> None:
    source = """
from kvtrace.tracer import agent, traced_tool
with agent("worker"):
    print(traced_tool(lambda: "result", name="search")())
"""
    done = program(source, KVTRACE_ENGINE=f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (0, "result\n")
    assert done.stderr.count("does not take signals") == 1
    done = program(source, KVTRACE_ENGINE="nonsense")
    assert (done.returncode, done.stdout) == (0, "result\n")
    assert "write it like http" in done.stderr
