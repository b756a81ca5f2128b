"""OpenHands' two versions of events, in the layouts they are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import NoDataError

from .support import calls, iso, records, report, states, write_document, write_rows

Event = dict[str, Any]


def event(number: int, at: float, source: str, **more: Any) -> Event:
    return {"id": number, "timestamp": iso(at, zone=""), "source": source, "message": "", **more}


def action(number: int, at: float, name: str, response: str | None = None, source: str = "agent") -> Event:
    about = {"function_name": f"do_{name}", "model_response": {"id": response}} if response else None
    return event(number, at, source, action=name, args={}, **({"tool_call_metadata": about} if about else {}))


def observation(number: int, at: float, cause: int, name: str = "run") -> Event:
    return event(number, at, "agent", observation=name, cause=cause, content="", extras={})


VERSION0 = [
    event(0, -20, "environment", observation="agent_state_changed", content="", extras={}),
    action(1, 0, "message", source="user"),
    action(2, 3, "run", "r1"),
    observation(3, 5, 2),
    action(4, 6, "edit", "r1"),
    observation(5, 8, 4, "error"),
    action(6, 10, "run"),
    observation(7, 40, 6, "user_rejected"),
    action(8, 42, "finish"),
    event(9, 43, "environment", observation="agent_state_changed", content="", extras={}),
]


def test_trajectory_of_version_0(tmp_path: Path) -> None:
    path = write_document(tmp_path / "t.json", VERSION0)
    (agent,) = report(path).agents
    # The two actions of one answer: the second waits for its turn, nothing is generated in between.
    assert states(agent) == (62, 3 + 2 + 2, 2 + 2, 20 + 30)
    assert calls(path) == [("do_run", 3, 5), ("do_edit", 6, 8)]
    assert [record.error for record in records(path)[0] if record.kind == "tool"] == [None, "error"]


def test_local_times_without_a_zone_are_said(tmp_path: Path) -> None:
    (source,) = report(write_document(tmp_path / "t.json", VERSION0)).sources
    assert any("time zone" in limit for limit in source.cannot_show)


@pytest.mark.parametrize("pairs", [False, True])
def test_evaluation_output_is_an_agent_a_line(tmp_path: Path, pairs: bool) -> None:
    history = [VERSION0[1:2], VERSION0[2:4]] if pairs else VERSION0[1:4]
    rows = [{"instance_id": name, "history": history} for name in ("i1", "i2")] + [{"instance_id": "i3"}]
    found = report(write_rows(tmp_path / "output.jsonl", rows))
    assert [(agent.name, agent.blocked_s) for agent in found.agents] == [("i1", 2), ("i2", 2)]
    assert found.sources[0].skipped == 1


def test_same_trajectory_twice_counts_once(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_document(tmp_path / folder / "t.json", VERSION0)
    assert report(tmp_path).pooled.tool_calls == 2


def v1(kind: str, at: float, name: str, source: str = "agent", **more: Any) -> Event:
    return {"kind": kind, "id": name, "timestamp": iso(at, zone=""), "source": source, **more}


VERSION1 = [
    v1("SystemPromptEvent", -1, "e0"),
    v1("MessageEvent", 0, "e1", "user"),
    v1("ActionEvent", 3, "e2", tool_name="terminal", tool_call_id="c1", llm_response_id="r1"),
    v1("ActionEvent", 3, "e3", tool_name="editor", tool_call_id="c2", llm_response_id="r1"),
    v1("ObservationEvent", 8, "e4", "environment", action_id="e2", tool_call_id="c1"),
    v1("AgentErrorEvent", 9, "e5", tool_call_id="c2"),
    v1("Condensation", 11, "e6"),
    v1("ActionEvent", 12, "e7", tool_name="terminal", tool_call_id="c3"),
    v1("UserRejectObservation", 20, "e8", "environment", action_id="e7"),
    v1("MessageEvent", 22, "e9"),
    v1("PauseEvent", 23, "e10", "user"),
    v1("MessageEvent", 30, "e11", "user"),
]


@pytest.mark.parametrize("lines", [False, True])
def test_events_of_version_1(tmp_path: Path, lines: bool) -> None:
    path = write_rows(tmp_path / "e.jsonl", VERSION1) if lines else write_document(tmp_path / "e.json", VERSION1)
    (agent,) = report(path).agents
    assert states(agent) == (31, 3 + 2 + 1 + 2, 6, 1 + 8 + 7)
    assert calls(path) == [("terminal", 3, 8), ("editor", 3, 9)]


def test_stored_conversation_is_read_as_one_and_again_when_it_grows(tmp_path: Path) -> None:
    whole = report(write_document(tmp_path / "whole.json", VERSION1)).agents
    events = tmp_path / "conversation" / "events"
    events.mkdir(parents=True)
    names = [f"event-{number:05d}-{number:08x}-00aa.json" for number in range(len(VERSION1))]
    for name, each in zip(names[:6], VERSION1, strict=False):
        write_document(events / name, each)
    (agent,) = report(tmp_path / "conversation").agents
    assert (agent.name, agent.tool_calls) == ("conversation", 2)
    for name, each in zip(names[6:], VERSION1[6:], strict=True):
        write_document(events / name, each)
    found = report(tmp_path / "conversation")
    assert [states(agent) for agent in found.agents] == [states(agent) for agent in whole]
    assert sum(source.skipped for source in found.sources) == 0


def test_one_event_a_file_gives_a_sentence(tmp_path: Path) -> None:
    path = write_document(tmp_path / "event-00002.json", VERSION1[2])
    with pytest.raises(NoDataError, match="give the whole list"):
        report(path)


def test_bad_events_are_named(tmp_path: Path) -> None:
    path = write_document(
        tmp_path / "t.json",
        [*VERSION0, 3, event(10, 0, "agent") | {"timestamp": None}, event(11, 0, "agent") | {"timestamp": "?"}],
    )
    assert [skip.why for skip in records(path)[1].skips] == [
        "event without a timestamp",
        "timestamp is no instant: '?'",
    ]
