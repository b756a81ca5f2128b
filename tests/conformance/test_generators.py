from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span

Finished = Callable[[], "list[Span]"]


def echo() -> Generator[Any, Any, str]:
    """Hand back what is sent in, and what is thrown in, until None comes."""
    received: Any = "ready"
    while received is not None:
        try:
            received = yield received
        except ValueError as error:
            received = f"caught {error}"
    return "done"


async def echo_later() -> AsyncGenerator[Any, Any]:
    received: Any = "ready"
    while received is not None:
        await asyncio.sleep(0)
        try:
            received = yield received
        except ValueError as error:
            received = f"caught {error}"


def test_span_lasts_until_the_last_step(adapter: Adapter, spans: Finished) -> None:
    generator = adapter.bare(echo)()
    next(generator)
    assert spans() == []
    with pytest.raises(StopIteration):
        generator.send(None)
    assert len(spans()) == 1


def test_send_throw_and_return_value_pass_through(adapter: Adapter, spans: Finished) -> None:
    generator = adapter.bare(echo)()
    assert next(generator) == "ready"
    assert generator.send(1) == 1
    assert generator.throw(ValueError("x")) == "caught x"
    with pytest.raises(StopIteration) as stop:
        generator.send(None)
    assert stop.value.value == "done"
    assert not spans()[0].error


def test_asend_and_athrow_pass_through(adapter: Adapter, spans: Finished) -> None:
    async def main() -> None:
        generator = adapter.bare(echo_later)()
        assert await anext(generator) == "ready"
        assert await generator.asend(1) == 1
        assert await generator.athrow(ValueError("x")) == "caught x"
        with pytest.raises(StopAsyncIteration):
            await generator.asend(None)

    asyncio.run(main())
    assert len(spans()) == 1


def test_thrown_errors_do_not_become_context_of_later_ones(adapter: Adapter, spans: Finished) -> None:
    def body() -> Iterator[int]:
        with contextlib.suppress(ValueError):
            yield 1
        raise KeyError("later")

    generator = adapter.bare(body)()
    next(generator)
    with pytest.raises(KeyError) as raised:
        generator.throw(ValueError())
    assert raised.value.__context__ is None
    assert spans()[0].error


def test_caller_context_is_clean_between_yields(adapter: Adapter, spans: Finished) -> None:
    def body() -> Iterator[str | None]:
        yield adapter.current_span_id()

    async def body_later() -> AsyncIterator[str | None]:
        yield adapter.current_span_id()

    async def main() -> None:
        async for inside in adapter.bare(body_later)():
            assert inside is not None
            assert adapter.current_span_id() is None

    for inside in adapter.bare(body)():
        assert inside is not None
        assert adapter.current_span_id() is None
    asyncio.run(main())
    assert len(spans()) == 2


def test_children_nest_in_every_step(adapter: Adapter, spans: Finished) -> None:
    child = adapter.bare(lambda: None)

    def body() -> Iterator[None]:
        child()
        yield
        child()

    async def body_later() -> AsyncIterator[None]:
        child()
        yield
        await asyncio.sleep(0)
        child()

    async def main() -> None:
        async for _ in adapter.bare(body_later)():
            child()

    for _ in adapter.bare(body)():
        child()
    asyncio.run(main())
    by_name: dict[str, list[Span]] = {}
    for span in spans():
        by_name.setdefault(span.name, []).append(span)
    parents = {by_name["body"][0].span_id: 0, by_name["body_later"][0].span_id: 0, None: 0}
    for span in by_name["<lambda>"]:
        parents[span.parent_id] += 1
    assert list(parents.values()) == [2, 2, 2]


def test_span_open_inside_a_generator_stays_current_for_its_body(adapter: Adapter, spans: Finished) -> None:
    leaf = adapter.bare(lambda: None)

    @adapter.bare
    def inner() -> Iterator[None]:
        leaf()
        yield
        leaf()

    @adapter.bare
    def outer() -> Iterator[None]:
        yield from inner()
        leaf()

    list(outer())
    named = {span.span_id: span.name for span in spans()}
    assert [named.get(span.parent_id or "") for span in spans()] == ["inner", "inner", "outer", "outer", None]


def test_early_break_ends_the_span_silently(adapter: Adapter, spans: Finished) -> None:
    cleaned = []

    def body() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append("sync")

    for _ in adapter.bare(body)():
        break
    gc.collect()
    assert cleaned == ["sync"]
    assert [span.error for span in spans()] == [False]


def test_early_break_of_async_generator_ends_silently(adapter: Adapter, spans: Finished) -> None:
    cleaned = []

    async def body() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            cleaned.append("async")

    async def main() -> None:
        async for _ in adapter.bare(body)():
            break
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert cleaned == ["async"]
    assert [span.error for span in spans()] == [False]


def test_never_iterated_generator_makes_no_span(adapter: Adapter, spans: Finished) -> None:
    adapter.bare(echo)()
    adapter.bare(echo_later)()
    gc.collect()
    assert spans() == []


def test_closed_from_another_task_is_silent(adapter: Adapter, spans: Finished) -> None:
    async def main() -> None:
        generator = adapter.bare(echo_later)()
        await anext(generator)
        await asyncio.create_task(generator.aclose())

    asyncio.run(main())
    assert len(spans()) == 1


def test_stepped_by_different_tasks_is_silent(adapter: Adapter, spans: Finished) -> None:
    async def main() -> list[Any]:
        generator = adapter.bare(echo_later)()

        async def step(value: Any) -> Any:
            return await generator.asend(value)

        got = [await asyncio.create_task(step(value)) for value in (None, 1, 2)]
        await generator.aclose()
        return got

    assert asyncio.run(main()) == ["ready", 1, 2]
    assert len(spans()) == 1


def test_timeout_inside_an_async_generator_fires(adapter: Adapter, spans: Finished) -> None:
    async def body() -> AsyncIterator[int]:
        async with asyncio.timeout(0.02):
            yield 1
            await asyncio.sleep(5)

    async def main() -> None:
        async for _ in adapter.bare(body)():
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert spans()[0].error


def test_body_runs_in_the_task_of_its_consumer(adapter: Adapter, spans: Finished) -> None:
    async def body() -> AsyncIterator[Any]:
        yield asyncio.current_task()
        yield asyncio.current_task()

    async def main() -> None:
        async for task in adapter.bare(body)():
            assert task is asyncio.current_task()

    asyncio.run(main())
    assert len(spans()) == 1


def test_generator_that_ignores_close_is_told_so(adapter: Adapter, spans: Finished) -> None:
    def stubborn() -> Iterator[int]:
        while True:
            try:
                yield 1
            except GeneratorExit:
                yield 2
                return

    generator = adapter.bare(stubborn)()
    next(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()
    del generator
    gc.collect()
    assert len(spans()) == 1


def test_abandoned_event_loop_still_ends_the_span(adapter: Adapter, spans: Finished) -> None:
    async def body() -> AsyncIterator[int]:
        yield 1

    async def main() -> Any:
        generator = adapter.bare(body)()
        await anext(generator)
        return generator

    loop = asyncio.new_event_loop()
    generator = loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    del generator
    gc.collect()
    assert len(spans()) == 1
