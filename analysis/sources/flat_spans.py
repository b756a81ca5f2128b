"""Flat lists of spans, as evaluation tools dump them: ``trace_id``, ``span_id``, ``start_time``, ``attributes``.

Instants are nanoseconds since the Unix epoch; attributes are a mapping of plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, Process, SpanRecord
from .any_value import attributes
from .build import build_record
from .genai import WANTED
from .json_values import json_values
from .values import BadValueError, identifier, instant, text

KIND: Final = "flat JSON spans"

_MARKS: Final = (b'"trace_id"', b'"span_id"', b'"start_time"')


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a flat list of spans."""
    return all(mark in head for mark in _MARKS)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    process = notes.process(Process())
    for line, value in json_values(path, notes):
        for span in value if isinstance(value, list) else [value]:
            if not isinstance(span, dict):
                notes.skip(line, f"{type(span).__name__} instead of a span")
                continue
            try:
                yield _record(span, process, line, notes)
            except BadValueError as error:
                notes.skip(line, str(error))


def _record(span: dict[str, Any], process: int, line: int, notes: Notes) -> SpanRecord:
    status = span.get("status")
    return build_record(
        notes,
        line,
        process,
        ids=(
            identifier(span.get("trace_id"), 32, "trace_id"),
            identifier(span.get("span_id"), 16, "span_id"),
            identifier(span.get("parent_span_id"), 16, "parent_span_id"),
        ),
        name=text(span.get("name")) or "",
        instants=(instant(span.get("start_time"), "start_time"), instant(span.get("end_time"), "end_time")),
        attributes=attributes(span.get("attributes"), WANTED),
        failed=isinstance(status, dict) and status.get("code") == "ERROR",
    )
