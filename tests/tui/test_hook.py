"""``kvtrace hook`` as Claude Code runs it: one process for each event, JSON on stdin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.analysis import build_report, render_json
from kvtrace.tracer.hook_events import BadEvent, HookSpan, Plan, plan, read_event
from kvtrace.tracer.hook_store import HookStore
from kvtrace.tracer.receive_server import SignalServer
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted
from kvtrace.tracer.testing import Record, read_records

pytestmark = pytest.mark.usefixtures("own_cache")

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
SESSION = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


def payload(event: str, session: str = SESSION, **fields: Any) -> dict[str, Any]:
    common = {"transcript_path": "/home/me/.claude/x.jsonl", "cwd": "/home/me", "permission_mode": "default"}
    return {"session_id": session, "hook_event_name": event, **common, **fields}


def tool(event: str, call: str = "toolu_1", name: str = "Bash", **fields: Any) -> dict[str, Any]:
    return payload(event, tool_name=name, tool_use_id=call, tool_input={"command": "secret"}, **fields)


def hook(folder: Path, given: Any, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KVTRACE_", "OTEL_"))}
    return subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "hook", *args],
        input=given if isinstance(given, str) else json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, "KVTRACE_DIR": str(folder), **environment},
    )


def quiet(done: subprocess.CompletedProcess[str]) -> bool:
    return (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Sessions:
    """Plays events at instants of its own choice, through the real store."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "run"
        self.last_ns: dict[str, int] = {}

    def at(self, second: float, given: dict[str, Any]) -> Plan:
        event = read_event(given)
        store = HookStore(self.run, event.session, "claude-code")
        now_ns = BEGIN + round(second * SECOND)
        decided = plan(event, store.open_spans(), now_ns, self.last_ns.get(event.session, now_ns))
        store.carry_out(decided)
        self.last_ns[event.session] = now_ns
        return decided

    def ended(self, operation: str) -> list[tuple[float, float]]:
        return [
            ((one.start_unix_ns - BEGIN) / SECOND, ((one.end_unix_ns or 0) - BEGIN) / SECOND)
            for one in self.records
            if one.end_unix_ns is not None and one.attributes["gen_ai.operation.name"] == operation
        ]

    @property
    def records(self) -> list[Record]:
        return read_records(self.run)

    def report(self) -> Any:
        return json.loads(render_json(build_report([self.run])))


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


def test_processes_record_and_signal_one_call(tmp_path: Path) -> None:
    arrived: list[Signal] = []
    with SignalServer(arrived.append, key="secret") as server:
        engine = {"KVTRACE_ENGINE": server.url, "KVTRACE_ENGINE_KEY": "secret"}
        for event in (
            payload("UserPromptSubmit", prompt="secret words"),
            tool("PreToolUse"),
            tool("PostToolUse", tool_response={"stdout": "secret"}, duration_ms=3),
            payload("Stop", stop_hook_active=False),
        ):
            assert quiet(hook(tmp_path, event, **engine))
    records = read_records(tmp_path)
    assert [(one.name, one.end_unix_ns is None) for one in records] == [
        ("invoke_agent claude-code", True),
        ("execute_tool Bash", True),
        ("execute_tool Bash", False),
        ("invoke_agent claude-code", False),
    ]
    start, end = records[1:3]
    assert (start.trace_id, start.span_id, start.start_unix_ns) == (end.trace_id, end.span_id, end.start_unix_ns)
    assert end.parent_id == records[0].span_id
    assert end.attributes["gen_ai.tool.call.id"] == "toolu_1"
    owner = ("Bash", SESSION, SESSION, "toolu_1")
    assert arrived == [
        ToolStarted(start.trace_id, start.span_id, start.start_unix_ns, *owner),
        ToolEnded(start.trace_id, start.span_id, end.end_unix_ns or 0, *owner),
    ]
    report = [sys.executable, "-m", "kvtrace.tui", "report", "--json", str(tmp_path)]
    (agent,) = json.loads(subprocess.run(report, capture_output=True, check=True).stdout)["agents"]
    assert (agent["name"], agent["tool_calls"], agent["open_calls"]) == ("claude-code", 1, 0)
    assert 0 < agent["b"] < 1
    assert all("secret" not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_hooks_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    calls = [f"toolu_{number}" for number in range(3)]
    assert quiet(hook(tmp_path, payload("UserPromptSubmit")))
    with ThreadPoolExecutor(3) as pool:
        for event in ("PreToolUse", "PostToolUse"):
            assert all(pool.map(quiet, pool.map(lambda call, e=event: hook(tmp_path, tool(e, call)), calls)))
    tools = [one for one in read_records(tmp_path) if one.name == "execute_tool Bash"]
    assert len(tools) == 6
    assert len({one.span_id for one in tools if one.end_unix_ns is not None}) == 3
    assert len({one.parent_id for one in tools}) == 1


@pytest.mark.parametrize(
    "given",
    [
        "",
        "garbage",
        "[]",
        "7",
        "{}",
        '{"session_id": 1, "hook_event_name": []}',
        "[" * 100_000,
        '{"session_id":"\\ud800"',
    ],
)
def test_bad_input_is_said_and_never_blocks(tmp_path: Path, given: str) -> None:
    done = hook(tmp_path, given)
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"kvtrace hook: .*; this event is not recorded\.\n", done.stderr)


