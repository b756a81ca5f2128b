"""Rows of Phoenix, Logfire and the SDKs' console exporters become the same records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis.sources import flat_spans
from kvtrace.analysis.testing import at_ns, read_source

TRACE, SPAN, PARENT = "a" * 32, "b" * 16, "c" * 16
START, END = "2023-11-14T22:13:21+00:00", "2023-11-14T22:13:22.5Z"  # 1 s and 2.5 s after the tests' epoch

PHOENIX_API = {
    "name": "search",
    "context": {"trace_id": TRACE, "span_id": SPAN},
    "span_kind": "TOOL",
    "parent_id": PARENT,
    "start_time": START,
    "end_time": END,
    "status_code": "OK",
    "attributes": {"tool": {"name": "grep"}, "tool_call.id": "c1"},
}
PHOENIX_FRAME = {
    "name": "search",
    "span_kind": "TOOL",
    "parent_id": PARENT,
    "start_time": at_ns(1) // 10**6,
    "end_time": at_ns(2.5) // 10**6,
    "context.trace_id": TRACE,
    "context.span_id": SPAN,
    "attributes.tool.name": "grep",
    "attributes.tool_call": {"id": "c1"},
    "attributes.llm.model_name": None,
}
LOGFIRE = {
    "trace_id": TRACE,
    "span_id": SPAN,
    "parent_span_id": PARENT,
    "span_name": "running tool",
    "kind": "span",
    "start_timestamp": START,
    "end_timestamp": END,
    "attributes": {"gen_ai.tool.name": "grep", "gen_ai.tool.call.id": "c1"},
}
CONSOLE = {
    "name": "execute_tool grep",
    "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
    "kind": "SpanKind.INTERNAL",
    "parent_id": f"0x{PARENT}",
    "start_time": START,
    "end_time": END,
    "status": {"status_code": "UNSET"},
    "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "grep", "gen_ai.tool.call.id": "c1"},
}
LIVE_ROW = {
    "trace_id": TRACE,
    "span_id": SPAN,
    "parent_span_id": PARENT,
    "span_name": "running tool",
    "start_timestamp": START,
    "end_timestamp": END,
    "attributes": json.dumps(LOGFIRE["attributes"]),
}


@pytest.mark.parametrize(
    "content",
    [
        {"data": [PHOENIX_API], "next_cursor": None},
        [PHOENIX_FRAME],
        {column: {"0": value} for column, value in PHOENIX_FRAME.items()},
        {"columns": [], "rows": [LOGFIRE]},
        json.dumps(LOGFIRE) + "\n",
        CONSOLE,
        [LIVE_ROW],
    ],
    ids=["phoenix-api", "phoenix-rows", "phoenix-columns", "logfire", "lines", "console", "attributes-as-text"],
)
def test_every_layout_gives_the_same_tool_call(tmp_path: Path, content: Any) -> None:
    kind, (record,), notes = read_source(tmp_path / "x.json", content)
    assert (kind, notes.skipped) == (flat_spans.KIND, 0)
    assert (record.trace_id, record.span_id, record.parent_span_id) == (TRACE, SPAN, PARENT)
    assert (record.kind, record.name, record.call_id) == ("tool", "grep", "c1")
    assert (record.start_ns, record.end_ns) == (at_ns(1), at_ns(2.5))


def test_pending_row_is_the_start_of_the_span_it_stands_for(tmp_path: Path) -> None:
    pending = {
        **LOGFIRE,
        "span_id": "d" * 16,
        "parent_span_id": SPAN,
        "kind": "pending_span",
        "end_timestamp": START,
        "attributes": {**LOGFIRE["attributes"], "logfire.pending_parent_id": PARENT},  # type: ignore[dict-item]
    }
    _, (record,), _ = read_source(tmp_path / "x.json", {"rows": [pending]})
    assert (record.span_id, record.parent_span_id) == (SPAN, PARENT)
    assert (record.start_ns, record.end_ns) == (at_ns(1), None)


def test_spans_printed_behind_each_other_are_read_up_to_a_broken_one(tmp_path: Path) -> None:
    printed = json.dumps(CONSOLE, indent=4)
    _, records, notes = read_source(tmp_path / "x.json", f"{printed}\n{printed}\n{printed[:90]}")
    assert len(records) == 2
    first_broken = 2 * (printed.count("\n") + 1) + 1
    assert [(skip.line, skip.why[:22]) for skip in notes.skips] == [(first_broken, "not JSON from here on:")]


@pytest.mark.parametrize(
    "failure", [{"status_code": "ERROR"}, {"otel_status_code": "ERROR"}, {"status": {"code": "STATUS_CODE_ERROR"}}]
)
def test_failure_is_read_from_any_status(tmp_path: Path, failure: dict[str, Any]) -> None:
    _, (record,), _ = read_source(tmp_path / "x.json", [{**PHOENIX_FRAME, "status_code": None, **failure}])
    assert record.error == "error"


def test_missing_zone_is_said_once(tmp_path: Path) -> None:
    row = {**PHOENIX_FRAME, "start_time": "2023-11-14T22:13:21", "end_time": "2023-11-14T22:13:22"}
    _, (record,), notes = read_source(tmp_path / "x.json", [row])
    assert record.start_ns == at_ns(1)
    assert [limit.split(" (")[0] for limit in notes.cannot_show] == ["time zone not recorded"]


def test_bad_rows_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    rows = [PHOENIX_API, {**PHOENIX_API, "start_time": "soon"}, 7, {"name": "x", "start_time": START}]
    _, records, notes = read_source(tmp_path / "x.json", rows)
    assert len(records) == 1
    assert [skip.why for skip in notes.skips] == [
        "start_time is no instant: 'soon'",
        "int instead of a span",
        "span without traceId: 'x'",
    ]
