"""What happens when there is too much to do, when things fail, and when clients leave."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtrace.engine.server import job
from kvtrace.engine.server.sse import SILENCE_S

from .conftest import tiny_settings
from .support import WAIT_S, Running, chat_body, events, held, running, slowed, text_body, until

PROMPT = list(range(5, 25))


@pytest.fixture(scope="module")
def small(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """One slot, two places in the queue."""
    with running(replace(tiny_settings(tiny_folder("llama")), slots=1, queue_requests=2, max_agents=3)) as server:
        yield server


def _open(server: Running) -> int:
    return len(server.service.open)


def _answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return False
    return True


def _active_bytes(server: Running) -> int:
    return server.service.engine.state().tiers.vram.kv_active_bytes


def test_a_full_queue_is_told_to_come_back_later(small: Running) -> None:
    with ThreadPoolExecutor() as pool, held(small) as gate:
        first = pool.submit(small.complete, PROMPT, user="a")
        assert gate.reached.wait(WAIT_S)
        others = [pool.submit(small.complete, PROMPT, user="b") for _ in range(2)]
        until(lambda: _open(small) == 3)
        refused = [pool.submit(small.complete, PROMPT, user="b", stream=stream) for stream in (False, True)]
        until(lambda: _open(small) == 5)
        gate.open.set()
        for response in (future.result(WAIT_S) for future in refused):
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
            assert error["code"] == "queue_full"
            assert error["message"].startswith("2 requests wait already")
            assert "--queue" in error["message"]
        assert [future.result(WAIT_S).status_code for future in (first, *others)] == [200, 200, 200]
    assert [record.outcome for record in small.records[-5:]].count("queue_full") == 2


def test_a_stream_that_a_full_queue_refuses_late_has_its_status(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SILENCE_S", 0.02)  # a step takes longer than a stream may be silent
    with ThreadPoolExecutor() as pool, held(small) as gate:
        first = pool.submit(small.complete, PROMPT, user="a")
        assert gate.reached.wait(WAIT_S)
        # As long as there may be room, clients get their stream and comments in it.
        with small.http.stream("POST", "/v1/completions", json=text_body(small.model, PROMPT, stream=True)) as one:
            assert one.status_code == 200
            lines = one.iter_lines()
            assert next(lines).startswith(":")
            other = pool.submit(small.complete, PROMPT, user="b")
            until(lambda: _open(small) == 3)
            late = pool.submit(small.complete, PROMPT, user="c", stream=True)
            until(lambda: _open(small) == 4)
            with pytest.raises(TimeoutError):
                late.result(0.2)
            gate.open.set()
            assert late.result(WAIT_S).status_code == 429
            assert len(list(events(lines))) > 0
        assert [first.result(WAIT_S).status_code, other.result(WAIT_S).status_code] == [200, 200]


def test_a_new_agent_beyond_the_limit_waits_until_anothers_turns_are_over(small: Running) -> None:
    engine = small.service.engine

    def state_of(agent: str) -> str | None:
        return next((one.state.value for one in engine.state().agents if one.agent == agent), None)

    for agent in ("p", "q", "r"):
        assert small.chat(f"hi from {agent}", prompt_cache_key=agent).status_code == 200
        engine.turn_ended(agent, {f"call-{agent}": "grep"})
    until(lambda: [one.tool for one in engine.state().agents if one.agent in "pqr"] == ["grep"] * 3)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(small.chat, "something else", prompt_cache_key="s")
        until(lambda: state_of("s") == "queued")
        # Whoever is in the middle of a turn comes back whenever it wants, past the one that waits.
        assert small.chat("hi from p", prompt_cache_key="p").status_code == 200
        assert waiting.result(WAIT_S).status_code == 200


def test_a_client_that_leaves_frees_its_blocks(tiny_server: Running) -> None:
    body = text_body(tiny_server.model, PROMPT, max_tokens=230, user="leaver")
    with (
        slowed(tiny_server, 0.02),
        tiny_server.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response,
    ):
        chunks = events(response.iter_lines())  # kept: with it the connection would be closed
        next(chunks)
        until(lambda: _active_bytes(tiny_server) > 0)
    until(lambda: _open(tiny_server) == 0)
    until(lambda: _active_bytes(tiny_server) == 0)
    assert tiny_server.records[-1].outcome == "cancelled"
    assert tiny_server.records[-1].usage.output_tokens < 230


def test_a_client_that_gives_up_waiting_frees_its_place(tiny_server: Running) -> None:
    with held(tiny_server) as gate:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{tiny_server.url}/v1/completions", json=text_body(tiny_server.model, PROMPT), timeout=0.3)
        until(lambda: _open(tiny_server) == 0)
        assert gate.reached.is_set()
    until(lambda: _active_bytes(tiny_server) == 0)
    assert tiny_server.records[-1].outcome == "cancelled"


def test_silent_streams_send_comments(tiny_server: Running) -> None:
    body = chat_body(tiny_server.model, "hello", stream=True)
    with tiny_server.http.stream("POST", "/v1/chat/completions", json=body) as first:
        with held(tiny_server), tiny_server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            comments = (line[2:] for line in lines if line.startswith(": "))
            assert {next(comments), next(comments)} <= {"generating", "queued", "restoring"}
        assert len(list(events(first.iter_lines()))) >= 2
    assert SILENCE_S < 2


def test_text_that_is_held_back_is_silence_too(tiny_server: Running) -> None:
    """The whole answer may be the beginning of a stop string, so nothing of it can be sent before its end."""
    text = tiny_server.complete(PROMPT, max_tokens=12).json()["choices"][0]["text"]
    body = text_body(tiny_server.model, PROMPT, max_tokens=12, stop=[f"{text} and more"], stream=True)
    with slowed(tiny_server, 0.2), tiny_server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert ": generating" in lines
    assert [event["choices"][0]["text"] for event in events(iter(lines))] == [text]


def test_clients_that_come_and_go_leave_nothing_behind(tiny_server: Running) -> None:
    source = random.Random(5)
    plans = [(number, source.random() < 0.5, source.randrange(1, 40)) for number in range(24)]

    def ask(plan: tuple[int, bool, int]) -> int:
        number, leaves, tokens = plan
        prompt = [7] * 20 + [number + 5] * 30
        body = text_body(
            tiny_server.model, prompt, max_tokens=tokens, user=f"u{number % 7}", stream=True, n=1 + number % 2
        )
        with tiny_server.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 429:
                return 429
            chunks = events(response.iter_lines())
            got = [next(chunks)] if leaves else list(chunks)
        return len(got)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, plans))
    assert all(results)
    until(lambda: _open(tiny_server) == 0 and _active_bytes(tiny_server) == 0)
    tiny_server.service.engine._core.check()


def test_a_failed_step_fails_its_requests_and_the_server_goes_on(tiny_server: Running) -> None:
    for stream in (False, True):
        with ThreadPoolExecutor() as pool, held(tiny_server) as gate:
            failing = pool.submit(tiny_server.chat, "hello", stream=stream)
            assert gate.reached.wait(WAIT_S)
            gate.error = RuntimeError("device on fire")
            gate.open.set()
            response = failing.result(WAIT_S)
        error = list(events(response.iter_lines()))[-1]["error"] if stream else response.json()["error"]
        assert response.status_code == (200 if stream else 500)
        assert "RuntimeError: device on fire" in error["message"]
        assert error["type"] == "server_error"
        assert tiny_server.records[-1].outcome == "error"
    assert tiny_server.chat("hello").status_code == 200
    assert tiny_server.http.get("/health").status_code == 200


def test_state_is_one_snapshot_or_a_stream_of_them(tiny_server: Running) -> None:
    tiny_server.complete(PROMPT, user="watched")
    assert tiny_server.http.get("/v1/kv/state").json()["schema_version"] == 1
    until(lambda: "watched" in tiny_server.http.get("/v1/kv/state").text)
    for request in ({"params": {"watch": "1", "interval": "0.1"}}, {"headers": {"Accept": "text/event-stream"}}):
        with tiny_server.http.stream("GET", "/v1/kv/state", **request) as response:  # type: ignore[arg-type]
            watched = events(response.iter_lines())
            instants = [next(watched)["time_unix_ns"] for _ in range(2)]
            assert instants[0] <= instants[1]
    assert tiny_server.http.get("/v1/kv/state", params={"interval": "0"}).status_code == 400


def test_a_stop_lets_open_requests_end_and_takes_no_new_ones(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_settings(tiny_folder("llama"))) as server, ThreadPoolExecutor() as pool, ExitStack() as stack:
        watched = stack.enter_context(
            server.http.stream("GET", "/v1/kv/state", params={"watch": "1", "interval": "60"})
        )
        lines = events(watched.iter_lines())
        next(lines)
        with held(server) as gate:
            answer = pool.submit(server.complete, PROMPT, max_tokens=40)
            assert gate.reached.wait(WAIT_S)
            server.launched.stop()
        assert answer.result(WAIT_S).json()["usage"]["completion_tokens"] == 40
        # A stream without an end does not hold the server up.
        assert list(lines) == []
        until(lambda: not _answers(server.url))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_stream_that_outlasts_the_drain_ends_with_an_error(tiny_folder: Callable[[str], Path], path: str) -> None:
    with running(replace(tiny_settings(tiny_folder("llama")), drain_s=1)) as server, held(server):
        body = {
            "/v1/chat/completions": chat_body(server.model, "hello"),
            "/v1/completions": text_body(server.model, PROMPT),
            "/v1/responses": {"model": server.model, "input": "hello"},
        }[path]
        with server.http.stream("POST", path, json=body | {"stream": True}) as response:
            server.launched.stop()
            lines = [line for line in response.iter_lines() if line]
        assert "data: [DONE]" not in lines
        last = json.loads(lines[-1].removeprefix("data: "))
        error = last["response"]["error"] if path == "/v1/responses" else last["error"]
        assert error["code"] == "shutting_down"
        until(lambda: bool(server.records))
        assert server.records[-1].outcome == "error"


def test_requests_are_refused_while_the_model_loads(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvtrace.engine.server import launch, loading

    go = threading.Event()
    start = loading.start_engine

    def held_back(*arguments: Any) -> Any:
        arguments[0].entered("loading at leisure")
        assert go.wait(WAIT_S)
        return start(*arguments)

    monkeypatch.setattr(launch, "start_engine", held_back)
    server = launch.Launched(tiny_settings(tiny_folder("llama")))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.service.phase == "loading at leisure")
        health = httpx.get(f"{server.url}/health", timeout=WAIT_S)
        assert (health.status_code, health.json()["phase"]) == (503, "loading at leisure")
        for path, body in (("/v1/completions", text_body("x", [5])), ("/v1/chat/completions", chat_body("x", "hi"))):
            response = httpx.post(server.url + path, json=body, timeout=WAIT_S)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "loading"
            assert int(response.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/v1/kv/state", timeout=WAIT_S).status_code == 503
        go.set()
        until(lambda: httpx.get(f"{server.url}/health", timeout=WAIT_S).status_code == 200)
    finally:
        go.set()
        server.stop()
        thread.join(WAIT_S)
