from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span

Finished = Callable[[], "list[Span]"]


def at_module_level(x: int) -> int:
    return x


def double(x: int, *, extra: int = 0) -> int:
    """Twice x."""
    return 2 * x + extra


async def double_later(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


def count(n: int) -> Iterator[int]:
    yield from range(n)


async def count_later(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


async def collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize("form", ["without_parentheses", "with_parentheses"])
def test_sync_call_makes_one_span(adapter: Adapter, spans: Finished, form: str) -> None:
    tool = getattr(adapter, form)(double)
    assert tool(3, extra=1) == 7
    assert [span.name for span in spans()] == ["double"]


@pytest.mark.parametrize("form", ["without_parentheses", "with_parentheses"])
def test_async_call_spans_the_await(adapter: Adapter, spans: Finished, form: str) -> None:
    async def slow() -> int:
        await asyncio.sleep(0.02)
        return 1

    assert asyncio.run(getattr(adapter, form)(slow)()) == 1
    (span,) = spans()
    assert span.end_unix_ns - span.start_unix_ns >= 20_000_000


def test_async_function_not_awaited_makes_no_span(adapter: Adapter, spans: Finished) -> None:
    adapter.bare(double_later)(1).close()
    assert spans() == []


def test_methods_get_their_instance(adapter: Adapter, spans: Finished) -> None:
    class Tools:
        base = 10

        @adapter.bare
        def plain(self, x: int) -> int:
            return self.base + x

        @adapter.bare
        async def later(self, x: int) -> int:
            return self.base - x

        @adapter.bare
        def many(self) -> Iterator[int]:
            yield self.base

    tools = Tools()
    assert tools.plain(1) == 11
    assert asyncio.run(tools.later(1)) == 9
    assert list(tools.many()) == [10]
    assert [span.name for span in spans()] == ["plain", "later", "many"]


def test_static_methods_work_in_either_order(adapter: Adapter, spans: Finished) -> None:
    class Tools:
        outside = adapter.bare(staticmethod(double))
        inside = staticmethod(adapter.bare(double))
        outside_async = adapter.bare(staticmethod(double_later))

    assert Tools.outside(1) == Tools().outside(1) == Tools.inside(1) == 2
    assert asyncio.run(Tools().outside_async(2)) == 4
    assert len(spans()) == 4


def test_class_methods_work_in_either_order(adapter: Adapter, spans: Finished) -> None:
    def name_of(cls: type, x: int) -> tuple[str, int]:
        return cls.__name__, x

    class Tools:
        outside = adapter.bare(classmethod(name_of))
        inside: Any = classmethod(adapter.bare(name_of))

    class More(Tools):
        pass

    assert More.outside(1) == More().outside(1) == More.inside(1) == ("More", 1)
    assert len(spans()) == 3


def test_partials_of_every_kind_are_traced(adapter: Adapter, spans: Finished) -> None:
    assert adapter.bare(functools.partial(double, 2))() == 4
    assert asyncio.run(adapter.bare(functools.partial(double_later, 3))()) == 6
    assert list(adapter.bare(functools.partial(count, 2))()) == [0, 1]
    assert asyncio.run(collect(adapter.bare(functools.partial(count_later, 2))())) == [0, 1]
    assert [span.name for span in spans()] == ["double", "double_later", "count", "count_later"]


def test_callable_objects_are_traced(adapter: Adapter, spans: Finished) -> None:
    class Search:
        def __call__(self, x: int) -> int:
            return x

    class SearchLater:
        async def __call__(self, x: int) -> int:
            await asyncio.sleep(0.01)
            return x

    later = adapter.bare(SearchLater())
    assert adapter.bare(Search())(1) == 1
    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later(2)) == 2
    assert [span.name for span in spans()] == ["Search", "SearchLater"]
    assert spans()[1].end_unix_ns - spans()[1].start_unix_ns >= 10_000_000


def test_plain_function_returning_a_coroutine_spans_its_await(adapter: Adapter, spans: Finished) -> None:
    async def slow() -> int:
        await asyncio.sleep(0.02)
        return 5

    async def main() -> int:
        coroutine = adapter.bare(lambda: slow())()
        assert inspect.iscoroutine(coroutine)
        return int(await asyncio.create_task(coroutine))

    assert asyncio.run(main()) == 5
    (span,) = spans()
    assert span.end_unix_ns - span.start_unix_ns >= 20_000_000


def test_plain_function_returning_generators_spans_them(adapter: Adapter, spans: Finished) -> None:
    assert list(adapter.bare(lambda: count(2))()) == [0, 1]
    assert asyncio.run(collect(adapter.bare(lambda: count_later(2))())) == [0, 1]
    assert len(spans()) == 2


def test_async_function_returning_a_stream_spans_the_stream(adapter: Adapter, spans: Finished) -> None:
    async def open_stream() -> AsyncIterator[int]:
        return count_later(3)

    async def main() -> list[int]:
        stream = await adapter.bare(open_stream)()
        assert spans() == []
        return await collect(stream)

    assert asyncio.run(main()) == [0, 1, 2]
    assert len(spans()) == 1


def test_coroutine_nobody_awaits_ends_its_span(adapter: Adapter, spans: Finished) -> None:
    coroutine = adapter.bare(lambda: double_later(1))()
    coroutine.close()
    del coroutine
    assert len(spans()) == 1


def test_awaitable_generators_stay_awaitable(adapter: Adapter, spans: Finished) -> None:
    @types.coroutine
    def old_style() -> Generator[Any, Any, int]:
        yield
        return 4

    async def main(function: Callable[[], Awaitable[int]]) -> int:
        return await function()

    assert asyncio.run(main(adapter.bare(old_style))) == 4
    assert len(spans()) == 1


@pytest.mark.parametrize(
    ("function", "test"),
    [
        (double, inspect.isfunction),
        (double_later, inspect.iscoroutinefunction),
        (count, inspect.isgeneratorfunction),
        (count_later, inspect.isasyncgenfunction),
    ],
)
def test_function_looks_the_same_from_outside(
    adapter: Adapter, function: Callable[..., Any], test: Callable[[Any], bool]
) -> None:
    tool = adapter.bare(function)
    assert test(tool)
    assert inspect.signature(tool) == inspect.signature(function)
    assert (tool.__name__, tool.__doc__, tool.__annotations__) == (
        function.__name__,
        function.__doc__,
        function.__annotations__,
    )
    assert copy.deepcopy(tool) is tool


def test_module_level_tools_can_be_pickled(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = adapter.bare(at_module_level)
    # Under pytest's importlib mode this file may have no importable name.
    monkeypatch.setitem(sys.modules, __name__, cast("types.ModuleType", SimpleNamespace(at_module_level=tool)))
    assert pickle.loads(pickle.dumps(tool)) is tool


def run_to_its_end(result: Any) -> None:
    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif inspect.isasyncgen(result):
        asyncio.run(collect(result))
    else:
        list(result)


@pytest.mark.parametrize("function", [double, double_later, count, count_later])
def test_wrong_arguments_raise_the_functions_own_error(
    adapter: Adapter, spans: Finished, function: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) missing 1 required positional argument"):
        run_to_its_end(adapter.bare(function)())
    assert all(span.error for span in spans())


class Searches:
    """A tool that carries state."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, x: int) -> int:
        self.seen.append(x)
        return x


def test_wrapped_objects_and_partials_can_be_copied(adapter: Adapter, spans: Finished) -> None:
    for function in (functools.partial(double, extra=1), Searches()):
        assert copy.deepcopy(adapter.bare(function))(3) == function(3)
    assert len(spans()) == 2


def test_arguments_with_hostile_repr_reach_the_tool(adapter: Adapter, spans: Finished) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

        __str__ = __repr__

    hostile = Hostile()
    assert adapter.bare(lambda x: x)(hostile) is hostile
    assert len(spans()) == 1
