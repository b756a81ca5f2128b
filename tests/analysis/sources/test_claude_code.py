"""Claude Code transcripts become one timeline an agent, however their rows are spread and repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .support import calls, iso, records, report, states, write_rows

Row = dict[str, Any]


def row(kind: str, at: float, uuid: str, message: Any = None, **more: Any) -> Row:
    base = {"parentUuid": None, "isSidechain": False, "sessionId": "s1", "type": kind, "uuid": uuid}
    return {**base, "timestamp": iso(at), **({"message": message} if message else {}), **more}


def user(at: float, uuid: str, content: Any = "do it", **more: Any) -> Row:
    return row("user", at, uuid, {"role": "user", "content": content}, **more)


def said(at: float, uuid: str, message_id: str, *blocks: Row, **more: Any) -> Row:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 9}
    message = {"id": message_id, "role": "assistant", "model": "m", "content": list(blocks), "usage": usage}
    return row("assistant", at, uuid, message, **more)


def tool_use(call_id: str, name: str = "Bash", **asked: Any) -> Row:
    return {"type": "tool_use", "id": call_id, "name": name, "input": asked}


def result(
    at: float, uuid: str, call_id: str, *, told: Any = None, error: bool = False, content: str = "", **more: Any
) -> Row:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": error}
    return user(at, uuid, [block], toolUseResult=told, **more)


TEXT: Row = {"type": "text", "text": "done"}
TURN = [
    user(0, "u1"),
    said(3, "a1", "m1", TEXT),
    said(4, "a2", "m1", tool_use("t1")),
    result(9, "r1", "t1"),
    said(11, "a3", "m2", TEXT),
]


def test_turn_of_model_and_tool(tmp_path: Path) -> None:
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", TURN)).agents
    assert (agent.agent, agent.name, agent.parent) == ("s1", "claude-code", None)
    assert states(agent) == (11, 6, 5, 0)
    assert (agent.model_calls, agent.tool_calls) == (2, 1)


def test_usage_counts_once_a_message_with_cached_tokens(tmp_path: Path) -> None:
    found, _ = records(write_rows(tmp_path / "s1.jsonl", TURN))
    assert [(record.input_tokens, record.output_tokens) for record in found if record.kind == "model"] == [(125, 9)] * 2


def test_time_between_turns_is_the_persons(tmp_path: Path) -> None:
    rows = [row("progress", -20, "p1"), *TURN, row("progress", 95, "p2"), user(100, "u2"), said(102, "a4", "m3", TEXT)]
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", rows)).agents
    assert states(agent) == (122, 8, 5, 20 + 89)
    assert agent.b == pytest.approx(5 / 13)


def test_parallel_calls_are_a_union(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1", "Read")),
        said(3, "a2", "m1", tool_use("t2", "Grep")),
        result(6, "r1", "t2"),
        result(8, "r2", "t1"),
        said(9, "a3", "m2", TEXT),
    ]
    path = write_rows(tmp_path / "s1.jsonl", rows)
    assert calls(path) == [("Read", 2, 8), ("Grep", 3, 6)]
    # The first call begins while the answer is still being written: that second is generation.
    assert states(report(path).agents[0]) == (9, 4, 5, 0)


@pytest.mark.parametrize("name", ["AskUserQuestion", "ExitPlanMode"])
def test_questions_wait_for_a_person(tmp_path: Path, name: str) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1", name)),
        result(50, "r1", "t1"),
        said(51, "a2", "m2", TEXT),
    ]
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", rows)).agents
    assert states(agent) == (51, 3, 0, 48)
    assert agent.tool_calls == 0


def test_refused_call_was_a_persons_time(tmp_path: Path) -> None:
    refusal = "The user doesn't want to proceed with this tool use."
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1")),
        result(30, "r1", "t1", error=True, content=refusal),
        user(30, "i1", [{"type": "text", "text": "[Request interrupted by user for tool use]"}]),
        user(40, "u2"),
        said(41, "a2", "m2", TEXT),
    ]
    assert states(report(write_rows(tmp_path / "s1.jsonl", rows)).agents[0]) == (41, 3, 0, 38)


def test_failed_call_keeps_its_error(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1")),
        result(3, "r1", "t1", error=True, content="no such file"),
    ]
    found, _ = records(write_rows(tmp_path / "s1.jsonl", rows))
    assert [(record.name, record.error) for record in found if record.kind == "tool"] == [("Bash", "error")]


def test_sub_agent_between_the_rows_has_its_own_timeline(tmp_path: Path) -> None:
    side: Row = {"isSidechain": True}
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1", "Task", prompt="look", subagent_type="explorer")),
        user(2.5, "s1", "look", **side),
        said(5, "s2", "m2", tool_use("t2", "Grep"), parentUuid="s1", **side),
        result(6, "s3", "t2", parentUuid="s2", **side),
        said(9, "s4", "m3", TEXT, parentUuid="s3", **side),
        result(10, "r1", "t1", told={"totalDurationMs": 7500}),
        said(12, "a2", "m4", TEXT),
    ]
    found = report(write_rows(tmp_path / "s1.jsonl", rows))
    main, sub = found.agents
    assert states(main) == (12, 4, 8, 0)
    assert (sub.agent, sub.name, sub.parent) == ("s1/s1", "explorer", "s1")
    assert states(sub) == (6.5, 5.5, 1, 0)
    assert main.model_elsewhere_s == 5.5
    assert found.pooled.tool_calls == 2


def test_two_sub_agents_between_the_rows_are_told_apart(tmp_path: Path) -> None:
    side: Row = {"isSidechain": True}
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1", "Task", prompt="one"), tool_use("t2", "Task", prompt="two")),
        user(3, "x1", "two", **side),
        user(3, "y1", "one", **side),
        said(5, "x2", "m2", TEXT, parentUuid="x1", **side),
        said(6, "y2", "m3", TEXT, parentUuid="y1", **side),
        result(6, "r1", "t1"),
        result(7, "r2", "t2"),
    ]
    found, _ = records(write_rows(tmp_path / "s1.jsonl", rows))
    runs = {
        record.agent_id: record.parent_span_id for record in found if record.kind == "agent" and record.parent_agent_id
    }
    assert runs == {"s1/x1": "call:t2", "s1/y1": "call:t1"}


def sub_agent_files(folder: Path, told: Row) -> list[Path]:
    side: Row = {"isSidechain": True, "agentId": "ab12"}
    main = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1", "Agent", prompt="look", subagent_type="explorer")),
        result(3 if told.get("isAsync") else 10, "r1", "t1", told={**told, "agentId": "ab12"}),
        said(12, "a2", "m4", TEXT),
    ]
    sub = [user(2.5, "s1", "look", **side), said(9, "s2", "m3", TEXT, **side)]
    return [write_rows(folder / "s1.jsonl", main), write_rows(folder / "agent-ab12.jsonl", sub)]


def test_sub_agent_in_its_own_file_is_linked_to_its_call(tmp_path: Path) -> None:
    found = report(*sub_agent_files(tmp_path, {"totalDurationMs": 7500}))
    main, sub = found.agents
    assert (sub.agent, sub.name, sub.parent, states(sub)) == ("s1/ab12", "explorer", "s1", (7.5, 6.5, 0, 0))
    assert (states(main), main.tool_calls, main.model_elsewhere_s) == ((12, 4, 8, 0), 1, 6.5)


def test_sub_agent_in_the_background_blocks_nobody(tmp_path: Path) -> None:
    main, sub = report(*sub_agent_files(tmp_path, {"isAsync": True})).agents
    assert (main.blocked_s, main.tool_calls) == (1, 1)
    assert sub.parent == "s1"


def test_resumed_and_forked_sessions_count_history_once(tmp_path: Path) -> None:
    resumed = [*TURN, user(60, "u2"), said(61, "a4", "m3", TEXT)]
    forked = [{**old, "sessionId": "s2"} for old in TURN] + [
        user(80, "u3", sessionId="s2"),
        said(83, "a5", "m4", TEXT, sessionId="s2"),
    ]
    write_rows(tmp_path / "s1.jsonl", TURN)
    write_rows(tmp_path / "s1b.jsonl", resumed)
    write_rows(tmp_path / "s2.jsonl", forked)
    pooled = report(tmp_path).pooled
    assert (pooled.tool_calls, pooled.model_calls, pooled.blocked_s, pooled.generating_s) == (1, 4, 5, 6 + 1 + 3)
    assert pooled.wall_s - pooled.human_s == pytest.approx(11 + 1 + 3)


def test_rows_repeated_in_one_file_change_nothing(tmp_path: Path) -> None:
    once = report(write_rows(tmp_path / "once.jsonl", TURN)).agents
    assert report(write_rows(tmp_path / "twice.jsonl", [*TURN, *TURN])).agents == once


def test_call_without_result_ends_with_its_turn(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1")),
        row("progress", 4, "p1", data={"type": "bash_progress"}),
        user(5000, "u2"),
        said(5001, "a2", "m2", TEXT),
    ]
    path = write_rows(tmp_path / "s1.jsonl", rows)
    assert states(report(path).agents[0]) == (5001, 3, 2, 4996)
    assert [record.error for record in records(path)[0] if record.kind == "tool"] == ["no result"]


def test_call_open_at_the_end_of_the_file_is_open(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1")),
        row("progress", 6, "p1", data={"type": "bash_progress"}),
    ]
    pooled = report(write_rows(tmp_path / "s1.jsonl", rows)).pooled
    assert (pooled.open_calls, pooled.b_low) == (1, 0)
    assert pooled.b_high == pytest.approx(4 / 6)


def test_retries_and_their_pauses_are_overhead(tmp_path: Path) -> None:
    rows = [user(0, "u1"), row("system", 3, "e1", subtype="api_error", retryInMs=2000), said(9, "a1", "m1", TEXT)]
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", rows)).agents
    assert (agent.generating_s, agent.overhead_s) == (4, 5)


@pytest.mark.parametrize(
    ("about", "generating", "human"),
    [
        ({"trigger": "auto"}, 11 - 5 + 4, 15 - 15),
        ({"trigger": "manual", "durationMs": 3000}, 11 - 5 + 3, 0),
        ({"trigger": "manual"}, 6, 0),
    ],
)
def test_compaction_generates_where_its_length_is_known(
    tmp_path: Path, about: Row, generating: float, human: float
) -> None:
    rows = [
        *TURN,
        row("system", 15, "c1", subtype="compact_boundary", compactMetadata={"preTokens": 900, **about}),
        user(15, "c2", "summary", isCompactSummary=True),
    ]
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", rows)).agents
    assert (agent.generating_s, agent.human_s) == (generating, human)


def test_rows_of_the_program_are_no_turns(tmp_path: Path) -> None:
    rows = [
        {"type": "summary", "summary": "x", "leafUuid": "a1"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {"timestamp": iso(500)}},
        *TURN,
        user(11.5, "k1", "Stop hook feedback", isMeta=True),
        said(13, "a4", "m3", TEXT),
        said(13.2, "a5", "m4", TEXT, isApiErrorMessage=True),
        row("system", 13.5, "d1", subtype="turn_duration", durationMs=13_500),
    ]
    (agent,) = report(write_rows(tmp_path / "s1.jsonl", rows)).agents
    assert states(agent) == (13.5, 7.5, 5, 0)
    assert agent.model_calls == 3


def test_length_beside_the_rows_mends_rows_written_at_once(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(9, "a1", "m1", tool_use("t1", "WebFetch")),
        result(9, "r1", "t1", told={"durationMs": 4000}),
    ]
    path = write_rows(tmp_path / "s1.jsonl", rows)
    assert calls(path) == [("WebFetch", 5, 9)]
    assert calls(path, "model") == [("answer", 0, 5)]


def test_equal_and_backward_instants_are_counted(tmp_path: Path) -> None:
    rows = [
        user(0, "u1"),
        said(2, "a1", "m1", tool_use("t1"), tool_use("t2")),
        result(2, "r1", "t1"),
        result(1, "r2", "t2"),
        said(4, "a2", "m2", TEXT),
    ]
    odd = report(write_rows(tmp_path / "s1.jsonl", rows)).pooled.anomalies
    assert (odd.zero_length, odd.backward) == (1, 1)


def test_bad_rows_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    broken = [
        "not json",
        '{"type":"user","uuid":"x","truncated',
        "[1]",
        {**TURN[1], "uuid": "b1", "timestamp": None},
        {**TURN[1], "uuid": "b2", "timestamp": "yesterday"},
        {**TURN[1], "uuid": "b3", "message": "text"},
        {**TURN[0], "uuid": "b4", "message": None},
    ]
    found = report(write_rows(tmp_path / "s1.jsonl", [TURN[0], *broken, *TURN[1:]]))
    assert states(found.agents[0])[:3] == (11, 6, 5)
    assert [skip.line for skip in found.sources[0].skipped_lines] == [2, 3, 4, 5, 6, 7, 8]


def test_source_says_what_it_cannot_show(tmp_path: Path) -> None:
    (source,) = report(write_rows(tmp_path / "s1.jsonl", TURN)).sources
    said_limits = " ".join(source.cannot_show)
    assert all(word in said_limits for word in ("approvals", "first token", "queue", "retries"))
    assert "turns" not in said_limits
    assert "time zone" not in said_limits
