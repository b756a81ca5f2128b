"""Transcripts written by hand: rows in, records and reports out. Instants are seconds after a round moment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvtrace.analysis import build_report
from kvtrace.analysis.normal import Notes, SpanRecord
from kvtrace.analysis.report import AgentReport, Report
from kvtrace.analysis.sources import importer_for
from kvtrace.analysis.testing import FixedHost

BEGAN = datetime(2026, 3, 4, 9, 0, tzinfo=UTC)


def iso(seconds: float, zone: str = "Z") -> str:
    """Text of an instant, with a zone or without."""
    return (BEGAN + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


def unix_ms(seconds: float) -> int:
    return round((BEGAN.timestamp() + seconds) * 1000)


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """A value a line; texts are written as they are, so that they can be broken."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def records(path: Path) -> tuple[list[SpanRecord], Notes]:
    importer = importer_for(path)
    assert importer is not None
    notes = Notes(path, 0)
    return list(importer.read(path, notes)), notes


def calls(path: Path, kind: str = "tool") -> list[tuple[str, float, float | None]]:
    """Name, start and end of the spans of one kind, in seconds, by start."""
    found = [record for record in records(path)[0] if record.kind == kind and record.start_ns is not None]
    spans = [(record.name, seconds(record.start_ns), seconds(record.end_ns)) for record in found]
    return sorted(((name, start, end) for name, start, end in spans if start is not None), key=lambda span: span[1:2])


def seconds(at_ns: int | None) -> float | None:
    return None if at_ns is None else round((at_ns - round(BEGAN.timestamp()) * 10**9) / 1e9, 6)


def report(*paths: Path) -> Report:
    return build_report(list(paths), host=FixedHost())


def states(agent: AgentReport) -> tuple[float, float, float, float]:
    """Wall, generating, blocked and human seconds."""
    return agent.wall_s, agent.generating_s, agent.blocked_s, agent.human_s
