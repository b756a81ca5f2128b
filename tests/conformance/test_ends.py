from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span

Finished = Callable[[], "list[Span]"]


class OddError(Exception):
    pass


@pytest.mark.parametrize("kind", [ValueError, OddError, KeyboardInterrupt, SystemExit])
def test_raised_exception_passes_through_untouched(
    adapter: Adapter, spans: Finished, kind: type[BaseException]
) -> None:
    error = kind("secret words")

    def fail() -> None:
        raise error

    with pytest.raises(kind) as raised:
        adapter.bare(fail)()
    assert raised.value is error
    assert raised.value.__context__ is None
    (span,) = spans()
    assert span.error


@pytest.mark.parametrize("kind", [ValueError, OddError, KeyboardInterrupt])
def test_error_type_is_the_class_and_the_text_stays_out(
    adapter: Adapter, spans: Finished, kind: type[BaseException]
) -> None:
    def fail() -> None:
        raise kind("secret words")

    with pytest.raises(kind):
        adapter.bare(fail)()
    (span,) = spans()
    assert span.attributes["error.type"] == kind.__qualname__
    assert "secret words" not in str(span)


def test_async_and_generator_errors_are_recorded(adapter: Adapter, spans: Finished) -> None:
    async def fail() -> None:
        raise OddError

    def fail_midway() -> Iterator[int]:
        yield 1
        raise OddError

    async def fail_later() -> AsyncIterator[int]:
        yield 1
        raise OddError

    async def consume() -> None:
        async for _ in adapter.bare(fail_later)():
            pass

    with pytest.raises(OddError):
        asyncio.run(adapter.bare(fail)())
    with pytest.raises(OddError):
        list(adapter.bare(fail_midway)())
    with pytest.raises(OddError):
        asyncio.run(consume())
    assert [span.error for span in spans()] == [True] * 3


def test_cancellation_is_no_error(adapter: Adapter, spans: Finished) -> None:
    async def wait() -> None:
        await asyncio.sleep(5)

    async def stream() -> AsyncIterator[int]:
        await asyncio.sleep(5)
        yield 1

    async def consume() -> None:
        async for _ in adapter.bare(stream)():
            pass

    async def main() -> None:
        tasks = [asyncio.create_task(adapter.bare(wait)()), asyncio.create_task(consume())]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2

    asyncio.run(main())
    assert [span.error for span in spans()] == [False] * 2


def test_start_is_visible_before_the_tool_runs(adapter: Adapter, spans: Finished) -> None:
    seen = []
    adapter.bare(lambda: seen.append(adapter.started()))()
    assert seen == [1]
    assert len(spans()) == 1


def test_identity_is_complete_at_the_start(adapter: Adapter, spans: Finished) -> None:
    adapter.bare(lambda: None)()
    (span,) = spans()
    start = span.start_attributes
    if start["gen_ai.operation.name"] == "execute_tool":
        assert (start["gen_ai.tool.name"], start["gen_ai.tool.type"]) == ("<lambda>", "function")
    else:
        assert "<lambda>" in start.values()


def test_content_is_off_unless_asked_for(adapter: Adapter, spans: Finished) -> None:
    def tool(argument: str) -> str:
        return argument + " and result"

    adapter.bare(tool)("secret words")
    assert "secret words" not in str(spans())


def test_large_arguments_and_results_pass_by_reference(adapter: Adapter, spans: Finished) -> None:
    large = "x" * 20_000_000
    assert adapter.bare(lambda argument: argument)(large) is large
    assert len(str(spans())) < 5_000
