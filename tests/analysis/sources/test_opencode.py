"""OpenCode's run events, exports and stored objects give the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .support import calls, records, report, states, unix_ms, write_document, write_rows

Part = dict[str, Any]


def tool(
    at: float, until: float | None, call_id: str, name: str = "bash", status: str = "completed", **about: Any
) -> Part:
    time = {"start": unix_ms(at), **({"end": unix_ms(until)} if until is not None else {})}
    state = {"status": status, "time": time, "metadata": about}
    return {
        "id": f"p{call_id}",
        "sessionID": "ses",
        "messageID": "m1",
        "type": "tool",
        "callID": call_id,
        "tool": name,
        "state": state,
    }


def event(kind: str, at: float, **part: Any) -> Part:
    return {
        "type": kind,
        "timestamp": unix_ms(at),
        "sessionID": "ses",
        "part": {"messageID": "m1", "sessionID": "ses", **part},
    }


def message(name: str, at: float, until: float | None, session: str = "ses", role: str = "assistant") -> Part:
    tokens = {"input": 5, "output": 3, "reasoning": 2, "cache": {"read": 90, "write": 10}}
    time = {"created": unix_ms(at), **({"completed": unix_ms(until)} if until is not None else {})}
    return {"id": name, "sessionID": session, "role": role, "time": time, "tokens": tokens}


def test_run_counts_tools_out_of_their_steps(tmp_path: Path) -> None:
    rows = [
        event("step_start", 0),
        event("tool_use", 5, **tool(2, 5, "c1")),
        event("step_finish", 6, tokens={"input": 4, "output": 2, "cache": {"read": 1}}),
        event("step_start", 8, messageID="m2"),
        event("text", 9),
        event("step_finish", 10, messageID="m2"),
    ]
    path = write_rows(tmp_path / "run.jsonl", rows)
    (agent,) = report(path).agents
    assert (agent.agent, agent.generating_s, agent.blocked_s, agent.overhead_s, agent.wall_s) == ("ses", 8, 3, 2, 10)
    assert [record.input_tokens for record in records(path)[0] if record.kind == "model"] == [5, None]
    assert any("first output" in limit for limit in report(path).sources[0].cannot_show)


def test_cut_off_run_leaves_its_step_open(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "run.jsonl", [event("step_start", 0), event("tool_use", 5, **tool(2, None, "c1", status="running"))]
    )
    assert calls(path) == [("bash", 2, None)]
    assert calls(path, "model") == [("answer", 0, None)]


STORED = [
    message("u1", 0, None, role="user"),
    message("m1", 0, 6),
    tool(2, 5, "c1"),
    tool(5, 5.5, "c2", "question"),
    tool(5.5, 5.8, "c3", status="error"),
    {**tool(0, None, "c4", status="pending"), "state": {"status": "pending"}},
    message("m2", 6, 8),
    message("m3", 50, 52),
]


def store(folder: Path) -> Path:
    for number, stored in enumerate(STORED):
        write_document(folder / f"{number}.json", stored)
    write_document(folder / "ses.json", {"id": "ses", "projectID": "p", "directory": "/w", "time": {"created": 1}})
    return folder


def test_stored_messages_and_parts_find_each_other(tmp_path: Path) -> None:
    (agent,) = report(store(tmp_path)).agents
    assert states(agent) == pytest.approx((52, 10, 3.3, 42 + 0.5))
    assert (agent.tool_calls, agent.model_calls) == (3, 3)


def test_export_equals_the_storage(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    exported = [
        {"info": STORED[0], "parts": []},
        {"info": STORED[1], "parts": STORED[2:6]},
        *({"info": info, "parts": []} for info in STORED[6:]),
    ]
    path = write_document(tmp_path / "export.json", {"info": {"id": "ses"}, "messages": exported})
    assert report(path).agents == report(store(tmp_path / "store")).agents


def test_sub_session_is_a_sub_agent_of_the_call(tmp_path: Path) -> None:
    write_document(tmp_path / "1.json", message("m1", 0, 10))
    write_document(tmp_path / "2.json", tool(1, 9, "c1", "task", sessionId="sub"))
    write_document(tmp_path / "3.json", message("m9", 2, 8, "sub"))
    main, sub = report(tmp_path).agents
    assert (sub.agent, sub.parent, sub.generating_s) == ("sub", "ses", 6)
    assert (main.blocked_s, main.tool_calls, main.model_elsewhere_s) == (8, 1, 6)


def test_bad_objects_are_named(tmp_path: Path) -> None:
    rows = [
        event("step_start", 0),
        {**event("step_finish", 1), "timestamp": None},
        {"sessionID": "s", "messageID": "m", "type": "tool"},
        [1],
    ]
    found, notes = records(write_rows(tmp_path / "x.jsonl", rows))
    assert [skip.line for skip in notes.skips] == [2, 3, 4]
    assert [record.kind for record in found] == ["model"]