def test_a_person_who_calls_it_is_told_what_it_is_for(tmp_path: Path) -> None:
    """A terminal gives no end of input: it would wait without a word."""
    leader, follower = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvtrace.tui", "hook"],
            stdin=follower,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "KVTRACE_DIR": str(tmp_path)},
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, done.stdout) == (0, "")
    assert "kvtrace hook --help" in done.stderr


@pytest.mark.parametrize("args", [("--bogus",), ("--agent",), ("extra",)])
def test_wrong_arguments_never_block(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert hook(tmp_path, tool("PreToolUse"), *args).returncode == 0


def test_folder_that_cannot_be_written_never_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = hook(tmp_path / "file", tool("PreToolUse"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr


def test_engine_that_is_down_or_refuses_never_blocks(tmp_path: Path) -> None:
    done = hook(tmp_path, tool("PreToolUse"), KVTRACE_ENGINE="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (0, "")
    assert "was not told" in done.stderr
    with SignalServer(print, key="secret") as server:
        assert "HTTP 401" in hook(tmp_path, tool("PostToolUse"), KVTRACE_ENGINE=server.url).stderr
    assert len([one for one in read_records(tmp_path) if one.name == "execute_tool Bash"]) == 2


def test_disabled_and_unknown_events_record_nothing(tmp_path: Path) -> None:
    assert quiet(hook(tmp_path, tool("PreToolUse"), KVTRACE_DISABLED="1"))
    assert quiet(hook(tmp_path, payload("Notification", message="hello")))
    assert read_records(tmp_path) == []


def test_command_loads_nothing_heavy(tmp_path: Path) -> None:
    source = """
import io, sys
from kvtrace.tui.commands.hook import command
sys.stdin = io.TextIOWrapper(io.BytesIO(sys.argv[1].encode()))
command.main(["--agent", "x"], standalone_mode=False)
heavy = ("opentelemetry", "torch", "duckdb", "textual", "rich", "http", "ssl", "asyncio", "google")
print([name for name in sys.modules if name.split(".")[0] in heavy])
"""
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps(tool("PreToolUse"))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KVTRACE_DIR": str(tmp_path)},
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert len(read_records(tmp_path)) == 2


def test_report_tells_b_of_a_session(sessions: Sessions) -> None:
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(2, tool("PreToolUse", "toolu_1"))
    sessions.at(3, tool("PreToolUse", "toolu_2", "Grep"))
    sessions.at(6, tool("PostToolUse", "toolu_2", "Grep"))
    sessions.at(8, tool("PostToolUse", "toolu_1"))
    sessions.at(10, payload("Stop"))
    sessions.at(70, payload("UserPromptSubmit"))
    sessions.at(75, tool("PreToolUse", "toolu_3"))
    sessions.at(79, tool("PostToolUseFailure", "toolu_3", error="secret"))
    sessions.at(80, payload("Stop"))
    (found,) = sessions.report()["agents"]
    assert (found["tool_calls"], found["open_calls"]) == (3, 0)
    assert found["human_s"] == pytest.approx(60)
    assert found["blocked_s"] == pytest.approx(6 + 4)
    assert found["b"] == pytest.approx(10 / 20)
    assert sessions.records[-2].attributes["error.type"] == "tool_error"


def test_wait_for_permission_is_the_persons_time(sessions: Sessions) -> None:
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(1, tool("PreToolUse"))
    sessions.at(2, payload("PermissionRequest", tool_name="Bash", tool_input={}))
    sessions.at(9, tool("PostToolUse", duration_ms=3000))
    sessions.at(10, payload("Stop"))
    assert sessions.ended("kvtrace.human_wait") == [(2, 6)]
    (found,) = sessions.report()["agents"]
    assert found["human_s"] == pytest.approx(4)
    assert found["blocked_s"] == pytest.approx(1 + 3)
    assert found["b"] == pytest.approx(4 / 6)


def test_wait_without_a_duration_is_not_made_up(sessions: Sessions) -> None:
    sessions.at(1, tool("PreToolUse"))
    sessions.at(2, payload("PermissionRequest", tool_name="Bash"))
    sessions.at(9, tool("PostToolUse"))
    assert sessions.ended("kvtrace.human_wait") == []
    assert sessions.ended("execute_tool") == [(1, 9)]


def test_interrupted_turn_ends_at_its_last_event(sessions: Sessions) -> None:
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(1, tool("PreToolUse", "toolu_1"))
    sessions.at(2, tool("PreToolUse", "toolu_2"))
    sessions.at(3600, payload("UserPromptSubmit"))
    assert sessions.ended("execute_tool") == [(1, 2), (2, 2)]
    assert sessions.ended("invoke_agent") == [(0, 2)]


def test_denied_call_ends_when_permission_was_asked(sessions: Sessions) -> None:
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(1, tool("PreToolUse"))
    sessions.at(2, payload("PermissionRequest", tool_name="Bash"))
    sessions.at(30, payload("Stop"))
    assert sessions.ended("execute_tool") == [(1, 2)]
    assert sessions.records[-2].attributes["kvtrace.outcome"] == "closed"


def test_sub_agent_has_a_timeline_of_its_own(sessions: Sessions) -> None:
    inside = {"agent_id": "agent-7", "agent_type": "Explore"}
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(1, tool("PreToolUse", "toolu_1", "Task"))
    sessions.at(2, payload("SubagentStart", **inside))
    sessions.at(3, tool("PreToolUse", "toolu_2", **inside))
    sessions.at(7, tool("PostToolUse", "toolu_2", **inside))
    sessions.at(8, payload("SubagentStop", **inside))
    sessions.at(9, tool("PostToolUse", "toolu_1", "Task"))
    sessions.at(10, payload("Stop"))
    found = {one["name"]: one for one in sessions.report()["agents"]}
    assert found["Explore"]["b"] == pytest.approx(4 / 6)
    assert found["claude-code"]["b"] == pytest.approx(8 / 10)
    assert found["Explore"]["parent"] == SESSION


def test_session_end_leaves_nothing_open(sessions: Sessions) -> None:
    sessions.at(0, payload("UserPromptSubmit"))
    sessions.at(1, tool("PreToolUse"))
    sessions.at(2, payload("SessionEnd", reason="other"))
    assert HookStore(sessions.run, SESSION, "x").open_spans() == []
    assert sessions.report()["agents"][0]["open_calls"] == 0


def test_end_without_start_is_placed_by_its_duration(sessions: Sessions) -> None:
    sessions.at(5, tool("PostToolUse", duration_ms=2000))
    sessions.at(6, tool("PostToolUse", "toolu_9"))
    assert sessions.ended("execute_tool") == [(3, 5)]


def test_session_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    assert quiet(hook(tmp_path, payload("UserPromptSubmit", session="../../../etc/passwd\0" + "x" * 500)))
    (found,) = tmp_path.rglob("*.jsonl")
    assert found.is_relative_to(tmp_path / "runs")


events = st.builds(
    lambda event, call, agent, duration: {
        **payload(event, tool_name="Bash", tool_use_id=call, duration_ms=duration),
        **({"agent_id": agent} if agent else {}),
    },
    st.sampled_from(
        [
            *("UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "Stop"),
            *("SubagentStart", "SubagentStop", "StopFailure", "Other"),
        ]
    ),
    st.sampled_from(["1", "2", None]),
    st.sampled_from([None, "s"]),
    st.none() | st.floats() | st.integers(),
)


@given(st.lists(st.tuples(events, st.integers(0, 3)), max_size=25))
def test_spans_of_any_events_are_sound(steps: Iterable[tuple[dict[str, Any], int]]) -> None:
    open_spans: dict[str, HookSpan] = {}
    now_ns = last_ns = BEGIN
    for given_event, passed in [*steps, (payload("SessionEnd"), 1)]:
        now_ns += passed
        decided = plan(read_event(given_event), open_spans.values(), now_ns, last_ns)
        for span in decided.closes:
            assert span.end_ns is not None
            assert span.start_ns <= span.end_ns
            before = open_spans.pop(span.span_id, None)
            assert before is None or before == replace(span, end_ns=None, outcome=None, error=None)
        for span in decided.opens:
            assert span.end_ns is None
            assert span.kind != "turn" or not any(
                one.kind == "turn" and one.agent == span.agent for one in open_spans.values()
            )
            open_spans[span.span_id] = span
        last_ns = now_ns
    assert open_spans == {}


@given(
    st.dictionaries(
        st.sampled_from(["session_id", "hook_event_name", "tool_name", "agent_id", "x"]),
        st.text() | st.none() | st.integers(),
    )
)
def test_any_payload_is_an_event_or_refused(given_payload: dict[str, Any]) -> None:
    try:
        read_event(given_payload)
    except BadEvent:
        return
    assert given_payload["session_id"]
