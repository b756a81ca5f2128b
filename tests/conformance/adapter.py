"""What the conformance suite asks of a tool decorator, and kvtrace's own answers.

To run the suite against another decorator, write a class with the methods of :class:`Adapter` in a file and name both:
``CONFORMANCE_ADAPTER=/path/to/file.py:ClassName pytest tests/conformance``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from opentelemetry import trace

from kvtrace.tracer import agent, generation, traced_tool
from kvtrace.tracer.testing import capture
from kvtrace.tracer.wrapping import name_of


@dataclass(frozen=True)
class Span:
    """One finished span; ``error`` tells whether its status is ERROR."""

    name: str
    span_id: str
    parent_id: str | None
    start_unix_ns: int
    end_unix_ns: int
    error: bool
    attributes: dict[str, Any]
    start_attributes: dict[str, Any]


class Adapter(Protocol):
    """A tool decorator under test."""

    def bare(self, function: Any) -> Any:
        """Decorate as the library's documentation does, which most cases use."""
        ...

    def without_parentheses(self, function: Any) -> Any:
        """Decorate as ``@tool``, whatever the documentation says."""
        ...

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@tool()``."""
        ...

    def recording(self) -> AbstractContextManager[Callable[[], list[Span]]]:
        """Record a block; the function it yields returns the finished spans in the order of their ends."""
        ...

    def current_span_id(self) -> str | None:
        """Return the id of the current span, 16 hex digits, or ``None``."""
        ...

    def started(self) -> int:
        """Return how many starts can be seen outside the process by now."""
        ...


class KvtraceAdapter:
    """kvtrace's ``traced_tool``."""

    def __init__(self) -> None:
        self._captured: Any = None

    def bare(self, function: Any) -> Any:
        return traced_tool(function)

    def without_parentheses(self, function: Any) -> Any:
        return self.bare(function)

    def with_parentheses(self, function: Any) -> Any:
        return traced_tool()(function)

    @contextmanager
    def recording(self) -> Iterator[Callable[[], list[Span]]]:
        with capture() as captured:
            self._captured = captured
            yield self._finished

    def current_span_id(self) -> str | None:
        context = trace.get_current_span().get_span_context()
        return f"{context.span_id:016x}" if context.is_valid else None

    def started(self) -> int:
        return sum(record.end_unix_ns is None for record in self._captured.records)

    def _finished(self) -> list[Span]:
        starts = {r.span_id: r.attributes for r in self._captured.records if r.end_unix_ns is None}
        return [
            Span(
                name=span.name.partition(" ")[2],
                span_id=span.span_id,
                parent_id=span.parent_id,
                start_unix_ns=span.start_unix_ns,
                end_unix_ns=span.end_unix_ns,
                error=span.status == 2,
                attributes=span.attributes,
                start_attributes=starts[span.span_id],
            )
            for span in self._captured.spans
        ]


class AgentAdapter(KvtraceAdapter):
    """kvtrace's ``agent`` as a decorator."""

    def bare(self, function: Any) -> Any:
        return agent(name_of(function))(function)

    with_parentheses = bare


class GenerationAdapter(KvtraceAdapter):
    """kvtrace's ``generation`` as a decorator."""

    def bare(self, function: Any) -> Any:
        return generation(name_of(function))(function)

    with_parentheses = bare


OWN = (KvtraceAdapter, AgentAdapter, GenerationAdapter)
