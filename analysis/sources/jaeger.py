"""Jaeger's JSON, as its interface downloads it: ``{"data": [{"traceID", "spans", "processes"}]}``, times in us."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Notes, SpanRecord
from .build import build_record
from .genai import WANTED
from .json_values import json_values
from .resource import RESOURCE_WANTED, process_of
from .stamps import say
from .values import BadValueError, identifier, instant, integer, text

KIND: Final = "Jaeger JSON"

_MARKS: Final = (b'"traceID"', b'"spanID"', b'"operationName"')
_LISTS: Final = frozenset({names.QUEUED_INTERVALS, names.SUSPENDED_INTERVALS})
_WANTED: Final = WANTED | {"error"}
_OPEN_SPANS: Final = "calls that never ended not visible (Jaeger keeps ended spans only)"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like traces of Jaeger."""
    return all(mark in head for mark in _MARKS)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    say(notes, _OPEN_SPANS)
    for line, value in json_values(path, notes):
        for trace in _traces(value):
            yield from _spans(trace, line, notes)


def _traces(value: Any) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return list(value["data"])
    return value if isinstance(value, list) else [value]


def _spans(trace: Any, line: int, notes: Notes) -> Iterator[SpanRecord]:
    spans = trace.get("spans") if isinstance(trace, dict) else None
    if not isinstance(spans, list):
        notes.skip(line, "no list of spans in the trace")
        return
    processes = _processes(trace.get("processes"), notes)
    for span in spans:
        if not isinstance(span, dict):
            notes.skip(line, f"{type(span).__name__} instead of a span")
            continue
        try:
            yield _record(span, processes, line, notes)
        except BadValueError as error:
            notes.skip(line, str(error))


def _processes(given: Any, notes: Notes) -> dict[str, int]:
    known = given if isinstance(given, dict) else {}
    tags = {
        key: _tags(process.get("tags"), RESOURCE_WANTED) for key, process in known.items() if isinstance(process, dict)
    }
    return {key: notes.process(process_of(values)) for key, values in tags.items()}


def _record(span: dict[str, Any], processes: Mapping[str, int], line: int, notes: Notes) -> SpanRecord:
    tags = _tags(span.get("tags"), _WANTED)
    process = processes.get(str(span.get("processID")))
    return build_record(
        notes,
        line,
        notes.process(process_of({})) if process is None else process,
        ids=(
            identifier(span.get("traceID"), 32, "traceID"),
            identifier(span.get("spanID"), 16, "spanID"),
            identifier(_parent(span), 16, "parent spanID"),
        ),
        name=text(span.get("operationName")) or "",
        instants=_instants(span),
        attributes=tags,
        failed=tags.get("error") in (True, "true"),
    )


def _instants(span: Mapping[str, Any]) -> tuple[int | None, int | None]:
    start_us, duration_us = integer(span.get("startTime"), "startTime"), integer(span.get("duration"), "duration")
    if start_us is None:
        return None, None
    end_us = None if duration_us is None else start_us + duration_us
    return instant(start_us * 1000, "startTime"), instant(end_us and end_us * 1000, "duration")


def _parent(span: Mapping[str, Any]) -> Any:
    """Span this one is a child of, in the same trace; what it merely follows from is no parent but better than none."""
    given = span.get("references")
    references = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    within = [each for each in references if each.get("traceID") in (None, span.get("traceID"))]
    for kind in ("CHILD_OF", "FOLLOWS_FROM"):
        parent = next((each.get("spanID") for each in within if each.get("refType", "CHILD_OF") == kind), None)
        if parent is not None:
            return parent
    return span.get("parentSpanID")


def _tags(given: Any, wanted: frozenset[str]) -> dict[str, Any]:
    """Plain values of the wanted tags."""
    tags = [tag for tag in given if isinstance(tag, dict)] if isinstance(given, list) else []
    named = ((tag["key"], tag.get("value")) for tag in tags if isinstance(tag.get("key"), str))
    return {key: _value(key, value) for key, value in named if key in wanted}


def _value(key: str, value: Any) -> Any:
    """Value of a tag; Jaeger knows no lists and keeps them as JSON text."""
    if key not in _LISTS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
