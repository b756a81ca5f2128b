"""OTLP in JSON: kvtrace's own span files, the Collector's file exporter, single documents, Tempo's ``batches``.

A span without an end is one that had not ended when it was written; its complete record may follow anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Notes, Process, SpanRecord
from .any_value import attributes
from .build import build_record
from .genai import WANTED
from .json_values import json_values
from .values import BadValueError, identifier, instant, integer, text

KIND: Final = "OTLP JSON"

_RESOURCE_KEYS: Final = ("resourceSpans", "resource_spans", "batches")
_SCOPE_KEYS: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_RESOURCE_WANTED: Final = frozenset({names.PROCESS_PID, names.PROCESS_START, names.HOST_NAME, names.RUN_ID})
_ERROR_CODES: Final = (2, "2", "ERROR", "STATUS_CODE_ERROR")


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like OTLP traces in JSON."""
    return any(f'"{key}"'.encode() in head for key in _RESOURCE_KEYS)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    reader = _Reader(notes)
    for line, value in json_values(path, notes):
        reader.line = line
        for document in value if isinstance(value, list) else [value]:
            yield from reader.spans(document)


@dataclass(slots=True)
class _Reader:
    """Walks documents and remembers where it is: the line, and the process of the last resource met."""

    notes: Notes
    line: int = 1
    resource: Any = None
    process: int | None = None

    def spans(self, document: Any) -> Iterator[SpanRecord]:
        if not isinstance(document, dict):
            self.skip(f"{type(document).__name__} instead of an object")
            return
        key = next((key for key in _RESOURCE_KEYS if key in document), None)
        if key is None:
            self.skip(f"no spans in it (keys: {', '.join(list(document)[:3]) or 'none'})")
            return
        for resource_spans in self.objects(document, (key,)):
            process = self.process_of(resource_spans.get("resource"))
            for scope_spans in self.objects(resource_spans, _SCOPE_KEYS):
                for span in self.objects(scope_spans, ("spans",)):
                    try:
                        yield self.record(span, process)
                    except BadValueError as error:
                        self.skip(str(error))

    def skip(self, why: str) -> None:
        self.notes.skip(self.line, why)

    def objects(self, parent: dict[str, Any], keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Objects of the list under the first of ``keys`` that is there; anything else in its place is noted."""
        key = next((key for key in keys if parent.get(key) is not None), None)
        if key is None:
            return
        if not isinstance(parent[key], list):
            self.skip(f"{key} is no list")
            return
        for item in parent[key]:
            if isinstance(item, dict):
                yield item
            else:
                self.skip(f"{key} holds {type(item).__name__} instead of an object")

    def process_of(self, resource: Any) -> int:
        """Number of the process a resource describes; in a span file it is the same on every line."""
        if self.process is None or resource != self.resource:
            self.resource, self.process = resource, self.notes.process(_process(resource))
        return self.process

    def record(self, span: dict[str, Any], process: int) -> SpanRecord:
        status = span.get("status")
        return build_record(
            self.notes,
            self.line,
            process,
            ids=(
                identifier(_either(span, "traceId", "trace_id"), 32, "traceId"),
                identifier(_either(span, "spanId", "span_id"), 16, "spanId"),
                identifier(_either(span, "parentSpanId", "parent_span_id"), 16, "parentSpanId"),
            ),
            name=text(span.get("name")) or "",
            instants=(
                instant(_either(span, "startTimeUnixNano", "start_time_unix_nano"), "startTimeUnixNano"),
                instant(_either(span, "endTimeUnixNano", "end_time_unix_nano"), "endTimeUnixNano"),
            ),
            attributes=attributes(span.get("attributes"), WANTED),
            failed=isinstance(status, dict) and status.get("code") in _ERROR_CODES,
        )


def _process(resource: Any) -> Process:
    values = attributes(resource.get("attributes"), _RESOURCE_WANTED) if isinstance(resource, dict) else {}
    try:
        pid = integer(values.get(names.PROCESS_PID), names.PROCESS_PID)
        start = instant(values.get(names.PROCESS_START), names.PROCESS_START)
    except BadValueError:
        pid = start = None
    return Process(text(values.get(names.HOST_NAME)), pid, start, touched=names.RUN_ID in values)


def _either(span: dict[str, Any], key: str, other: str) -> Any:
    value = span.get(key)
    return span.get(other) if value is None else value
