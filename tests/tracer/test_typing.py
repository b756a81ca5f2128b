"""What type checkers see: the decorators keep the types of what they decorate. mypy reads this file as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import assert_type

from kvtrace.tracer import Agent, Generation, agent, generation, human_wait, traced_tool
from kvtrace.tracer.testing import Captured


@traced_tool
def bare(x: int, *, y: str = "") -> float:
    return x


@traced_tool(name="other")
def with_options(x: int) -> str:
    return str(x)


@traced_tool
async def later(x: int) -> str:
    return str(x)


@traced_tool
def steps(n: int) -> Iterator[int]:
    yield n


@agent("a")
async def stream(n: int) -> AsyncIterator[int]:
    yield n


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


async def uses() -> None:
    assert_type(await later(1), str)
    async for item in stream(1):
        assert_type(item, int)


def test_decorated_functions_keep_their_types(captured: Captured) -> None:
    assert_type(bare(1, y="z"), float)
    assert_type(with_options(1), str)
    assert_type(list(steps(1)), list[int])
    assert_type(Tools().method(1), str)
    assert_type(Tools.outside_static(1), str)
    assert_type(Tools.inside_static(1), str)
    assert_type(Tools.outside_class(1), str)
    bare("no")  # type: ignore[arg-type]
    callback: Callable[[int], str] = with_options
    with agent("a") as me, generation("m") as call, human_wait() as nothing:
        assert_type(me, Agent)
        assert_type(call, Generation)
        assert_type(nothing, None)
        assert callback(2) == "2"
    assert len(captured.spans) == 12
