"""What comes before a request's body is bounded: nobody without a key can fill the memory or hold connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvtrace.engine.server import guard, heads

from .support import WAIT_S, Running

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as client:
        yield client


def until_closed(client: socket.socket) -> bytes:
    answer = b""
    try:
        while more := client.recv(1 << 16):
            answer += more
    except ConnectionResetError:
        pass
    return answer


@pytest.mark.parametrize("beginning", [b"GET /", GET + b"X-Long: "])
def test_a_head_without_end_is_cut_off(tiny_server: Running, beginning: bytes) -> None:
    with connected(tiny_server) as client:
        client.sendall(beginning)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(b"a" * (64 << 20))  # far beyond what buffers on the way take
    assert tiny_server.http.get("/health").status_code == 200


def test_many_requests_on_one_connection_are_no_long_head(tiny_server: Running) -> None:
    one = GET + b"X-Some: " + b"a" * (heads.MOST_HEAD_BYTES // 4) + b"\r\n\r\n"
    with connected(tiny_server) as client:
        for _ in range(8):
            client.sendall(one[:100])
            client.sendall(one[100:])
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("beginning", [b"", GET, GET + b"\r\n" + GET])
def test_a_head_that_does_not_come_ends_its_connection(
    tiny_server: Running, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "MOST_HEAD_S", 0.1)
    with connected(tiny_server) as client:
        client.sendall(beginning)
        assert until_closed(client).count(b"HTTP/1.1 200") == beginning.count(b"\r\n\r\n")


def test_an_answer_may_take_longer_than_a_head(tiny_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MOST_HEAD_S", 0.1)
    monkeypatch.setattr(guard, "MOST_SILENCE_S", 0.1)
    with connected(tiny_server) as client:
        client.sendall(b"GET /v1/kv/state?watch=1&interval=0.1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        seen = b""
        while seen.count(b"data: ") < 4:
            more = client.recv(1 << 16)
            assert more
            seen += more


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/traces"])
def test_a_body_that_stops_coming_is_given_up(
    tiny_server: Running, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MOST_SILENCE_S", 0.1)
    with connected(tiny_server) as client:
        client.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408")
