"""OTLP in JSON: kvtrace's own span files, the Collector's file exporter, single documents, Tempo's ``batches``.

Log records are read for the spans some of them stand for (:mod:`.otlp_logs`).

A span without an end is one that had not ended when it was written; its complete record may follow anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, Process, SpanRecord
from .any_value import attributes
from .build import build_record
from .genai import WANTED
from .json_values import json_values
from .otlp_logs import LogReader
from .resource import RESOURCE_WANTED, process_of
from .values import BadValueError, identifier, instant, text

KIND: Final = "OTLP JSON"

_RESOURCE_KEYS: Final = ("resourceSpans", "resource_spans", "batches")
_SCOPE_KEYS: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_LOG_KEYS: Final = ("resourceLogs", "resource_logs")
_LOG_SCOPE_KEYS: Final = ("scopeLogs", "scope_logs")
_LOG_RECORD_KEYS: Final = ("logRecords", "log_records")
# What query interfaces put around a document, or around a list of them.
_WRAPPERS: Final = ("data", "trace", "traces", "result")
_ERROR_CODES: Final = (2, "2", "ERROR", "STATUS_CODE_ERROR")


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like OTLP traces in JSON."""
    return any(f'"{key}"'.encode() in head for key in (*_RESOURCE_KEYS, *_LOG_KEYS))


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    reader = Reader(notes)
    for line, value in json_values(path, notes):
        reader.line = line
        for document in value if isinstance(value, list) else [value]:
            yield from reader.spans(document)


@dataclass(slots=True)
class Reader:
    """Walks documents and remembers where it is: the line, and the process of the last resource met."""

    notes: Notes
    line: int = 1
    resource: Any = None
    process: int | None = None
    logs: LogReader = field(init=False)

    def __post_init__(self) -> None:
        self.logs = LogReader(self.notes)

    def spans(self, document: Any) -> Iterator[SpanRecord]:
        """Records of one document, of spans or of log records, whatever is wrapped around it."""
        if not isinstance(document, dict):
            self.skip(f"{type(document).__name__} instead of an object")
            return
        key = next((key for key in (*_RESOURCE_KEYS, *_LOG_KEYS, *_WRAPPERS) if key in document), None)
        if key in _RESOURCE_KEYS:
            yield from self.traced(document, key)
        elif key in _LOG_KEYS:
            yield from self.logged(document, key)
        elif key is not None:
            inner = document[key]
            for each in inner if isinstance(inner, list) else [inner]:
                yield from self.spans(each)
        else:
            self.skip(f"no spans in it (keys: {', '.join(list(document)[:3]) or 'none'})")

    def traced(self, document: dict[str, Any], key: str) -> Iterator[SpanRecord]:
        """Records of the spans under ``key``."""
        for resource_spans in self.objects(document, (key,)):
            process = self.process_of(resource_spans.get("resource"))
            for scope_spans in self.objects(resource_spans, _SCOPE_KEYS):
                for span in self.objects(scope_spans, ("spans",)):
                    record = self.record_or_skip(span, process)
                    if record is not None:
                        yield record

    def logged(self, document: dict[str, Any], key: str) -> Iterator[SpanRecord]:
        """Records of the spans that the log records under ``key`` stand for."""
        for resource_logs in self.objects(document, (key,)):
            process = self.process_of(resource_logs.get("resource"))
            for scope_logs in self.objects(resource_logs, _LOG_SCOPE_KEYS):
                for log in self.objects(scope_logs, _LOG_RECORD_KEYS):
                    try:
                        yield from self.logs.records(log, process, self.line)
                    except BadValueError as error:
                        self.skip(str(error))

    def skip(self, why: str) -> None:
        """Note something unreadable on the line being read."""
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

    def record_or_skip(self, span: dict[str, Any], process: int) -> SpanRecord | None:
        """The record of a span, or ``None`` after noting why there is none."""
        try:
            return self.record(span, process)
        except BadValueError as error:
            self.skip(str(error))
            return None

    def record(self, span: dict[str, Any], process: int) -> SpanRecord:
        """Record of one span. Raises :class:`BadValueError` where a value makes no sense."""
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
            failed=has_failed(span.get("status")),
        )


def has_failed(status: Any) -> bool:
    """Whether a span's status says so, in either spelling of the enum."""
    return isinstance(status, dict) and status.get("code") in _ERROR_CODES


def _process(resource: Any) -> Process:
    return process_of(attributes(resource.get("attributes"), RESOURCE_WANTED) if isinstance(resource, dict) else {})


def _either(span: dict[str, Any], key: str, other: str) -> Any:
    value = span.get(key)
    return span.get(other) if value is None else value
