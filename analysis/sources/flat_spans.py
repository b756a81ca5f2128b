"""Flat lists of spans, as query interfaces and evaluation tools dump them: one object a span, one a line or in a list.

Among them Phoenix (``context.trace_id``, attributes nested or dotted, data frames by column too), Logfire's rows
(``span_name``, ``start_timestamp``), the console exporters of the OpenTelemetry SDKs, and plain
``trace_id``/``span_id``/``start_time``. Instants may be ISO 8601 or Unix time in any unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, Process, SpanRecord
from .any_value import attributes
from .build import build_record
from .dialects import LOGFIRE_PENDING, LOGFIRE_TYPE
from .genai import OPENINFERENCE_KIND, WANTED
from .json_values import json_values
from .stamps import stamp
from .values import BadValueError, identifier, text

KIND: Final = "flat JSON spans"

_TRACE_MARKS: Final = (b'"trace_id"', b'"context.trace_id"', b'"traceId"')
_SPAN_MARKS: Final = (b'"span_id"', b'"context.span_id"', b'"spanId"')
_START_MARKS: Final = (b'"start_time"', b'"start_timestamp"', b'"startTime"')
_TRACE_KEYS: Final = ("trace_id", "context.trace_id", "traceId")
_SPAN_KEYS: Final = ("span_id", "context.span_id", "spanId")
_PARENT_KEYS: Final = ("parent_span_id", "parent_id", "parentSpanId", "parentId")
_NAME_KEYS: Final = ("name", "span_name", "operation_name")
_START_KEYS: Final = ("start_time", "start_timestamp", "startTime")
_END_KEYS: Final = ("end_time", "end_timestamp", "endTime")
_STATUS_KEYS: Final = ("status_code", "otel_status_code", "statusCode", "code")
_WRAPPERS: Final = ("data", "spans", "rows", "items", "results")
_DOTTED: Final = "attributes."
_PHOENIX_KIND: Final = "span_kind"
_LOGFIRE_KIND: Final = "kind"
_MAX_DEPTH: Final = 12


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a flat list of spans."""
    return all(any(mark in head for mark in marks) for marks in (_TRACE_MARKS, _SPAN_MARKS, _START_MARKS))


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    process = notes.process(Process())
    for line, value in json_values(path, notes):
        for span in _spans(value):
            if not isinstance(span, dict):
                notes.skip(line, f"{type(span).__name__} instead of a span")
                continue
            try:
                yield _record(span, process, line, notes)
            except BadValueError as error:
                notes.skip(line, str(error))


def _spans(value: Any) -> list[Any]:
    """The spans of one JSON value: itself, a list, a list within an answer, or a data frame by column."""
    if isinstance(value, list):
        return [span for each in value for span in (each if isinstance(each, list) else [each])]
    if not isinstance(value, dict) or _first(value, _START_KEYS) is None:
        wrapped = next((value[key] for key in _WRAPPERS if isinstance(value.get(key), list)), None)
        return [value] if wrapped is None else wrapped
    starts = _first(value, _START_KEYS)
    if not isinstance(starts, dict):
        return [value]
    columns = {key: column for key, column in value.items() if isinstance(column, dict)}
    return [{key: column.get(row) for key, column in columns.items()} for row in starts]


def _record(span: dict[str, Any], process: int, line: int, notes: Notes) -> SpanRecord:
    context = span.get("context")
    ids = {**span, **context} if isinstance(context, dict) else span
    return build_record(
        notes,
        line,
        process,
        ids=(
            identifier(_first(ids, _TRACE_KEYS), 32, "trace_id"),
            identifier(_first(ids, _SPAN_KEYS), 16, "span_id"),
            identifier(_first(ids, _PARENT_KEYS), 16, "parent_span_id"),
        ),
        name=text(_first(span, _NAME_KEYS)) or "",
        instants=(
            stamp(_first(span, _START_KEYS), "start_time", notes),
            stamp(_first(span, _END_KEYS), "end_time", notes),
        ),
        attributes=_attributes(span),
        failed=_failed(span),
    )


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Wanted attributes, from a mapping (nested, dotted or as JSON text) and from columns called ``attributes.*``."""
    given = span.get("attributes")
    if isinstance(given, str):
        given = _parsed(given)
    found = attributes(given, WANTED)
    if isinstance(given, dict):
        found |= {key: value for key, value in _flattened(given) if key in WANTED}
    for key, value in span.items():
        if key.startswith(_DOTTED) and value is not None:
            name = key.removeprefix(_DOTTED)
            nested = _flattened({name: value}) if isinstance(value, dict) else ((name, value),)
            found |= {inner: each for inner, each in nested if inner in WANTED}
    if _PHOENIX_KIND in span and OPENINFERENCE_KIND not in found:
        found[OPENINFERENCE_KIND] = span[_PHOENIX_KIND]
    if span.get(_LOGFIRE_KIND) == LOGFIRE_PENDING:
        found[LOGFIRE_TYPE] = LOGFIRE_PENDING
    return found


def _flattened(nested: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Leaves of nested attributes under their dotted names."""
    for key, value in nested.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from _flattened(value, f"{prefix}{key}.", depth + 1)
        elif prefix:
            yield prefix + key, value


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _failed(span: Mapping[str, Any]) -> bool:
    status = span.get("status")
    code = _first(status if isinstance(status, dict) else span, _STATUS_KEYS)
    return str(status if isinstance(status, str) else code).upper().endswith("ERROR")


def _first(values: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)
