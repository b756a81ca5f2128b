"""A server's state over real HTTP: found, lost, refused, loading, foreign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtrace.analysis.testing import otlp_span, write_otlp
from kvtrace.tui.feed.choose import FoundFeed
from kvtrace.tui.feed.contract import FeedError, SourceKind
from kvtrace.tui.feed.http import HttpFeed, ServerAddress, default_address, http_feed

from .conftest import StateServer


def test_every_read_is_a_new_sample_over_one_connection(state_server: StateServer) -> None:
    feed = HttpFeed(ServerAddress.parse(state_server.url))
    (first,), (second,) = feed.read(), feed.read()
    assert first.snapshot.time_unix_ns < second.snapshot.time_unix_ns
    assert first.kind is SourceKind.ENGINE
    assert len({id(connection) for connection in state_server._connections}) == 1
    feed.close()


def test_server_killed_and_started_again_is_met_again(state_server: StateServer) -> None:
    feed = HttpFeed(ServerAddress.parse(state_server.url))
    assert feed.read()
    state_server.kill()
    for _ in range(2):
        with pytest.raises(FeedError, match="refused"):
            feed.read()
    state_server.start()
    assert feed.read()
    feed.close()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"", "wants a key: set KVTRACE_ENGINE_KEY_FILE or KVTRACE_ENGINE_KEY"),
        (403, json.dumps({"error": {"message": "the host name is not mine"}}).encode(), "refuses: the host name is"),
        (404, b"", "no kvtrace server"),
        (500, b"", "HTTP 500"),
        (503, json.dumps({"error": {"message": "still loading weights"}}).encode(), r"\d: still loading weights"),
        (503, b"<html>", "not ready"),
        (200, b"<html>", "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b"{}", "check the address"),
    ],
)
def test_answers_that_are_no_state_are_told_in_words(
    state_server: StateServer, status: int, body: bytes, said: str
) -> None:
    state_server.answer = lambda: (status, body)
    feed = HttpFeed(ServerAddress.parse(state_server.url))
    with pytest.raises(FeedError, match=said):
        feed.read()
    state_server.answer = None
    assert feed.read()
    feed.close()


def test_silent_server_is_given_up_after_the_timeout(state_server: StateServer) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        feed = HttpFeed(ServerAddress.parse(f"http://127.0.0.1:{silent.getsockname()[1]}"), timeout_s=0.1)
        with pytest.raises(FeedError, match="no answer"):
            feed.read()
        feed.close()


def test_key_and_base_path_are_used(state_server: StateServer) -> None:
    feed = http_feed(ServerAddress.parse(f"{state_server.url}/kv/v1"), {"KVTRACE_ENGINE_KEY": "s3cret"})
    feed.read()
    assert state_server.asked[0]["path"] == "/kv/v1/kv/state"
    assert state_server.asked[0]["authorization"] == "Bearer s3cret"
    feed.close()


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://a b", "http://x:99999"]
)
def test_bad_addresses_are_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:8177"):
        ServerAddress.parse(url)


def test_default_address_is_the_environments_or_the_local_one() -> None:
    assert default_address({}).text == "127.0.0.1:8177"
    assert default_address({"KVTRACE_ENGINE": "http://box:9/v1/traces"}).text == "box:9"
    assert ServerAddress.parse("[::1]:80").is_local
    assert not ServerAddress.parse("box:80").is_local


def test_server_that_was_met_is_waited_for_and_not_replaced_by_spans(
    state_server: StateServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path_factory.mktemp("runs")))
    feed = FoundFeed(HttpFeed(ServerAddress.parse(state_server.url)))
    assert feed.read()[0].kind is SourceKind.ENGINE
    state_server.kill()
    with pytest.raises(FeedError, match="refused"):
        feed.read()
    feed.close()


def test_spans_are_watched_until_a_server_answers(state_server: StateServer, tmp_path: Path) -> None:
    write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", 0, None, span=1, agent="a")])
    now_s = [0.0]
    state_server.kill()
    feed = FoundFeed(HttpFeed(ServerAddress.parse(state_server.url)), [tmp_path], lambda: now_s[0])
    assert feed.read()[0].kind is SourceKind.SPANS
    assert feed.where == str(tmp_path)
    state_server.start()
    assert feed.read()[0].kind is SourceKind.SPANS
    now_s[0] = 5.0
    assert feed.read()[0].kind is SourceKind.ENGINE
    assert feed.where == f"127.0.0.1:{state_server.port}"
    feed.close()


def test_without_server_and_spans_it_says_what_to_start(
    state_server: StateServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path_factory.mktemp("runs")))
    state_server.kill()
    feed = FoundFeed(HttpFeed(ServerAddress.parse(state_server.url)))
    with pytest.raises(FeedError, match=r"kvtrace serve.*--demo"):
        feed.read()
    feed.close()


def test_a_wrong_key_is_not_told_as_a_missing_one(state_server: StateServer) -> None:
    state_server.answer = lambda: (401, b"")
    feed = HttpFeed(ServerAddress.parse(state_server.url), key="wrong")
    with pytest.raises(FeedError, match="does not take the key of KVTRACE_ENGINE_KEY_FILE"):
        feed.read()
    feed.close()
