"""Files of other versions of kvtrace: what a reader does not know, it passes over."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from kvtrace.analysis.normal import Notes
from kvtrace.analysis.sources import otlp_json
from kvtrace.tracer import agent, generation, traced_tool
from kvtrace.tracer.testing import Captured, read_records


def recorded_lines(captured: Captured) -> list[dict[str, Any]]:
    with agent("a", id="a"):
        with generation("m") as call:
            call.usage(1, 2)
        traced_tool(lambda: None, name="search")()
    (file,) = captured.directory.rglob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def of_the_future(document: dict[str, Any]) -> dict[str, Any]:
    """Add fields and attributes that no version knows yet, at every level."""
    new = {"key": "kvtrace.of.the.future", "value": {"stringValue": "x"}}
    for group in document["resourceSpans"]:
        group["entityRefs"] = [{"type": "x"}]
        group["resource"]["attributes"].append(new)
        group["resource"]["droppedAttributesCount"] = 0
        for scope in group["scopeSpans"]:
            scope["schemaUrl"] = "https://example.org/99.0.0"
            for span in scope["spans"]:
                span["attributes"] += [new, {"key": "nested", "value": {"kvlistValue": {"values": [new]}}}]
                span["newField"] = {"deep": [1, {"er": None}]}
                span["flags"] = 256
    return document | {"kvtraceVersion": 99}


def meanings(path: Path) -> list[tuple[Any, ...]]:
    notes = Notes(path, 0, count())
    found = [(r.span_id, r.kind, r.start_ns, r.end_ns) for r in otlp_json.read(path, notes)]
    assert notes.skipped == 0
    return found


def test_unknown_fields_of_a_later_version_are_passed_over(captured: Captured, tmp_path: Path) -> None:
    lines = recorded_lines(captured)
    now, later = tmp_path / "now.jsonl", tmp_path / "later" / "later.jsonl"
    later.parent.mkdir()
    now.write_text("".join(json.dumps(line) + "\n" for line in lines))
    later.write_text("".join(json.dumps(of_the_future(line)) + "\n" for line in lines))
    assert meanings(later) == meanings(now) != []
    ids = [record.span_id for record in captured.records]
    assert [record.span_id for record in read_records(later.parent)] == ids


def test_fields_that_an_earlier_version_lacked_are_not_needed(captured: Captured, tmp_path: Path) -> None:
    lines = recorded_lines(captured)
    now, earlier = tmp_path / "now.jsonl", tmp_path / "earlier.jsonl"
    now.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in lines:
        (group,) = line["resourceSpans"]
        group["resource"]["attributes"] = []
        del group["scopeSpans"][0]["scope"]
    earlier.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert meanings(earlier) == meanings(now)
