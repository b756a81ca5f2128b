"""The keys and types of ``kvtrace report --json`` are a contract: later versions only add to ``report.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kvtrace.analysis import build_report, render_json
from kvtrace.analysis.report import SCHEMA_VERSION
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names

GOLDEN: Final = json.loads((Path(__file__).parent / "report.json").read_text(encoding="utf-8"))
ASKED_FOR_OF_AN_AGENT: Final = (
    "agent, name, parent, wall_s, generating_s, tool_union_s, blocked_s, human_s, queued_s, overhead_s, tool_calls, "
    "open_calls, b, b_low, b_high, b_wall, b_busy, b_idle, b_evictable"
)
ASKED_FOR_OF_A_TOOL: Final = "tool, calls, total_s, p50_s, p90_s, p99_s, share, shorter_than_round_trip"
TYPES: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
}


def written(tmp_path: Path, *, empty: bool = False) -> Any:
    spans = [
        otlp_span("invoke_agent", 0, 9, span=1, agent="a"),
        otlp_span("chat", 0, 4, span=2, agent="a", attributes={names.QUEUED_INTERVALS: [1, 2]}),
        otlp_span("execute_tool", 4, 8, span=3, agent="a"),
        otlp_span("chat", 0, 4, span=4, trace=2, agent="b", attributes={names.PARENT_AGENT_ID: "a"}),
        otlp_span("execute_tool", 4, None, span=5, trace=2, agent="b"),
    ]
    path = write_otlp(tmp_path / "spans.jsonl", [otlp_span("execute_tool", 1, 1, span=1)] if empty else spans)
    with path.open("a") as file:
        file.write("broken\n")
    return json.loads(render_json(build_report([path], host=FixedHost())))


def assert_shape(value: Any, golden: Any, where: str = "report") -> None:
    if isinstance(golden, dict):
        assert value.keys() == golden.keys(), where
        for key, inner in golden.items():
            assert_shape(value[key], inner, f"{where}.{key}")
    elif isinstance(golden, list):
        assert isinstance(value, list), where
        for item in value:
            assert_shape(item, golden[0], f"{where}[]")
    else:
        allowed = tuple(kind for name in golden.split(" or ") for kind in TYPES[name])
        assert isinstance(value, allowed), f"{where} is {value!r}, not {golden}"


def test_report_has_exactly_the_agreed_keys(tmp_path: Path) -> None:
    document = written(tmp_path)
    assert document["agents"]
    assert document["tools"]
    assert document["sources"][0]["skipped_lines"]
    assert_shape(document, GOLDEN)


def test_report_of_nothing_has_the_same_keys(tmp_path: Path) -> None:
    assert_shape(written(tmp_path, empty=True), GOLDEN)


def test_keys_that_were_asked_for_are_agreed() -> None:
    assert list(GOLDEN) == ["schema_version", "pooled", "agents", "tools", "sources", "published"]
    assert GOLDEN["agents"][0].keys() >= set(ASKED_FOR_OF_AN_AGENT.split(", "))
    assert GOLDEN["tools"][0].keys() >= set(ASKED_FOR_OF_A_TOOL.split(", "))
    assert GOLDEN["pooled"]["capacity"].keys() >= {"ideal", "queue_corrected", "swap_corrected"}


def test_schema_version_is_the_first() -> None:
    assert SCHEMA_VERSION == 1
