"""TraceLab's rounds become the timelines of the sessions they were taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .support import calls, iso, records, report, states, write_rows

Row = dict[str, Any]


def at(kind: str, seconds: float) -> Row:
    return {"event_type": kind, "timestamp": iso(seconds)}


def tool(index: int, start: float, end: float | None, call_id: str | None = None, **more: Any) -> Row:
    result = iso(end) if end is not None else None
    return {
        "tool_index": index,
        "tool_call_id": call_id,
        "tool_name": "Bash",
        "emitted_at": iso(start),
        "result_at": result,
        **more,
    }


def made(index: int, events: list[Row], tools: list[Row], session: str = "s") -> Row:
    head = {
        "session_id": session,
        "provider": "codex",
        "round_index": index,
        "round_id": "same",
        "input_tokens_total": 12,
    }
    return {**head, "timing_events": events, "tools": tools}


ROUNDS = [
    made(0, [at("user_message", 0), at("reasoning", 2), at("tool_call", 3)], [tool(0, 3, 8, "c1"), tool(1, 3, 6)]),
    made(1, [at("tool_result", 8), at("text", 10), at("usage_report", 10.5)], []),
    made(
        2,
        [at("user_message", 60), at("tool_call", 61)],
        [tool(0, 61, 61, "c2", tool_internal_latency_ms=500, is_error=True)],
    ),
    made(3, [at("text", 63)], [tool(0, 63, None, "c3")]),
]


def test_session_of_rounds(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", ROUNDS)
    (agent,) = report(path).agents
    assert (agent.name, agent.tool_calls, agent.open_calls, agent.model_calls) == ("codex", 4, 1, 4)
    assert states(agent) == (63, 3 + 2 + 0.5 + 2, 5 + 0.5, 50)
    assert calls(path)[2] == ("Bash", 60.5, 61)


def test_sessions_in_one_file_are_told_apart(tmp_path: Path) -> None:
    rows = [ROUNDS[0], {**ROUNDS[0], "session_id": "t"}, *ROUNDS[1:2]]
    agents = report(write_rows(tmp_path / "r.jsonl", rows)).agents
    assert [(agent.agent, agent.model_calls) for agent in agents] == [("s", 2), ("t", 1)]


def test_bad_rounds_are_named(tmp_path: Path) -> None:
    bad = made(9, [{"event_type": "text", "timestamp": "soon"}], [])
    path = write_rows(tmp_path / "r.jsonl", [*ROUNDS, [1], {"round_index": 1}, bad, "{"])
    assert [skip.line for skip in records(path)[1].skips] == [5, 6, 7, 8]
