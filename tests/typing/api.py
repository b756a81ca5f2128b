"""What type checkers see of the tracer's public names. mypy reads it with all tests, pyright in one of them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import assert_type

from kvtrace.tracer import (
    Agent,
    Generation,
    KvtraceSpanProcessor,
    Signal,
    agent,
    generation,
    human_wait,
    subscribe,
    traced_tool,
)


@traced_tool
def bare(x: int, *, y: str = "") -> float:
    return x


@traced_tool(name="other", capture=["x", "return"])
def with_options(x: int) -> str:
    return str(x)


@traced_tool
async def later(x: int) -> str:
    return str(x)


@traced_tool
def steps(n: int) -> Iterator[int]:
    yield n


@traced_tool
async def steps_later(n: int) -> AsyncIterator[int]:
    yield n


@agent("a")
async def stream(n: int) -> AsyncIterator[int]:
    yield n


@generation("m")
def answer(prompt: str) -> str:
    return prompt


@human_wait("approval")
def ask() -> bool:
    return True


class Tools:
    @traced_tool
    def method(self, x: int) -> str:
        return str(x)

    @traced_tool
    @staticmethod
    def outside_static(x: int) -> str:
        return str(x)

    @staticmethod
    @traced_tool
    def inside_static(x: int) -> str:
        return str(x)

    @traced_tool()
    @classmethod
    def outside_class(cls, x: int) -> str:
        return str(x)

    @agent("a")
    async def run(self, task: str) -> int:
        return len(task)


def sink(signal: Signal) -> None:
    assert_type(signal.span_id, str)


async def uses() -> None:
    assert_type(bare(1, y="z"), float)
    assert_type(with_options(1), str)
    assert_type(await later(1), str)
    assert_type(steps(1), Iterator[int])
    async for item in stream(1):
        assert_type(item, int)
    async for item in steps_later(1):
        assert_type(item, int)
    assert_type(answer("x"), str)
    assert_type(ask(), bool)
    assert_type(Tools().method(1), str)
    assert_type(Tools.outside_static(1), str)
    assert_type(Tools.inside_static(1), str)
    assert_type(Tools.outside_class(1), str)
    assert_type(await Tools().run("x"), int)
    partial = traced_tool(functools.partial(bare, 1))
    assert_type(partial(), float)
    callback: Callable[[int], str] = with_options
    callback(2)
    subscribe(sink)
    with agent("a") as me, generation("m") as call, human_wait() as nothing:
        assert_type(me, Agent)
        assert_type(call, Generation)
        assert_type(nothing, None)
    async with agent("a") as me:
        assert_type(me.parent_id, str | None)
    KvtraceSpanProcessor()
