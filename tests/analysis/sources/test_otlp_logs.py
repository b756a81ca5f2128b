"""Log records that stand for spans: kvtrace's start and end events, and what coding agents log of their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.testing import FixedHost, at_ns, read_source
from kvtrace.tracer import attributes as names

TRACE, SPAN, PARENT = "a" * 32, "b" * 16, "c" * 16


def value(given: Any) -> dict[str, Any]:
    return {"intValue": str(given)} if isinstance(given, int) else {"stringValue": given}


def log(at_s: float | None, body: str | None = None, **attributes: Any) -> dict[str, Any]:
    pairs = {key.replace("__", "."): given for key, given in attributes.items()}
    record: dict[str, Any] = {
        "timeUnixNano": "0" if at_s is None else str(at_ns(at_s)),
        "attributes": [{"key": key, "value": value(given)} for key, given in pairs.items()],
    }
    return record if body is None else {**record, "body": {"stringValue": body}}


def document(*logs: dict[str, Any]) -> str:
    return json.dumps({"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": list(logs)}]}]}) + "\n"


def own(name: str, at_s: float) -> dict[str, Any]:
    attributes = {
        "kvtrace.span.name": "execute_tool grep",
        "kvtrace.span.parent_id": PARENT,
        names.GEN_AI_OPERATION_NAME: "execute_tool",
        names.AGENT_ID: "a",
    }
    return {**log(at_s, **attributes), "traceId": TRACE, "spanId": SPAN, "eventName": f"kvtrace.span.{name}"}


def test_start_and_end_are_one_span(tmp_path: Path) -> None:
    _, records, notes = read_source(tmp_path / "x.jsonl", document(own("started", 1)) + document(own("ended", 4)))
    assert notes.skipped == 0
    assert [(record.start_ns, record.end_ns) for record in records] == [(at_ns(1), None), (at_ns(1), at_ns(4))]
    assert (records[1].kind, records[1].name, records[1].parent_span_id) == ("tool", "grep", PARENT)


def test_heartbeat_says_how_long_an_open_call_lasted(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(document(own("started", 1), own("heartbeat", 6)))
    pooled = build_report([path], host=FixedHost()).pooled
    assert (pooled.tool_calls, pooled.open_calls, pooled.blocked_s) == (1, 1, 5)


@pytest.mark.parametrize(
    ("given", "kind", "name", "agent", "call_id"),
    [
        (
            log(5, "claude_code.tool_result", session__id="s", tool_name="Bash", tool_use_id="c", duration_ms="1500"),
            "tool", "Bash", "s", "c",
        ),
        (
            log(5, event__name="codex.tool_result", conversation__id="s", tool_name="shell", call_id="c", duration_ms=1500),
            "tool", "shell", "s", "c",
        ),
        (
            log(5, event__name="gemini_cli.tool_call", session__id="s", function_name="ls", duration_ms=1500),
            "tool", "ls", "s", None,
        ),
        (
            log(5, "claude_code.api_request", session__id="s", model="m", duration_ms=1500),
            "model", "api_request", "s", None,
        ),
    ],
)  # fmt: skip
def test_call_is_its_end_less_its_duration(
    tmp_path: Path, given: dict[str, Any], kind: str, name: str, agent: str, call_id: str | None
) -> None:
    _, (record,), _ = read_source(tmp_path / "x.jsonl", document(given))
    assert (record.kind, record.name, record.agent_id, record.call_id) == (kind, name, agent, call_id)
    assert (record.start_ns, record.end_ns, record.confidence) == (at_ns(3.5), at_ns(5), "derived")


def test_time_is_found_where_codex_leaves_it(tmp_path: Path) -> None:
    given = log(None, event__name="codex.tool_result", duration_ms=0, event__timestamp="2023-11-14T22:13:25Z")
    _, (record,), _ = read_source(tmp_path / "x.jsonl", document(given))
    assert record.end_ns == at_ns(5)


def test_other_events_are_passed_over_and_bad_ones_named(tmp_path: Path) -> None:
    bad = [log(5, event__name="codex.tool_result"), log(5, event__name="codex.tool_result", duration_ms=-1)]
    _, records, notes = read_source(tmp_path / "x.jsonl", document(log(5, "hello"), *bad))
    assert records == []
    assert [skip.why for skip in notes.skips] == [
        "codex.tool_result without duration_ms",
        "duration_ms of codex.tool_result is no duration: -1",
    ]
