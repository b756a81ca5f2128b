"""Faults that users reported against other decorators, one case each; the name says where."""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span

Finished = Callable[[], "list[Span]"]
MS = 1_000_000


async def three() -> AsyncIterator[int]:
    for i in range(3):
        await asyncio.sleep(0.01)
        yield i


async def drain(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


def test_langfuse_7749_async_generator_lasts_as_long_as_it_runs(adapter: Adapter, spans: Finished) -> None:
    assert asyncio.run(drain(adapter.bare(three)())) == [0, 1, 2]
    (span,) = spans()
    assert span.end_unix_ns - span.start_unix_ns >= 30 * MS


def test_langfuse_7892_stream_handed_to_a_server_is_one_whole_span(adapter: Adapter, spans: Finished) -> None:
    class StreamingResponse:
        def __init__(self, body: AsyncIterator[int]) -> None:
            self.body_iterator = body

    child = adapter.bare(lambda: None)

    async def body() -> AsyncIterator[int]:
        for i in range(3):
            child()
            await asyncio.sleep(0.01)
            yield i

    async def endpoint() -> StreamingResponse:
        return StreamingResponse(adapter.bare(body)())

    async def serve() -> list[int]:
        response = await endpoint()
        return await asyncio.create_task(drain(response.body_iterator))

    assert asyncio.run(serve()) == [0, 1, 2]
    whole = spans()[-1]
    assert whole.end_unix_ns - whole.start_unix_ns >= 30 * MS
    assert [span.parent_id for span in spans()[:-1]] == [whole.span_id] * 3


def test_langfuse_8447_span_is_current_inside_an_async_generator(adapter: Adapter, spans: Finished) -> None:
    async def body() -> AsyncIterator[str | None]:
        yield adapter.current_span_id()
        await asyncio.sleep(0)
        yield adapter.current_span_id()

    inside = asyncio.run(drain(adapter.bare(body)()))
    assert inside == [spans()[0].span_id] * 2


def test_openllmetry_3061_dropped_async_generator_logs_nothing(adapter: Adapter, spans: Finished) -> None:
    async def start_and_drop() -> None:
        stream = adapter.bare(three)()
        await anext(stream)
        del stream
        gc.collect()
        await asyncio.sleep(0.01)

    asyncio.run(start_and_drop())
    assert len(spans()) == 1


def test_openllmetry_2290_async_generator_is_not_awaited(adapter: Adapter, spans: Finished) -> None:
    stream = adapter.bare(three)()
    assert inspect.isasyncgen(stream)
    assert asyncio.run(drain(stream)) == [0, 1, 2]
    assert len(spans()) == 1


def test_openllmetry_1395_decorator_without_parentheses_returns_the_result(adapter: Adapter, spans: Finished) -> None:
    assert adapter.without_parentheses(lambda: 3)() == adapter.with_parentheses(lambda: 3)() == 3
    assert len(spans()) == 2


def test_openllmetry_4405_nothing_of_one_call_leaks_to_its_sibling(adapter: Adapter, spans: Finished) -> None:
    async def first() -> None:
        await asyncio.sleep(0.01)

    async def second() -> None:
        await asyncio.sleep(0.01)

    async def main() -> None:
        await asyncio.gather(adapter.bare(first)(), adapter.bare(second)())

    asyncio.run(main())
    assert {(span.name, span.parent_id) for span in spans()} == {("first", None), ("second", None)}


def test_openinference_1769_early_break_is_no_error(adapter: Adapter, spans: Finished) -> None:
    async def main() -> None:
        async for _ in adapter.bare(three)():
            break
        gc.collect()
        await asyncio.sleep(0.02)

    asyncio.run(main())
    assert [span.error for span in spans()] == [False]


def test_openinference_988_decorated_async_function_works_inside_the_span(adapter: Adapter, spans: Finished) -> None:
    async def inside() -> str | None:
        await asyncio.sleep(0)
        return adapter.current_span_id()

    assert asyncio.run(adapter.bare(inside)()) == spans()[0].span_id


def test_mlflow_25790_early_stop_leaves_nothing_in_memory(adapter: Adapter, spans: Finished) -> None:
    class Held:
        pass

    def body(held: Held) -> Iterator[Held]:
        yield held
        yield held

    references = []
    for _ in range(20):
        held = Held()
        references.append(weakref.ref(held))
        for _item in adapter.bare(body)(held):
            break
        del held, _item
    gc.collect()
    assert [reference() for reference in references] == [None] * 20
    assert len(spans()) == 20


def test_mlflow_13555_nested_async_generators_are_one_tree(adapter: Adapter, spans: Finished) -> None:
    async def inner() -> AsyncIterator[int]:
        yield 1
        yield 2

    traced_inner = adapter.bare(inner)

    async def outer() -> AsyncIterator[int]:
        async for item in traced_inner():
            yield item

    assert asyncio.run(drain(adapter.bare(outer)())) == [1, 2]
    first, second = spans()
    assert (first.name, first.parent_id) == ("inner", second.span_id)


def test_logfire_982_gathered_calls_all_end(adapter: Adapter, spans: Finished) -> None:
    async def call(n: int) -> int:
        await asyncio.sleep(0.001 * (5 - n))
        if n == 3:
            raise ValueError
        return n

    async def main() -> list[Any]:
        return await asyncio.gather(*(adapter.bare(call)(n) for n in range(5)), return_exceptions=True)

    asyncio.run(main())
    assert sorted(span.error for span in spans()) == [False] * 4 + [True]


def test_opentelemetry_2606_context_given_back_elsewhere_is_silent(adapter: Adapter, spans: Finished) -> None:
    def body() -> Iterator[int]:
        yield 1
        yield 2

    generator = adapter.bare(body)()
    assert copy_context().run(next, generator) == 1
    assert copy_context().run(next, generator) == 2
    copy_context().run(generator.close)
    assert len(spans()) == 1


def test_opentelemetry_3633_async_function_is_not_zero_seconds(adapter: Adapter, spans: Finished) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)

    asyncio.run(adapter.bare(slow)())
    assert spans()[0].end_unix_ns - spans()[0].start_unix_ns >= 20 * MS


