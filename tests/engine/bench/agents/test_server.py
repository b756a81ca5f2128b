"""Who serves, and waiting until it can be measured, against a small HTTP server that answers as the real ones do."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web

from kvtrace.engine.bench.agents.server import ServerFacts, answers, find_model, identify, wait_for_host_tier
from kvtrace.engine.bench.agents.watcher import Moved, Watcher

from .serving import asked

T = TypeVar("T")
Answers = dict[str, Iterator[Any]]


def against(said: Answers, ask: Callable[[str], Awaitable[T]]) -> T:
    """Serve ``said`` by path, the last one for ever, and ask."""

    async def handle(request: web.Request) -> web.Response:
        if request.path not in said:
            raise web.HTTPNotFound
        return web.json_response(text=json.dumps(next(said[request.path])))

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    return asked(app, ask)


def states(*host_bytes: int, device: str = "cuda:0", policy: str = "auto") -> Iterator[dict[str, Any]]:
    last = 0
    for last in host_bytes:
        yield {"device": device, "policy": policy, "tiers": {"host": {"total_bytes": last}}}
    while True:
        yield {"device": device, "policy": policy, "tiers": {"host": {"total_bytes": last}}}


def test_growing_host_tier_is_waited_for() -> None:
    state = states(10, 20, 30)
    waited = against({"/v1/kv/state": state}, lambda url: wait_for_host_tier(url, steady_s=0.6))
    assert waited is not None
    assert waited > 0.3  # two looks later it had grown to the end
    assert next(state)["tiers"]["host"]["total_bytes"] == 30


def test_tier_that_never_ends_growing_is_given_up() -> None:
    grown = ({"device": "cuda:0", "policy": "auto", "tiers": {"host": {"total_bytes": size}}} for size in range(10**6))
    assert against({"/v1/kv/state": grown}, lambda url: wait_for_host_tier(url, longest_s=0.6)) is None


@pytest.mark.parametrize("state", [{"device": "cpu"}, {"policy": "recompute"}])
def test_nothing_is_waited_for_where_nothing_is_pinned(state: dict[str, str]) -> None:
    waited = against({"/v1/kv/state": states(0, **state)}, lambda url: wait_for_host_tier(url, steady_s=60.0))
    assert waited == pytest.approx(0.0, abs=0.5)


def test_servers_are_told_apart() -> None:
    ours = against({"/v1/kv/state": states(7)}, identify)
    assert (ours.engine, ours.policy, ours.host_bytes, ours.takes_spans) == ("kvtrace", "auto", 7, True)
    assert (ours.device_name, ours.block_tokens) == (None, None)
    named = ({**state, "device_name": "NVIDIA H200", "block_tokens": 32} for state in states(7))
    told = against({"/v1/kv/state": named}, identify)
    assert (told.device_name, told.block_tokens) == ("NVIDIA H200", 32)
    theirs = against({"/version": iter([{"version": "0.25.1"}])}, identify)
    assert theirs == ServerFacts("vllm", "0.25.1")
    assert against({}, identify) == ServerFacts("other", None)


def test_model_is_the_first_that_the_server_lists() -> None:
    assert against({"/v1/models": iter([{"data": [{"id": "a"}, {"id": "b"}]}])}, find_model) == "a"
    assert against({"/v1/models": iter([{"data": []}])}, find_model) is None
    assert against({}, find_model) is None


@pytest.mark.parametrize("state", [[], {"policy": "auto"}, {"tiers": 3}, {"tiers": {"host": {"total_bytes": "x"}}}])
def test_server_with_a_state_of_another_kind_is_not_taken_for_ours(state: Any) -> None:
    facts = against({"/v1/kv/state": itertools.repeat(state)}, identify)
    assert facts == ServerFacts("other", None)


def test_server_answers_whatever_it_says_until_it_is_gone() -> None:
    assert against({}, answers)
    assert not asyncio.run(answers("http://127.0.0.1:9"))


def copied(*counters: int) -> Iterator[dict[str, Any]]:
    tiers = {"host": {"total_bytes": 1}, "vram": {"kv_pool_bytes": 1, "kv_active_bytes": 0}}
    for counter in counters:
        link = {"out_total_bytes": counter, "in_total_bytes": 2 * counter}
        yield {"policy": "auto", "device": "cpu", "tiers": tiers, "agents": [], "link": link}


@pytest.mark.parametrize(("counters", "out"), [((10, 17), 7), ((10, 3), None)])
def test_bytes_moved_are_unknown_where_the_server_began_anew(counters: tuple[int, int], out: int | None) -> None:
    async def watched(url: str) -> Moved | None:
        async with Watcher(url) as watcher:
            pass
        return watcher.moved

    moved = against({"/v1/kv/state": copied(*counters)}, watched)
    assert (None if moved is None else moved.out_bytes) == out
