"""Whatever stands in the place of a value, an importer reads the rest, and reads nothing the database cannot take."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.analysis.normal import Notes
from kvtrace.analysis.sources import IMPORTERS

CONTROL: Final = re.compile("[\x00-\x1f\ud800-\udfff]")
SPAN: Final = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "grep", "llm.request.type": "chat"}
PAIRS: Final = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
TEXTS: Final = {"key": "duration_ms", "value": {"intValue": "5"}}
DOCUMENTS: Final[dict[str, Any]] = {
    "OTLP JSON": {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "process.pid", "value": {"intValue": "7"}}]},
                "scopeSpans": [
                    {
                        "spans": [
                            {"traceId": "a" * 32, "spanId": "b" * 16, "startTimeUnixNano": "5", "attributes": PAIRS}
                        ]
                    }
                ],
            }
        ],
    },
    "OTLP JSON logs": {
        "resourceLogs": [
            {
                "scopeLogs": [
                    {"logRecords": [{"timeUnixNano": "5", "eventName": "codex.tool_result", "attributes": [TEXTS]}]}
                ]
            }
        ]
    },
    "Jaeger JSON": {
        "data": [
            {
                "spans": [
                    {
                        "traceID": "a",
                        "spanID": "b",
                        "operationName": "x",
                        "startTime": 5,
                        "duration": 7,
                        "references": [{"refType": "CHILD_OF", "traceID": "a", "spanID": "c"}],
                        "tags": [{"key": "gen_ai.operation.name", "value": "chat"}],
                        "processID": "p1",
                    }
                ],
                "processes": {"p1": {"tags": [{"key": "process.pid", "value": 7}]}},
            }
        ]
    },
    "Langfuse export": {
        "trace": {"id": "t", "sessionId": "s"},
        "observations": [
            {
                "id": "o",
                "parentObservationId": "p",
                "type": "GENERATION",
                "name": "tools",
                "startTime": "2025-08-26T19:40:59.145Z",
                "completionStartTime": "2025-08-26T19:40:59.345Z",
                "usageDetails": {"input": 4},
                "metadata": {"attributes": SPAN},
            },
            {"id": "p", "type": "SPAN", "name": "tools", "metadata": '{"langgraph_node": "tools"}'},
        ],
    },
    "OpenAI Agents SDK trace": [
        {
            "object": "trace.span",
            "id": "i",
            "trace_id": "t",
            "parent_id": None,
            "started_at": "2025-08-26T19:40:59.145Z",
            "ended_at": None,
            "span_data": {"type": "generation", "name": "x", "usage": {"input_tokens": 3}},
        }
    ],
    "LangSmith runs": {
        "id": "r",
        "run_type": "llm",
        "name": "x",
        "start_time": "2025-08-26T19:40:59.145",
        "end_time": 1_756_237_260,
        "dotted_order": "20240429T004912090000Zt1.20240429T004912090000Zr",
        "events": [{"name": "new_token", "time": "2025-08-26T19:41:00"}],
        "extra": {"metadata": {"thread_id": "th"}},
        "child_runs": [{"id": "c", "run_type": "tool", "start_time": 1}],
    },
    "flat JSON spans": [
        {
            "context": {"trace_id": "a" * 32, "span_id": "b" * 16},
            "parent_id": "c" * 16,
            "span_kind": "TOOL",
            "start_time": "2025-08-26T19:40:59.145Z",
            "end_time": 1_756_237_260_000,
            "status": {"status_code": "OK"},
            "attributes": {"tool": {"name": "grep"}, **SPAN},
            "attributes.session.id": "s",
        }
    ],
}
LEAVES: Final = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
    | st.sampled_from(["", "a" * 32, "1e400", "{", "9" * 30, "\ud800", "Infinity"])
)  # fmt: skip
VALUES: Final = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", DOCUMENTS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_costs_no_more_than_what_is_damaged(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    document = DOCUMENTS[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        where = list(places(document))
        document = put(document, data.draw(st.sampled_from(where)), data.draw(VALUES)) if where else document
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    importer = next(importer for importer in IMPORTERS if kind.startswith(importer.kind))
    records = list(importer.read(path, Notes(path, 0)))
    for record in records:
        assert record.trace_id
        assert record.span_id
        for field, value in record._asdict().items():
            if field.endswith(("_ns", "_tokens")) and isinstance(value, int):
                assert 0 <= value < 2**63
            assert not isinstance(value, str) or not CONTROL.search(value)
