"""What ``kvtrace bench return --url`` makes of what a server tells of itself, before it asks it to do anything."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("aiohttp")

import aiohttp
from aiohttp import web

from kvtrace.engine.bench.agents.returns import ReturnShape, _Bench, measure_returns
from kvtrace.engine.errors import EngineError

from .serving import asked

STATE = {"policy": "auto", "device": "cpu", "agents": [], "tiers": {"host": {"total_bytes": 10**9}}}
SHAPE = ReturnShape(100, 20, 1)


def telling(state: dict[str, Any]) -> web.Application:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(state)

    app = web.Application()
    app.router.add_get("/v1/kv/state", handle)
    return app


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"block_tokens": "many"}, "its blocks have 'many' tokens"),
        ({"block_tokens": -16}, "its blocks have -16 tokens"),
        ({"tiers": {"host": {"total_bytes": 0}}}, "no host tier .* give it a --kv-host"),
    ],
)
def test_a_server_that_cannot_be_measured_is_refused_in_a_sentence(told: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        asked(telling(STATE | told), lambda url: measure_returns(url, "model", 1000, SHAPE))


@pytest.mark.parametrize(("told", "size"), [({}, 16), ({"block_tokens": None}, 16), ({"block_tokens": 64}, 64)])
def test_bytes_a_token_are_those_of_the_servers_own_blocks(told: dict[str, Any], size: int) -> None:
    async def begun(url: str) -> _Bench:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
            bench = _Bench(session, url, "model", 1000, SHAPE, lambda hint: None)
            assert await bench.begin() == "auto"
            return bench

    bench = asked(telling(STATE | told), begun)
    agent = {"agent": "one", "kept_tokens": 65, "vram_bytes": -(-65 // size) * size * 7, "host_bytes": 0}
    assert bench._token_bytes([agent], "one") == 7