def test_genai_491_undrained_stream_leaks_neither_span_nor_context(adapter: Adapter, spans: Finished) -> None:
    stream = adapter.bare(lambda: iter_of_two())()
    next(stream)
    assert adapter.current_span_id() is None
    del stream
    gc.collect()
    assert len(spans()) == 1


def iter_of_two() -> Iterator[int]:
    yield 1
    yield 2


def test_genai_520_cancelled_call_ends_its_span(adapter: Adapter, spans: Finished) -> None:
    async def main() -> None:
        task = asyncio.create_task(adapter.bare(asyncio.sleep)(5))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(spans()) == 1


def test_smolagents_1840_tool_in_a_thread_with_its_context_has_a_parent(adapter: Adapter, spans: Finished) -> None:
    tool = adapter.bare(lambda: None)

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(copy_context().run, tool) for _ in range(4)]:
                future.result()

    adapter.bare(run)()
    parent = spans()[-1]
    assert [span.parent_id for span in spans()[:-1]] == [parent.span_id] * 4


def test_langsmith_2431_stepping_in_tasks_keeps_the_parent(adapter: Adapter, spans: Finished) -> None:
    child = adapter.bare(lambda: None)

    async def body() -> AsyncIterator[int]:
        for i in range(3):
            child()
            yield i

    async def main() -> None:
        stream = adapter.bare(body)()
        while True:
            try:
                await asyncio.create_task(anext_of(stream))
            except StopAsyncIteration:
                return

    async def anext_of(stream: AsyncIterator[int]) -> int:
        try:
            return await anext(stream)
        except StopAsyncIteration:
            raise StopIterationInTask from None

    class StopIterationInTask(Exception):
        pass

    with pytest.raises(StopIterationInTask):
        asyncio.run(main())
    parent = spans()[-1]
    assert [span.parent_id for span in spans()[:-1]] == [parent.span_id] * 3


def test_openlit_1460_inner_span_does_not_shadow_the_outer(adapter: Adapter, spans: Finished) -> None:
    leaf = adapter.bare(lambda: None)

    def outer() -> None:
        adapter.bare(lambda: None)()
        leaf()

    adapter.bare(outer)()
    assert [span.parent_id for span in spans()] == [spans()[-1].span_id] * 2 + [None]


def test_nemo_38_span_does_not_end_when_a_generator_is_made(adapter: Adapter, spans: Finished) -> None:
    generator = adapter.bare(iter_of_two)()
    next(generator)
    assert spans() == []
    list(generator)
    assert len(spans()) == 1


def test_langflow_14356_parallel_calls_have_their_own_durations(adapter: Adapter, spans: Finished) -> None:
    async def call(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        await asyncio.gather(*(adapter.bare(call)(seconds) for seconds in (0.01, 0.2)))

    asyncio.run(main())
    first, second = spans()
    assert first.end_unix_ns - first.start_unix_ns >= 10 * MS
    assert second.end_unix_ns - second.start_unix_ns >= 200 * MS
    assert first.end_unix_ns < second.end_unix_ns


def _in_pool(queue: Any, decorate: Callable[[Any], Any]) -> None:
    queue.put(decorate(lambda: 7)())


def test_logfire_741_process_workers_return_their_results(adapter: Adapter, spans: Finished) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_in_pool, args=(queue, adapter.bare))
    worker.start()
    assert queue.get(timeout=30) == 7
    worker.join(30)
    assert worker.exitcode == 0
