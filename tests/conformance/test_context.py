from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span

Finished = Callable[[], "list[Span]"]


def test_nested_tools_nest(adapter: Adapter, spans: Finished) -> None:
    inner = adapter.bare(lambda: None)
    adapter.bare(lambda: inner())()
    first, second = spans()
    assert first.parent_id == second.span_id
    assert second.parent_id is None


def test_gathered_children_keep_their_parent(adapter: Adapter, spans: Finished) -> None:
    @adapter.bare
    async def child(n: int) -> int:
        await asyncio.sleep(0.001 * n)
        return n

    @adapter.bare
    async def parent() -> Any:
        return await asyncio.gather(*(child(n) for n in range(5)))

    async def main() -> Any:
        return await asyncio.gather(*(parent() for _ in range(4)))

    assert asyncio.run(main()) == [[0, 1, 2, 3, 4]] * 4
    parents = {span.span_id for span in spans() if span.name == "parent"}
    children = [span.parent_id for span in spans() if span.name == "child"]
    assert {children.count(parent) for parent in parents} == {5}


def test_to_thread_keeps_the_parent(adapter: Adapter, spans: Finished) -> None:
    child = adapter.bare(lambda: None)

    @adapter.bare
    async def parent() -> None:
        await asyncio.to_thread(child)

    asyncio.run(parent())
    first, second = spans()
    assert first.parent_id == second.span_id


def test_variables_set_by_the_tool_stay_set(adapter: Adapter, spans: Finished) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    adapter.bare(lambda: variable.set(1))()
    assert variable.get() == 1
    assert len(spans()) == 1


def test_siblings_after_a_failure_have_no_parent(adapter: Adapter, spans: Finished) -> None:
    def fail() -> None:
        raise ValueError

    try:
        adapter.bare(fail)()
    except ValueError:
        adapter.bare(lambda: None)()
    assert [span.parent_id for span in spans()] == [None, None]
