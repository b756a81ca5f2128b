"""Gemini CLI's sessions and its telemetry tell the same of the same minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .support import calls, iso, records, report, states, unix_ms, write_document, write_rows

Row = dict[str, Any]


def message(kind: str, at: float, name: str, **more: Any) -> Row:
    return {"id": name, "timestamp": iso(at), "type": kind, "content": "x", **more}


def tool(name: str, at: float, status: str = "success") -> Row:
    return {"id": f"{name}-1", "name": name, "timestamp": iso(at), "status": status, "args": {}}


MESSAGES = [
    message("info", -5, "i1"),
    message("user", 0, "u1"),
    message(
        "gemini", 3, "g1", tokens={"input": 50, "output": 7}, toolCalls=[tool("shell", 9), tool("read", 4, "error")]
    ),
    message("gemini", 11, "g2"),
    message("user", 60, "u2"),
    message("gemini", 62, "g3", toolCalls=[tool("write", 70, "cancelled")]),
]
HEADER = {"sessionId": "g", "projectHash": "h", "startTime": iso(0), "lastUpdated": iso(70)}


@pytest.mark.parametrize("lines", [False, True])
def test_session_of_either_layout(tmp_path: Path, lines: bool) -> None:
    if lines:
        # The newer layout writes a message again when its tools have finished.
        unfinished = {**MESSAGES[2], "toolCalls": []}
        path = write_rows(
            tmp_path / "s.jsonl", [HEADER, MESSAGES[0], MESSAGES[1], unfinished, *MESSAGES[2:], {"$set": {}}]
        )
    else:
        path = write_document(tmp_path / "s.json", {**HEADER, "messages": MESSAGES})
    (agent,) = report(path).agents
    assert (agent.agent, agent.tool_calls, agent.model_calls) == ("g", 2, 3)
    assert states(agent) == (75, 3 + 2 + 2, 6, 5 + 49 + 8)
    found, notes = records(path)
    assert [record.error for record in found if record.name in ("read", "shell")] == ["error", None]
    assert [record.input_tokens for record in found if record.kind == "model"] == [50, None, None]
    assert notes.skipped == 0


def test_sub_agents_session_and_broken_messages(tmp_path: Path) -> None:
    bad = [message("user", 0, "b1") | {"timestamp": None}, message("user", 0, "b2") | {"timestamp": "soon"}]
    path = write_document(tmp_path / "s.json", {**HEADER, "kind": "subagent", "messages": [*bad, 3, *MESSAGES[1:4]]})
    (agent,) = report(path).agents
    assert (agent.name, agent.tool_calls) == ("sub-agent", 2)
    assert [skip.why for skip in records(path)[1].skips] == [
        "message without a timestamp",
        "timestamp is no instant: 'soon'",
    ]


def log(name: str, at: float, **said: Any) -> Row:
    return {"hrTime": [0, 0], "attributes": {"event.name": name, "event.timestamp": iso(at), "session.id": "t", **said}}


EVENTS = [
    log("gemini_cli.config", -5),
    log("gemini_cli.tool_call", 9, function_name="shell", duration_ms=6000, success=True, decision="accept"),
    log("gemini_cli.user_prompt", 0, prompt_id="p"),
    log("gemini_cli.api_response", 3, duration_ms=2900, input_token_count=50, output_token_count=7),
    log("gemini_cli.api_error", 10, duration_ms=500),
    log("gemini_cli.api_response", 12, duration_ms=1500),
]


def test_telemetry_starts_a_length_before_it_is_stamped(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.log"
    path.write_text("\n".join(json.dumps(event, indent=2) for event in EVENTS))
    (agent,) = report(path).agents
    assert agent.agent == "t"
    assert states(agent) == pytest.approx((17, 2.9 + 0.5 + 1.5, 6, 5))
    assert calls(path) == [("shell", 3, 9)]


def test_telemetry_survives_a_broken_record(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.log"
    broken = json.dumps(EVENTS[1], indent=2)[:80]
    path.write_text(
        "\n".join([json.dumps(EVENTS[2], indent=2), broken, json.dumps(EVENTS[3], indent=2), '{"attributes": {}}'])
    )
    found, notes = records(path)
    assert [record.kind for record in found].count("model") == 1
    assert notes.skipped == 1


def test_telemetry_falls_back_to_its_high_resolution_time(tmp_path: Path) -> None:
    event = log("gemini_cli.api_response", 0, duration_ms=1000)
    del event["attributes"]["event.timestamp"]
    moment = unix_ms(5)
    lost = log("gemini_cli.api_response", 0, duration_ms=1) | {"hrTime": None}
    del lost["attributes"]["event.timestamp"]
    path = write_rows(tmp_path / "telemetry.jsonl", [event | {"hrTime": [moment // 1000, moment % 1000 * 10**6]}, lost])
    assert calls(path, "model") == [("answer", 4, 5)]
    assert records(path)[1].skips[0].why == "gemini_cli.api_response without an instant"
