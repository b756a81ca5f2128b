"""Starts and ends in a set of records, each counted by span."""

from __future__ import annotations

from collections import Counter

from kvtrace.tracer.testing import Record


def open_and_ended(records: list[Record]) -> tuple[Counter[str], Counter[str]]:
    starts = Counter(record.span_id for record in records if record.end_unix_ns is None)
    ends = Counter(record.span_id for record in records if record.end_unix_ns is not None)
    return starts, ends


def tools(records: list[Record]) -> list[Record]:
    return [record for record in records if record.name.startswith("execute_tool")]
