"""Codex rollouts of every age: what ran when, though older files write a call and its output at the same instant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import NoDataError

from .support import calls, iso, records, report, states, write_document, write_rows

Row = dict[str, Any]


def line(kind: str, at: float, **payload: Any) -> Row:
    return {"timestamp": iso(at), "type": kind, "payload": payload}


def meta(at: float = 0, session: str = "p1", **more: Any) -> Row:
    return line("session_meta", at, id=session, cli_version="0.1", **{"cwd": "/w", "source": "cli", **more})


def item(kind: str, at: float, **more: Any) -> Row:
    return line("response_item", at, type=kind, **more)


def event(kind: str, at: float, **more: Any) -> Row:
    return line("event_msg", at, type=kind, **more)


def call(at: float, call_id: str, name: str = "exec_command", kind: str = "function_call") -> Row:
    return item(kind, at, name=name, call_id=call_id, arguments="{}")


def output(at: float, call_id: str, said: Any = "ok", kind: str = "function_call_output") -> Row:
    return item(kind, at, call_id=call_id, output=said)


PROMPT = [event("user_message", 1, message="go"), line("turn_context", 1, model="m")]
OLD_OUTPUT = json.dumps({"output": "x", "metadata": {"exit_code": 1, "duration_seconds": 1.5}})


def test_newer_rollout_pairs_calls_with_their_outputs(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        item("reasoning", 3, summary=[]),
        call(4, "c1"),
        event("token_count", 4, info={"last_token_usage": {"input_tokens": 70, "output_tokens": 8}}),
        output(9, "c1"),
        item("message", 11, role="assistant", content=[]),
        event("agent_message", 11, message="done"),
        event("task_complete", 11.5),
    ]
    path = write_rows(tmp_path / "r.jsonl", rows)
    (agent,) = report(path).agents
    assert (agent.agent, agent.name) == ("p1", "codex")
    assert states(agent) == (11.5, 5, 5, 1)
    tokens = [(record.input_tokens, record.output_tokens) for record in records(path)[0] if record.kind == "model"]
    assert tokens == [(70, 8), (None, None)]


def test_length_in_the_output_tells_what_equal_instants_hide(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        event("agent_reasoning", 3, text=""),
        event("token_count", 6, info=None),
        item("reasoning", 6, summary=[]),
        call(6, "c1", "shell"),
        output(6, "c1", OLD_OUTPUT),
        line("turn_context", 6, model="m"),
        event("agent_message", 8, message="done"),
        item("message", 8.5, role="assistant", content=[]),
    ]
    path = write_rows(tmp_path / "r.jsonl", rows)
    assert calls(path) == [("shell", 4.5, 6)]
    assert calls(path, "model") == [("answer", 1, 4.5), ("answer", 6, 8)]
    (tool,) = [record for record in records(path)[0] if record.kind == "tool"]
    assert (tool.confidence, tool.error) == ("derived", "error")


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ("Chunk ID: 1\nWall time: 2.5000 seconds\nProcess exited with code 0\nOutput:\nx", 3.5),
        ({"content": OLD_OUTPUT, "success": False}, 4.5),
        ([{"type": "output_text", "text": "Wall time: 2 seconds"}], 6),
        ("{broken", 6),
        (None, 6),
    ],
)
def test_lengths_are_found_in_every_form_of_output(tmp_path: Path, said: Any, start: float) -> None:
    path = write_rows(tmp_path / "r.jsonl", [meta(), *PROMPT, call(6, "c1"), output(6, "c1", said)])
    assert calls(path) == [("exec_command", start, 6)]


def test_length_never_shortens_what_the_rows_show(tmp_path: Path) -> None:
    rows = [meta(), *PROMPT, call(3, "c1"), output(30, "c1", "Wall time: 10.0 seconds\nOutput:")]
    assert calls(write_rows(tmp_path / "r.jsonl", rows)) == [("exec_command", 3, 30)]


def test_polling_a_process_blocks_only_during_the_calls(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        call(2, "c1"),
        output(12, "c1", "Wall time: 10.0 seconds\nProcess running with session ID 7"),
        call(15, "c2", "write_stdin"),
        output(20, "c2"),
        item("message", 21, role="assistant", content=[]),
    ]
    (agent,) = report(write_rows(tmp_path / "r.jsonl", rows)).agents
    assert (agent.blocked_s, agent.generating_s, agent.windows) == (15, 1 + 3 + 1, 2)


def test_every_kind_of_call_is_read(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        call(2, "c1", "apply_patch", "custom_tool_call"),
        output(3, "c1", "Done!", "custom_tool_call_output"),
        {**item("local_shell_call", 4, call_id="c2", status="completed", action={})},
        output(6, "c2"),
        item("web_search_call", 8, status="completed", action={}),
        item("message", 9, role="assistant", content=[]),
    ]
    path = write_rows(tmp_path / "r.jsonl", rows)
    assert calls(path) == [("apply_patch", 2, 3), ("local_shell", 4, 6)]
    assert calls(path, "model")[-1] == ("answer", 6, 9)


def test_parallel_calls_belong_to_one_answer(tmp_path: Path) -> None:
    rows = [meta(), *PROMPT, call(2, "c1"), call(3, "c2"), output(5, "c2"), output(9, "c1"), event("agent_message", 10)]
    (agent,) = report(write_rows(tmp_path / "r.jsonl", rows)).agents
    assert (agent.model_calls, agent.tool_calls) == (2, 2)
    assert states(agent) == (10, 3, 6, 1)


def test_time_between_turns_is_the_persons(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        event("agent_message", 2),
        item("message", 61, role="user", content=[]),
        event("user_message", 61, message="more"),
        event("agent_message", 63),
        event("turn_aborted", 64, reason="interrupted"),
    ]
    assert states(report(write_rows(tmp_path / "r.jsonl", rows)).agents[0]) == (64, 3, 0, 1 + 59)


def test_compaction_is_generation(tmp_path: Path) -> None:
    rows = [
        meta(),
        *PROMPT,
        call(2, "c1"),
        output(3, "c1"),
        line("compacted", 8, message=""),
        event("agent_message", 10),
    ]
    assert calls(write_rows(tmp_path / "r.jsonl", rows), "model") == [
        ("answer", 1, 2),
        ("answer", 3, 8),
        ("answer", 8, 10),
    ]


def forked(source: Any) -> list[Row]:
    return [
        meta(20, "p2", forked_from_id="p1", source=source),
        meta(20.001),
        event("user_message", 20.002, message="go"),
        call(20.002, "c1"),
        output(20.003, "c1"),
        event("user_message", 20.01, message="look"),
        call(24, "c9"),
        output(26, "c9"),
        event("agent_message", 27),
    ]


PARENT = [
    meta(),
    *PROMPT,
    call(2, "c1"),
    output(9, "c1"),
    call(19, "c2", "spawn_agent"),
    output(20, "c2", json.dumps({"agent_id": "p2"})),
    call(21, "c3", "wait"),
    output(28, "c3"),
    event("agent_message", 30),
]


def test_copied_history_of_a_sub_agent_is_not_its_own(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", PARENT)
    write_rows(
        tmp_path / "b.jsonl",
        forked({"subagent": {"thread_spawn": {"parent_thread_id": "p1", "agent_role": "explorer"}}}),
    )
    main, sub = report(tmp_path).agents
    assert (main.agent, main.tool_calls, main.blocked_s) == ("p1", 3, 7 + 1 + 7)
    assert (sub.agent, sub.parent, sub.tool_calls, sub.blocked_s) == ("p1/p2", "p1", 1, 2)
    # From the moment its parent asks for it.
    assert sub.wall_s == 8


def test_copied_history_of_a_fork_is_not_its_own(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", PARENT)
    write_rows(tmp_path / "b.jsonl", forked("cli"))
    pooled = report(tmp_path).pooled
    assert (pooled.agents, pooled.tool_calls, pooled.blocked_s) == (2, 4, 17)


def test_broken_rows_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    rows = [
        meta(),
        "{",
        "[]",
        {"type": "event_msg", "payload": {}},
        {"timestamp": iso(1), "type": "event_msg"},
        *PROMPT,
        event("agent_message", 2),
    ]
    found = report(write_rows(tmp_path / "r.jsonl", rows))
    assert [skip.line for skip in found.sources[0].skipped_lines] == [2, 3, 4, 5]
    assert found.pooled.model_calls == 1


def test_rollout_without_instants_gives_a_sentence(tmp_path: Path) -> None:
    rows = [
        {"id": "p1", "timestamp": iso(0), "instructions": None},
        {"record_type": "state"},
        {"type": "message", "role": "user"},
    ]
    with pytest.raises(NoDataError, match="carry no instants"):
        report(write_rows(tmp_path / "old.jsonl", rows))


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([{"type": "thread.started", "thread_id": "x"}, {"type": "item.completed", "item": {}}], "rollout"),
        ([{"type": "system", "subtype": "init", "session_id": "x", "apiKeySource": "none"}], "transcript"),
    ],
)
def test_event_streams_without_instants_give_a_sentence(tmp_path: Path, rows: list[Row], where: str) -> None:
    for path in (write_rows(tmp_path / "e.jsonl", rows), write_document(tmp_path / "e.json", {"events": rows})):
        with pytest.raises(NoDataError, match=f"no instants.*{where}"):
            report(path)
