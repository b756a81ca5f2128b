"""For tests of whatever reads spans: a host whose clock and processes are decided, and OTLP JSON written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.tracer import attributes as names

from .normal import Notes, Process, SpanRecord
from .sources import importer_for

EPOCH_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class FixedHost:
    """A host at ``now_s`` seconds after :data:`EPOCH_NS` on which the processes ``running`` (ids) live."""

    now_s: float = 1000.0
    running: frozenset[int] = frozenset()

    def unix_ns(self) -> int:
        """Now."""
        return at_ns(self.now_s)

    def is_running(self, process: Process) -> bool:
        """Whether the process is one of ``running``."""
        return process.pid in self.running


def at_ns(seconds: float) -> int:
    """Unix nanoseconds of an instant ``seconds`` after :data:`EPOCH_NS`."""
    return EPOCH_NS + round(seconds * 1e9)


def otlp_span(
    operation: str | None,
    start_s: float | None,
    end_s: float | None,
    *,
    span: int,
    parent: int = 0,
    trace: int = 1,
    name: str = "",
    agent: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One span as OTLP/JSON has it; instants are seconds after :data:`EPOCH_NS`, a missing one is left out.

    ``queued`` waits and other lists of integers become arrays, strings and numbers what they are.
    """
    named = {names.GEN_AI_OPERATION_NAME: operation, names.AGENT_ID: agent, **(attributes or {})}
    written: dict[str, Any] = {
        "traceId": f"{trace:032x}",
        "spanId": f"{span:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name or operation or "span",
        "attributes": [{"key": key, "value": _any_value(value)} for key, value in named.items() if value is not None],
    }
    for key, instant in (("startTimeUnixNano", start_s), ("endTimeUnixNano", end_s)):
        if instant is not None:
            written[key] = str(at_ns(instant))
    return written


def otlp_line(spans: Iterable[Mapping[str, Any]], resource: Mapping[str, Any] | None = None) -> str:
    """One line of a span file."""
    attributes = [{"key": key, "value": _any_value(value)} for key, value in (resource or {}).items()]
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}]}
    )


def write_otlp(path: Path, spans: Iterable[Mapping[str, Any]], resource: Mapping[str, Any] | None = None) -> Path:
    """Write a span file, a line a span, and return its path."""
    path.write_text("".join(f"{otlp_line([span], resource)}\n" for span in spans), encoding="utf-8")
    return path


def read_source(path: Path, content: Any) -> tuple[str, list[SpanRecord], Notes]:
    """Write a file (text, bytes, or any other value as JSON) and read it: kind it was taken for, records, notes."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    importer = importer_for(path)
    assert importer is not None, f"nobody recognises {path.name}"
    notes = Notes(path, 0)
    return importer.kind, list(importer.read(path, notes)), notes


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
